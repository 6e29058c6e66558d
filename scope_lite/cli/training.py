"""``scope-lite train``: one run, watched."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated, Any

import typer

from scope_lite.cli.base import Config, Fresh, Method, ProgressLine, Recipe, Root, Setting, World, make_config
from scope_lite.store import paths

SHOWN = ("reward", "panel/unseen/reward", "entropy")


def train(
    config: Config = None,
    method: Method = None,
    world: World = None,
    recipe: Recipe = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    setting: Setting = None,
    out: Root = paths.RUNS,
    fresh: Fresh = False,
) -> None:
    """Train one run, from a file or from options; a finished one is reused."""
    run_config = make_config(config, setting, method=method, world=world, recipe=recipe, seed=seed, steps=steps)
    if run_config.text.training_engine == "unsloth" and importlib.util.find_spec("unsloth"):
        importlib.import_module("unsloth")  # it wants to come before transformers
    # torch takes seconds to import; a mistake above is told without it
    from scope_lite.method.alarm import collapse_of
    from scope_lite.method.train import train as train_run

    seen: dict[str, float] = {}
    alarmed = trained = False

    def show(step: int, steps: int, metrics: dict[str, Any]) -> None:
        nonlocal alarmed, trained
        trained = True
        seen.update({key: metrics[key] for key in SHOWN if metrics.get(key) is not None})
        line.step(step, steps, seen)
        if metrics.get("collapse_alarm") and not alarmed:
            alarmed = True
            line.tell(f"collapse alarm at step {step}: training reward holds, and unseen reward has fallen")

    with ProgressLine(run_config.run_name()) as line:
        folder = train_run(run_config, out, fresh=fresh, on_step=show)
    typer.echo(collapse_of(folder).told)
    typer.echo(f"{'trained' if trained else 'finished before, reused'}: {folder}")
