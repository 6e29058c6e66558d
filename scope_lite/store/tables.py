"""Many runs as tidy tables: load their metrics, list, find, compare and prune them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scope_lite.store.checkpoints import steps_in
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.files import Number, read_lines, remove, take_lock
from scope_lite.store.folder import SPARE_SUFFIXES, is_finished, lock_path, read_config, read_provenance, read_status
from scope_lite.store.plain_yaml import flat

if TYPE_CHECKING:
    import pandas as pd  # takes a second to import: the command line starts without it

LABELS = ("method", "world", "seed", "model")


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

    columns = ["name", "state", "step", "steps", "reward", "size_mb", "started", "reason"]
    return pd.DataFrame([_summary(folder) for folder in _run_folders(root)], columns=columns)


def _run_folders(root: Path) -> list[Path]:
    return sorted(path for path in Path(root).glob("*") if (path / "status").is_file())


def _summary(folder: Path) -> dict[str, Any]:
    rewards = [None]
    with contextlib.suppress(OSError, ScopeError):
        records = read_lines(folder / "metrics.jsonl", others=Number)
        rewards += [record["reward"] for record in records if "reward" in record]
    return {
        "name": folder.name,
        **read_status(folder),
        "reward": rewards[-1],
        "size_mb": round(_size(folder) / 1e6, 2),
        "started": read_provenance(folder).get("started"),
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
    if (Path(name) / "status").is_file():
        return Path(name)
    folders = {path.name: path for path in _run_folders(root)}
    matches = [run for run in folders if run.startswith(str(name)) and not run.endswith(SPARE_SUFFIXES)]
    if str(name) not in folders and len(matches) > 1:
        raise ScopeError(f"{name!r} fits {len(matches)} runs: {', '.join(matches)}; give more of the name")
    if str(name) not in folders and not matches:
        raise ScopeError(closest(str(name), list(folders), f"run (in {root})"))
    return folders.get(str(name)) or folders[matches[0]]


# -- comparing ----------------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """Two runs side by side."""

    config: pd.DataFrame
    """``key a b``: the settings that differ"""
    metrics: pd.DataFrame
    """``metric step_a a step_b b difference``: the last value of each number, where it was taken, and b minus a"""


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


class Prunable(NamedTuple):
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
    spared, gone = tuple(keep), []
    for folder in _run_folders(root):
        # a run whose lock another process holds is in use
        lock = None if folder.name.startswith(spared) else take_lock(lock_path(folder))
        if lock is None:
            continue
        try:
            for path, why in _prunable(folder, finished, checkpoints):
                linked = path.is_symlink()
                told = f"{why}; a link, {path.readlink()} stays" if linked else why
                gone.append(Prunable(path, told, 0 if linked else _size(path)))
                if not dry_run:
                    remove(path)
        finally:
            lock.release()
    return gone


def _prunable(folder: Path, finished: bool, checkpoints: bool) -> list[tuple[Path, str]]:
    """What may go of a run whose lock we hold, and why."""
    if folder.name.endswith(SPARE_SUFFIXES):
        # killed in the middle of a swap: the only copy of a finished run may carry this name
        base = folder.with_name(folder.name.rsplit(".", 1)[0])
        return [(folder, "left over from a --fresh run")] if is_finished(base) else []
    state = read_status(folder)["state"]
    if state != "finished":
        # the lock that makes it look running is ours
        return [(folder, "interrupted" if state == "running" else state)]
    if finished:
        return [(folder, "finished")]
    return [(path, "older checkpoint") for path in steps_in(folder / "checkpoints")[:-1]] if checkpoints else []
