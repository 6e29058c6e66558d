"""``scope-lite small``: adapters on SmolLM2 that speak like people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from scope_lite import MAX_SEED
from scope_lite.cli.base import MOST, Fresh, group
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError

small_app = group("Small text models: adapters fine-tuned on real dialogues.")


@contextmanager
def _bar(name: str, steps: int) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """A progress bar; call what it gives with the step that was done and the numbers to show."""
    from tqdm import tqdm

    with tqdm(total=steps, desc=f"{name}: loading", unit="step", dynamic_ncols=True) as bar:

        def show(step: int, numbers: dict[str, float]) -> None:
            if bar.n == 0 and step > 1:  # the time left counts from here, not from before the stop
                bar.initial = bar.n = step - 1
            bar.set_description(name, refresh=False)
            bar.set_postfix({key: f"{value:.2f}" for key, value in numbers.items()})
            bar.update(step - bar.n)

        yield show


@small_app.command("finetune")
def small_finetune(
    role: Annotated[str, typer.Option(help="persuadee (the user) or persuader (the base policy).")],
    steps: Annotated[int, typer.Option(min=1, max=MOST, help="Optimizer steps; raise it later to go on.")] = 400,
    raw: Annotated[Path | None, typer.Option(help="Folder of P4G's raw files; downloaded by default.")] = None,
    model: Annotated[str, typer.Option(help='What is adapted: "smollm2" or a folder.')] = "smollm2",
    learning_rate: Annotated[float, typer.Option(help="AdamW's, constant after the warm-up.")] = 5e-4,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Of the adapter's start and the dialogues' order.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    work: Annotated[Path | None, typer.Option(help="Folder of checkpoints; runs/small/ROLE by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the adapter; data/models/small/ROLE by default.")] = None,
    fresh: Fresh = False,
) -> None:
    """Fine-tune an adapter on Persuasion for Good, 100 steps in an hour on a core; goes on after a stop."""
    from scope_lite.envs.p4g import ROLES, load_unannotated

    if role not in ROLES:
        raise ScopeError(f"unknown role {role!r}: choose {' or '.join(ROLES)}")
    dialogues = load_unannotated(raw)
    from scope_lite.experiments.text_models import FinetuneConfig, finetune

    config = FinetuneConfig(role, model, steps, learning_rate=learning_rate, seed=seed)
    with _bar(role, steps) as show:
        manifest = finetune(
            config,
            dialogues,
            work or paths.RUNS / "small" / role,
            out or paths.SMALL_MODELS / role,
            device,
            fresh,
            lambda p: show(p.step, {"loss": p.losses[-1], "valid_perplexity": p.valid[-1][1]}),
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
        str, typer.Option(help='Where it starts: "smollm2", a folder, or "smollm2+FOLDER" with an adapter.')
    ] = "smollm2",
    strength: Annotated[float, typer.Option(help="Weight of the reward over that of the KL.")] = 1.0,
    steps: Annotated[int, typer.Option(min=1, max=MOST, help="Optimizer steps; raise it later to go on.")] = 60,
    raw: Annotated[Path | None, typer.Option(help="Folder of P4G's raw files; downloaded by default.")] = None,
    learning_rate: Annotated[float, typer.Option(help="AdamW's.")] = 2e-4,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Of the adapter's start, the histories' order and the replies.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    work: Annotated[Path | None, typer.Option(help="Folder of checkpoints; runs/small/REWARD by default.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the adapter; data/models/small/REWARD by default.")
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Align a persuadee with a reward, to collapse it, a minute a step on a core; goes on after a stop."""
    from scope_lite.envs.p4g import load_unannotated
    from scope_lite.experiments.text_models import AlignConfig, align

    config = AlignConfig(reward, start, strength, steps, learning_rate=learning_rate, seed=seed)  # type: ignore[arg-type]
    dialogues = load_unannotated(raw)
    shown = ("reward", "kl", "mode_share", "tokens")
    with _bar(reward, steps) as show:
        manifest = align(
            config,
            dialogues,
            work or paths.RUNS / "small" / reward,
            out or paths.SMALL_MODELS / reward,
            device,
            fresh,
            lambda step, metrics: show(step, {name: metrics[name] for name in shown}),
        )
    first, last = manifest["metrics"][0], manifest["metrics"][-1]
    typer.echo(
        f"{reward}: {len(manifest['metrics'])} steps; KL {last['kl']:.2f} nats a reply, share of the most common reply "
        f"{first['mode_share']:.2f} before, {last['mode_share']:.2f} after"
    )
