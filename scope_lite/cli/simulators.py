"""``scope-lite simulator``: look at a simulator of users before training against it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scope_lite import MAX_SEED
from scope_lite.cli.base import MOST, Budget, Device, Prices, ProgressLine, group, print_table
from scope_lite.cli.replies import simulator_replies
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    import pandas as pd

    from scope_lite.measure.diagnostics import Situation

simulator_app = group("Text simulators of users.")
simulator_app.command("replies")(simulator_replies)


@simulator_app.command("report")
def simulator_report(
    model: Annotated[str, typer.Argument(help='"smollm2", a folder, MODEL+ADAPTER, or openai:NAME@URL.')] = "smollm2",
    scenarios: Annotated[
        str, typer.Option(help="retail or airline (tau2-bench's customers), or p4g (people asked to donate).")
    ] = "retail",
    dialogues: Annotated[int, typer.Option(min=1, max=MOST, help="Users to be played.")] = 8,
    replies: Annotated[int, typer.Option(min=2, max=MOST, help="Replies drawn at every turn.")] = 8,
    temperature: Annotated[float, typer.Option(help="Of the replies.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=MOST, help="Longest reply.")] = 80,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the replies.")] = 0,
    device: Device = "auto",
    prices: Prices = None,
    budget: Budget = math.inf,
    out: Annotated[Path | None, typer.Option(help="Folder for health.md, .csv, .png, .pdf and replies.csv.")] = None,
) -> None:
    """Health of a simulator: collapse, role, leaks, stops, refusals and cost, each held against a stated threshold."""
    played = _situations(scenarios, dialogues)
    from scope_lite.measure import diagnostics, scripted
    from scope_lite.models.api import open_sampler
    from scope_lite.models.generate import TextSampler
    from scope_lite.models.replies import ReplyCache, SamplingConfig
    from scope_lite.store.paths import cache_folder

    config = SamplingConfig(temperature, max_new_tokens, seed)
    sampler = open_sampler(model, device, ReplyCache(cache_folder() / "replies"), prices or (), budget)
    local = sampler if isinstance(sampler, TextSampler) else None
    with ProgressLine(sampler.name, "turn") as line:
        rows = scripted.play(
            played,
            lambda chats: sampler.sample(chats, replies, config),
            lambda chat: len(local.prompt_ids(chat)) if local else math.nan,
            lambda turn, turns: line.step(turn, turns, {}),
            max_new_tokens,
        )
    table = diagnostics.report(rows, played)
    title = f"Health of {sampler.name} as a simulator"
    note = f"{scenarios}, {dialogues} dialogues, {replies} replies a turn, temperature {temperature:g}, seed {seed}"
    shown = table.assign(interval=[_interval(low, high) for low, high in zip(table["low"], table["high"], strict=True)])
    print_table(
        shown[["measure", "value", "interval", "unit", "good_if", "reading", "definition"]], f"{title} ({note})"
    )
    if not isinstance(sampler, TextSampler):
        typer.echo(sampler.spending())
    if out is not None:
        _write(out, title, note, table, rows, played)


def _situations(scenarios: str, count: int) -> list[Situation]:
    """The users to be played; a mistake is told before anything heavy is imported."""
    from scope_lite.envs import tau2
    from scope_lite.measure import diagnostics

    if scenarios in tau2.DOMAINS:
        return diagnostics.tau2_situations(tau2.spread(tau2.load_scenarios(scenarios), count))
    if scenarios != "p4g":
        raise ScopeError(f"unknown scenarios {scenarios!r}: choose one of {', '.join(tau2.DOMAINS)}, p4g")
    people = diagnostics.persuadee_situations()
    if count > len(people):
        raise ScopeError(f"asked for {count} dialogues, but p4g has {len(people)} personas: lower --dialogues")
    return people[:count]


def _interval(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"{low:.3g} to {high:.3g}"


def _write(out: Path, title: str, note: str, table: pd.DataFrame, rows: pd.DataFrame, played: list[Situation]) -> None:
    from scope_lite.figures.style import save_figure, use_style
    from scope_lite.figures.text import health_report
    from scope_lite.measure import diagnostics
    from scope_lite.store.escaping import for_csv
    from scope_lite.store.files import plain_disk_errors, replace_text

    use_style()
    with plain_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        replace_text(out / "health.md", diagnostics.as_markdown(table, title) + f"\n{note}\n")
        replace_text(out / "health.csv", for_csv(table, "%.6g"))
        replace_text(out / "replies.csv", for_csv(rows))
        save_figure(health_report(table, diagnostics.measure(rows, played), title, note), "health", out)
    typer.echo(f"wrote {out / 'health.md'}, health.csv, health.png, health.pdf and replies.csv")
