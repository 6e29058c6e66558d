"""What a run is made of besides its settings: the content of models, panels and own worlds, for its fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from scope_lite.store.paths import CONVERSION_NOTE, WORLDS_VARIABLE, paths_in
from scope_lite.store.plain_yaml import read_yaml


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The hash of each of these files, and of every file in a folder of such a name, by its path in ``folder``."""
    found = {}
    for top in sorted({folder / name for name in names}):
        for path in [top, *sorted(top.rglob("*"))]:
            place = path.relative_to(folder)
            if path.is_file() and not any(part.startswith(".") for part in place.parts):
                found[place.as_posix()] = _digest(path)
    return found


def panel_models(panel: Path) -> list[str]:
    """The models that the members of a panel have of their own.

    Raises:
        ScopeError: if the file cannot be read.
    """
    entries = read_yaml(panel)
    named = [entry.get("model") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [model for model in named if isinstance(model, str)]


def own_files() -> list[str | None]:
    """Hashes of the files with own worlds; None for one that is gone."""
    return [_digest(path) if path.is_file() else None for path in paths_in(WORLDS_VARIABLE)]


def _digest(path: Path) -> str:
    stat = path.stat()
    return _digest_of(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=10_000)
def _digest_of(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
