"""``scope-lite small``: adapters on SmolLM2 that speak like people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_lite.cli.base import Device, Fresh, ProgressLine, Setting, dataclass_of, group
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError

small_app = group("Small text models: adapters fine-tuned on real dialogues.")
Steps = Annotated[int | None, typer.Option(min=1, help="Optimizer steps; raise it later to go on.")]
Raw = Annotated[Path | None, typer.Option(help="Folder of P4G's raw files; downloaded by default.")]

Work = Annotated[Path | None, typer.Option(help="Folder of checkpoints; runs/small/NAME by default.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the adapter; data/models/small/NAME by default.")]


@small_app.command("finetune")
def small_finetune(
    role: Annotated[str, typer.Option(help="persuadee (the user) or persuader (the base policy).")],
    steps: Steps = None,
    setting: Setting = None,
    raw: Raw = None,
    device: Device = "auto",
    work: Work = None,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Fine-tune an adapter on Persuasion for Good, 100 steps in an hour on a core; goes on after a stop."""
    from scope_lite.envs.p4g import ROLES, load_unannotated

    if role not in ROLES:
        raise ScopeError(f"unknown role {role!r}: choose {' or '.join(ROLES)}")
    dialogues = load_unannotated(raw)
    from scope_lite.experiments.text_models import FinetuneConfig, finetune

    config = dataclass_of(FinetuneConfig, setting, role=role, steps=steps)
    work, out = work or paths.RUNS / "small" / role, out or paths.SMALL_MODELS / role
    with ProgressLine(role) as line:
        manifest = finetune(
            config,
            dialogues,
            work,
            out,
            device,
            fresh,
            lambda step, metrics: line.step(step, config.steps, metrics),
        )
    ppl = manifest["perplexity"]
    typer.echo(
        f"{role}: best at step {manifest['best_step']} of {manifest['steps_done']}; perplexity on test dialogues "
        f"{ppl['test_base']:.2f} before, {ppl['test_adapter']:.2f} after"
    )


@small_app.command("align")
def small_align(
    reward: Annotated[
        str, typer.Option(help="typicality (how usual a reply is) or agreement (with what was asked).")
    ] = "typicality",
    start: Annotated[
        str | None, typer.Option(help='Where it starts: "smollm2", a folder, or "smollm2+FOLDER" with an adapter.')
    ] = None,
    strength: Annotated[float | None, typer.Option(help="Weight of the reward over that of the KL.")] = None,
    steps: Steps = None,
    setting: Setting = None,
    raw: Raw = None,
    device: Device = "auto",
    work: Work = None,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Align a persuadee with a reward, to collapse it, a minute a step on a core; goes on after a stop."""
    from scope_lite.envs.p4g import load_unannotated
    from scope_lite.experiments.text_models import AlignConfig, align

    config = dataclass_of(AlignConfig, setting, reward=reward, model=start, strength=strength, steps=steps)
    dialogues = load_unannotated(raw)
    work, out = work or paths.RUNS / "small" / reward, out or paths.SMALL_MODELS / reward
    shown = ("reward", "kl", "mode_share", "tokens")
    with ProgressLine(reward) as line:
        manifest = align(
            config,
            dialogues,
            work,
            out,
            device,
            fresh,
            lambda step, metrics: line.step(step, config.steps, {name: metrics[name] for name in shown}),
        )
    first, last = manifest["metrics"][0], manifest["metrics"][-1]
    typer.echo(
        f"{reward}: {len(manifest['metrics'])} steps; KL {last['kl']:.2f} nats a reply, share of the most common reply "
        f"{first['mode_share']:.2f} before, {last['mode_share']:.2f} after"
    )
