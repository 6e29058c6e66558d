"""The nano models: tiny causal LMs pre-trained to speak a world's acts, and the panel of simulators."""

from scope_lite.experiments.nano_models.build import adapt, build, ensure_models, kl_table, write_manifest
from scope_lite.experiments.nano_models.panels import panel_members
from scope_lite.experiments.nano_models.teach import (
    FAMILIES,
    Renderer,
    build_tokenizer,
    pretrain,
    sample_dialogues,
    user_kl,
)

__all__ = [
    "FAMILIES",
    "Renderer",
    "adapt",
    "build",
    "build_tokenizer",
    "ensure_models",
    "kl_table",
    "panel_members",
    "pretrain",
    "sample_dialogues",
    "user_kl",
    "write_manifest",
]
