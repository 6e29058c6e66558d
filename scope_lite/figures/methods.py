"""Figures that compare all methods over several worlds: curves, differences by panel member, who beats whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_lite.figures.style import METHOD_COLOURS, METHOD_LABELS, footnote, name_rows, panel_grid, shared_legend
from scope_lite.figures.training import LABELS, REAL, UNSEEN, draw_curves
from scope_lite.measure.stats import paired_gaps, probability_of_improvement, t_interval

MARKERS = ("o", "s", "^", "D")
"""one a world"""


def worlds_grid(table: pd.DataFrame, optima: Mapping[str, float]) -> Figure:
    """A row a world: reward on unseen simulators and on real users; then the entropy in each. Every method.

    Args:
        table: rows of several experiments, as one table; ``world`` tells them apart.
        optima: world -> the exact optimum on its real users, drawn as a line.
    """
    worlds = list(dict.fromkeys(table["world"]))
    colours = {m: c for m, c in METHOD_COLOURS.items() if m in set(table["variant"])}
    panels = [(world, metric) for world in worlds for metric in (UNSEEN, REAL)]
    panels += [(world, "entropy") for world in worlds]
    fig, axes = panel_grid(len(panels), 1.8, extra=0.3)
    for ax, (world, metric) in zip(axes, panels, strict=True):
        draw_curves(ax, table[table["world"] == world], metric, colours, METHOD_LABELS)
        ax.set_title(f"{world}:\n{LABELS[metric]}")
        if world in optima and metric == REAL:
            ax.axhline(optima[world], color="k", lw=1, ls=(0, (5, 2)), label="exact optimum, real users")
    shared_legend(fig)
    seeds = table.groupby("world")["seed"].nunique()
    many = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    footnote(fig, f"nano · {many} seeds a world (thin lines), 95 % t-interval")
    return fig


def differences(
    ends: Mapping[str, pd.DataFrame], kinds: Sequence[str], reference: str, methods: Sequence[str]
) -> Figure:
    """Each method minus a reference method, paired by seed: a panel a kind of panel member, a mark a world.

    Points are seeds, bars 95 % t-intervals; the zero line is the reference.

    Args:
        ends: world -> one row per variant and seed, with ``variant``, ``seed`` and a column a kind.
    """
    fig, axes = panel_grid(len(kinds), 0.5 + 0.27 * len(methods))
    for world, marker, shift in zip(ends, MARKERS, np.linspace(-0.27, 0.27, len(ends)), strict=False):
        by = {m: rows.set_index("seed") for m, rows in ends[world].groupby("variant")}
        for ax, kind in zip(axes, kinds, strict=True):
            for i, method in enumerate(methods):
                if kind in ends[world] and method in by and reference in by:
                    _draw_gap(ax, i + shift, by[method][kind], by[reference][kind], METHOD_COLOURS[method], marker)
        axes[0].plot([], [], marker, color="#555555", ms=4, label=world)
    for ax, kind in zip(axes, kinds, strict=True):
        ax.axvline(0, color="#555555", lw=0.8)
        ax.set(xlim=(-1, 1), title=kind.replace(", ", ",\n"))
    name_rows(axes, [METHOD_LABELS[m] for m in methods])
    shared_legend(fig)
    seeds = max(end["seed"].nunique() for end in ends.values())
    footnote(
        fig, f"reward minus {METHOD_LABELS[reference]}'s, paired by seed; up to {seeds} seeds (points), 95 % t-interval"
    )
    return fig


def _draw_gap(ax: Axes, at: float, values: pd.Series, reference: pd.Series, colour: str, marker: str) -> None:
    gap = paired_gaps(values, reference).dropna()
    ax.plot(gap, np.full(len(gap), at), "o", ms=2, alpha=0.4, mew=0, color=colour)
    interval = t_interval(gap)
    ax.errorbar(interval.mean, at, xerr=interval.half, fmt=marker, ms=3.5, capsize=1.5, lw=1, color=colour)


def improvement_matrices(ends: Mapping[str, pd.DataFrame], column: str, methods: Sequence[str]) -> Figure:
    """Probability of improvement of the row's method over the column's, a matrix a world (rliable's estimator)."""
    fig, axes = panel_grid(len(ends), 0.9 + 0.22 * len(methods))
    names = [METHOD_LABELS[m] for m in methods]
    for ax, (world, end) in zip(axes, ends.items(), strict=True):
        runs = {m: end.loc[end["variant"] == m, column].dropna().to_numpy() for m in methods}
        chance = np.full((len(methods), len(methods)), np.nan)
        for i, a in enumerate(methods):
            for j, b in enumerate(methods):
                if i != j and len(runs[a]) and len(runs[b]):
                    chance[i, j] = probability_of_improvement(runs[a], runs[b])
                    ink = "w" if abs(chance[i, j] - 0.5) > 0.35 else "k"
                    short = "1" if chance[i, j] > 0.995 else f"{chance[i, j]:.2f}"[1:]
                    ax.text(j, i, short, ha="center", va="center", fontsize=6.5, color=ink)
        ax.imshow(chance, vmin=0, vmax=1, cmap="PuOr", aspect="auto")
        ax.set_xticks(range(len(methods)), names, rotation=55, ha="right", rotation_mode="anchor", fontsize=7)
        ax.set_title(world)
        ax.grid(False)
        ax.tick_params(length=0)
    name_rows(axes, names)
    for ax in axes:
        ax.set_ylim(len(methods) - 0.5, -0.5)
    footnote(fig, f"probability that a run of the row's method beats one of the column's: {LABELS.get(column, column)}")
    return fig
