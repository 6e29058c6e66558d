"""Checkpoints of a run: named sets of tensors as safetensors, everything else as JSON, no pickle anywhere.

A checkpoint is written into a hidden folder and renamed when it is complete; ``state.json`` carries the sha256 of
every other file and its own. So a process may be killed at any instant: what is named ``step_...`` was complete once,
and what was damaged later is noticed and passed over.

    checkpoints/step_000040/{policy.safetensors, optimizer.safetensors, state.json}
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_lite.store.errors import ScopeError
from scope_lite.store.files import log, plain, plain_disk_errors, remove, replacing, write_synced

if TYPE_CHECKING:
    import torch

FORMAT = 2
UNSEALED = 1  # the format before, with a digest of the state alone: its weights can be read, no run goes on from it
KEEP_LAST = 2


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: ``tensors[key][name]`` on the CPU, and the JSON state saved with them.

    ``records[file] = {"bytes", "sha256"}`` says what the run's records held then; None in the format before.
    """

    step: int
    tensors: dict[str, dict[str, torch.Tensor]]
    state: dict[str, Any]
    path: Path
    records: dict[str, dict[str, Any]] | None


def save(
    folder: Path,
    step: int,
    tensors: dict[str, dict[str, torch.Tensor]],
    state: dict[str, Any],
    records: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """Write one checkpoint, then drop all older ones but the newest.

    Raises:
        ScopeError: if the disk is full; earlier checkpoints are intact then.
        ValueError: if a key is not a plain file name, or the state is not JSON.
    """
    from safetensors.torch import save as to_bytes

    for key in tensors:
        if not re.fullmatch(r"[\w.-]+", key) or key.startswith("."):
            raise ValueError(f"{key!r} cannot name a file of tensors: use letters, digits, _ and -")
    files = {
        f"{key}.safetensors": to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in group.items()})
        for key, group in tensors.items()
    }
    head = {
        "format": FORMAT,
        "step": step,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "records": records or {},
        "state": state,
    }
    # once through JSON first: integer keys turn into text there, and would sort differently afterwards
    head = json.loads(json.dumps(head, default=plain))
    head["head_sha256"] = _digest(head)
    files["state.json"] = json.dumps(head, indent=1, sort_keys=True).encode()
    target = folder / f"step_{step:06d}"
    with replacing(target) as beside:  # what has that name is a damaged checkpoint that was passed over
        for name, data in files.items():
            write_synced(beside / name, data)
    drop_older(folder, step)
    return target


def _digest(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()


def drop_older(folder: Path, step: int) -> None:
    """Of the checkpoints up to ``step``, drop all but the newest; also what a kill left half written.

    Later ones are left: they were damaged, and are written again when their steps come.
    """
    older = [path for path in steps_in(folder) if _step(path.name) <= step][:-KEEP_LAST]
    for path in [*older, *folder.glob(".step_*")]:
        # someone may be reading it; then it goes the next time
        with contextlib.suppress(ScopeError, OSError):
            remove(path)


def _step(name: str) -> int:
    found = re.fullmatch(r"step_([0-9]+)", name)
    return int(found[1]) if found else -1


def steps_in(folder: Path) -> list[Path]:
    """All checkpoint folders, oldest first.

    Raises:
        ScopeError: if there is a ``folder`` that cannot be looked into, such as a link to a disk that is not there.
    """
    with plain_disk_errors(folder):
        names = os.listdir(folder) if os.path.lexists(folder) else []
    return [folder / name for name in sorted(names, key=_step) if _step(name) >= 0]


def load(path: Path) -> Checkpoint:
    """Read one checkpoint and check all that it says against its sha256.

    Raises:
        Exception: of any kind, if anything is missing, cut off or altered.
    """
    from safetensors.torch import load as from_bytes

    head = json.loads((path / "state.json").read_bytes())
    if head["format"] not in (UNSEALED, FORMAT):
        raise ValueError(f"written in format {head['format']}, this version reads {FORMAT}")
    sealed = head["format"] == FORMAT
    digest = head.pop("head_sha256") if sealed else head["state_sha256"]
    if _digest(head if sealed else head["state"]) != digest:
        raise ValueError("state.json was altered")
    tensors = {}
    for name, digest in head["sha256"].items():
        data = (path / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name} is cut off or was altered")
        tensors[name.removesuffix(".safetensors")] = from_bytes(data)
    return Checkpoint(int(head["step"]), tensors, head["state"], path, head["records"] if sealed else None)


def whole(folder: Path) -> Iterator[Checkpoint]:
    """The checkpoints that can be read whole, newest first; a damaged one is named in a warning and passed over."""
    for path in reversed(steps_in(folder)):
        try:
            found = load(path)
        # a damaged file can raise anything, from a KeyError to a RecursionError
        except Exception as exc:
            why = " ".join(f"{type(exc).__name__}: {exc}".split())[:200]
            log.warning("checkpoint %s cannot be read (%s); trying the one before it", path, why)
            continue
        yield found


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read whole."""
    return next(whole(folder), None)
