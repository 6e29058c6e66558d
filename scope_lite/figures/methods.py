"""Figures that compare all methods over several worlds: curves, differences by panel member, who beats whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from scope_lite.figures.style import METHOD_COLOURS, METHOD_LABELS, footnote
from scope_lite.figures.training import LABELS, REAL, UNSEEN, draw_curves
from scope_lite.stats import paired_interval, probability_of_improvement


def worlds_grid(table: pd.DataFrame, optima: Mapping[str, float]) -> Figure:
    """A row a world: reward on unseen simulators and on real users, and entropy, every method.

    Args:
        table: rows of several experiments, as one table; ``world`` tells them apart.
        optima: world -> the exact optimum on its real users, drawn as a line.
    """
    worlds = list(dict.fromkeys(table["world"]))
    colours = {m: c for m, c in METHOD_COLOURS.items() if m in set(table["variant"])}
    fig, axes = plt.subplots(len(worlds), 3, figsize=(8.4, 2.3 * len(worlds) + 0.6), squeeze=False)
    for row, world in zip(axes, worlds, strict=True):
        rows = table[table["world"] == world]
        for ax, metric in zip(row, (UNSEEN, REAL, "entropy"), strict=True):
            draw_curves(ax, rows, metric, colours, METHOD_LABELS)
            ax.set_title(f"{world}: {LABELS[metric]}", loc="left", fontsize=8)
        if world in optima:
            row[1].axhline(optima[world], color="k", lw=1, ls=(0, (5, 2)), label="exact optimum, real users")
    handles, names = axes[0][1].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=3)
    seeds = table.groupby("world")["seed"].nunique()
    many = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    footnote(fig, f"nano · {many} seeds a world (thin lines), 95 % t-interval")
    return fig


def differences(
    ends: Mapping[str, pd.DataFrame], kinds: Sequence[str], reference: str, methods: Sequence[str]
) -> Figure:
    """Each method minus a reference method, paired by seed: a row of axes a world, an axes a kind of panel member.

    Points are seeds, bars 95 % t-intervals; the zero line is the reference.

    Args:
        ends: world -> one row per variant and seed, with ``variant``, ``seed`` and a column a kind.
    """
    fig, axes = plt.subplots(
        len(ends), len(kinds), figsize=(1.55 * len(kinds) + 1.3, 1.9 * len(ends) + 0.5), squeeze=False, sharey=True
    )
    for row, (world, end) in zip(axes, ends.items(), strict=True):
        by = {m: rows.set_index("seed") for m, rows in end.groupby("variant")}
        for ax, kind in zip(row, kinds, strict=True):
            ax.axvline(0, color="#555555", lw=0.8)
            for i, method in enumerate(methods):
                if kind not in end or method not in by or reference not in by:
                    continue
                gap = (by[method][kind] - by[reference][kind]).dropna()
                interval = paired_interval(by[method][kind], by[reference][kind])
                colour = METHOD_COLOURS[method]
                ax.plot(gap, np.full(len(gap), i), "o", ms=2.5, alpha=0.4, mew=0, color=colour)
                half = 0.0 if interval.n == 1 else interval.high - interval.mean
                ax.errorbar(interval.mean, i, xerr=half, fmt="|", ms=7, capsize=2, color=colour)
            ax.set_xlim(-1, 1)
            ax.set_xticks((-0.5, 0, 0.5), ("−.5", "0", ".5"))
        row[0].set_ylabel(world, fontsize=8)
        row[0].tick_params(axis="y", labelsize=7.5)
    axes[0][0].set_yticks(range(len(methods)), [METHOD_LABELS[m] for m in methods])
    axes[0][0].invert_yaxis()
    for ax, kind in zip(axes[0], kinds, strict=True):
        ax.set_title(kind.replace(", ", ",\n"), fontsize=7.5)
    seeds = max(end["seed"].nunique() for end in ends.values())
    footnote(
        fig, f"reward minus {METHOD_LABELS[reference]}'s, paired by seed; up to {seeds} seeds (points), 95 % t-interval"
    )
    return fig


def improvement_matrices(ends: Mapping[str, pd.DataFrame], column: str, methods: Sequence[str]) -> Figure:
    """Probability of improvement of the row's method over the column's, a matrix a world (rliable's estimator)."""
    fig, axes = plt.subplots(1, len(ends), figsize=(2.9 * len(ends) + 1.3, 3.3), squeeze=False, sharey=True)
    for ax, (world, end) in zip(axes[0], ends.items(), strict=True):
        runs = {m: end.loc[end["variant"] == m, column].dropna().to_numpy() for m in methods}
        chance = np.full((len(methods), len(methods)), np.nan)
        for i, a in enumerate(methods):
            for j, b in enumerate(methods):
                if i != j and len(runs[a]) and len(runs[b]):
                    chance[i, j] = probability_of_improvement(runs[a], runs[b])
                    dark = abs(chance[i, j] - 0.5) > 0.35
                    ax.text(
                        j,
                        i,
                        f"{chance[i, j]:.2f}".removeprefix("0"),
                        ha="center",
                        va="center",
                        fontsize=6.5,
                        color="w" if dark else "k",
                    )
        ax.imshow(chance, vmin=0, vmax=1, cmap="PuOr", aspect="auto")
        ax.set_xticks(range(len(methods)), [METHOD_LABELS[m] for m in methods], rotation=55, ha="right", fontsize=7)
        ax.set_title(world, loc="left")
        ax.grid(False)
        ax.tick_params(length=0)
    axes[0][0].set_yticks(range(len(methods)), [METHOD_LABELS[m] for m in methods], fontsize=7)
    footnote(fig, f"probability that a run of the row's method beats one of the column's: {LABELS.get(column, column)}")
    return fig
