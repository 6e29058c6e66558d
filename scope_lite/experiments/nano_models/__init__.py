"""The nano models: tiny causal LMs pre-trained to speak a world's acts, and the panel of simulators."""

from scope_lite.experiments.nano_models.build import adapt, build, ensure_models, kl_table
from scope_lite.experiments.nano_models.panels import panel_members
from scope_lite.experiments.nano_models.teach import (
    FAMILIES,
    Renderer,
    build_tokenizer,
    pretrain,
    sample_dialogues,
    user_kl,
)
