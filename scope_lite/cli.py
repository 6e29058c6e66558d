"""The command ``scope-lite``: run the notebooks, train, redraw figures, look after runs.

Exit codes: 0 done, 1 something broke (a bug with its traceback, or a notebook that failed), 2 a mistake in what was
asked for (one line, no traceback), 130 stopped with Ctrl-C. Whatever is heavy is imported by the command that needs
it, so that ``--help`` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from scope_lite import __version__, paths
from scope_lite.errors import ScopeError

if TYPE_CHECKING:
    import pandas as pd

    from scope_lite.config import RunConfig


class OneLineErrors(TyperGroup):
    """Tell a user's mistake in one line; let every other exception keep its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ScopeError as exc:
            typer.echo("scope-lite: " + " ".join(str(exc).split()), err=True)
            raise typer.Exit(getattr(exc, "exit_code", 2)) from None
        except KeyboardInterrupt:
            typer.echo("scope-lite: stopped; the same command goes on from the last checkpoint", err=True)
            raise typer.Exit(130) from None


def group(help: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    return typer.Typer(cls=cls, help=help, no_args_is_help=True, pretty_exceptions_enable=False)


app = group("See simulator collapse happen, understand why, and fix it two ways.", OneLineErrors)
runs_app = group("Look after the runs: list, show, compare, prune.")
nano_app = group("The nano models.")
results_app = group("The shipped tables behind the figures.")
app.add_typer(runs_app, name="runs")
app.add_typer(nano_app, name="nano")
app.add_typer(results_app, name="results")

Root = Annotated[Path, typer.Option("--out", help="Folder of the run folders.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do again what is finished.")]


def console() -> Console:
    """A console that cuts nothing when its output goes to a file or a pipe."""
    out = Console()
    return out if out.is_terminal else Console(width=200)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """See simulator collapse happen, understand why, and fix it two ways."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


# -- notebooks and figures ------------------------------------------------------------------------------------------


@app.command()
def run(
    scale: Annotated[str, typer.Option(help="nano, small or full: a file in notebooks/parameters.")] = "nano",
    only: Annotated[list[str] | None, typer.Option(help="Beginning of a notebook's name, such as 03.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds a method.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the executed notebooks.")] = paths.RUNS / "series",
    everything: Annotated[bool, typer.Option("--all", help="Every notebook, every table, at full seeds.")] = False,
    fresh: Fresh = False,
    param: Annotated[list[str] | None, typer.Option(help="name=value for every notebook that declares it.")] = None,
    timeout: Annotated[int | None, typer.Option(min=1, help="Seconds a cell may take.")] = None,
) -> None:
    """Run the notebook series and leave its figures; what is unchanged is skipped."""
    from scope_lite import series

    folder = paths.HOME / "notebooks"
    parameters: dict[str, Any] = dict(split_pair(text, "--param") for text in param or [])
    if seeds is not None:
        parameters["seeds"] = seeds
    notebooks = series.series_notebooks(folder, scale, only or [], everything)
    if not notebooks:
        raise ScopeError(f"there are no notebooks in {folder}; SCOPE_LITE_HOME names the folder that holds notebooks/")
    hours = series.load_scale(folder, scale, remake=True).settings.get("hours")
    if everything and hours:
        typer.echo(f"--all trains at full seeds: about {hours} hours; it can be stopped and goes on where it was")
    series.run_series(
        notebooks, out, scale, parameters, fresh, remake=everything, execution_timeout=timeout, home=paths.HOME
    )
    from scope_lite.figures import gallery

    gallery.write_page(paths.FIGURES)


@app.command()
def figures(
    only: Annotated[list[str] | None, typer.Option(help="Number of a figure, such as 17; repeat for more.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the tables.")] = paths.RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = paths.FIGURES,
) -> None:
    """Redraw the figures from their tables, and the gallery page."""
    from scope_lite.figures.gallery import build

    for path in build(only, results, out):
        typer.echo(path)


# -- training -------------------------------------------------------------------------------------------------------


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="A configuration file.")] = None,
    method: Annotated[str | None, typer.Option(help="base, single, persona, verbalized, ensemble, ...")] = None,
    world: Annotated[str | None, typer.Option(help="Name of a nano world.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other key, such as simulator.k=5.")
    ] = None,
    out: Root = paths.RUNS,
    fresh: Fresh = False,
) -> None:
    """Train one run, from a file or from options; a finished one is reused."""
    named = {"method": method, "world": world, "seed": seed, "steps": steps}
    changes = {key: value for key, value in named.items() if value is not None}
    run_config = make_config(config, changes, setting or [])
    # torch takes seconds to import; a mistake above is told without it
    from scope_lite.train import train as train_run

    with TrainingLine(run_config) as line:
        folder = train_run(run_config, out, fresh=fresh, on_step=line.step)
    typer.echo(f"{'trained' if line.seen else 'finished before, reused'}: {folder}")


def make_config(path: Path | None, changes: dict[str, Any], settings: list[str]) -> RunConfig:
    """The configuration of a file, or of a method by name, with the changes of the command line.

    Raises:
        ScopeError: for an unknown key, method or value, or a method given twice.
    """
    import yaml

    from scope_lite.config import load_config, method_config, parse_config

    for text in settings:
        key, value = split_pair(text, "--set")
        *above, last = key.split(".")
        target = changes
        for part in above:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ScopeError(f"--set {text}: {part} is a single value, it has no {last}")
        try:
            target[last] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ScopeError(f"--set {text}: the value is not plain YAML") from None
    if path is None:
        return method_config(changes.pop("method", "single"), **changes)
    content = load_config(path).model_dump(mode="json")
    if changes.get("method", content["method"]) != content["method"]:
        raise ScopeError(f"{path} says method {content['method']!r}; change the file, or leave it out for --method")
    simulator = {**content["simulator"], **changes.pop("simulator", {})}
    return parse_config({**content, **changes, "simulator": simulator}, str(path))


def split_pair(text: str, option: str) -> tuple[str, str]:
    """Split ``name=value``.

    Raises:
        ScopeError: if it is not of that form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ScopeError(f"{option} {text!r}: expected name=value")
    return name.strip(), value


class TrainingLine:
    """One live line in a terminal, some twenty plain lines elsewhere; the collapse alarm is told once."""

    SHOWN = ("reward", "panel/unseen/reward", "entropy")

    def __init__(self, config: RunConfig) -> None:
        self._name, self._console = config.run_name(), Console()
        self._status = self._console.status(f"{self._name}: loading") if self._console.is_terminal else None
        self._last: dict[str, float] = {}
        self._alarmed = False
        self.seen = False

    def __enter__(self) -> TrainingLine:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status:
            self._status.stop()

    def step(self, step: int, steps: int, metrics: dict[str, Any]) -> None:
        self.seen = True
        self._last |= {key: metrics[key] for key in self.SHOWN if metrics.get(key) is not None}
        numbers = "  ".join(f"{key} {value:.3f}" for key, value in self._last.items())
        text = f"{self._name}: step {step}/{steps}  {numbers}"
        if self._status:
            self._status.update(text)
        elif step % max(1, steps // 20) == 0 or step == steps:
            typer.echo(text)
        if metrics.get("collapse_alarm") and not self._alarmed:
            self._alarmed = True
            self._console.print(
                f"{self._name}: collapse alarm at step {step}: entropy is below a quarter of its start and unseen "
                "reward below its peak", style="yellow", soft_wrap=True,
            )  # fmt: skip


# -- runs -----------------------------------------------------------------------------------------------------------


def print_table(table: pd.DataFrame, title: str = "") -> None:
    """Print a frame; numbers short, nothing for what is missing."""
    import pandas as pd

    shown = Table(title=title or None, title_justify="left")
    for name in table.columns:
        shown.add_column(str(name), overflow="fold")
    for row in table.itertuples(index=False):
        missing = [not isinstance(value, list | dict) and pd.isna(value) for value in row]
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row]
        shown.add_row(*("" if empty else cell for cell, empty in zip(cells, missing, strict=True)))
    console().print(shown, markup=False) if table.size else typer.echo(f"{title or 'table'}: nothing")


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


# -- shipped tables -------------------------------------------------------------------------------------------------


@results_app.command("build")
def results_build(
    experiment: Annotated[list[str] | None, typer.Argument(help="Names of experiments; all by default.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds a variant; each table's own number by default.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one a core by default.")] = None,
    out: Root = paths.RUNS,
    results: Annotated[Path, typer.Option(help="Folder of the tables.")] = paths.RESULTS,
) -> None:
    """Train what is missing and write the tables of data/results; resumable, and says its hours first."""
    from scope_lite import experiments

    names = experiment or list(experiments.EXPERIMENTS)
    missing = experiments.unfinished(names, seeds, out)
    hours = experiments.hours_for(missing, out, workers)
    typer.echo(f"{len(names)} tables, {len(missing)} runs to train: about {hours:.1f} hours")
    for name in names:
        typer.echo(f"wrote {experiments.build(name, seeds, out, results, workers)}")


# -- models and machine ---------------------------------------------------------------------------------------------


@nano_app.command("build")
def nano_build(
    world: Annotated[str, typer.Option(help="Name of a nano world.")] = "persuasion",
    model: Annotated[list[str] | None, typer.Option(help="Name of a base model; all by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the models.")] = paths.NANO_MODELS,
) -> None:
    """Pre-train the nano base models and the panel of a world (minutes on a CPU)."""
    from scope_lite import nano

    nano.build(world, model, out)


@nano_app.command("check")
def nano_check(world: Annotated[str, typer.Option(help="Name of a nano world.")] = "persuasion") -> None:
    """How far each shipped model is from its exact users: mean KL in nats a turn on held-out dialogues."""
    from scope_lite import nano

    for name, kl in nano.kl_table(world):
        typer.echo(f"{name:14} {kl:.4f}")


@app.command()
def doctor() -> None:
    """Say what works on this machine, what does not, and what to do about it; exit code 1 if a need is unmet."""
    from scope_lite.doctor import report

    checks = report(paths.HOME)
    for check in checks:
        mark = "ok" if check.ok else "NO" if check.required else "--"
        remedy = f"\n     {check.remedy}" if check.remedy and not check.ok else ""
        typer.echo(f"{mark}   {check.name}: {check.detail}{remedy}")
    if any(check.required and not check.ok for check in checks):
        raise typer.Exit(1)
