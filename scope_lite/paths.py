"""Where things lie: shipped data, run folders, figures. ``SCOPE_LITE_HOME`` moves all three."""

from __future__ import annotations

import os
from pathlib import Path

HOME = Path(os.environ.get("SCOPE_LITE_HOME", Path(__file__).resolve().parent.parent))
DATA = HOME / "data"
NANO_MODELS = DATA / "models" / "nano"
RESULTS = DATA / "results"
FIGURES = HOME / "figures"
RUNS = HOME / "runs"
