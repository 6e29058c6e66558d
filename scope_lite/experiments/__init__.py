"""The experiments behind the figures: which runs each one needs, and its table, live or frozen.

``definitions`` (experiments.yaml) says which runs, ``parallel`` makes them, ``tables`` and ``summaries`` tell what came
of them. ``claims`` (claims.yaml) holds the paper's claims against the tables, and says whether they hold. ``referee``
and ``contrasts`` compare methods; ``nano_models`` makes the shipped models of acts and chooses the panels,
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
