"""Pictures of what a run meets, before any curve: figure 2, the prompts of figures 5 to 9, a reply, a memory plan."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_lite.envs import prompts
from scope_lite.envs.cooperbench.episode import AGENT
from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.users import BeliefUsers, sharpen
from scope_lite.envs.prompts import persuadee, persuader, user_simulator
from scope_lite.figures.style import METHOD_COLOURS, STYLE, WIDTH, finish, footnote, panel_grid
from scope_lite.method.sampling import VerbalizedModel
from scope_lite.models.rng import RowKeys

ANSWER = "simulator/answer/"
COLLAPSED = 8.0
STORIES = {
    "single": "The problem: one frozen\nsimulator, one favourite reply",
    "verbalized": "Fix 1, Verbalized Sampling:\nit lists what else it knows",
    "cotraining": "Fix 2, Co-Training: it learns,\nand its favourite moves",
}
PLACES = {
    "its own\nsimulator": "panel/seen/reward",
    "unseen\nsimulator": "panel/unseen/reward",
    "real\nusers": "panel/real/reward",
}
LISTS = 2000
LETTERS = 70
LINE = 0.135
"""height of a line of a prompt, in inches"""
ROLES = {"system": "#0072B2", "user": "#7f7f7f", "assistant": "#D55E00"}
GAMMA_COLOURS = ("#7f7f7f", "#D55E00", "#0072B2", "#009E73")


def figure_2(table: pd.DataFrame) -> Figure:
    """Fig. 2, drawn from what was measured: the answers to the most open question, and what the policy then earns.

    Args:
        table: of the experiment ``methods``, with the answers of the trained simulator.
    """
    world = get_world("persuasion")
    users = BeliefUsers(world, world.prior, LISTS)
    p = users.reply_probabilities(np.full(LISTS, world.open_question))
    said = [i for i in range(len(world.spec.user_acts)) if p[0, i] > 0.005]
    names = [world.spec.user_acts[i] for i in said]
    fig, axes = plt.subplots(3, 2, figsize=(WIDTH, 6.4), width_ratios=(1.35, 1))
    listed = VerbalizedModel()(p, RowKeys.grid(0, 0, LISTS, 1), 0, "simulator", 0)[1].mean(0)
    _bars(axes[0, 0], sharpen(p[:1], COLLAPSED)[0, said], p[0, said], "single")
    _bars(axes[1, 0], listed[said], p[0, said], "verbalized")
    _moving(axes[2, 0], table[table["variant"] == "cotraining"], names)
    last = table[table["step"] == table.groupby("run")["step"].transform("max")]
    for (said_ax, earned_ax), (method, story) in zip(axes, STORIES.items(), strict=True):
        said_ax.set_title(story, color=METHOD_COLOURS[method])
        said_ax.set_ylabel("simulator's answer")
        earned_ax.set_ylabel("policy's reward")
        _earned(earned_ax, last[last["variant"] == method], METHOD_COLOURS[method])
    for ax in axes[:2, 0]:
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=7)
    seeds = table["seed"].nunique()
    return footnote(fig, f"nano · persuasion · left: exact, and each run of Co-Training; right: {seeds} seeds")


def _bars(ax: Axes, shares: Float[np.ndarray, " r"], reference: Float[np.ndarray, " r"], method: str) -> None:
    ax.bar(range(len(shares)), shares, 0.75, color=METHOD_COLOURS[method], alpha=0.85)
    ax.step(np.arange(-1, len(reference) + 1), np.r_[np.nan, reference, np.nan], where="mid", color="k", lw=1)
    ax.annotate("line: the reference P", (0.98, 0.97), xycoords="axes fraction", fontsize=7, ha="right", va="top")
    ax.set(ylim=(0, 1.02))
    ax.grid(axis="x", visible=False)


def _moving(ax: Axes, runs: pd.DataFrame, names: list[str]) -> None:
    """Over training: the probability of the reply that was the favourite at the start, one line a run."""
    columns = [ANSWER + name for name in names]
    favourite = runs.loc[runs["step"] == 0, columns].mean().idxmax()
    for _, run in runs.groupby("seed"):
        ax.plot(run["step"], run[favourite], color=METHOD_COLOURS["cotraining"], lw=1, alpha=0.8)
    ax.set(xlabel=f"step; “{str(favourite).removeprefix(ANSWER)}”, one line a run")


def _earned(ax: Axes, end: pd.DataFrame, colour: str) -> None:
    for i, column in enumerate(PLACES.values()):
        ax.bar(i, end[column].mean(), 0.65, color=colour, alpha=0.35)
        ax.plot(i + np.linspace(-0.22, 0.22, len(end)), end[column], "o", ms=2.5, color=colour, mew=0)
    ax.set_xticks(range(len(PLACES)), list(PLACES))
    ax.tick_params(axis="x", labelsize=7)
    ax.set(ylim=(0, 1.02))
    ax.grid(axis="x", visible=False)


def prompt_card(_: pd.DataFrame, which: str) -> Figure:
    """Fig. 5 to 9: a prompt of the code as a model reads it, one box a message, the role in its colour.

    ``verbalized`` is shown as it stands after the last line heard; ``$name`` in a text is filled in for each dialogue.
    """
    opening = [user_simulator.AGENT_OPENING]
    asked = prompts.with_verbalized_block([{"role": "user", "content": opening[0]}])[-1:]
    messages, where = {
        "persuader": ([{"role": "system", "content": persuader.SYSTEM}], "prompts/persuader.py"),
        "persuadee": ([{"role": "system", "content": persuadee.SYSTEM}], "prompts/persuadee.py"),
        "verbalized": (asked, "prompts/verbalized.py, after the last line heard"),
        "user_simulator": (prompts.user_simulator_chat("$scenario", opening), "prompts/user_simulator.py"),
        "cooperation": ([{"role": "system", "content": AGENT}], "cooperbench/episode.py"),
    }[which]
    wrapped = [
        (m["role"], [piece for line in m["content"].split("\n") for piece in textwrap.wrap(line, LETTERS) or [""]])
        for m in messages
    ]
    lines = sum(len(text) + 2 for _, text in wrapped) + 1
    fig, ax = plt.subplots(figsize=(WIDTH, lines * LINE + 0.3))
    ax.set(xlim=(0, 1), ylim=(lines, 0))
    ax.axis("off")
    top = 0.5
    for role, text in wrapped:
        height = len(text) + 1.3
        ax.add_patch(plt.Rectangle((0.0, top), 1, height, fc=ROLES[role], alpha=0.07, ec="none"))
        ax.add_patch(plt.Rectangle((0.0, top), 0.006, height, fc=ROLES[role], ec="none"))
        ax.text(0.985, top + 0.25, role, ha="right", va="top", fontsize=6.5, color=ROLES[role])
        for i, line in enumerate(text):
            # a dollar sign would begin mathematics
            ax.text(0.02, top + 0.7 + i, line.replace("$", r"\$"), va="top", fontsize=6.5, family="monospace")
        top += height + 0.7
    return footnote(fig, f"the code's own text: scope_lite/envs/{where}; $words are filled in")


def reply_bars(
    distributions: Mapping[float | str, Float[np.ndarray, " R"]], replies: Sequence[str], heard: str
) -> Figure:
    """Reply distributions at one history, side by side; a number as a name is a sharpness γ.

    Replies that are impossible under all of them are left out.
    """
    possible = [i for i in range(len(replies)) if any(p[i] > 1e-6 for p in distributions.values())]
    width = 0.8 / len(distributions)
    fig, (ax,) = panel_grid(1, 2.9, extra=0.3)
    for k, ((name, p), colour) in enumerate(zip(distributions.items(), GAMMA_COLOURS, strict=False)):
        label = f"{name if isinstance(name, str) else f'γ = {name:g}'}  (ε = {1 - p.max():.2f})"
        at = np.arange(len(possible)) + (k - (len(distributions) - 1) / 2) * width
        ax.bar(at, p[possible], width, color=colour, label=label)
    ax.set_xticks(range(len(possible)), [replies[i] for i in possible], rotation=20, ha="right")
    ax.set(ylabel="probability", ylim=(0, 1.02))
    ax.set_title(f"Agent: “{heard}”", loc="center", fontsize=9)
    ax.grid(axis="x", visible=False)
    return finish(fig)


def memory_bars(table: pd.DataFrame, capacity: float, title: str) -> Figure:
    """Where a GPU's memory goes: a stacked bar for rollouts and one for training, and a line at the card's memory.

    Args:
        table: columns ``part``, ``rollouts`` and ``training``, in GiB (``Plan.table``).
        capacity: the card's memory in GiB.
    """
    fig, (ax,) = panel_grid(1, 2.9, extra=0)
    for row, phase in enumerate(("training", "rollouts")):
        left = 0.0
        for part, size in zip(table["part"], table[phase], strict=True):
            colour, label = STYLE["colours"]["memory"][part], part if row == 0 else None
            ax.barh(row, size, left=left, color=colour, height=0.62, label=label)
            if size > 0.09 * capacity:
                ink = "k" if part in ("logits", "optimizer", "activations", "LoRA adapters") else "w"
                ax.text(left + size / 2, row, f"{size:.1f}", ha="center", va="center", fontsize=7.5, color=ink)
            left += size
        ax.text(left + 0.018 * capacity, row, f"{left:.1f}", ha="left", va="center", fontsize=8, fontweight="bold")
    ax.axvline(capacity, color="k", lw=1.2, ls="--")
    widest = max(capacity, table["rollouts"].sum(), table["training"].sum())
    ax.text(capacity, 1.52, f"the card: {capacity:.1f} GiB ", ha="right", va="center", fontsize=8)
    ax.set(xlim=(0, 1.14 * widest), ylim=(-0.5, 1.75), xlabel="GiB")
    ax.set_yticks((0, 1), ("training", "rollouts"))
    ax.set_title(title, fontsize=9)
    ax.grid(False, axis="y")
    ax.set_axisbelow(True)
    fig.legend(loc="outside upper center", ncols=3, fontsize=7.5)
    return footnote(fig, "planned, not measured")
