"""``scope-lite nano``, ``small`` and ``results``: make anew what is shipped, models, adapters and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_lite.cli.base import MOST, Device, Fresh, ProgressLine, Root, Setting, dataclass_of, group
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError

nano_app = group("The nano models.")
small_app = group("Small text models: adapters fine-tuned on real dialogues.")
results_app = group("The shipped tables behind the figures.")
Steps = Annotated[int | None, typer.Option(min=1, help="Optimizer steps; raise it later to go on.")]
Raw = Annotated[Path | None, typer.Option(help="Folder of P4G's raw files; downloaded by default.")]
Work = Annotated[Path | None, typer.Option(help="Folder of checkpoints; runs/small/NAME by default.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the adapter; data/models/small/NAME by default.")]


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
    folders = work or paths.RUNS / "small" / role, out or paths.SMALL_MODELS / role
    with ProgressLine(role) as line:
        manifest = finetune(
            config,
            dialogues,
            *folders,
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
    folders = work or paths.RUNS / "small" / reward, out or paths.SMALL_MODELS / reward
    shown = ("reward", "kl", "mode_share", "tokens")
    with ProgressLine(reward) as line:
        manifest = align(
            config,
            load_unannotated(raw),
            *folders,
            device,
            fresh,
            lambda step, metrics: line.step(step, config.steps, {name: metrics[name] for name in shown}),
        )
    first, last = manifest["metrics"][0], manifest["metrics"][-1]
    typer.echo(
        f"{reward}: {len(manifest['metrics'])} steps; KL {last['kl']:.2f} nats a reply, share of the most common reply "
        f"{first['mode_share']:.2f} before, {last['mode_share']:.2f} after"
    )


@results_app.command("build")
def results_build(
    experiment: Annotated[
        list[str] | None, typer.Argument(help="Names of experiments; all of nano scale by default.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Seeds a variant; each table's own number by default.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, help="Processes; one a core by default.")] = None,
    extend: Annotated[bool, typer.Option("--extend", help="Keep the runs that the shipped tables have.")] = False,
    out: Root = paths.RUNS,
    results: Annotated[Path, typer.Option(help="Folder of the tables.")] = paths.RESULTS,
) -> None:
    """Train what is missing and write the tables of data/results; resumable, and says its hours first."""
    from scope_lite import experiments

    names = experiment or [name for name, one in experiments.EXPERIMENTS.items() if not one.apart]
    missing = experiments.unfinished(names, seeds, out, results if extend else None)
    hours = experiments.hours_for(missing, out, workers)
    typer.echo(f"{len(names)} tables, {len(missing)} runs to train: about {hours:.1f} hours")
    for name in names:
        typer.echo(f"wrote {experiments.build(name, seeds, out, results, workers, extend)}")


@results_app.command("claims")
def results_claims() -> None:
    """Judge the paper's claims on the shipped tables: claims.csv, its figure, and what docs/ says of tables."""
    from scope_lite.experiments.claims import evaluate, read_claims, write_claims
    from scope_lite.experiments.measured import fill
    from scope_lite.figures.gallery import build
    from scope_lite.figures.verdicts import fill_page
    from scope_lite.store.files import replace_text

    table = write_claims(evaluate(paths.RESULTS), paths.RESULTS / "claims.csv")
    results, differences = (paths.HOME / "docs" / f"{name}.md" for name in ("results", "paper_and_code"))
    replace_text(results, fill_page(results.read_text(encoding="utf-8"), read_claims(table)))
    replace_text(differences, fill(differences.read_text(encoding="utf-8")))
    for path in (table, results, differences, *build(["claims"], paths.RESULTS, paths.FIGURES)):
        typer.echo(f"wrote {path}")
