"""What a figure was drawn from, as a small JSON file beside it: same tables, same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

MAX_RUNS = 40
"""run ids are listed up to this many; beyond, their number and a hash stand for them"""


def describe(
    number: str, tables: Sequence[Path], rows: pd.DataFrame, drawn: Sequence[Path], interval: str
) -> dict[str, Any]:
    """What the corner of a figure says, in full.

    Args:
        number: the paper's figure number.
        tables: the files that it was drawn from; none for a figure of texts.
        rows: their rows, with the columns ``world``, ``seed`` and ``run``. A figure may show only some of these runs.
        drawn: the picture's files.
        interval: its kind of interval; empty for none.

    Returns:
        ``seeds`` is the number of seeds in each world. ``runs`` lists the run ids, or holds their ``count`` and the
        ``sha256`` of the sorted ids, one a line. ``files`` holds the hash of each picture, so that a picture which was
        drawn over by someone else does not pass for this one.
    """
    seeds = {str(world): int(part["seed"].nunique()) for world, part in rows.groupby("world")} if tables else {}
    runs = sorted(rows["run"].unique()) if tables else []
    listed = {"count": len(runs), "sha256": hashlib.sha256("\n".join(runs).encode()).hexdigest()}
    return {
        "figure": number,
        "command": f"scope-lite figures --only {number}",
        "tables": {path.name: _digest(path) for path in tables},
        "scale": "nano" if tables else None,
        "worlds": list(seeds),
        "seeds": seeds,
        "interval": interval if tables and interval else None,
        "runs": runs if len(runs) <= MAX_RUNS else listed,
        "files": {path.name: _digest(path) for path in drawn},
    }


def write(path: Path, description: dict[str, Any]) -> Path:
    """Write a description; returns the path."""
    path.write_text(json.dumps(description, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def tells_of(picture: Path) -> bool:
    """Whether the JSON file beside a picture is there and was written for this very picture."""
    try:
        return bool(_beside(picture)["files"].get(picture.name) == _digest(picture))
    except (OSError, ValueError, KeyError):
        return False


def caption(picture: Path) -> str:
    """What the JSON file beside a picture says, in a line: scale, worlds, seeds, interval, runs, command."""
    told = _beside(picture)
    if not told["tables"]:
        return f"From the texts in the code, by `{told['command']}`."
    seeds, runs = ", ".join(f"`{world}` ({n} seeds)" for world, n in told["seeds"].items()), told["runs"]
    if isinstance(runs, dict):
        named = f"{runs['count']} runs, ids' hash {runs['sha256'][:12]}"
    else:
        named = f"{len(runs)} runs, `{runs[0]}` to `{runs[-1]}`"
    parts = [told["scale"], seeds, told["interval"] or "no intervals", named]
    return f"{'; '.join(parts)}. Remade by `{told['command']}`."


def _beside(picture: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
    return told


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
