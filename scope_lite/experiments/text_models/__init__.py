"""LoRA adapters on SmolLM2 that speak like people, or like a user who was aligned: a few megabytes each."""

from scope_lite.experiments.text_models.align import AlignConfig, align
from scope_lite.experiments.text_models.data import Example, encode, split_of
from scope_lite.experiments.text_models.finetune import FinetuneConfig, finetune

__all__ = ["AlignConfig", "Example", "FinetuneConfig", "align", "encode", "finetune", "split_of"]
