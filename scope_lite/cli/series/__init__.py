"""Run the notebooks one after the other: parameters checked first, progress shown, unchanged ones skipped.

``parameters`` decides what each notebook gets and refuses what none declares, ``execute`` runs one notebook through
papermill, ``reuse`` remembers which results still stand, ``display`` shows where we are.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from scope_lite.cli.series.display import Display
from scope_lite.cli.series.parameters import Plan, load_scale, make_plans, notebooks_in, select, series_notebooks
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import sweep, take_lock

__all__ = ["Plan", "Result", "load_scale", "make_plans", "notebooks_in", "run_series", "select", "series_notebooks"]


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of one notebook: ``ran`` or ``unchanged``, wall-clock seconds, and the executed copy."""

    notebook: Path
    outcome: str
    seconds: float
    executed: Path


def run_series(
    notebooks: Sequence[Path],
    out: Path,
    scale: str = "nano",
    parameters: Mapping[str, Any] | None = None,
    fresh: bool = False,
    remake: bool = False,
    execution_timeout: int | None = None,
    home: Path = paths.HOME,
    console: Console | None = None,
) -> list[Result]:
    """Run notebooks in their order; the executed copies and the record of their results go to ``out``.

    Each notebook runs in a kernel of its own, in its own folder as in JupyterLab. One whose text, parameters, package
    source, data and figures are as they were after its last full run is skipped.

    Args:
        scale: name of a parameter file beside the notebooks (``parameters/<scale>.yaml``).
        parameters: values that go before the file's, for every notebook that declares them.
        fresh: run all, whatever is on record.
        remake: lay the file's ``remake`` section (full seeds) over its usual values.
        execution_timeout: seconds a cell may take; by default the file's, else 3600.
        home: where ``figures/``, ``data/`` and ``runs/`` are.

    Raises:
        ScopeError: before anything runs, for an unknown scale or parameter or a value of the wrong type.
        NotebookFailed: if a notebook fails, takes too long or loses its kernel; later ones are not started.
    """
    plans = make_plans(notebooks, scale, parameters or {}, remake=remake, execution_timeout=execution_timeout)
    out = Path(out).resolve()
    lock = take_lock(out / ".lock")
    if lock is None:
        raise ScopeError(f"another series is running into {out}; wait for it, or choose another --out")
    try:
        sweep(out)
        return _run_plans(plans, out, home, fresh, console or Console())
    finally:
        lock.release()


def _run_plans(plans: list[Plan], out: Path, home: Path, fresh: bool, console: Console) -> list[Result]:
    # nbclient and the hashing of the data take a moment, so a refused parameter is told without them
    from scope_lite.cli.series.execute import execute
    from scope_lite.cli.series.reuse import Ledger

    home = home.resolve()
    ledger = Ledger(out / "series.json", home)
    results = []
    with Display([ledger.seconds(plan) for plan in plans], home / "runs", console) as display:
        for plan in plans:
            executed = out / plan.notebook.name
            start = time.monotonic()
            if not fresh and executed.exists() and ledger.is_unchanged(plan):
                display.skip(plan.stem)
                results.append(Result(plan.notebook, "unchanged", 0.0, executed))
                continue
            display.start(plan.stem)
            with ledger.watch(plan):
                try:
                    execute(plan, executed, on_cell=display.cell)
                except BaseException:
                    display.fail()
                    raise
            seconds = time.monotonic() - start
            display.finish()
            results.append(Result(plan.notebook, "ran", seconds, executed))
    return results
