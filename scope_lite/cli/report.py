"""``scope-lite report``: one page to look around in, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_lite.store import paths


def report(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    run: Annotated[list[str] | None, typer.Option(help="A run whose dialogues to show; one of each method.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = paths.RUNS,
    results: Annotated[Path, typer.Option(help="Folder of the tables.")] = paths.RESULTS,
    figures: Annotated[Path, typer.Option(help="Folder of the figures.")] = paths.FIGURES,
) -> None:
    """Write a page with the figures, the runs and their dialogues, to be opened in a browser without a network."""
    from scope_lite.cli.page import build

    written = build(out, runs, results, figures, run or [])
    typer.echo(f"wrote {written} ({written.stat().st_size / 1e6:.1f} MB); open it in a browser")
