"""Run folders: one folder per training run, which can be read while it grows and resumed after a crash.

``folder`` writes one run under a lock, ``checkpoints`` keeps its weights, ``tables`` reads many runs into tidy
tables, ``dialogues`` gives what they kept in words, ``export`` hands their numbers to other viewers, ``files`` holds
the few ways in which we touch the disk. Nothing here imports torch until weights are saved or loaded, so listing runs
and drawing figures stay quick.
"""

from __future__ import annotations

from scope_lite.store.checkpoints import Checkpoint
from scope_lite.store.dialogues import in_words, kept_dialogues, paired_dialogues
from scope_lite.store.export import to_tensorboard, to_tracker
from scope_lite.store.folder import RunFolder, is_finished, read_status, recorded_format
from scope_lite.store.tables import (
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
