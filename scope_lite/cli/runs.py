"""``scope-lite runs``: list, show, compare, prune, export."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from scope_lite import store as runs
from scope_lite.cli.base import Root, console, draw, find_run, group, print_table
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_terminal
from scope_lite.store.folder import read_config

runs_app = group("Look after the runs: list, show, compare, prune, export.")


@runs_app.command("list")
def list_runs(out: Root = paths.RUNS) -> None:
    """Every run: state, steps, reward at the end, size, start (UTC)."""
    print_table(runs.list_runs(out), f"runs in {out}")


@runs_app.command()
def show(name: Annotated[str, typer.Argument(help="Name of a run, or its beginning.")], out: Root = paths.RUNS) -> None:
    """One run: status, configuration, provenance, last metrics."""
    folder = find_run(out, name)
    told = runs.read_status(folder)
    status = {key: told[key] for key in ("state", "step", "steps", "pid", "reason") if told[key] is not None}
    typer.echo(for_terminal(f"{folder}\n" + ", ".join(f"{key} {value}" for key, value in status.items()), "\n"))
    for file in ("config.yaml", "provenance.json"):
        path = folder / file
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "missing"
        typer.echo(for_terminal(f"\n{file}\n{text.rstrip()}", "\n"))
    metrics = runs.load_metrics([folder]).drop(columns=["run", "method", "world", "seed", "model"])
    if len(metrics):
        last = metrics.ffill().iloc[[-1]].T.reset_index()
        last.columns = ["metric", "last value"]
        print_table(last, "metrics")


@runs_app.command()
def compare(
    a: str,
    b: str,
    figure: Annotated[Path | None, typer.Option(help="Draw the curves of both here (.png, .pdf, .svg).")] = None,
    dialogues: Annotated[int, typer.Option(min=0, help="Kept dialogues to show side by side.")] = 0,
    out: Root = paths.RUNS,
) -> None:
    """Two runs: which settings differ, where they ended, and on demand their curves and dialogues side by side."""
    from scope_lite.method.alarm import collapse_of

    folders = find_run(out, a), find_run(out, b)
    result = runs.compare(*folders)
    print_table(result.config, "settings that differ")
    print_table(result.metrics, "last values (difference: b minus a)")
    for name, folder in zip("ab", folders, strict=True):
        typer.echo(f"{name}: {collapse_of(folder).told}")
    if dialogues:
        for pair in runs.paired_dialogues(*folders, dialogues):
            _print_pair(folders, pair)
    if figure:
        from scope_lite.figures.training import two_runs

        draw(figure, lambda: two_runs(runs.load_metrics(folders)))


def _print_pair(folders: tuple[Path, Path], pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Two dialogues with one simulator, turn by turn in two columns."""
    shown = Table(title=Text(for_terminal(f"with {pair[0]['simulator']}")), title_justify="left", show_lines=True)
    for folder, dialogue in zip(folders, pair, strict=True):
        head = f"{folder.name}, step {dialogue['step']}: reward {dialogue['reward']:.2f}"
        shown.add_column(Text(for_terminal(head)), ratio=1, overflow="fold")
    # what was said is never read as markup
    columns = [
        [
            Text(for_terminal(f"{who}: {words}" + (f" [{act}]" if words != act else ""), "\n"))
            for who, act, words in lines
        ]
        for lines in (runs.in_words(_say_of(f), d) for f, d in zip(folders, pair, strict=True))
    ]
    for row in zip_longest(*columns, fillvalue=Text()):
        shown.add_row(*row)
    console().print(shown)


def _say_of(folder: Path) -> Callable[[str], str]:
    """How acts of a run's world are said; as they are, if that world is not known here."""
    from scope_lite.envs.nano import get_world

    try:
        return get_world(str(read_config(folder).get("world"))).say
    except ScopeError:
        return str


@runs_app.command()
def export(
    run: Annotated[str, typer.Argument(help="Name of a run, or its beginning.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write TensorBoard's files into.")] = Path("board"),
    to: Annotated[str, typer.Option(help="The viewer: tensorboard, wandb or trackio.")] = "tensorboard",
    out: Root = paths.RUNS,
) -> None:
    """Write a run's numbers for another viewer, if its library is installed."""
    if to in ("wandb", "trackio"):
        typer.echo(f"logged {runs.to_tracker(find_run(out, run), to)} with {to}")
        return
    if to != "tensorboard":
        raise ScopeError(f"cannot export to {to!r}; there are tensorboard, wandb and trackio")
    target = runs.to_tensorboard(find_run(out, run), folder)
    typer.echo(f"wrote {target}; look at it with: tensorboard --logdir {folder}")


@runs_app.command()
def prune(
    keep: Annotated[list[str] | None, typer.Option(help="Beginning of names to spare.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Finished runs, too.")] = False,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Older checkpoints of finished runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only say what would go.")] = False,
    out: Root = paths.RUNS,
) -> None:
    """Remove runs that did not finish, and more on demand; runs in use are left alone."""
    gone = runs.prune(out, keep or [], finished, checkpoints, dry_run=not yes)
    for item in gone:
        typer.echo(for_terminal(f"{item.path}  ({item.why}, {item.size / 1e6:.2f} MB)"))
    total = sum(item.size for item in gone) / 1e6
    typer.echo(f"{'removed' if yes else 'would remove'} {len(gone)}, {total:.2f} MB" + ("" if yes else "; add --yes"))
