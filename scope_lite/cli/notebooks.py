"""``scope-lite run`` and ``figures``: the notebooks, and their figures from the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_lite.cli.base import Fresh, once_each
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError


def run(
    scale: Annotated[str, typer.Option(help="nano, small or full: a file in notebooks/parameters.")] = "nano",
    only: Annotated[list[str] | None, typer.Option(help="Beginning of a notebook's name, such as 03.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds a method.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the executed notebooks.")] = paths.RUNS / "series",
    everything: Annotated[bool, typer.Option("--all", help="Every notebook, every table, at full seeds.")] = False,
    fresh: Fresh = False,
    param: Annotated[list[str] | None, typer.Option(help="name=value for every notebook that declares it.")] = None,
    timeout: Annotated[int | None, typer.Option(min=1, max=10**7, help="Seconds a cell may take.")] = None,
) -> None:
    """Run the notebook series and leave its figures; what is unchanged is skipped."""
    from scope_lite.cli import notebook_runner as runner

    folder = paths.HOME / "notebooks"
    parameters = once_each(param, "--param", seeds=seeds)
    notebooks = runner.chosen_notebooks(folder, scale, only or [], everything)
    if not notebooks:
        raise ScopeError(f"there are no notebooks in {folder}; SCOPE_LITE_HOME names the folder that holds notebooks/")
    plans = runner.make_plans(notebooks, scale, parameters, remake=everything, execution_timeout=timeout)
    hours = runner.load_scale(folder, scale, remake=True).settings.hours
    if everything and hours:
        typer.echo(f"--all trains at full seeds: about {hours:g} hours; it can be stopped and goes on where it was")
    runner.run_notebooks(plans, out, fresh, home=paths.HOME)
    from scope_lite.figures import gallery

    gallery.write_page(paths.FIGURES)


def figures(
    only: Annotated[list[str] | None, typer.Option(help="Number of a figure, such as 17; repeat for more.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the tables.")] = paths.RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = paths.FIGURES,
    svg: Annotated[bool, typer.Option("--svg", help="Write SVG files, too.")] = False,
) -> None:
    """Redraw the figures from their tables, and the gallery page."""
    from scope_lite.figures.gallery import build

    for path in build(only, results, out, svg):
        typer.echo(path)
