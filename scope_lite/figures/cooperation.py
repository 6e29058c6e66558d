"""Figures of cooperation: the world ``coding``, in which the partner is another agent of the same kind.

From the tables ``cooperation`` and ``cooperation_small`` (one row per run and evaluated step).
"""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.figure import Figure

from scope_lite.experiments.contrasts import COMMON, like_for_like
from scope_lite.figures.style import STYLE, finish, fit_y, heat_map, name_rows, panel_grid
from scope_lite.figures.training import curve_grid, note

TRAINED_WITH = ("sim-a", "sim-b", "sim-c")
"""partners that one of the compared runs trained with: sim-a in cross-play, all three in the frozen ensemble"""
COLOURS, LABELS = ({name: line[i] for name, line in STYLE["lines"]["cooperation"].items()} for i in (0, 1))
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
    fig = curve_grid([(compared, metric, title) for metric, title in PANELS.items()], COLOURS, LABELS, extra=0.3)
    for ax, metric in zip(fig.axes, PANELS, strict=True):
        if metric in ("entropy", "turns") and metric in compared:
            fit_y(ax, compared[metric], 0.05, 0.01)
    return finish(fig, f"{note(table)} · policy {', '.join(sorted(table['model'].unique()))}")


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
    name_rows(axes, list(values.columns), top=0.5)
    return finish(fig, "nano · coding · every dialogue enumerated")
