"""Figures of the referee's questions: epsilon measured twice, doses of collapse, controls, conventions, random worlds.

Points are runs, larger marks their means, bars 95 % t-intervals over seeds (over worlds where a point is a world).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from scope_lite.figures.style import METHOD_LABELS, dots, finish, fit_y, name_rows, named, panel_grid
from scope_lite.figures.training import note
from scope_lite.measure.stats import Interval, t_interval

BLUE, RED, GREEN, PINK, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
ESTIMATES = {
    "plug_in": ("v", RED, "most common of 16 replies"),
    "cross_validated": ("^", BLUE, "the same, guessed from 15"),
}
SUMMARY_MARKS = {"best": ("^", RED), "auc": ("s", "#7f7f7f"), "end": ("o", BLUE)}
BINS = 5
DOSE = r"$\bar\varepsilon_H$"


def sampled_epsilon(table: pd.DataFrame) -> Figure:
    """Epsilon on visited histories over training: exact, and enclosed by two estimates from sampled replies.

    Columns: variant, seed, step, exact, plug_in, cross_validated; one axes a variant.
    """
    variants = list(dict.fromkeys(table["variant"]))
    fig, axes = panel_grid(len(variants))
    for ax, variant in zip(axes, variants, strict=True):
        rows = table[table["variant"] == variant]
        for _, run in rows.groupby("seed"):
            ax.plot(run["step"], run["exact"], color="k", lw=0.5, alpha=0.4)
        mean = rows.groupby("step")[["exact", *ESTIMATES]].mean()
        ax.plot(mean.index, mean["exact"], color="k", lw=1.6, label="exact")
        for column, (marker, colour, label) in ESTIMATES.items():
            ax.plot(mean.index, mean[column], marker, color=colour, ms=4.5, label=label, alpha=0.8)
        ax.set(xlabel="step", ylim=(0, None), title=named(variant))
    seeds = table["seed"].nunique()
    several = f"{seeds} seed{'s' if seeds > 1 else ''} (thin lines: exact)"
    return finish(fig, f"nano · persuasion · {several}, each axes its own scale", "collapse error ε a turn")


def causal_plot(doses: pd.DataFrame, half: Interval | None = None) -> Figure:
    """What is lost with unseen simulators and real users, against the accumulated collapse error that was measured.

    Columns: gamma, seed, epsilon_h, epsilon_h_start, unseen_loss, real_loss. ``half``: the dose of half the loss.
    """
    panels = (
        ("epsilon_h", "unseen_loss", "(a) unseen simulators", "mean over training"),
        ("epsilon_h", "real_loss", "(b) real users", "mean over training"),
        ("epsilon_h_start", "unseen_loss", "(c) unseen, dose at the start", "first evaluation"),
    )
    fig, axes = panel_grid(len(panels))
    gammas = sorted(doses["gamma"].unique())
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(gammas)))
    for ax, (x, y, title, when) in zip(axes, panels, strict=True):
        for gamma, colour in zip(gammas, colours, strict=True):
            rows = doses[doses["gamma"] == gamma]
            dots(ax, rows[x], rows[y], colour, f"γ = {gamma:g}", sizes=(3.5, 5), alpha=0.6)
        ax.axhline(0, color="k", lw=0.8)
        ax.set(xscale="log", xlabel=f"{DOSE}, {when}", title=title)
        # within one decade matplotlib would label every minor tick, one over the other
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
    if half is not None:
        axes[0].axvspan(half.low, half.high, color="k", alpha=0.08, lw=0)
        axes[0].axvline(half.mean, color="k", lw=0.8, ls="--")
    shaded = "; dashed: half of the loss is reached" if half is not None else ""
    told = f"{doses['seed'].nunique()} seeds (points), paired by seed, 95 % t-intervals both ways{shaded}"
    return finish(fig, f"nano · persuasion · {told}", "reward lost (control − run)")


def interventions(doses: pd.DataFrame) -> Figure:
    """The same loss under other ways to change the simulator: is the collapse error all that matters?

    Columns: kind, variant, seed, epsilon_h, real_loss (runs with other training simulators have other unseen ones); one
    colour a kind, one cross a variant.
    """
    fig, (ax,) = panel_grid(1, 2.9, extra=1.1)
    kinds = doses.groupby("kind", sort=False)
    for (kind, rows), colour in zip(kinds, (BLUE, SKY, PINK, RED, GREEN, AMBER), strict=False):
        for i, (_, runs) in enumerate(rows.groupby("variant", sort=False)):
            label = str(kind) if i == 0 else None
            dots(ax, runs["epsilon_h"], runs["real_loss"], colour, label, sizes=(3.5, 5), alpha=0.6)
    ax.axhline(0, color="k", lw=0.8)
    ax.set_xscale("symlog", linthresh=0.02)
    ax.set(xlabel=f"{DOSE} of the one that speaks, mean over training", xlim=(-0.004, 2.0 * doses["epsilon_h"].max()))
    fit_y(ax, doses["real_loss"], 0.15)
    seeds = doses.groupby(["kind", "variant"])["seed"].nunique()
    several = f"{seeds.min()} to {seeds.max()}" if seeds.min() < seeds.max() else str(seeds.max())
    told = f"nano · persuasion · {several} seeds (points), end of training, 95 % t-intervals both ways"
    return finish(fig, told, "reward lost with real users")


def variant_dots(end: pd.DataFrame, columns: Mapping[str, str], labels: Mapping[str, str] = METHOD_LABELS) -> Figure:
    """Every variant (by its label) on several columns: a point a seed, the mean with its interval.

    ``columns`` names the axes.
    """
    variants = list(dict.fromkeys(end["variant"]))
    fig, axes = panel_grid(len(columns), 0.8 + 0.24 * len(variants), extra=0.3)
    for ax, (column, title) in zip(axes, columns.items(), strict=True):
        for at, variant in enumerate(variants):
            values = end.loc[end["variant"] == variant, column].dropna()
            if len(values):
                dots(ax, values, at, BLUE, alpha=0.35)
        ax.set(xlim=(-0.03, 1.03), xlabel="reward", title=title)
    name_rows(axes, [labels.get(str(v), named(v)) for v in variants])
    return finish(fig, note(end, "points"))


def conventions(summaries: pd.DataFrame, columns: Sequence[str]) -> Figure:
    """Best checkpoint, area under the curve and end of the same runs, one axes a column of the panel."""
    variants = list(dict.fromkeys(summaries["variant"]))
    fig, axes = panel_grid(len(columns), 0.5 + 0.36 * len(variants))
    for ax, column in zip(axes, columns, strict=True):
        for k, (summary, (marker, colour)) in enumerate(SUMMARY_MARKS.items()):
            rows = summaries[summaries["summary"] == summary]
            for at, variant in enumerate(variants):
                values = rows.loc[rows["variant"] == variant, column].dropna()
                if len(values):
                    label = summary if at == 0 else None
                    dots(ax, values, at - 0.22 * (1 - k), colour, label, marker, alpha=0.35)
        ax.set(xlim=(-0.03, 1.03), title=named(column))
    name_rows(axes, [named(v) for v in variants])
    return finish(fig, note(summaries, "points"))


def recovery(runs: pd.DataFrame, columns: Sequence[str]) -> Figure:
    """Reward at the end against the measured distance of the verbalized users from P, a colour a direction.

    Columns: direction, distance, seed and ``columns``; one axes a column.
    """
    fig, axes = panel_grid(len(columns))
    for ax, column in zip(axes, columns, strict=True):
        for (direction, rows), colour in zip(runs.groupby("direction", sort=False), (RED, GREEN), strict=False):
            means = rows.groupby("distance")[column].mean()
            ax.plot(means.index, means, color=colour, lw=1.2, label=str(direction))
            for distance, dose in rows.groupby("distance"):
                ax.plot([distance] * len(dose), dose[column], "o", ms=3, mew=0, alpha=0.4, color=colour)
                spread = t_interval(dose[column].to_numpy())
                ax.errorbar(distance, spread.mean, spread.half, color=colour, lw=1.2, capsize=2)
        ax.set(xlabel="D_TV(p_VS, P) a turn", ylim=(-0.03, 1.03), title=named(column))
    told = f"nano · persuasion · {runs['seed'].nunique()} seeds (points), 95 % t-interval"
    return finish(fig, told, "reward, end of training")


def random_worlds(worlds: pd.DataFrame, properties: Sequence[str], outcome: str, ylabel: str) -> Figure:
    """An outcome against properties of random worlds: a point a world, and means of fifths of the worlds."""
    fig, axes = panel_grid(len(properties), extra=0.3)
    for ax, name in zip(axes, properties, strict=True):
        x, y = worlds[name].astype(float), worlds[outcome].astype(float)
        ax.plot(x, y, "o", ms=3.5, mew=0, alpha=0.45, color=BLUE)
        # a property with few values has its values as groups, any other is cut into equal parts
        groups = x if x.nunique() <= BINS else np.argsort(np.argsort(x.to_numpy(), kind="stable")) * BINS // len(x)
        for _, part in pd.DataFrame({"x": x, "y": y}).groupby(np.asarray(groups)):
            spread = t_interval(part["y"].to_numpy())
            ax.errorbar(part["x"].mean(), spread.mean, spread.half, fmt="D", ms=4, color=RED, capsize=2)
        ax.axhline(0, color="k", lw=0.8)
        ax.set_xlabel(name)
        fit_y(ax, worlds[outcome], 0.0, 0.1)
    fig.supylabel(ylabel, fontsize=9)
    means = "diamonds: means by value or fifth, 95 % t-intervals"
    return finish(fig, f"nano · {len(worlds)} random worlds (points), one run each; {means}")
