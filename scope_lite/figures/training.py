"""Figures of training: curves over steps, the end by panel member, dose-responses, and methods compared over worlds.

Every function takes the tidy table of an experiment (one row per run and evaluated
step; columns variant, method, seed, step and the metrics) and returns a figure. Thin
lines are single seeds, the thick line is their mean, the band a 95 % t-interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_lite.figures.style import (
    METHOD_COLOURS,
    METHOD_LABELS,
    WIDTH,
    doses,
    dots,
    finish,
    footnote,
    heat_map,
    name_rows,
    named,
    panel_grid,
)
from scope_lite.measure.stats import paired_gaps, probability_of_improvement, t_interval
from scope_lite.method.config import TEXT_WORLDS
from scope_lite.store.errors import ScopeError

UNSEEN, SEEN, REAL = "panel/unseen/reward", "panel/seen/reward", "panel/real/reward"
STORY = ("reward", UNSEEN, "entropy", "frac_reward_zero_std")
"""metrics that tell of collapse: training reward, unseen reward, entropy and groups without signal"""
DASHED = ("persona", "unsharpened")
"""variants that often lie on another one's line: through the gaps it can be seen"""
TWO_RUNS = ("reward", UNSEEN, REAL, "entropy")
DOSE_COLOURS = (("#0072B2", "#E69F00"), ("#D55E00", "#009E73"))
"""of columns; of two ways to make the runs"""


def draw_curves(ax: Axes, table: pd.DataFrame, y: str, colours: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """One thick line a variant, one thin line a seed; a run without steps (Base) is a level."""
    crowded = table[table["variant"].isin(colours)].groupby(["variant", "seed"]).ngroups > 30
    width, alpha = (0.35, 0.25) if crowded else (0.6, 0.45)
    for variant, colour in colours.items():
        rows = table[(table["variant"] == variant) & table[y].notna()] if y in table else table[:0]
        if rows.empty:
            continue
        wide = rows.pivot_table(index="step", columns="seed", values=y)
        label = labels.get(variant, variant)
        if len(wide) == 1:
            ax.axhline(wide.iloc[0].mean(), color=colour, lw=1.2, ls=":", label=label)
            continue
        ax.plot(wide.index, wide.to_numpy(), color=colour, lw=width, alpha=alpha)
        dashes = (0, (2.5, 1.5)) if variant in DASHED else "-"
        ax.plot(wide.index, wide.mean(axis=1), color=colour, lw=1.8, ls=dashes, label=label)
        if wide.shape[1] > 1:
            bands = [t_interval(row[~np.isnan(row)]) for row in wide.to_numpy()]
            ax.fill_between(wide.index, [b.low for b in bands], [b.high for b in bands], color=colour, alpha=0.12, lw=0)
    ax.set(xlabel="step")
    if "reward" in y or "frac" in y:
        ax.set_ylim(-0.03, 1.03)


def note(table: pd.DataFrame, drawn: str = "thin lines") -> str:
    """Scale (nano, or the model that speaks in text), worlds and seeds of a table of runs; ``drawn``: as what."""
    worlds = ", ".join(sorted(table["world"].unique()))
    seeds = table["seed"].nunique()
    in_text = table["world"].isin(TEXT_WORLDS).all()
    scale = ", ".join(sorted(table["model"].unique())) if in_text else "nano"
    spread = "1 seed" if seeds == 1 else f"{seeds} seeds ({drawn}), 95 % t-interval"
    return f"{scale} · {worlds} · {spread}"


def curve_grid(
    panels: Sequence[tuple[pd.DataFrame, str, str]],
    colours: Mapping[str, str],
    labels: Mapping[str, str],
    height: float = 2.05,
    extra: float = 0.7,
) -> Figure:
    """One axes for each (table, metric, title), two in a row (as in ``panel_grid``), without legend and footnote."""
    fig, axes = panel_grid(len(panels), height, extra)
    for ax, (table, metric, title) in zip(axes, panels, strict=True):
        draw_curves(ax, table, metric, colours, labels)
        ax.set_title(title)
    return fig


def curve_panels(
    table: pd.DataFrame, metrics: Sequence[str], colours: Mapping[str, str], labels: Mapping[str, str]
) -> Figure:
    """One axes a metric, two in a row, each titled by its metric, with one legend for all."""
    return finish(curve_grid([(table, m, named(m)) for m in metrics], colours, labels), note(table))


def method_curves(
    table: pd.DataFrame,
    metrics: Sequence[str],
    methods: Sequence[str] = tuple(METHOD_COLOURS),
    lines: Mapping[str, tuple[str, str]] | None = None,
    titles: Sequence[str] = (),
    worlds: Sequence[str] = (),
) -> Figure:
    """Curves of the ``methods`` that the table has; of other variants with ``lines``: variant -> (colour, label).

    Args:
        titles: of the axes; by default what the metrics are called.
        worlds: whose rows each of the axes shows; by default all. Without such rows there is no axes.
    """
    lines = lines or {m: (METHOD_COLOURS[m], METHOD_LABELS[m]) for m in methods}
    colours, labels = ({name: line[i] for name, line in lines.items()} for i in (0, 1))
    panels = [
        (table[table["world"] == world] if world else table, metric, title or named(metric))
        for metric, title, world in zip_longest(metrics, titles, worlds)
    ]
    panels = [panel for panel in panels if len(panel[0])]
    return finish(curve_grid(panels, colours, labels), note(table))


def two_runs(table: pd.DataFrame) -> Figure:
    """Training reward, reward with unseen simulators and real users, and entropy, as far as two runs have them.

    Args:
        table: metrics of exactly two runs, one row a run and step (``store.load_metrics``).

    Raises:
        ScopeError: if they are not two, or have none of these metrics.
    """
    names = list(dict.fromkeys(table["run"]))
    metrics = [name for name in TWO_RUNS if name in table and table[name].notna().any()]
    if len(names) != 2 or not metrics:
        raise ScopeError(f"curves need two different runs with one of {', '.join(TWO_RUNS)}; got {', '.join(names)}")
    colours = dict(zip(names, ("#0072B2", "#D55E00"), strict=True))
    fig = curve_panels(table.assign(variant=table["run"]), metrics, colours, {})
    for line in (line for ax in fig.axes for line in ax.get_lines() if line.get_color() == colours[names[0]]):
        line.set_linewidth(2 * line.get_linewidth())  # where both agree, the first shows on both sides of the second
    return footnote(fig, "one run each: no interval can be given")


def member_heatmap(summary: pd.DataFrame, members: Sequence[str], seen: Mapping[str, set[str]]) -> Figure:
    """Reward at the end of training, panel member by variant; a frame marks the simulators trained with.

    Columns of ``summary``: variant, seed and ``panel/<member>/reward``.
    """
    means = summary.groupby("variant", sort=False)[[f"panel/{m}/reward" for m in members]].mean()
    fig, ax = plt.subplots(figsize=(WIDTH, 0.24 * len(members) + 1.6))
    heat_map(ax, means, lambda value: value < 0.6)
    framed = [(i, j) for i, v in enumerate(means.index) for j, m in enumerate(members) if m in seen.get(str(v), set())]
    for i, j in framed:
        ax.add_patch(plt.Rectangle((i - 0.5, j - 0.5), 1, 1, fill=False, ec="#D55E00", lw=1.8))
    names = [named(v) for v in means.index]
    ax.set_xticks(range(len(means)), names, rotation=35, ha="right", rotation_mode="anchor", fontsize=8)
    ax.set_yticks(range(len(members)), members, fontsize=8)
    return finish(fig, f"mean of {summary['seed'].nunique()} seeds, end of training; framed: trained with")


def dose_response(summary: pd.DataFrame, x: str, columns: Sequence[str], xlabel: str, by: str | None = None) -> Figure:
    """Reward at the end of training against a dial, a line a column; of one column, with ``by``, a line a value."""
    fig, ax = plt.subplots(figsize=(3.8, 2.9))
    lines = [(named(column), summary, column) for column in columns]
    if by:
        ax.set_title(lines[0][0])
        lines = [(str(name), rows, columns[0]) for name, rows in summary.groupby(by, sort=False)]
    for k, ((label, rows, column), colour) in enumerate(zip(lines, DOSE_COLOURS[bool(by)], strict=False)):
        doses(ax, rows[x], rows[column], colour, label, 0.12 * (k - (len(lines) - 1) / 2))
    ax.set(xlabel=xlabel, ylabel="reward, end of training")
    fig.legend(loc="outside upper center", ncols=2)
    return footnote(fig, f"nano · {summary['seed'].nunique()} seeds (points), 95 % t-interval")


# -- all methods over several worlds ----------------------------------------------------------------------------------

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
