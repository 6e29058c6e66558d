"""Tiny models of every architecture that the planner counts: a helper for its tests."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from scope_lite.models.lora import LORA_TARGETS

CONFIGS = {
    "qwen3": Qwen3Config, "llama": LlamaConfig, "olmo3": Olmo3Config, "olmo2": Olmo2Config, "qwen2": Qwen2Config,
    "mistral": MistralConfig,
}  # fmt: skip
ROWS, TOKENS = 2, 48
RANK = 4


def tiny(kind: str, layers: int = 2, tied: bool = True, **sizes: int) -> PretrainedConfig:
    """A config whose widths all differ, so that a mix-up of two changes a count."""
    shape = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2} | sizes
    head = {} if kind == "qwen2" else {"head_dim": 24}
    return CONFIGS[kind](
        **shape, **head, num_hidden_layers=layers, vocab_size=120, tie_word_embeddings=tied, pad_token_id=0,
        eos_token_id=1, bos_token_id=1, use_sliding_window=False,
    )  # fmt: skip


def adapted(config: PretrainedConfig, dtype: torch.dtype = torch.bfloat16) -> Any:
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").requires_grad_(False)
    return get_peft_model(model, LoraConfig(r=RANK, target_modules=list(LORA_TARGETS)))


def ids() -> torch.Tensor:
    return torch.arange(ROWS * TOKENS).view(ROWS, TOKENS) % 120
