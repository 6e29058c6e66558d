"""Figures that compare all methods over several worlds: curves, differences by panel member, who beats whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from scope_lite.figures.style import METHOD_COLOURS, METHOD_LABELS, dots, finish, name_rows, named, panel_grid
from scope_lite.figures.training import REAL, UNSEEN, curve_grid
from scope_lite.measure.stats import paired_gaps, probability_of_improvement

MARKERS = ("o", "s", "^", "D")
"""one a world"""


def worlds_grid(table: pd.DataFrame, optima: Mapping[str, float]) -> Figure:
    """A row a world: reward on unseen simulators and on real users; then the entropy in each. Every method.

    Args:
        table: rows of several experiments, as one table; ``world`` tells them apart.
        optima: world -> the exact optimum on its real users, drawn as a line.
    """
    worlds = list(dict.fromkeys(table["world"]))
    shown = [(world, metric) for world in worlds for metric in (UNSEEN, REAL)] + [(w, "entropy") for w in worlds]
    panels = [(table[table["world"] == world], metric, f"{world}:\n{named(metric)}") for world, metric in shown]
    fig = curve_grid(panels, METHOD_COLOURS, METHOD_LABELS, height=1.8, extra=0.3)
    for ax, (world, metric) in zip(fig.axes, shown, strict=True):
        if world in optima and metric == REAL:
            ax.axhline(optima[world], color="k", lw=1, ls=(0, (5, 2)), label="exact optimum, real users")
    seeds = table.groupby("world")["seed"].nunique()
    many = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    return finish(fig, f"nano · {many} seeds a world (thin lines), 95 % t-interval")


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
                    gap = paired_gaps(by[method][kind], by[reference][kind]).dropna()
                    dots(ax, gap, i + shift, METHOD_COLOURS[method], sizes=(2, 3.5), fmt=marker, lw=1, capsize=1.5)
        axes[0].plot([], [], marker, color="#555555", ms=4, label=world)
    for ax, kind in zip(axes, kinds, strict=True):
        ax.axvline(0, color="#555555", lw=0.8)
        ax.set(xlim=(-1, 1), title=kind.replace(", ", ",\n"))
    name_rows(axes, [METHOD_LABELS[m] for m in methods])
    seeds = f"up to {max(end['seed'].nunique() for end in ends.values())} seeds (points)"
    return finish(fig, f"reward minus {METHOD_LABELS[reference]}'s, paired by seed; {seeds}, 95 % t-interval")


def improvement_matrices(ends: Mapping[str, pd.DataFrame], column: str, methods: Sequence[str]) -> Figure:
    """Probability of improvement of the row's method over the column's, a matrix a world (rliable's estimator)."""
    fig, axes = panel_grid(len(ends), 0.9 + 0.22 * len(methods))
    names = [METHOD_LABELS[m] for m in methods]
    for ax, (world, end) in zip(axes, ends.items(), strict=True):
        runs = {m: end.loc[end["variant"] == m, column].dropna().to_numpy() for m in methods}
        chance = np.full((len(methods), len(methods)), np.nan)
        for (i, j), _ in np.ndenumerate(chance):
            a, b = runs[methods[i]], runs[methods[j]]
            if i != j and len(a) and len(b):
                chance[i, j] = probability_of_improvement(a, b)
                ink = "w" if abs(chance[i, j] - 0.5) > 0.35 else "k"
                short = "1" if chance[i, j] > 0.995 else f"{chance[i, j]:.2f}"[1:]
                ax.text(j, i, short, ha="center", va="center", fontsize=6.5, color=ink)
        ax.imshow(chance, vmin=0, vmax=1, cmap="PuOr", aspect="auto")
        ax.set_xticks(range(len(methods)), names, rotation=55, ha="right", rotation_mode="anchor", fontsize=7)
        ax.set_title(world)
        ax.grid(False)
        ax.tick_params(length=0)
    name_rows(axes, names, top=0.5)
    return finish(fig, f"probability that a run of the row's method beats one of the column's: {named(column)}")
