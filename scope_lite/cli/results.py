"""``scope-lite results``: the shipped tables behind the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_lite.cli.base import MOST, Root, group
from scope_lite.store import paths

results_app = group("The shipped tables behind the figures.")


@results_app.command("build")
def results_build(
    experiment: Annotated[
        list[str] | None, typer.Argument(help="Names of experiments; all of nano scale by default.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Seeds a variant; each table's own number by default.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, help="Processes; one a core by default.")] = None,
    extend: Annotated[bool, typer.Option("--extend", help="Keep the runs that the shipped tables have.")] = False,
    out: Root = paths.RUNS,
    results: Annotated[Path, typer.Option(help="Folder of the tables.")] = paths.RESULTS,
) -> None:
    """Train what is missing and write the tables of data/results; resumable, and says its hours first."""
    from scope_lite import experiments

    names = experiment or [name for name, one in experiments.EXPERIMENTS.items() if not one.apart]
    missing = experiments.unfinished(names, seeds, out, results if extend else None)
    hours = experiments.hours_for(missing, out, workers)
    typer.echo(f"{len(names)} tables, {len(missing)} runs to train: about {hours:.1f} hours")
    for name in names:
        typer.echo(f"wrote {experiments.build(name, seeds, out, results, workers, extend)}")
