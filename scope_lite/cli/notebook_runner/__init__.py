"""Run the notebooks one after the other: parameters checked first, progress shown, unchanged ones skipped.

``parameters`` decides what each notebook gets and refuses what none declares, ``execute`` runs one notebook through
papermill, ``ledger`` remembers which results still stand, ``progress`` shows where we are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from scope_lite.cli.notebook_runner.parameters import Plan, chosen_notebooks, load_scale, make_plans
from scope_lite.cli.notebook_runner.progress import Progress
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import sweep, take_lock

__all__ = ["Plan", "chosen_notebooks", "load_scale", "make_plans", "run_notebooks"]


def run_notebooks(
    plans: Sequence[Plan], out: Path, fresh: bool = False, home: Path = paths.HOME, console: Console | None = None
) -> list[str]:
    """Run notebooks in their order; the executed copies and the record of their results go to ``out``.

    Each notebook runs in a kernel of its own, in its own folder as in JupyterLab. One whose text, parameters, package
    source, data and figures are as they were after its last full run is skipped, unless ``fresh``.

    Args:
        home: where ``figures/``, ``data/`` and ``runs/`` are.

    Returns:
        what became of each: ``ran`` or ``unchanged``.

    Raises:
        NotebookFailed: if a notebook fails, takes too long or loses its kernel; later ones are not started.
    """
    # nbclient and the hashing of the data take a moment, so a refused parameter is told without them
    from scope_lite.cli.notebook_runner.execute import execute
    from scope_lite.cli.notebook_runner.ledger import Ledger

    out, home = out.resolve(), home.resolve()
    lock = take_lock(out / ".lock")
    if lock is None:
        raise ScopeError(f"another run of the notebooks goes into {out}; wait for it, or choose another --out")
    outcomes = []
    try:
        sweep(out)
        ledger = Ledger(out / "series.json", home)
        expected = [ledger.seconds(plan) for plan in plans]
        with Progress(expected, home / "runs", console or Console()) as progress:
            for plan in plans:
                executed = out / plan.notebook.name
                if not fresh and executed.exists() and ledger.is_unchanged(plan):
                    progress.skip(plan.stem)
                    outcomes.append("unchanged")
                    continue
                with progress.running(plan.stem), ledger.watch(plan):
                    execute(plan, executed, on_cell=progress.cell)
                outcomes.append("ran")
    finally:
        lock.release()
    return outcomes
