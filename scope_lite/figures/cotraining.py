"""Figures of Co-Training: phases over starting sharpness, the simulator's movement, rewards and pool sizes."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from scope_lite.figures.style import METHOD_COLOURS, footnote
from scope_lite.figures.training import LABELS, UNSEEN, curve_panels, dose_response, draw_curves, draw_doses, note

KIND_COLOURS = {
    "zero reward": "#7f7f7f",
    "Co-Training": METHOD_COLOURS["cotraining"],
    "Population": METHOD_COLOURS["population"],
}
REWARD_COLOURS = {
    "curriculum": "#0072B2",
    "adversarial": "#D55E00",
    "cooperative": "#009E73",
    "zero": "#7f7f7f",
    "random": "#CC79A7",
}


def phase_curves(end: pd.DataFrame, columns: Sequence[str]) -> Figure:
    """Reward at the end of training against the starting sharpness, a line a method, a point a seed.

    Columns of ``end``: kind, gamma, seed and ``columns``; one axes a column.
    """
    fig, axes = plt.subplots(1, len(columns), figsize=(3.2 * len(columns), 2.9), squeeze=False, sharey=True)
    for ax, column in zip(axes[0], columns, strict=True):
        for k, (kind, colour) in enumerate(KIND_COLOURS.items()):
            rows = end[end["kind"] == kind]
            draw_doses(ax, rows["gamma"], rows[column], colour, kind, 0.1 * (k - 1))
        ax.set(xlabel="sharpness γ₀ at the start")
        ax.set_title(LABELS.get(column, column), loc="left", fontsize=8.5)
    handles, names = axes[0][0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=3)
    footnote(fig, f"nano · persuasion · {end['seed'].nunique()} seeds (points), end of training, 95 % t-interval")
    return fig


def simulator_over_steps(table: pd.DataFrame, gammas: Sequence[float]) -> Figure:
    """Collapse error of the simulator on visited histories over training, an axes a starting sharpness."""
    fig, axes = plt.subplots(1, len(gammas), figsize=(3.2 * len(gammas), 2.9), squeeze=False, sharey=True)
    for ax, gamma in zip(axes[0], gammas, strict=True):
        colours = {f"{kind}, sharpness={gamma:g}": colour for kind, colour in KIND_COLOURS.items()}
        labels = {name: name.split(",")[0] for name in colours}
        draw_curves(ax, table, "simulator/epsilon", colours, labels)
        ax.set_title(f"{LABELS['simulator/epsilon']}, γ₀ = {gamma:g}", loc="left", fontsize=8.5)
    handles, names = axes[0][0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=3)
    footnote(fig, note(table))
    return fig


def reward_ablation(table: pd.DataFrame) -> Figure:
    """Fig. 27: policy's reward, reward on unseen simulators, entropy and simulator's KL, by the simulator's reward."""
    metrics = ("reward", UNSEEN, "entropy", "simulator/kl")
    return curve_panels(table, metrics, REWARD_COLOURS, {name: f"{name} reward" for name in REWARD_COLOURS})


def pool_sizes(end: pd.DataFrame, columns: Sequence[str]) -> Figure:
    """Fig. 17: reward at the end of training against the size K of the pool."""
    sized = end.assign(K=end["variant"].str.removeprefix("K=").astype(int))
    return dose_response(sized, "K", columns, "pool size K")
