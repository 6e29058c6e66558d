"""Many runs as tidy tables: load their metrics, list, find, compare and prune them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_lite.store.checkpoints import steps_in
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.files import Number, read_lines, remove, take_lock
from scope_lite.store.folder import SPARE_SUFFIXES, is_finished, lock_path, read_config, read_provenance, read_status
from scope_lite.store.settings import flat

if TYPE_CHECKING:
    import pandas as pd  # takes a second to import: the command line starts without it

LABELS = ("method", "world", "seed", "model")
LIST_COLUMNS = ["name", "state", "step", "steps", "reward", "size_mb", "started", "reason"]


# -- loading ------------------------------------------------------------------------------------------------------


def load_metrics(folders: Iterable[Path]) -> pd.DataFrame:
    """One row per run and step: the metrics, and ``run method world seed model`` in front.

    Raises:
        ScopeError: if a folder has no metrics or a damaged line.
    """
    return _load(folders, "metrics.jsonl", Number)


def load_timing(folders: Iterable[Path]) -> pd.DataFrame:
    """One row per run and step: seconds and tokens per second, labelled as in ``load_metrics``."""
    return _load(folders, "timing.jsonl", Number)


def load_rollouts(folders: Iterable[Path]) -> pd.DataFrame:
    """One row per logged dialogue, labelled as in ``load_metrics``."""
    return _load(folders, "rollouts.jsonl", object)


def _load(folders: Iterable[Path], name: str, values: Any) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for folder in map(Path, folders):
        if not (folder / name).is_file():
            raise ScopeError(f"{folder} has no {name}: not a run folder, or its run never started")
        config = read_config(folder)
        labels = {"run": folder.name, **{key: config.get(key) for key in LABELS}}
        rows += [{**labels, **record} for record in read_lines(folder / name, others=values)]
    return pd.DataFrame(rows, columns=None if rows else ["run", *LABELS, "step"])


# -- listing and finding ------------------------------------------------------------------------------------------


def list_runs(root: Path) -> pd.DataFrame:
    """Every run under ``root``, by name: state, steps done, last reward, size in MB, start in UTC."""
    import pandas as pd

    folders = _run_folders(root)
    return pd.DataFrame([_summary(folder) for folder in folders], columns=LIST_COLUMNS)


def _run_folders(root: Path) -> list[Path]:
    root = Path(root)
    return sorted(path for path in root.iterdir() if (path / "status").is_file()) if root.is_dir() else []


def _summary(folder: Path) -> dict[str, Any]:
    status = read_status(folder)
    try:
        records = read_lines(folder / "metrics.jsonl", others=Number)
        rewards = [record["reward"] for record in records if "reward" in record]
    except (OSError, ScopeError):
        rewards = []
    return {
        "name": folder.name,
        "state": status["state"],
        "step": status["step"],
        "steps": status["steps"],
        "reward": rewards[-1] if rewards else None,
        "size_mb": round(_size(folder) / 1e6, 2),
        "started": read_provenance(folder).get("started"),
        "reason": status.get("reason"),
    }


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a running training may remove a checkpoint while we count
            total += path.stat().st_size if path.is_file() else 0
    return total


def find(root: Path, name: str | Path) -> Path:
    """The run with this name, this unique beginning of a name, or this path.

    Raises:
        ScopeError: if there is none, or more than one.
    """
    as_path = Path(name)
    if (as_path / "status").is_file():
        return as_path
    folders = {path.name: path for path in _run_folders(root)}
    if str(name) in folders:
        return folders[str(name)]
    matches = [run for run in folders if run.startswith(str(name)) and not run.endswith(SPARE_SUFFIXES)]
    if len(matches) > 1:
        raise ScopeError(f"{name!r} fits {len(matches)} runs: {', '.join(matches)}; give more of the name")
    if not matches:
        raise ScopeError(closest(str(name), list(folders), f"run (in {root})"))
    return folders[matches[0]]


# -- comparing ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    ``config`` has columns ``key a b`` for the settings that differ; ``metrics`` has ``metric a b difference``
    (b minus a) for the last value of each number, with ``step_a step_b`` where it was taken.
    """

    config: pd.DataFrame
    metrics: pd.DataFrame


def compare(a: Path, b: Path) -> Comparison:
    """Where two runs differ in their configuration, and where they ended.

    Raises:
        ScopeError: if one of them has no metrics.
    """
    import pandas as pd

    first, second = (flat(read_config(Path(folder))) for folder in (a, b))
    settings = [(key, first.get(key), second.get(key)) for key in {**first, **second}]
    config = pd.DataFrame([row for row in settings if row[1] != row[2]], columns=["key", "a", "b"])
    ends, others = (_last_values(Path(folder)) for folder in (a, b))
    rows = [(name, *ends[name], *others[name], others[name][1] - ends[name][1]) for name in ends if name in others]
    return Comparison(config, pd.DataFrame(rows, columns=["metric", "step_a", "a", "step_b", "b", "difference"]))


def _last_values(folder: Path) -> dict[str, tuple[int, float]]:
    """Step and value of each number where it was measured last."""
    numbers = load_metrics([folder]).set_index("step").drop(columns=["run", *LABELS]).select_dtypes("number")
    measured = {name: numbers[name].dropna() for name in numbers}
    return {name: (int(m.index[-1]), float(m.iloc[-1])) for name, m in measured.items() if len(m)}


# -- pruning ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Prunable:
    """A folder that prune removes (or would), why, and its size in bytes."""

    path: Path
    why: str
    size: int


def prune(
    root: Path,
    keep: Iterable[str] = (),
    finished: bool = False,
    checkpoints: bool = False,
    dry_run: bool = True,
) -> list[Prunable]:
    """Remove runs that did not finish and leftovers of swaps; never a run in use.

    Args:
        keep: beginnings of names to spare.
        finished: also remove finished runs.
        checkpoints: of finished runs, also remove all checkpoints but the last.
        dry_run: only say what would go.

    Raises:
        ScopeError: if a folder may not be removed.
    """
    spared = tuple(keep)
    gone = []
    for folder in _run_folders(root):
        if spared and folder.name.startswith(spared):
            continue
        lock = take_lock(lock_path(folder))
        if lock is None:
            continue
        try:
            for item in _prunable(folder, finished, checkpoints):
                if item.path.is_symlink():
                    item = Prunable(item.path, f"{item.why}; a link, {item.path.readlink()} stays", 0)
                gone.append(item)
                if not dry_run:
                    remove(item.path)
        finally:
            lock.release()
    return gone


def _prunable(folder: Path, finished: bool, checkpoints: bool) -> list[Prunable]:
    """What may go of a run whose lock we hold."""
    if folder.name.endswith(SPARE_SUFFIXES):
        # killed in the middle of a swap: the only copy of a finished run may carry this name
        base = folder.with_name(folder.name.rsplit(".", 1)[0])
        return [Prunable(folder, "left over from a --fresh run", _size(folder))] if is_finished(base) else []
    state = read_status(folder)["state"]
    if state != "finished":
        # the lock that makes it look running is ours
        return [Prunable(folder, "interrupted" if state == "running" else state, _size(folder))]
    if finished:
        return [Prunable(folder, "finished", _size(folder))]
    if checkpoints:
        return [Prunable(path, "older checkpoint", _size(path)) for path in steps_in(folder / "checkpoints")[:-1]]
    return []
