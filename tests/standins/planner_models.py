"""Tiny models of every architecture that the planner counts, and a plan by its settings: helpers for its tests."""

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

from scope_lite.cli import planner
from scope_lite.method.config import TextConfig, method_config
from scope_lite.models.adapters import LORA_TARGETS

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


def made(model: str = "Qwen3-8B", gpu: str = "24", method: str = "cotraining", **values: Any) -> planner.Plan:
    """The plan of a run with Unsloth and vLLM, ten turns of 96 tokens; ``values`` are its settings, text's too."""
    text = {
        "training_engine": "unsloth", "rollout_engine": "vllm", "turns": 10, "max_new_tokens": 96, "reply_tokens": 96,
        "micro_batch": 1, "vllm_share": 0.6,
    }  # fmt: skip
    keys: dict[str, Any] = {"world": "p4g", "model": model, "groups": 8, "lora_rank": 16}
    for name, value in values.items():
        (text if name in TextConfig.model_fields else keys)[name] = value
    return planner.plan(method_config(method, **keys, text=text), planner.card(gpu))
