"""Checkpoints of a run: named sets of tensors as safetensors, everything else as JSON, no pickle anywhere.

A checkpoint is written into a hidden folder and renamed when it is complete; every file carries its sha256 in
``state.json``. So a process may be killed at any instant: what is named ``step_...`` was complete once, and what was
damaged later is noticed and passed over.

    checkpoints/step_000040/{policy.safetensors, optimizer.safetensors, state.json}
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_lite.runs.files import log, plain, plain_disk_errors, write_synced

if TYPE_CHECKING:
    import torch

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: ``tensors[key][name]`` on the CPU, and the JSON state saved with them."""

    step: int
    tensors: dict[str, dict[str, torch.Tensor]]
    state: dict[str, Any]
    path: Path


def save(
    folder: Path,
    step: int,
    tensors: dict[str, dict[str, torch.Tensor]],
    state: dict[str, Any],
    keep: bool = False,
    keep_last: int = 2,
) -> Path:
    """Write one checkpoint, then drop all but the newest ``keep_last`` and those marked ``keep``.

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
    # once through JSON first: integer keys turn into text there, and would sort differently afterwards
    state = json.loads(json.dumps(state, default=plain))
    body = json.dumps(state, sort_keys=True)
    head = {
        "format": FORMAT,
        "step": step,
        "keep": keep,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "state_sha256": hashlib.sha256(body.encode()).hexdigest(),
        "state": state,
    }
    files["state.json"] = json.dumps(head, indent=1, sort_keys=True).encode()
    target = folder / f"step_{step:06d}"
    _write_folder(target, files)
    _drop_old(folder, keep_last)
    return target


def _write_folder(target: Path, files: dict[str, bytes]) -> None:
    beside = target.with_name(f".{target.name}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with plain_disk_errors(target):
            beside.mkdir(parents=True)
            for name, data in files.items():
                write_synced(beside / name, data)
            # a folder of that name is a damaged checkpoint that load_newest passed over
            shutil.rmtree(target, ignore_errors=True)
            beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _drop_old(folder: Path, keep_last: int) -> None:
    for path in steps_in(folder)[:-keep_last]:
        if not _is_kept(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_kept(path: Path) -> bool:
    try:
        return bool(json.loads((path / "state.json").read_text())["keep"])
    except (OSError, ValueError, KeyError):
        return False


def steps_in(folder: Path) -> list[Path]:
    """All checkpoint folders, oldest first."""
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def load(path: Path) -> Checkpoint:
    """Read one checkpoint and check every byte of it against its sha256.

    Raises:
        ValueError, OSError, KeyError: if anything is missing, cut off or altered.
    """
    from safetensors.torch import load as from_bytes

    head = json.loads((path / "state.json").read_text())
    if head["format"] != FORMAT:
        raise ValueError(f"written in format {head['format']}, this version reads {FORMAT}")
    body = json.dumps(head["state"], sort_keys=True)
    if hashlib.sha256(body.encode()).hexdigest() != head["state_sha256"]:
        raise ValueError("state.json was altered")
    tensors = {}
    for name, digest in head["sha256"].items():
        data = (path / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name} is cut off or was altered")
        tensors[name.removesuffix(".safetensors")] = from_bytes(data)
    return Checkpoint(step=int(head["step"]), tensors=tensors, state=head["state"], path=path)


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read whole; a damaged one is named in a warning and passed over."""
    for path in reversed(steps_in(folder)):
        try:
            return load(path)
        except (ValueError, OSError, KeyError, TypeError) as exc:
            log.warning("checkpoint %s cannot be read (%s); trying the one before it", path, exc)
    return None
