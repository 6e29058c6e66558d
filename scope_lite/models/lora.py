"""Put a LoRA adapter on every matrix of every layer, and make sure that nothing else is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from scope_lite.store.errors import ScopeError

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "gate_up_proj")
"""what some models (Phi-3) hold in one matrix; an adapter of rank r on it has r directions for all of its parts"""


def lora_matrices(model: PreTrainedModel, rank: int, head: bool = False) -> list[str]:
    """The modules that an adapter is put on: every matrix between embedding and head, and the head if asked for.

    Raises:
        ScopeError: a matrix of another kind, which would be left out without a word, or a rank above a matrix's own.
    """
    if hasattr(model, "peft_config"):
        raise ScopeError("this model has an adapter already: name its plain base")
    ends = {model.get_input_embeddings(): False, model.get_output_embeddings(): head}
    found: dict[str, nn.Linear] = {}
    for name, module in model.named_modules():
        if module in ends:
            wanted, named = ends[module], True
        else:
            wanted = any(p.ndim > 1 for p in module.parameters(recurse=False))
            named = name.rpartition(".")[2] in LORA_TARGETS + FUSED
        if wanted and not (named and isinstance(module, nn.Linear)):
            kinds = ", ".join(LORA_TARGETS + FUSED)
            raise ScopeError(
                f"cannot train an adapter on this {model.config.model_type}: {name} is none of the matrices that it "
                f"can be put on ({kinds}); choose another model"
            )
        if wanted:
            found[name] = module
    least = min((min(m.in_features, m.out_features) for m in found.values()), default=0)
    if not 1 <= rank <= least:
        raise ScopeError(f"lora_rank is {rank}, and the model's smallest matrix has rank {least}: take no more")
    return list(found)


def add_lora(model: PreTrainedModel, rank: int, alpha: int, seed: int, head: bool = False) -> Any:
    """The model with a fresh trainable adapter, as peft wraps it; the global random state stays as it is.

    Raises:
        ScopeError: as :func:`lora_matrices` and :func:`require_trained`.
    """
    matrices = lora_matrices(model, rank, head)
    config = LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=kinds_of(matrices), task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft = get_peft_model(model, config)
    require_trained(peft.get_base_model(), matrices)
    return peft


def kinds_of(matrices: Iterable[str]) -> list[str]:
    """The last parts of their names, each once, by which peft finds them."""
    return sorted({name.rpartition(".")[2] for name in matrices})


def require_trained(model: nn.Module, matrices: Iterable[str], adapter: str = "default") -> None:
    """Refuse to train more, or less, than one adapter's two factors on each of ``matrices``.

    Raises:
        ScopeError: names a parameter that is trained and should not be, or the other way round.
    """
    wanted = {f"{name}.lora_{factor}.{adapter}.weight" for name in matrices for factor in "AB"}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    if odd := sorted(wanted ^ trained):
        fault = "would be trained beside the adapter" if odd[0] in trained else "of the adapter would not be trained"
        raise ScopeError(f"{odd[0]} {fault}: train on a plain base, or choose another model")


def require_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse an adapter's tensors by name and shape unless they are exactly those of ``own``.

    Raises:
        ScopeError: names a tensor.
    """
    shapes, expected = ({name: t.shape for name, t in tensors.items()} for tensors in (state, own))
    if odd := sorted(name for name in shapes.keys() | expected if shapes.get(name) != expected.get(name)):
        missing, surplus = odd[0] not in shapes, odd[0] not in expected
        raise ScopeError(
            f"it {'lacks' if missing else 'has no place for' if surplus else 'has another shape for'} {odd[0]}"
        )
