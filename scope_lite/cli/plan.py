"""``scope-lite plan``: where a GPU's memory goes, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_lite.cli.base import Config, Method, Setting, World, draw, make_config, print_table


def plan(
    gpu: Annotated[str, typer.Option(help="GB of the card (24, 48, 80), or its name (L4, A100, ...).")],
    config: Config = None,
    model: Annotated[str | None, typer.Option(help="A known model's name, or a folder with a config.json.")] = None,
    method: Method = None,
    world: World = None,
    setting: Setting = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the memory here, too (.png or .pdf).")] = None,
) -> None:
    """Plan the memory of a run in real text on one GPU; exit code 2 and the setting to change if it cannot fit."""
    run_config = make_config(config, setting, model=model, method=method, world=world or (None if config else "p4g"))
    from scope_lite.cli.planner import GIB, card, require_fit
    from scope_lite.cli.planner import plan as make_plan

    made = make_plan(run_config, card(gpu))
    shape, room = made.shape, made.card.memory / GIB
    typer.echo(f"{shape.name}, {shape.parameters / 1e9:.2f}B parameters, on {made.card.name}: GiB of {room:.1f}")
    table = made.table()
    table.loc[len(table)] = ["in all", table["rollouts"].sum(), table["training"].sum()]
    print_table(table.round(2))
    if figure:
        from scope_lite.figures.schematic import memory_bars

        draw(figure, lambda: memory_bars(made.table(), room, f"{shape.name} on {made.card.name}"))
    require_fit(made)
    typer.echo(
        f"a step of {made.dialogues} dialogues, {run_config.text.turns} turns, {made.context} tokens a transcript"
    )
    typer.echo("allowances are stated in scope_lite/cli/planner, not measured")
