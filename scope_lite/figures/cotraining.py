"""Figures of Co-Training: masks, the moving mode, phase maps, fake variance, simulator rewards and pools.

The tables are those of the experiments ``phases*``, ``simulator_rewards``, ``pool_sizes``
and ``pool_rules``: one row per run and evaluated step, with a column for each thing that is
varied. ``add_mode`` adds how far the simulator's mode has moved.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_lite.figures.paper import mark_paper_value
from scope_lite.figures.style import (
    METHOD_COLOURS,
    ROW_NAME,
    STYLE,
    WIDTH,
    doses,
    dots,
    finish,
    fit_y,
    footnote,
    name_rows,
    named,
    panel_grid,
)
from scope_lite.figures.training import REAL, UNSEEN, curve_grid, curve_panels, note

EPSILON = "simulator/epsilon"
VARIANCE, UNEXPLAINED = "simulator/variance", "simulator/unexplained_variance"
ANSWER = "simulator/answer/"
MOVED, EXPLOIT = "mode_moved", "exploit_share"
KIND_COLOURS, REWARD_COLOURS, SIZE_COLOURS = (STYLE["colours"][name] for name in ("kinds", "rewards", "sizes"))
SHARE, SHORT = (-0.03, 1.03), (-0.01, 0.31)
LIMITS = {MOVED: SHARE, EXPLOIT: SHARE, VARIANCE: SHORT, UNEXPLAINED: SHORT}
"""of the axes of these metrics"""
FITTED = (EPSILON, "entropy", "simulator/reward")
"""metrics whose axes begin at 0 and end with the data"""
# reveal-heart, the start's favourite, is the colour of collapse everywhere; what is never said has no place in a legend
REPLY_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#F0E442", "#CC79A7", "#56B4E9", "#E69F00", "#999999", "#444444")
FOUND_AT = 0.15
"""weight on the exploit from which on the policy has found it"""


# -- columns that the figures need ----------------------------------------------------------------------------------


def add_mode(table: pd.DataFrame) -> pd.DataFrame:
    """The table with how far each run's answer has moved, and the weight that its policy gives the world's exploit.

    ``mode_moved`` is the total variation between the simulator's answer to the open
    question and its answer at step 0. ``exploit_share`` is odds / (1 + odds); a batch in
    which nobody followed the exploit counts as 0.
    """
    table = table.reset_index(drop=True)
    answers = [c for c in table.columns if c.startswith(ANSWER)]
    start = table.sort_values("step", kind="stable").groupby("run")[answers].transform("first")
    moved = (table[answers] - start).abs().sum(axis=1) / 2
    odds = table["odds_exploit"]
    share = (odds / (1 + odds)).fillna(0.0).where(table["step"] > 0)
    return table.assign(**{MOVED: moved, EXPLOIT: share})


def last_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The end of training: the last evaluated step of each run."""
    return table.sort_values("step", kind="stable").groupby(["variant", "run"], sort=False).tail(1)


def when_found(table: pd.DataFrame) -> pd.DataFrame:
    """What the exploit paid when a run's policy first had ``FOUND_AT`` of its weight on it, and where the run ended.

    Returns:
        One row a run that found it: variant, kind, seed, step, ``pays`` (mean training reward of the dialogues that
        followed the exploit), ``end`` (weight on it after the last step).
    """
    followed = table.drop_duplicates(["run", "step"]).dropna(subset="reward_exploit").sort_values("step", kind="stable")
    end = followed.groupby("run")[EXPLOIT].transform("last")
    found = followed.assign(pays=followed["reward_exploit"], end=end)[followed[EXPLOIT] > FOUND_AT]
    first = found.drop_duplicates("run").set_index("run")
    order = [run for run in table["run"].unique() if run in first.index]
    return first.loc[order, ["variant", "kind", "seed", "step", "pays", "end"]].reset_index(drop=True)


# -- curves ---------------------------------------------------------------------------------------------------------


def curves(table: pd.DataFrame, metrics: Sequence[str], colours: Mapping[str, str], by: str = "variant") -> Figure:
    """``training.curve_panels`` with this module's scales; ``by`` is the column that has a line a value."""
    fig = curve_panels(table.assign(variant=table[by]), metrics, colours, {})
    for ax, metric in zip(fig.axes, metrics, strict=True):
        if metric in LIMITS:
            ax.set_ylim(LIMITS[metric])
        elif metric in FITTED:
            fit_y(ax, pd.Series([0.0, 1e-3, *table.loc[table[by].isin(colours), metric]]), 0.04)
    return fig


def simulator_over_steps(table: pd.DataFrame, gammas: Sequence[float]) -> Figure:
    """Collapse error of the simulator on visited histories over training, an axes a starting sharpness."""
    shown = table[table["gamma"].isin(gammas)].assign(variant=table["kind"])
    fig = curve_grid([(shown[shown["gamma"] == g], EPSILON, f"γ₀ = {g:g}") for g in gammas], KIND_COLOURS, {})
    for ax in fig.axes:
        fit_y(ax, pd.Series([0.0, 1e-3, *shown[EPSILON]]), 0.04)
    return finish(fig, note(shown), named(EPSILON))


def reward_ablation(table: pd.DataFrame) -> Figure:
    """Fig. 27: rewards of policy and simulator, reward on unseen simulators, entropy. From ``simulator_rewards``.

    Without the variants that have a pool: the paper's figure has none, and seven lines cannot be told apart.
    """
    plain = {name: colour for name, colour in REWARD_COLOURS.items() if "K=" not in name}
    return curves(table, ("reward", "simulator/reward", UNSEEN, "entropy"), plain)


# -- the simulator's words ------------------------------------------------------------------------------------------


def two_seats(seats: Mapping[str, Sequence[tuple[str, bool]]]) -> Figure:
    """One dialogue as each seat has it, downwards: filled words were generated and trained on, hollow ones heard.

    Args:
        seats: seat -> its words in order, with whether it generated them; all begin with the same word.
    """
    length = max(len(words) for words in seats.values())
    fig, ax = plt.subplots(figsize=(WIDTH, 0.22 * length + 0.7))
    colours = {"policy": METHOD_COLOURS["single"], "simulator": METHOD_COLOURS["cotraining"]}
    for column, (name, words) in enumerate(seats.items()):
        for i, (word, generated) in enumerate(words):
            fill = colours[name] if generated else "none"
            box = plt.Rectangle((column - 0.36, i - 0.42), 0.72, 0.84, fc=fill, ec=colours[name], alpha=0.6)
            ax.add_patch(box)
            ax.text(column, i, word, ha="center", va="center", fontsize=8)
    ax.set(xlim=(-0.5, len(seats) - 0.5), ylim=(length - 0.5, -0.5), yticks=[])
    ax.xaxis.tick_top()
    ax.set_xticks(range(len(seats)), list(seats))
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return finish(fig, "filled: generated by that seat and trained on; hollow: heard, masked (role markers left out)")


def answer_areas(table: pd.DataFrame, kinds: Sequence[str]) -> Figure:
    """The reply to the open question over training, stacked: a row a kind, a column a seed, a colour a reply."""
    seeds = sorted(table["seed"].unique())
    columns = [c for c in table.columns if c.startswith(ANSWER)]
    start = table.loc[table["step"] == table["step"].min(), columns].mean()
    favourite_first = start.sort_values(ascending=False, kind="stable").index
    colours = {c: colour for c, colour in zip(favourite_first, REPLY_COLOURS, strict=False) if table[c].max() > 0.02}
    fig = plt.figure(figsize=(WIDTH, 1.15 * len(kinds) + 1.2))
    axes = fig.subplots(len(kinds), len(seeds), squeeze=False, sharex=True, sharey=True)
    for row, kind in zip(axes, kinds, strict=True):
        for ax, seed in zip(row, seeds, strict=True):
            run = table[(table["kind"] == kind) & (table["seed"] == seed)].sort_values("step")
            ax.stackplot(run["step"], run[list(colours)].to_numpy().T, colors=list(colours.values()), lw=0)
            ax.set(ylim=(0, 1))
            ax.grid(False)
        row[0].set_ylabel(kind)
    for ax, seed in zip(axes[0], seeds, strict=True):
        ax.set_title(f"seed {seed}", loc="center")
    for ax in axes[-1]:
        ax.set_xlabel("step")
    patches = [plt.Rectangle((0, 0), 1, 1, fc=colour) for colour in colours.values()]
    names = [c.removeprefix(ANSWER) for c in colours]
    fig.legend(patches, names, loc="outside upper center", ncols=min(len(names), 3), fontsize=7.5)
    return footnote(fig, "nano · probability of each reply when the open question is asked first; every run")


# -- the end of training --------------------------------------------------------------------------------------------


def phase_curves(end: pd.DataFrame, columns: Sequence[str]) -> Figure:
    """Reward at the end of training against the starting sharpness, a line a method, a point a seed.

    Columns of ``end``: kind, gamma, seed and ``columns``; one axes a column.
    """
    fig, axes = panel_grid(len(columns))
    for ax, column in zip(axes, columns, strict=True):
        for k, (kind, colour) in enumerate(KIND_COLOURS.items()):
            rows = end[end["kind"] == kind]
            doses(ax, rows["gamma"], rows[column], colour, kind, 0.1 * (k - 1))
        ax.set(xlabel="sharpness γ₀ at the start", title=named(column))
    return finish(fig, note(end).replace("(thin lines)", "(points), end of training"))


def phase_map(panels: Mapping[str, pd.Series], xlabel: str, ylabel: str) -> Figure:
    """Heat maps with every seed in sight: a cell is split into a strip a seed, its mean in the middle.

    Args:
        panels: title -> values in [0, 1], indexed by (row, column, seed) of the map.
    """
    rows = max(len(values.index.unique(0)) for values in panels.values())
    fig, axes = panel_grid(len(panels), 0.9 + 0.42 * rows, extra=0.3)
    for i, (ax, (title, values)) in enumerate(zip(axes, panels.items(), strict=True)):
        image = _draw_cells(ax, values)
        ax.set_title(title)
        ax.set_xlabel(xlabel, fontsize=8)
        if i % 2:
            ax.set_yticklabels([])
        else:
            ax.set(ylabel=ylabel)
    bar = fig.colorbar(image, ax=axes, shrink=0.9, pad=0.02, aspect=30)
    bar.ax.tick_params(labelsize=7.5)
    seeds = next(iter(panels.values())).index.unique(2).tolist()
    return footnote(fig, f"nano · end of training, a strip a seed (0 to {max(seeds)} from the left), with their mean")


def _draw_cells(ax: Axes, values: pd.Series) -> plt.cm.ScalarMappable:
    wide = values.unstack([1, 2]).reindex(values.index.unique(0)).sort_index(axis=1)
    means = wide.T.groupby(level=0).mean().T
    edges = (-0.5, means.shape[1] - 0.5, len(means) - 0.5, -0.5)
    strips = wide.to_numpy(dtype=float)
    image = ax.imshow(strips, vmin=0, vmax=1, cmap="cividis", aspect="auto", extent=edges, interpolation="nearest")
    box = {"boxstyle": "round,pad=0.15", "fc": "w", "ec": "none", "alpha": 0.8}
    for (i, j), mean in np.ndenumerate(means.to_numpy()):
        ax.text(j, i, f"{mean:.2f}", ha="center", va="center", fontsize=7, bbox=box)
    for ticks, line, names in ((ax.set_xticks, ax.axvline, means.columns), (ax.set_yticks, ax.axhline, means.index)):
        ticks(range(len(names)), [n if isinstance(n, str) else f"{n:g}" for n in names], fontsize=8)
        for at in range(1, len(names)):
            line(at - 0.5, color="w", lw=2)
    ax.grid(False)
    ax.tick_params(length=0)
    return image


def fake_variance(means: pd.DataFrame) -> Figure:
    """Unexplained against total variance, a point a run, an axes an outcome rule; the line: no act explains any of it.

    Columns of ``means``: rule, kind, gamma, seed and both variances; a larger point is a sharper start.
    """
    rules = list(means["rule"].unique())
    fig, axes = panel_grid(len(rules), 2.3)
    gammas = sorted(means["gamma"].unique())
    top = 1.08 * means[[VARIANCE, UNEXPLAINED]].max(axis=None)
    for ax, rule in zip(axes, rules, strict=True):
        ax.axline((0, 0), slope=1, color="#444444", lw=0.8, ls=":")
        for kind, colour in KIND_COLOURS.items():
            rows = means[(means["rule"] == rule) & (means["kind"] == kind)]
            sizes = 8 + 10 * np.searchsorted(gammas, rows["gamma"])
            ax.scatter(rows[VARIANCE], rows[UNEXPLAINED], sizes, color=colour, alpha=0.65, lw=0, label=kind)
        ax.set(xlabel="variance of the reward", xlim=(0, top), ylim=(0, top), aspect="equal", title=rule)
        ax.locator_params(nbins=5)
    return finish(
        fig, "nano · a point a run; larger: sharper start; dotted: all of it unexplained", "part unexplained by acts"
    )


def ends_by_variant(end: pd.DataFrame, columns: Sequence[str], colours: Mapping[str, str]) -> Figure:
    """One line a variant, an axes a column: a small point a seed, the mean with its 95 % t-interval."""
    fig, axes = panel_grid(len(columns), 0.7 + 0.27 * len(colours))
    for ax, column in zip(axes, columns, strict=True):
        for i, (variant, colour) in enumerate(colours.items()):
            values = end.loc[end["variant"] == variant, column].dropna().astype(float)
            if len(values):
                dots(ax, values, i, colour, alpha=0.5, shift=0.22, lw=1.5)
        ax.set(xlim=SHARE, title=textwrap.fill(named(column), ROW_NAME))
    name_rows(axes, list(colours))
    axes[0].plot([], [], "o", ms=3, alpha=0.5, color="#555555", mew=0, label="a run")
    axes[0].plot([], [], "o-", ms=5, color="#555555", label="mean, 95 % interval")
    return finish(fig, note(end, "small points"))


def pay_when_found(found: pd.DataFrame, robust: float) -> Figure:
    """A point a run: what the exploit paid when the policy found it, and its weight at the end.

    Args:
        found: from ``when_found``.
        robust: what a strategy earns that serves everyone; the dashed line.
    """
    fig, (ax,) = panel_grid(1, 2.9, extra=0)
    for kind, rows in found.groupby("kind"):
        ax.plot(rows["pays"], rows["end"], "o", ms=5, alpha=0.6, mew=0, color=KIND_COLOURS[str(kind)], label=kind)
    ax.axvline(robust, color="k", ls="--", lw=1)
    ax.annotate("asking earns this", (robust - 0.02, 0.5), fontsize=7.5, ha="right", va="center")
    ax.set(xlabel="what the exploit pays when the policy finds it", xlim=SHARE, ylim=(-0.05, 1.05))
    found_at = f"found: weight above {FOUND_AT:g}, every 10 steps"
    return finish(fig, f"nano · persuasion · {len(found)} runs, each a point; {found_at}", "weight on it at the end")


def figure_17(table: pd.DataFrame) -> Figure:
    """Fig. 17: reward at the end by the size K of the pool, and how far and how fast the mode moved. ``pool_sizes``."""
    sized = add_mode(table)
    end = last_rows(sized)
    through = sized.groupby(["K", "seed"], as_index=False)[MOVED].mean()
    fig, (pay, mode) = plt.subplots(1, 2, figsize=(WIDTH, 2.9))
    doses(pay, end["K"], end[UNSEEN], "#0072B2", named(UNSEEN), -0.06)
    doses(pay, end["K"], end[REAL], "#E69F00", named(REAL), 0.06)
    doses(mode, end["K"], end[MOVED], "#D55E00", "at the end", -0.06)
    doses(mode, through["K"], through[MOVED], "#7f7f7f", "mean over training", 0.06)
    places = {float(k): i for i, k in enumerate(sorted(end["K"].unique()))}
    mark_paper_value(pay, places, "Figure 17", "best pool size K", benchmark="Persuasion for Good")
    for ax, ylabel in ((pay, "reward, end of training"), (mode, named(MOVED))):
        ax.set(xlabel="pool size K", ylabel=ylabel)
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0))
    return footnote(fig, note(table, "points"))
