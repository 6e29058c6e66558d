"""Run folders: one folder per training run, which can be read while it grows and resumed after a crash.

``folder`` writes one run under a lock, ``checkpoints`` keeps its weights, ``tables`` reads many runs into tidy
tables, ``files`` holds the few ways in which we touch the disk. Nothing here imports torch until weights are
saved or loaded, so listing runs and drawing figures stay quick.
"""

from __future__ import annotations

from scope_lite.runs.checkpoints import Checkpoint
from scope_lite.runs.folder import RunFolder, folder_path, is_finished, read_status
from scope_lite.runs.tables import (
    Comparison,
    Prunable,
    compare,
    find,
    list_runs,
    load_metrics,
    load_rollouts,
    load_timing,
    prune,
)

__all__ = [
    "Checkpoint",
    "Comparison",
    "Prunable",
    "RunFolder",
    "compare",
    "find",
    "folder_path",
    "is_finished",
    "list_runs",
    "load_metrics",
    "load_rollouts",
    "load_timing",
    "prune",
    "read_status",
]
