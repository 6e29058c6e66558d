"""The experiments behind the figures: which runs each one needs, and its table, live or frozen.

``definitions`` (experiments.yaml) says which runs, ``parallel`` makes them, ``tables`` and ``summaries`` tell what came
of them. ``claims`` tests the paper's claims (listed in claims.yaml) on the tables, and words the verdicts. ``referee``
and ``contrasts`` compare methods; ``nano_models`` makes the shipped models of acts and writes each world's panel.yaml,
``text_models`` makes adapters. What is not here: how a run is made (``method``), and what is drawn (``figures``).
"""

from __future__ import annotations

from scope_lite.experiments.definitions import EXPERIMENTS, FROZEN_METHODS, Experiment, Variant, runs_of, with_axes
from scope_lite.experiments.tables import (
    Source,
    as_text,
    build,
    dialogues,
    frozen_table,
    hours_for,
    live_table,
    table,
    unfinished,
)
