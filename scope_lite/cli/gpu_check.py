"""``scope-lite gpu-check``: two real steps of everything, in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scope_lite.cli.base import console

if TYPE_CHECKING:
    from scope_lite.cli.gpu_run import Result


def gpu_check(
    model: Annotated[str, typer.Option(help='A small chat model: "smollm2" or a folder.')] = "smollm2",
    cpu: Annotated[bool, typer.Option("--cpu", help="Without a GPU: the parts that run on a CPU (minutes).")] = False,
    only: Annotated[str | None, typer.Option(help="Only checks whose name holds this.")] = None,
) -> None:
    """Run two real steps of everything on this GPU; exit code 1 if there is none, or if a check fails."""
    from scope_lite.cli.gpu_run import has_gpu, run_check, selected

    if not cpu and not has_gpu():
        typer.echo("gpu-check: no CUDA device here; --cpu runs the parts that need none", err=True)
        raise typer.Exit(1)
    checks = [check for check in selected(cpu) if (only or "").lower() in check.name.lower()]
    results = []
    for check in checks:
        typer.echo(f"{check.name} ...", err=True)
        results.append(run_check(check, model, cpu))
    show(results, cpu)
    if not results or any(result.ok is False for result in results):
        raise typer.Exit(1)


def show(results: list[Result], cpu: bool) -> None:
    """The table; on a CPU memory is the process's own, and nothing is planned."""
    from rich.table import Table

    table = Table(title=f"gpu-check{' (CPU)' if cpu else ''}: two steps each", title_justify="left")
    for column in ("check", "", "tokens/s", "peak GiB", "planned GiB", "what it said"):
        table.add_column(column, overflow="fold")
    marks = {True: "[green]pass[/]", False: "[red]FAIL[/]", None: "[dim]not here[/]"}
    for one in results:
        numbers = (one.tokens_per_second, one.peak_gib, one.planned_gib)
        table.add_row(one.name, marks[one.ok], *("" if n is None else f"{n:.3g}" for n in numbers), one.detail)
    console().print(table)
