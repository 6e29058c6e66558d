"""The experiments behind the figures: which runs each one needs, and its table, live or frozen."""

from scope_lite.experiments.definitions import EXPERIMENTS, FROZEN_METHODS, Experiment, Variant, runs_of, with_axes
from scope_lite.experiments.dialogues import as_text
from scope_lite.experiments.tables import (
    Source,
    build,
    dialogues,
    frozen_table,
    hours_for,
    live_table,
    table,
    unfinished,
)

__all__ = [
    "EXPERIMENTS",
    "FROZEN_METHODS",
    "Experiment",
    "Source",
    "Variant",
    "as_text",
    "build",
    "dialogues",
    "frozen_table",
    "hours_for",
    "live_table",
    "runs_of",
    "table",
    "unfinished",
    "with_axes",
]
