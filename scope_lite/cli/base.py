"""What every command shares: one-line errors, tables, common options."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_terminal
from scope_lite.store.paths import HOME, HOME_VARIABLE, checked_place

if TYPE_CHECKING:
    import pandas as pd

MOST = 1_000_000
"""of anything that is counted in an option; what a run holds has bounds of its own (scope_lite.method.config)"""
Root = Annotated[Path, typer.Option("--out", help="Folder of the run folders.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do again what is finished.")]


class OneLineErrors(TyperGroup):
    """Tell a user's mistake in one line; let every other exception keep its traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # a terminal or pipe in another encoding shows \u03c4 for a letter that it lacks, and nothing breaks
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            if not HOME.is_dir():
                raise ScopeError(f"{HOME_VARIABLE} names {HOME}, which is no folder: it must hold data/ and notebooks/")
            return super().invoke(ctx)
        except ScopeError as exc:
            typer.echo("scope-lite: " + for_terminal(" ".join(str(exc).split())), err=True)
            raise typer.Exit(getattr(exc, "exit_code", 2)) from None
        except KeyboardInterrupt:
            typer.echo("scope-lite: stopped; the same command goes on from the last checkpoint", err=True)
            raise typer.Exit(130) from None


def group(help: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    return typer.Typer(cls=cls, help=help, no_args_is_help=True, pretty_exceptions_enable=False)


def console() -> Console:
    """A console that cuts nothing when its output goes to a file or a pipe."""
    out = Console()
    return out if out.is_terminal else Console(width=200)


def print_table(table: pd.DataFrame, title: str = "") -> None:
    """Print a frame; numbers short, nothing for what is missing, and no character that a terminal would obey."""
    import pandas as pd

    shown = Table(title=for_terminal(title) or None, title_justify="left")
    for name in table.columns:
        shown.add_column(for_terminal(str(name)), overflow="fold")
    for row in table.itertuples(index=False):
        missing = [not isinstance(value, list | dict) and pd.isna(value) for value in row]
        cells = [f"{value:.4g}" if isinstance(value, float) else for_terminal(str(value)) for value in row]
        shown.add_row(*("" if empty else cell for cell, empty in zip(cells, missing, strict=True)))
    console().print(shown, markup=False) if table.size else typer.echo(f"{for_terminal(title) or 'table'}: nothing")


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def split_pair(text: str, option: str) -> tuple[str, str]:
    """Split ``name=value``.

    Raises:
        ScopeError: if it is not of that form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ScopeError(f"{option} {text!r}: expected name=value")
    return name.strip(), value


def once_each(pairs: Iterable[tuple[str, Any]], option: str) -> dict[str, Any]:
    """Names and values as a mapping.

    Raises:
        ScopeError: if a name is given twice.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ScopeError(f"{option} {name} is given twice")
        found[name] = value
    return found


def find_run(root: Path, name: str) -> Path:
    """The run of that name, beginning of a name, or path.

    Raises:
        ScopeError: if there is none, or more than one.
    """
    from scope_lite import store as runs

    return runs.find(root, checked_place(name, "run"))
