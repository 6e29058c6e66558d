"""What a run is made of besides its settings: the content of models, panels and own worlds, for its fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import CONVERSION_NOTE, WORLDS_VARIABLE, adapter_folder, expanded, model_folder, paths_in
from scope_lite.store.plain_yaml import read_yaml

EMBEDDED = "smollm2"
"""the text model that comes in a wheel"""


def nano_content(world: str, model: str, members: Iterable[str]) -> list[Any]:
    """Content hashes of a nano world's panel and of one family; nothing for a world that has no models.

    The manifest says them. Whatever the run reads and the manifest does not vouch for is hashed beside it.
    """
    folder = model_folder(world)
    manifest = folder / "manifest.json"
    content: list[Any] = []
    known: dict[str, str] = {}
    if manifest.exists():
        try:
            told = json.loads(manifest.read_text(encoding="utf-8"))
            content = [told["panel"], told["families"].get(model)]
            known = told["panel"] | {file: h for family in told["families"].values() for file, h in family.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ScopeError(f"{manifest} is damaged; run 'scope-lite nano build --world {world}'") from None
    panel = {file.partition("/")[0] for file in known if file in content[0]} if content else set(_names(folder))
    read = {model, *members, "panel.yaml"} | panel
    there = {file: digest for name in sorted(read) for file, digest in _digests(folder, name)}
    lost = {file: None for file in known if file.partition("/")[0] in read and file not in there}
    changed = {file: digest for file, digest in {**there, **lost}.items() if known.get(file) != digest}
    return [*content, changed] if changed else content


def text_content(model: str | None) -> list[str]:
    """What tells one text model from another: the content of each folder that it names, else the name."""
    parts = [model] if model and expanded(model).is_dir() else (model or "").split("+", 1)
    folders = [expanded(parts[0]), *(adapter_folder(part) for part in parts[1:])]
    # a folder that happens to be called as an embedded model is not what is loaded
    is_folder = [p not in ("", EMBEDDED) and f.is_dir() for p, f in zip(parts, folders, strict=True)]
    return [folder_fingerprint(f) if yes else p for p, f, yes in zip(parts, folders, is_folder, strict=True)]


def text_panel_content(panel: Path) -> tuple[str, list[list[str]]]:
    """A text world's panel as its file lists it, and the content of the models that members have of their own."""
    entries = read_yaml(panel) or []
    named = [entry.get("model") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return panel.read_text(encoding="utf-8"), [text_content(model) for model in named if isinstance(model, str)]


def own_files() -> list[str | None]:
    """Hashes of the files with own worlds; None for one that is gone."""
    return [_digest(path) if path.is_file() else None for path in paths_in(WORLDS_VARIABLE)]


def _names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name[0] != ".") if folder.is_dir() else []


def _digests(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Path in ``folder`` and hash of the file ``name`` there, or of all files in the folder of that name."""
    path = folder / name
    if path.is_file():
        yield name, _digest(path)
    elif path.is_dir():
        for below in _names(path):
            yield from ((f"{name}/{file}", digest) for file, digest in _digests(path, below))


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
