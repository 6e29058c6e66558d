"""Several models of one kind computed in one pass, each with its own weights: products become batches of products.

A tiny model's time is the number of its operations, not their size, so five cost little more than one. Rows of a batch
belong to the models in turn, equally many to each. The result equals each model's own up to rounding.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel


def share_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A second module tree over the very same parameter tensors."""
    return copy.deepcopy(model, memo={id(t): t for t in (*model.parameters(), *model.buffers())})


class Stacked(nn.Module):
    """One module with a weight that all models share, or with one for each of them."""

    def __init__(self, module: Any):
        super().__init__()
        self.module: Any = module
        self.weight: Tensor = module.weight.data
        del module._parameters["weight"]
        self.alone = self.weight.ndim

    def forward(self, x: Tensor) -> Tensor:
        weight, models = self.weight, len(self.weight)
        if weight.ndim > self.alone and isinstance(self.module, nn.Linear):
            product = torch.bmm(x.reshape(models, -1, x.shape[-1]), weight.mT)
            return product.view(*x.shape[:-1], product.shape[-1])
        if weight.ndim > self.alone and isinstance(self.module, nn.Embedding):
            first = torch.arange(models).repeat_interleave(len(x) // models) * weight.shape[1]
            return functional.embedding(x + first[:, None], weight.flatten(0, 1))
        if weight.ndim > self.alone:  # a norm multiplies by its weight
            weight = weight.repeat_interleave(len(x) // models, 0).view(len(x), *[1] * (x.ndim - 2), -1)
        self.module.weight = weight
        result: Tensor = self.module(x)
        return result


class Stack:
    """Some models of one kind, as they are now."""

    def __init__(self, models: Sequence[PreTrainedModel], base: PreTrainedModel):
        """``base``: any model of their kind, in which every weight is a parameter."""
        self.tree = tree_of(base)
        self.modules = weighted(self.tree)
        weights = zip(*([module.weight for module in weighted(model.model)] for model in models), strict=True)
        self.weights = [own[0] if all(w is own[0] for w in own) else torch.stack(own) for own in weights]
        # a module would register a parameter; a base's is frozen
        self.weights = [w.detach() if isinstance(w, nn.Parameter) else w for w in self.weights]

    def read(self, ids: Int[Tensor, "b t"], **options: Any) -> Float[Tensor, "b t d"]:
        """Last hidden states."""
        for module, weight in zip(self.modules, self.weights, strict=True):
            module.weight = weight
        hidden: Tensor = self.tree(input_ids=ids, **options).last_hidden_state
        return hidden


_weighted: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()


def weighted(model: nn.Module) -> list[Any]:
    """The modules of a model that have a weight, in its order; looked for once."""
    if model not in _weighted:
        inside = {id(module.module) for module in model.modules() if isinstance(module, Stacked)}
        _weighted[model] = [m for m in model.modules() if hasattr(m, "weight") and id(m) not in inside]
    return _weighted[model]


_kinds: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()
_trees: dict[str, nn.Module] = {}


def kind_of(model: PreTrainedModel) -> str:
    """What models that can be stacked have in common: everything but their weights."""
    if model not in _kinds:
        settings = {k: v for k, v in model.config.to_dict().items() if k != "_name_or_path"}
        # what is more than weights is nobody else's kind
        own = id(model) if any(not name.endswith("weight") for name, _ in model.named_parameters()) else None
        _kinds[model] = json.dumps([type(model).__name__, settings, own], sort_keys=True, default=str)
    return _kinds[model]


def tree_of(base: PreTrainedModel) -> nn.Module:
    """Modules for stacks of this kind, without the head; made once."""
    if (kind := kind_of(base)) not in _trees:
        tree = share_weights(base).model
        for name in [name for name, module in tree.named_modules() if "weight" in module._parameters]:
            above, _, last = name.rpartition(".")
            setattr(tree.get_submodule(above), last, Stacked(tree.get_submodule(name)))
        _trees[kind] = tree
    return _trees[kind]
