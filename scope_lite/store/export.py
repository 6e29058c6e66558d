"""A run's numbers for other viewers: TensorBoard, Weights & Biases, Trackio, each by its own library."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from scope_lite.store.errors import ScopeError
from scope_lite.store.files import Number, plain_disk_errors, read_lines
from scope_lite.store.folder import read_config, read_provenance


def to_tensorboard(folder: Path, out: Path) -> Path:
    """Write every number of ``metrics.jsonl`` and ``timing.jsonl`` as a scalar, and the configuration as text.

    The wall time of a step is the run's start and the seconds of the steps so far.

    Returns:
        The folder of the event file, ``out/<name of the run>``: ``tensorboard --logdir out`` shows it.

    Raises:
        ScopeError: if the library is not installed, the run has no metrics, or ``out`` may not be written to.
    """
    _require(folder, "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    target = out / folder.name
    if target.exists() and any(target.iterdir()):
        raise ScopeError(f"{target} is not empty: TensorBoard would draw both; choose another folder or remove it")
    timing = dict(_numbers(folder / "timing.jsonl"))
    now = _started(folder)
    with plain_disk_errors(target), SummaryWriter(str(target)) as writer:
        config = folder / "config.yaml"
        if config.is_file():
            # four spaces before a line are code in Markdown, whatever is in it
            lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
            writer.add_text("config", "\n".join(f"    {line}" for line in lines), 0, walltime=now)
        for step, metrics in _numbers(folder / "metrics.jsonl"):
            took = timing.get(step, {})
            now += took.get("step_seconds", 0.0)
            for name, value in {**metrics, **{f"timing/{name}": value for name, value in took.items()}}.items():
                writer.add_scalar(name, value, step, walltime=now)
    return target


def to_tracker(folder: Path, library: str, project: str = "scope_lite") -> str:
    """Log every number of ``metrics.jsonl``, step by step, with ``wandb`` or ``trackio``, which are called alike.

    Whether it stays on this machine or goes to a server is for the library's own settings (``WANDB_MODE=offline``).

    Returns:
        The run's name in that library.

    Raises:
        ScopeError: if the library is not installed or the run has no metrics.
    """
    _require(folder, library)
    tracker = importlib.import_module(library)
    tracker.init(project=project, name=folder.name, config=read_config(folder))
    for step, metrics in _numbers(folder / "metrics.jsonl"):
        tracker.log(metrics, step=step)
    tracker.finish()
    return folder.name


def _numbers(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Each step and what was measured in it."""
    for record in read_lines(path, others=Number):
        yield record.pop("step"), {name: value for name, value in record.items() if value is not None}


def _require(folder: Path, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise ScopeError(f"{library} is not installed (nothing here needs it otherwise): pip install {library}")
    if not (folder / "metrics.jsonl").is_file():
        raise ScopeError(f"{folder} has no metrics.jsonl: not a run folder, or its run never started")


def _started(folder: Path) -> float:
    """When the run began, in seconds since 1970; its metrics file's time where the provenance does not say."""
    try:
        return datetime.fromisoformat(read_provenance(folder).get("started", "")).timestamp()
    except (ValueError, OverflowError):
        return (folder / "metrics.jsonl").stat().st_mtime
