"""``scope-lite nano`` and ``doctor``: the embedded models, and what works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_lite.cli.base import group
from scope_lite.store import paths

nano_app = group("The nano models.")


@nano_app.command("build")
def nano_build(
    world: Annotated[str, typer.Option(help="Name of a nano world, shipped or your own.")] = "persuasion",
    model: Annotated[list[str] | None, typer.Option(help="Name of a base model; all by default.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the models; by default the shipped ones', for a world of your own the cache."),
    ] = None,
) -> None:
    """Pre-train the nano base models and the panel of a world (minutes on a CPU)."""
    from scope_lite.envs.nano import SHIPPED
    from scope_lite.experiments import nano_models as nano

    home = paths.NANO_MODELS if world in SHIPPED else paths.cache_folder() / "nano"
    nano.build(world, model, out or home)


@nano_app.command("check")
def nano_check(world: Annotated[str, typer.Option(help="Name of a nano world.")] = "persuasion") -> None:
    """How far each shipped model is from its exact users: mean KL in nats a turn on held-out dialogues."""
    from scope_lite.experiments import nano_models as nano

    for name, kl in nano.kl_table(world):
        typer.echo(f"{name:14} {kl:.4f}")


def doctor() -> None:
    """Say what works on this machine, what does not, and what to do about it; exit code 1 if a need is unmet."""
    from scope_lite.cli.machine import report

    checks = report(paths.HOME)
    for check in checks:
        mark = "ok" if check.ok else "NO" if check.required else "--"
        remedy = f"\n     {check.remedy}" if check.remedy and not check.ok else ""
        typer.echo(f"{mark}   {check.name}: {check.detail}{remedy}")
    if any(check.required and not check.ok for check in checks):
        raise typer.Exit(1)
