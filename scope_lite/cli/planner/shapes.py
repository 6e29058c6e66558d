"""The shape of a decoder-only language model, from its config and its model on the meta device, and the bytes it takes.

Those of the registry are known; any other is read from its ``config.json``. Nothing is loaded.
Bytes are those of transformers and peft in bf16. Unsloth's fused kernels keep less: for it they are an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from scope_lite.models.registry import models
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import checked_place, expanded

COUNTED = ("llama", "mistral", "qwen2", "qwen3", "olmo2", "olmo3")
"""architectures (``model_type``) whose tensors are counted here: RMSNorm, rotary positions, gated MLP"""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""of a weight in 4 bits: a byte of scale for a block of 64, a float for 256 of those"""


@dataclass(frozen=True)
class ModelShape:
    """What the planner asks of a model."""

    name: str
    config: Any
    """of transformers, in which left-out keys have their defaults"""
    parameters: int
    """all of them; a tied head counts once"""
    matrices: int
    """of these, in the layers' seven matrices, which LoRA adapts and quantisation shrinks"""
    largest_matrix: int
    adapted: int
    """inputs and outputs of those matrices together: parameters of a LoRA adapter of rank 1"""
    queries: int
    """width of all query heads together"""
    keys: int
    """width of all key heads together; the values' width is the same"""
    qk_norms: int
    """numbers that a layer's norms on queries and keys keep for each token"""

    def lora(self, rank: int, head: bool = False) -> int:
        """Parameters of one LoRA adapter on all seven matrices, and on the head if asked for."""
        return rank * (self.adapted + (self.config.hidden_size + self.config.vocab_size if head else 0))

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the bf16 key-value cache of one sequence; sliding layers keep their window only."""
        kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * self.config.num_hidden_layers
        seen = [min(tokens, self.config.sliding_window) if kind == "sliding_attention" else tokens for kind in kinds]
        return 2 * 2 * self.keys * sum(seen)

    # bytes, as the tests count them tensor by tensor

    def weight_bytes(self, bits: int) -> float:
        """The frozen base: bf16, or its layers' matrices in NF4 (embedding, head and norms stay in bf16)."""
        small = NF4_BYTES if bits == 4 else 2
        return small * self.matrices + 2 * (self.parameters - self.matrices)

    def saved_per_token(self, rank: int) -> int:
        """Bytes that one layer keeps for the backward pass, for each token, in bf16 under LoRA.

        peft computes its adapters in fp32, so each adapted matrix keeps an fp32 copy of its input (q, k, v, gate and up
        each their own copy of the same); the norms keep fp32 inputs and one inverse deviation.
        """
        d, q, k, f = self.config.hidden_size, self.queries, self.keys, self.config.intermediate_size
        adapted = 4 * (5 * d + q + f) + 4 * 7 * rank
        norms = 2 * (4 * d + 4) + 4 * self.qk_norms
        attention = 2 * 2 * (q + k) + 4 * self.config.num_attention_heads  # q, k, v, output; log-sum-exp
        mlp = 3 * 2 * f  # gate, its activation, up
        return adapted + norms + attention + mlp

    def kept_activations(self, rank: int, tokens: int, checkpointing: bool) -> float:
        """Bytes that a forward pass over ``tokens`` keeps for the backward pass, logits aside."""
        layers, d = self.config.num_hidden_layers, self.config.hidden_size
        if checkpointing:
            return tokens * (layers * 2 * d + 4 * d + 4)  # each layer's input, and the final norm
        # the final norm takes what the first layer's does not need: the embedding is frozen, no gradient goes there
        return tokens * layers * self.saved_per_token(rank)

    def backward_extra(self, rank: int, tokens: int, checkpointing: bool) -> float:
        """Bytes that the backward pass through one layer needs on top: the layer computed again, and its gradients."""
        again = self.saved_per_token(rank) if checkpointing else 0
        gradients = max(20 * self.config.hidden_size, 4 * self.config.intermediate_size, 8 * self.queries)
        return tokens * (again + gradients)

    def reading_per_token(self) -> int:
        """Bytes for each token of a prompt while transformers reads it: the widest layer's tensors, nothing kept."""
        d = self.config.hidden_size
        return max(12 * self.config.intermediate_size + 14 * d, 10 * self.queries + 8 * d, 20 * d)

    def logit_bytes(self, tokens: int, unsloth: bool) -> float:
        """Bytes at the head's peak: fp32 log probabilities, their gradient, and that of the logits.

        ``models.hf`` has its peak before: logits, their sharpened copy, a row of allowed tokens for each, their sum.
        """
        return (12.0 if unsloth else 16.0) * self.config.vocab_size * tokens


def shape_of(model: str) -> ModelShape:
    """A known model by its name (an organisation before it is ignored), or the one whose config.json is in a folder.

    Raises:
        ScopeError: if it is neither, or of an architecture that is not counted here.
    """
    if (folder := expanded(checked_place(model, "model"))).is_dir():
        if not (folder / "config.json").is_file():
            raise ScopeError(f"{folder} has no config.json: give the folder of a model, or a name")
        from scope_lite.models.folders import read_config

        return replace(from_config(read_config(folder)), name=folder.resolve().name)
    base = model.partition("+")[0]  # an adapter changes no shape
    wanted = base.rsplit("/", 1)[-1].lower()
    for name, entry in models().items():
        if wanted in (name, entry.title.lower()):
            return _known(name)
    raise ScopeError(f"{closest(model, list(models()), 'model')}; or give the folder of any other (its config.json)")


@cache
def _known(name: str) -> ModelShape:
    from transformers import AutoConfig

    entry = models()[name]
    return replace(from_config(AutoConfig.for_model(**entry.shape)), name=entry.title)


def from_config(config: Any) -> ModelShape:
    """The shape that a transformers configuration describes.

    Raises:
        ScopeError: if its architecture is not counted here.
    """
    if config.model_type not in COUNTED:
        raise ScopeError(
            f"models of type {config.model_type!r} cannot be planned; those that can: {', '.join(COUNTED)}"
        )
    import torch
    from transformers import AutoModelForCausalLM

    from scope_lite.models.adapters import LORA_TARGETS

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linears = [module for name, module in model.named_modules() if name.rpartition(".")[2] in LORA_TARGETS]
    attention = model.model.layers[0].self_attn
    widths = {"q": attention.q_proj.out_features, "k": attention.k_proj.out_features}
    # over each head, or over all together; most architectures have none
    norms = {name: norm.weight.numel() for name in widths if (norm := getattr(attention, f"{name}_norm", None))}
    return ModelShape(
        name=config.name_or_path or config.model_type,
        config=config,
        parameters=sum(p.numel() for p in model.parameters()),
        matrices=sum(linear.weight.numel() for linear in linears),
        largest_matrix=max(linear.weight.numel() for linear in linears),
        adapted=sum(linear.in_features + linear.out_features for linear in linears),
        queries=widths["q"],
        keys=widths["k"],
        qk_norms=sum(widths[name] + widths[name] // size for name, size in norms.items()),
    )
