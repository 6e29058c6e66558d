"""Where things lie: shipped data, run folders, figures. ``SCOPE_LITE_HOME`` moves all three."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from platformdirs import user_cache_path

HOME = Path(os.environ.get("SCOPE_LITE_HOME", Path(__file__).resolve().parent.parent))
DATA = HOME / "data"
CONVERSION_NOTE = "converted.json"  # what a converted model was made from: no part of the model
NANO_MODELS = DATA / "models" / "nano"
SMALL_MODELS = DATA / "models" / "small"
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


def adapter_folder(adapter: str) -> Path:
    """The folder of a LoRA adapter: the folder itself, or a shipped one by its name ("persuadee").

    Wherever the process runs, the name is the same; so it can stand in the config of a run that others repeat.
    """
    folder, shipped = Path(adapter).expanduser(), SMALL_MODELS / adapter
    return folder if folder.is_dir() or not shipped.is_dir() else shipped


def text_panel(world: str) -> Path:
    """The list of the simulators of a text world."""
    return DATA / "panels" / f"{world}.yaml"


def folder_fingerprint(folder: Path) -> str:
    """Hash a model folder by content: small files whole, large ones by size and 64 evenly spaced blocks of 64 KiB.

    Every fine-tuning step moves nearly all weights, so the blocks tell two models apart without reading gigabytes.
    """
    blocks, block = 64, 1 << 16
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix in {".json", ".safetensors", ".jinja"}):
        if path.name == CONVERSION_NOTE:
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            if size <= blocks * block:
                digest.update(file.read())
                continue
            for i in range(blocks):
                file.seek((size - block) * i // (blocks - 1))
                digest.update(file.read(block))
    return digest.hexdigest()
