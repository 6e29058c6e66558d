"""``scope-lite train``: one run, watched."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from scope_lite.cli.base import Fresh, Root, split_pair
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    from scope_lite.method.config import RunConfig


def train(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="A configuration file.")] = None,
    method: Annotated[str | None, typer.Option(help="base, single, persona, verbalized, ensemble, ...")] = None,
    world: Annotated[
        str | None, typer.Option(help="A nano world, or p4g, tau2-retail, tau2-airline (real text).")
    ] = None,
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
    if run_config.text.training_engine == "unsloth" and importlib.util.find_spec("unsloth"):
        importlib.import_module("unsloth")  # it wants to come before transformers
    # torch takes seconds to import; a mistake above is told without it
    from scope_lite.method.alarm import collapse_of
    from scope_lite.method.train import train as train_run

    with TrainingLine(run_config) as line:
        folder = train_run(run_config, out, fresh=fresh, on_step=line.step)
    typer.echo(collapse_of(folder).told)
    typer.echo(f"{'trained' if line.seen else 'finished before, reused'}: {folder}")


def make_config(path: Path | None, changes: dict[str, Any], settings: list[str]) -> RunConfig:
    """The configuration of a file, or of a method by name, with the changes of the command line.

    Raises:
        ScopeError: for an unknown key, method or value, or a method given twice.
    """
    from scope_lite.method.config import load_config, merged, method_config, parse_config
    from scope_lite.store.plain_yaml import parse_yaml

    for text in settings:
        key, value = split_pair(text, "--set")
        *above, last = key.split(".")
        target = changes
        for part in above:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ScopeError(f"--set {text}: {part} is a single value, it has no {last}")
        if last in target:
            raise ScopeError(f"--set {text}: {key} is given twice")
        target[last] = parse_yaml(value, f"--set {key}")
    if path is None:
        return method_config(changes.pop("method", "single"), **changes)
    content = load_config(path).model_dump(mode="json")
    if changes.get("method", content["method"]) != content["method"]:
        raise ScopeError(f"{path} says method {content['method']!r}; change the file, or leave it out for --method")
    return parse_config(merged(content, changes), str(path))


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
                f"{self._name}: collapse alarm at step {step}: training reward holds, and unseen reward has fallen",
                style="yellow", soft_wrap=True,
            )  # fmt: skip
