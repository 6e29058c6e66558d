"""Where things lie: shipped data, run folders, figures. ``SCOPE_LITE_HOME`` moves all three."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

HOME = Path(os.environ.get("SCOPE_LITE_HOME", Path(__file__).resolve().parent.parent))
DATA = HOME / "data"
NANO_MODELS = DATA / "models" / "nano"
RESULTS = DATA / "results"
FIGURES = HOME / "figures"
RUNS = HOME / "runs"


def cache_folder() -> Path:
    """The user's cache folder for this package; ``SCOPE_LITE_CACHE`` puts it elsewhere."""
    override = os.environ.get("SCOPE_LITE_CACHE")
    return Path(override) if override else user_cache_path("scope_lite")


def model_folder(world: str) -> Path:
    """The nano models of a world: shipped, or (a random world's) made here and cached."""
    shipped = NANO_MODELS / world
    return shipped if shipped.exists() else cache_folder() / "nano" / world
