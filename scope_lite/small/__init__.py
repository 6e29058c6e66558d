"""LoRA adapters on SmolLM2 that speak like people: fine-tuned on real dialogues, a few megabytes each."""

from scope_lite.small.data import ROLES, Example, encode, split_of
from scope_lite.small.finetune import finetune
from scope_lite.small.training import FinetuneConfig, Progress

__all__ = ["ROLES", "Example", "FinetuneConfig", "Progress", "encode", "finetune", "split_of"]
