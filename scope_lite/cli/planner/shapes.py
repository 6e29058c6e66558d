"""The shape of a decoder-only language model, and the counts that follow from it: parameters, LoRA, FLOPs, KV bytes.

Known models of the paper are in a table; any other is read from its ``config.json``. Nothing is loaded.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from scope_lite.store.contents import EMBEDDED
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import checked_place, expanded


@dataclass(frozen=True)
class ModelShape:
    """A transformer of the Llama kind: RMSNorm, rotary positions, grouped-query attention, gated MLP."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """whether the head shares the embedding's weights"""
    max_context: int
    qk_norm: Literal["none", "head", "full"] = "none"
    """norms on queries and keys: none (Llama), over each head (Qwen3), over all heads together (Olmo 3)"""
    qkv_bias: bool = False
    window: int | None = None
    """tokens that a sliding-window layer looks back"""
    windowed_layers: int = 0

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads together; the values' width is the same."""
        return self.kv_heads * self.head_dim

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of a layer's seven matrices: q, k, v, o, gate, up, down."""
        d, q, k, f = self.hidden, self.queries, self.keys, self.intermediate
        return ((d, q), (d, k), (d, k), (q, d), (d, f), (d, f), (f, d))

    @property
    def matrices(self) -> int:
        """Parameters in the layers' matrices, which LoRA adapts and quantisation shrinks."""
        return self.layers * sum(i * o for i, o in self.linears)

    @property
    def head(self) -> int:
        """Parameters of the head, shared or not."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """All parameters, exactly; a tied head counts once."""
        norms = {"none": 0, "head": 2 * self.head_dim, "full": self.queries + self.keys}[self.qk_norm]
        bias = self.queries + 2 * self.keys if self.qkv_bias else 0
        layer = 2 * self.hidden + norms + bias
        return self.matrices + self.layers * layer + self.hidden + self.head * (1 if self.tied else 2)

    def lora(self, rank: int, head: bool = False) -> int:
        """Parameters of one LoRA adapter on all seven matrices, and on the head if asked for."""
        layer = sum(rank * (i + o) for i, o in self.linears)
        return self.layers * layer + (rank * (self.hidden + self.vocabulary) if head else 0)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the bf16 key-value cache of one sequence; sliding layers keep their window only."""
        seen = min(tokens, self.window) if self.window else tokens
        full = self.layers - self.windowed_layers
        return 2 * 2 * self.keys * (full * tokens + self.windowed_layers * seen)

    def attention_flops(self, tokens: int) -> float:
        """FLOPs of attention in a forward pass over one sequence, causal: half of 4 T² per layer and query channel."""
        window = min(tokens, self.window) if self.window else tokens
        full = self.layers - self.windowed_layers
        # a window of W is a band of T W less the triangle that is not there at the start
        band = tokens * window - window**2 / 2
        return 4 * self.queries * (full * tokens**2 / 2 + self.windowed_layers * band)


KNOWN = (
    # the config.json that each model's publisher ships; the counts that follow are checked against transformers
    ModelShape("Qwen3-4B-Instruct-2507", 36, 2560, 9728, 32, 8, 128, 151_936, True, 262_144, "head"),
    ModelShape("Qwen3-8B", 36, 4096, 12_288, 32, 8, 128, 151_936, False, 40_960, "head"),
    ModelShape(
        "Olmo-3-7B-Instruct", 32, 4096, 11_008, 32, 32, 128, 100_278, False, 65_536, "full",
        window=4096, windowed_layers=24,
    ),
    ModelShape("SmolLM2-135M-Instruct", 30, 576, 1536, 9, 3, 64, 49_152, True, 8192),
)  # fmt: skip

QK_NORM: dict[str, Literal["none", "head", "full"]] = {
    "llama": "none", "mistral": "none", "qwen2": "none", "qwen3": "head", "olmo2": "full", "olmo3": "full",
}  # fmt: skip
"""architectures (``model_type``) whose parameters this module can count"""


def shape_of(model: str) -> ModelShape:
    """A known model by its name (an organisation before it is ignored), or the one whose config.json is in a folder.

    Raises:
        ScopeError: if it is neither, or of an architecture that is not counted here.
    """
    if (folder := expanded(checked_place(model, "model"))).is_dir():
        if not (folder / "config.json").is_file():
            raise ScopeError(f"{folder} has no config.json: give the folder of a model, or a name")
        from scope_lite.models.folders import read_config

        # through transformers, so that left-out keys get their defaults
        return dataclasses.replace(from_config(read_config(folder)), name=folder.resolve().name)
    base = model.partition("+")[0]  # an adapter changes no shape
    name = {EMBEDDED: "SmolLM2-135M-Instruct"}.get(base, base.rsplit("/", 1)[-1]).lower()
    for shape in KNOWN:
        if shape.name.lower() == name:
            return shape
    options = [shape.name for shape in KNOWN]
    raise ScopeError(f"{closest(model, options, 'model')}; or give the folder of any other (its config.json is enough)")


def from_config(config: Any) -> ModelShape:
    """The shape that a transformers configuration describes.

    Raises:
        ScopeError: if its architecture is not counted here.
    """
    kind = config.model_type
    if kind not in QK_NORM:
        raise ScopeError(f"models of type {kind!r} cannot be planned yet; those that can: {', '.join(QK_NORM)}")
    windowed = [kind for kind in getattr(config, "layer_types", None) or [] if kind == "sliding_attention"]
    return ModelShape(
        name=config.name_or_path or kind,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
        max_context=config.max_position_embeddings,
        qk_norm=QK_NORM[kind],
        qkv_bias=kind == "qwen2",
        window=config.sliding_window if windowed else None,
        windowed_layers=len(windowed),
    )
