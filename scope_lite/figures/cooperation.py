"""Figures of cooperation: the world ``coding``, in which the partner is another agent of the same kind.

From the tables ``cooperation`` and ``cooperation_small`` (one row per run and evaluated step).
"""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.figure import Figure

from scope_lite.experiments.contrasts import COMMON, like_for_like
from scope_lite.figures.style import (
    METHOD_COLOURS,
    METHOD_LABELS,
    footnote,
    heat_map,
    name_rows,
    panel_grid,
    shared_legend,
)
from scope_lite.figures.training import draw_curves, note

TRAINED_WITH = ("sim-a", "sim-b", "sim-c")
"""partners that one of the compared runs trained with: sim-a in cross-play, all three in the frozen ensemble"""
COLOURS = {
    "base": METHOD_COLOURS["base"],
    "single": METHOD_COLOURS["single"],
    "ensemble": METHOD_COLOURS["ensemble"],
    # self-play is to cooperation what Co-Training is to users: a partner that moves, without a pool and with one
    "selfplay": METHOD_COLOURS["cotraining"],
    "selfplay_population": METHOD_COLOURS["population"],
    "unsharpened": METHOD_COLOURS["unsharpened"],
}
LABELS = {
    "base": METHOD_LABELS["base"],
    "single": "cross-play, fixed partner",
    "ensemble": "cross-play, frozen ensemble (K=3)",
    "selfplay": "self-play",
    "selfplay_population": "population self-play (K=5)",
    "unsharpened": METHOD_LABELS["unsharpened"],
}
PANELS = {
    "reward": "(a) training reward",
    COMMON: "(b) partners unseen by all",
    "panel/real/reward": "(c) real partners",
    "entropy": "(d) policy entropy (nats)",
    "turns": "(e) turns until both wrote",
}


def figure_23(table: pd.DataFrame) -> Figure:
    """Fig. 23 and 24: training reward, evaluation reward, entropy and conversation turns, by kind of partner.

    The runs met different partners in training, so evaluation is on those that none of them met, and on real ones.
    """
    compared = like_for_like(table, TRAINED_WITH)
    fig, axes = panel_grid(len(PANELS), extra=0.3)
    for ax, (metric, title) in zip(axes, PANELS.items(), strict=True):
        draw_curves(ax, compared, metric, COLOURS, LABELS)
        if metric in ("entropy", "turns") and metric in compared:
            # the runs set the range: an interval of few seeds may reach far beyond what is possible
            low, high = compared[metric].min(), compared[metric].max()
            ax.set_ylim(low - 0.05 * (high - low) - 0.01, high + 0.05 * (high - low) + 0.01)
        ax.set_title(title)
    shared_legend(fig)
    models = ", ".join(sorted(table["model"].unique()))
    footnote(fig, f"{note(table)} · policy {models}")
    return fig


def convention_values(values: pd.DataFrame, shares: pd.DataFrame) -> Figure:
    """Exact reward of scripted policies by the partner's convention, beside how often each convention is met.

    Args:
        values: a row a policy, a column a convention, rewards in [0, 1].
        shares: rows such as "P" and "real", the same columns, shares of the partners.
    """
    fig, axes = panel_grid(2, 0.9 + 0.25 * len(values.columns), extra=0.5)
    heat_map(axes[0], shares, lambda value: value > 0.6, "Greys")
    heat_map(axes[1], values, lambda value: value < 0.6)
    titles = ("share of the partners", "reward with them, exactly")
    for ax, rows, title in zip(axes, (shares, values), titles, strict=True):
        ax.set_xticks(range(len(rows)), [textwrap.fill(str(name), 14) for name in rows.index], fontsize=7)
        ax.set_title(title)
    name_rows(axes, list(values.columns))
    for ax in axes:
        ax.set_ylim(len(values.columns) - 0.5, -0.5)
    footnote(fig, "nano · coding · every dialogue enumerated")
    return fig
