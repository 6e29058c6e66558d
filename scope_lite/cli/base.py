"""What every command shares: one-line errors, common options, the run's configuration, tables, a line of progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from scope_lite import store
from scope_lite.store.errors import ScopeError, closest, first_line
from scope_lite.store.escaping import for_terminal
from scope_lite.store.paths import HOME, HOME_VARIABLE, checked_place

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from scope_lite.method.config import RunConfig

T = TypeVar("T")
MOST = 1_000_000
"""of anything that is counted in an option; what a run holds has bounds of its own (scope_lite.method.config)"""
Root = Annotated[Path, typer.Option("--out", help="Folder of the run folders.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do again what is finished.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda: for a local model.")]
Prices = Annotated[
    tuple[float, float] | None, typer.Option(help="Of an endpoint, for a million tokens read and written.")
]
Budget = Annotated[float, typer.Option(help="The most to spend on an endpoint.")]
Config = Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="A configuration file.")]
Method = Annotated[str | None, typer.Option(help="base, single, persona, verbalized, ensemble, ...")]
World = Annotated[
    str | None, typer.Option(help="A nano world, or p4g, tau2-retail, tau2-airline, cooperbench (real text).")
]
Recipe = Annotated[
    str | None, typer.Option(help="The paper's recipe: stated (its text) or launched (its public launchers).")
]
Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other key, such as simulator.k=5.")
]


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


def once_each(texts: Iterable[str] | None, option: str, **named: Any) -> dict[str, Any]:
    """The texts ``name=value`` of a repeated option, beside what has an option of its own (None: was not given).

    Raises:
        ScopeError: if a text has another form, or a name is given twice.
    """
    found = {name: value for name, value in named.items() if value is not None}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ScopeError(f"{option} {text!r}: expected name=value")
        if name.strip() in found:
            raise ScopeError(f"{option} {name.strip()} is given twice")
        found[name.strip()] = value
    return found


def make_config(path: Path | None, settings: list[str] | None, **named: Any) -> RunConfig:
    """The configuration of a file, or of a method by name, with the changes of the command line.

    Args:
        settings: texts ``key=value``; a key of ``simulator`` or ``text`` with a dot.
        named: keys with an option of their own; None for one that was not given.

    Raises:
        ScopeError: for an unknown key, method or value, or a key given twice.
    """
    from scope_lite.method.config import load_config, merged, method_config, parse_config
    from scope_lite.store.plain_yaml import parse_yaml

    changes = {key: value for key, value in named.items() if value is not None}
    for key, text in once_each(settings, "--set").items():
        *above, last = key.split(".")
        target = changes
        for part in above:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ScopeError(f"--set {key}: {part} is a single value, it has no {last}")
        if last in target:
            raise ScopeError(f"--set {key} is given twice")
        target[last] = parse_yaml(text, f"--set {key}")
    if path is None:
        return method_config(changes.pop("method", "single"), **changes)
    if "recipe" in changes:
        raise ScopeError(f"write the recipe into {path}: it belongs below what the file says")
    content = load_config(path).model_dump(mode="json")
    if changes.get("method", content["method"]) != content["method"]:
        raise ScopeError(f"{path} says method {content['method']!r}; change the file, or leave it out for --method")
    return parse_config(merged(content, changes), str(path))


def dataclass_of(kind: type[T], settings: list[str] | None, **named: Any) -> T:
    """A dataclass of settings, from the texts ``field=value`` of --set and what has an option of its own.

    Raises:
        ScopeError: for an unknown field, a value of the wrong type, or a field given twice.
    """
    from scope_lite.store.plain_yaml import parse_yaml
    from scope_lite.store.settings import checked

    values = once_each(settings, "--set", **named)
    known = list(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    for name in values:
        if name not in known:
            raise ScopeError(f"--set: {closest(name, known, 'key')}")
    texts = {name: parse_yaml(values[name], f"--set {name}") for name in once_each(settings, "--set")}
    made: T = checked(kind, {**values, **texts}, "--set")
    return made


class ProgressLine:
    """How far long work is: one live line in a terminal, some twenty plain ones elsewhere."""

    def __init__(self, name: str, unit: str = "step") -> None:
        self._name, self._unit, self._console = name, unit, Console()
        self._status = self._console.status(Text(f"{name}: loading")) if self._console.is_terminal else None
        self._told = 0  # twentieths of the work
        self._first: tuple[int, float] | None = None  # the step that was done first, and when; a stop may lie before

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status:
            self._status.stop()

    def step(self, done: int, total: int, numbers: Mapping[str, float | int]) -> None:
        """``done`` of ``total`` steps are done, with these numbers to show."""
        first, since = self._first = self._first or (done, time.monotonic())
        digits = {key: f"{value:.3f}" if isinstance(value, float) else value for key, value in numbers.items()}
        shown = "  ".join(f"{key} {value}" for key, value in digits.items())
        text = f"{self._name}: {self._unit} {done}/{total}  {shown}".rstrip()
        if first < done < total:
            text += f"  about {clock((time.monotonic() - since) / (done - first) * (total - done))} left"
        if self._status:
            self._status.update(Text(text))
        elif (twentieth := 20 * done // max(1, total)) > self._told:
            self._told = twentieth
            typer.echo(text)

    def tell(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(f"{self._name}: {text}", "yellow"), soft_wrap=True)


def draw(path: Path, figure: Callable[[], Figure]) -> None:
    """Draw a figure in the house's style and save it.

    Raises:
        ScopeError: if it cannot be written there, or not in that format.
    """
    import matplotlib.pyplot as plt

    from scope_lite.figures.style import use_style
    from scope_lite.store.files import plain_disk_errors

    use_style()
    drawn = figure()
    try:
        with plain_disk_errors(path):
            drawn.savefig(path, dpi=300)
    except ValueError as error:
        raise ScopeError(f"cannot draw {path}: {first_line(error)}") from None
    finally:
        plt.close(drawn)
    typer.echo(f"wrote {path}")


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def find_run(root: Path, name: str) -> Path:
    """The run of that name, beginning of a name, or path.

    Raises:
        ScopeError: if there is none, or more than one.
    """
    return store.find(root, checked_place(name, "run"))
