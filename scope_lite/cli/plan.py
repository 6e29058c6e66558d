"""``scope-lite plan``: where a GPU's memory goes and how fast it can be, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scope_lite.cli.base import MOST, print_table

if TYPE_CHECKING:
    from scope_lite.cli.planner import Plan


def plan(
    model: Annotated[str, typer.Option(help="A known model's name, or a folder with a config.json.")],
    gpu: Annotated[str, typer.Option(help="GB of the card (24, 48, 80), or its name (L4, A100, ...).")],
    groups: Annotated[int | None, typer.Option(help="Groups a step [8].")] = None,
    group_size: Annotated[int | None, typer.Option(help="Rollouts a group [8].")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a transcript at its end [4096].")] = None,
    turns: Annotated[int | None, typer.Option(help="Turns of a dialogue [10].")] = None,
    new_tokens: Annotated[int | None, typer.Option(help="Tokens that a seat writes a turn [96].")] = None,
    adapters: Annotated[int | None, typer.Option(help="Trained seats: 1, or 2 for Co-Training [2].")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Rank of an adapter [16].")] = None,
    bits: Annotated[int | None, typer.Option(help="4 (NF4) or 16 (bf16) for the frozen base [16].")] = None,
    engine: Annotated[str | None, typer.Option(help="unsloth (vLLM plays) or hf [unsloth].")] = None,
    vllm_share: Annotated[float | None, typer.Option(help="vLLM's share of the card [what fits].")] = None,
    sleep: Annotated[
        bool | None, typer.Option(help="vLLM's memory is the trainer's while the seats train [yes].")
    ] = None,
    at_once: Annotated[int | None, typer.Option(help="Dialogues played at the same time [all].")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Dialogues in one backward pass [1].")] = None,
    checkpointing: Annotated[bool, typer.Option(help="Compute layers again instead of keeping them.")] = True,
    logits_everywhere: Annotated[
        bool, typer.Option("--logits-everywhere", help="Logits at every token, not at trained ones only.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, max=MOST, help="Steps to count the hours for.")] = 200,
    figure: Annotated[Path | None, typer.Option(help="Draw the memory here, too (.png or .pdf).")] = None,
) -> None:
    """Plan memory and time on one GPU; exit code 2 and the knob to turn if it cannot fit."""
    from scope_lite.cli.planner import card, require_fit, shape_of, workload
    from scope_lite.cli.planner import plan as make_plan

    work = workload(
        groups=groups, group_size=group_size, context=context, turns=turns, new_tokens=new_tokens, adapters=adapters,
        lora_rank=lora_rank, bits=bits, engine=engine, vllm_share=vllm_share, sleep=sleep, at_once=at_once,
        micro_batch=micro_batch, checkpointing=checkpointing, logits_everywhere=logits_everywhere,
    )  # fmt: skip
    made = make_plan(shape_of(model), card(gpu), work)
    show_memory(made)
    if figure:
        _draw(made, figure)
    require_fit(made)
    show_speed(made, steps)


def show_memory(made: Plan) -> None:
    """The parts of memory, and what two switches change."""
    import pandas as pd

    from scope_lite.cli.planner.cards import GIB
    from scope_lite.cli.planner.memory import kept_activations, logit_bytes

    work, shape = made.work, made.shape
    table = made.table()
    total = pd.DataFrame([{"part": "in all", **table[["rollouts", "training"]].sum()}])
    available = made.card.memory / GIB
    typer.echo(f"{shape.name}, {shape.parameters / 1e9:.2f}B parameters, on {made.card.name}: GiB of {available:.1f}")
    print_table(pd.concat([table, total], ignore_index=True).round(2))
    tokens = work.micro_batch * work.context
    kept = [kept_activations(shape, work.lora_rank, tokens, on) / GIB for on in (True, False)]
    typer.echo(f"activations kept: {kept[0]:.2f} GiB with gradient checkpointing, {kept[1]:.2f} without")
    trained = work.micro_batch * work.written
    logits = [logit_bytes(shape.vocabulary, count, work.engine) / GIB for count in (trained, tokens)]
    typer.echo(f"logits: {logits[0]:.2f} GiB at the {trained} trained tokens, {logits[1]:.2f} at all {tokens}")
    if made.memory.share is not None:
        typer.echo(f"vLLM's share of the card: {made.memory.share:.2f} (gpu_memory_utilization)")


def show_speed(made: Plan, steps: int) -> None:
    """Tokens a second and seconds a step: what the card cannot exceed, and what is likely."""
    import pandas as pd

    speed, work = made.speed, made.work
    rows = []
    for name, likely in (("at most (roofline)", False), ("likely (allowance)", True)):
        rollouts, training = speed.tokens_per_second(likely)
        seconds = (
            (speed.likely_rollout_seconds, speed.likely_training_seconds)
            if likely
            else (speed.rollout_seconds, speed.training_seconds)
        )
        rows.append({
            "speed": name, "rollout tokens/s": rollouts, "training tokens/s": training, "rollouts s": seconds[0],
            "training s": seconds[1], f"hours of {steps} steps": steps * sum(seconds) / 3600,
        })  # fmt: skip
    like = f", bandwidth and arithmetic of {made.card.like}" if made.card.like else ""
    typer.echo(f"a step of {work.dialogues} dialogues, {work.turns} turns{like}")
    print_table(pd.DataFrame(rows))
    if speed.rereads:
        typer.echo(
            f"the KV cache holds {made.memory.kv_room / made.memory.kv_wanted:.0%} of both seats' transcripts, so each "
            "turn reads its history again; a smaller --at-once avoids that"
        )
    typer.echo("evaluation on a panel is not counted; allowances are stated in scope_lite/cli/planner, not measured")


def _draw(made: Plan, path: Path) -> None:
    import matplotlib.pyplot as plt

    from scope_lite.cli.planner.cards import GIB
    from scope_lite.figures.planner import memory_bars
    from scope_lite.figures.style import use_style

    use_style()
    fig = memory_bars(made.table(), made.card.memory / GIB, f"{made.shape.name} on {made.card.name}")
    fig.savefig(path, dpi=300)
    plt.close(fig)
    typer.echo(f"wrote {path}")
