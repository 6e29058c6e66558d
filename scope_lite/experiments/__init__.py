"""The experiments behind the figures: which runs each one needs, and its table, live or frozen.

``definitions`` (experiments.yaml) says which runs, ``parallel`` makes them, ``tables`` and ``summaries`` tell what came
of them. ``claims`` holds the paper's claims against the tables: ``claims.yaml`` says what is claimed, ``verdicts``
whether it holds, ``sentences`` how that is said. ``referee`` and ``contrasts`` compare methods; ``nano_models`` makes
the shipped models of acts and chooses the panels, ``text_models`` makes adapters. What is not here: how a run is made
(``method``), and what is drawn (``figures``).
"""

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
