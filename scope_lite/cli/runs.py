"""``scope-lite runs``: list, show, compare, prune."""

from __future__ import annotations

from typing import Annotated

import typer

from scope_lite import paths
from scope_lite.cli.base import Root, group, print_table

runs_app = group("Look after the runs: list, show, compare, prune.")


@runs_app.command("list")
def list_runs(out: Root = paths.RUNS) -> None:
    """Every run: state, steps, reward at the end, size, start (UTC)."""
    from scope_lite import runs

    print_table(runs.list_runs(out), f"runs in {out}")


@runs_app.command()
def show(name: Annotated[str, typer.Argument(help="Name of a run, or its beginning.")], out: Root = paths.RUNS) -> None:
    """One run: status, configuration, provenance, last metrics."""
    from scope_lite import runs

    folder = runs.find(out, name)
    status = {key: value for key, value in runs.read_status(folder).items() if key != "summary" and value is not None}
    typer.echo(f"{folder}\n" + ", ".join(f"{key} {value}" for key, value in status.items()))
    for file in ("config.yaml", "provenance.json"):
        path = folder / file
        typer.echo(f"\n{file}\n{path.read_text().rstrip()}" if path.exists() else f"\n{file}: missing")
    metrics = runs.load_metrics([folder]).drop(columns=["run", "method", "world", "seed", "model"])
    if len(metrics):
        last = metrics.ffill().iloc[[-1]].T.reset_index()
        last.columns = ["metric", "last value"]
        print_table(last, "metrics")


@runs_app.command()
def compare(a: str, b: str, out: Root = paths.RUNS) -> None:
    """Two runs: which settings differ, and where they ended."""
    from scope_lite import runs

    result = runs.compare(runs.find(out, a), runs.find(out, b))
    print_table(result.config, "settings that differ")
    print_table(result.metrics, "last values (difference: b minus a)")


@runs_app.command()
def prune(
    keep: Annotated[list[str] | None, typer.Option(help="Beginning of names to spare.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Finished runs, too.")] = False,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Older checkpoints of finished runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only say what would go.")] = False,
    out: Root = paths.RUNS,
) -> None:
    """Remove runs that did not finish, and more on demand; runs in use are left alone."""
    from scope_lite import runs

    gone = runs.prune(out, keep or [], finished, checkpoints, dry_run=not yes)
    for item in gone:
        typer.echo(f"{item.path}  ({item.why}, {item.size / 1e6:.2f} MB)")
    total = sum(item.size for item in gone) / 1e6
    typer.echo(f"{'removed' if yes else 'would remove'} {len(gone)}, {total:.2f} MB" + ("" if yes else "; add --yes"))
