"""Figure 2: the problem and its two fixes, each drawn from what was measured, not by hand."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.users import BeliefUsers, sharpen
from scope_lite.figures.style import METHOD_COLOURS, WIDTH, footnote
from scope_lite.method.sampling import VerbalizedModel
from scope_lite.models.rng import RowKeys

ANSWER = "simulator/answer/"
COLLAPSED = 8.0
STORIES = {
    "single": "The problem: one frozen\nsimulator, one favourite reply",
    "verbalized": "Fix 1, Verbalized Sampling:\nit lists what else it knows",
    "cotraining": "Fix 2, Co-Training: it learns,\nand its favourite moves",
}
PLACES = {"its own": "panel/seen/reward", "unseen": "panel/unseen/reward", "real": "panel/real/reward"}
LISTS = 2000


def figure_2(table: pd.DataFrame) -> Figure:
    """Left, what the simulator answers to the world's most open question; right, what the policy then earns.

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
    footnote(
        fig, f"nano · persuasion · left: exact, and each run of Co-Training; right: {table['seed'].nunique()} seeds"
    )
    return fig


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
    for i, (name, column) in enumerate(PLACES.items()):
        ax.bar(i, end[column].mean(), 0.65, color=colour, alpha=0.35, label=name)
        spread = np.linspace(-0.22, 0.22, len(end))
        ax.plot(i + spread, end[column], "o", ms=2.5, color=colour, mew=0)
    ax.set_xticks(range(len(PLACES)), [f"{name}\nsimulator" if name != "real" else "real\nusers" for name in PLACES])
    ax.tick_params(axis="x", labelsize=7)
    ax.set(ylim=(0, 1.02))
    ax.grid(axis="x", visible=False)
