"""Figures of training: curves over steps, end-of-training by panel member, and dose-responses.

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

from scope_lite.figures.style import METHOD_COLOURS, METHOD_LABELS, WIDTH, footnote, heat_map, panel_grid, shared_legend
from scope_lite.measure.stats import t_interval
from scope_lite.method.config import TEXT_WORLDS

UNSEEN, SEEN, REAL = "panel/unseen/reward", "panel/seen/reward", "panel/real/reward"
STORY = ("reward", UNSEEN, "entropy", "frac_reward_zero_std")
"""metrics that tell of collapse: training reward, unseen reward, entropy and groups without signal"""
DASHED = ("persona", "unsharpened")
"""variants that often lie on another one's line: through the gaps it can be seen"""
DOSE_COLOURS = (("#0072B2", "#E69F00"), ("#D55E00", "#009E73"))
"""of columns; of two ways to make the runs"""
LABELS = {
    "reward": "training reward",
    "entropy": "policy entropy (nats)",
    UNSEEN: "reward, unseen simulators",
    SEEN: "reward, training simulators",
    REAL: "reward, real users",
    "panel/reference/reward": "reward, reference users P",
    "frac_reward_zero_std": "groups without signal",
    "frac_all_success": "groups at reward 1",
    "frac_all_failure": "groups at reward 0",
    "simulator/kl": "KL(simulator ‖ its start), nats",
    "simulator/epsilon": "collapse error ε per turn",
}


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


def curve_panels(
    table: pd.DataFrame,
    metrics: Sequence[str],
    colours: Mapping[str, str],
    labels: Mapping[str, str],
    letters: Sequence[str] = (),
) -> Figure:
    """One axes a metric, two in a row, each titled by its metric, with one legend for all."""
    titles = [f"{letter} {LABELS.get(m, m)}".lstrip() for letter, m in zip_longest(letters, metrics, fillvalue="")]
    return titled_panels([(table, m, t) for m, t in zip(metrics, titles, strict=True)], colours, labels)


def titled_panels(
    panels: Sequence[tuple[pd.DataFrame, str, str]], colours: Mapping[str, str], labels: Mapping[str, str]
) -> Figure:
    """One axes for each (table, metric, title), two in a row, with one legend for all."""
    fig, axes = panel_grid(len(panels))
    for ax, (table, metric, title) in zip(axes, panels, strict=True):
        draw_curves(ax, table, metric, colours, labels)
        ax.set_title(title)
    shared_legend(fig)
    footnote(fig, note(pd.concat([table for table, _, _ in panels])))
    return fig


def method_curves(
    table: pd.DataFrame,
    metrics: Sequence[str],
    methods: Sequence[str] = tuple(METHOD_COLOURS),
    lines: Mapping[str, tuple[str, str]] | None = None,
    letters: Sequence[str] = (),
) -> Figure:
    """Curves of the ``methods`` that the table has; of other variants with ``lines``: variant -> (colour, label)."""
    lines = lines or {m: (METHOD_COLOURS[m], METHOD_LABELS[m]) for m in methods}
    colours, labels = ({name: line[i] for name, line in lines.items()} for i in (0, 1))
    return curve_panels(table, metrics, colours, labels, letters)


def figure_4(table: pd.DataFrame) -> Figure:
    """Fig. 4: reward on real users (a) in ``persuasion``, (b) in ``retail`` if the table has it; (c) entropy in (a).

    From ``methods``, with ``methods_retail`` below it.
    """
    persuasion, retail = (table[table["world"] == world] for world in ("persuasion", "retail"))
    panels = [(persuasion, REAL, f"(a) persuasion: {LABELS[REAL]}")]
    if not retail.empty:
        panels.append((retail, REAL, f"(b) retail: {LABELS[REAL]}"))
    panels.append((persuasion, "entropy", "(c) persuasion: entropy (nats)"))
    return titled_panels(panels, METHOD_COLOURS, METHOD_LABELS)


def member_heatmap(summary: pd.DataFrame, members: Sequence[str], seen: Mapping[str, set[str]]) -> Figure:
    """Reward at the end of training, panel member by variant; a frame marks the simulators trained with.

    Columns of ``summary``: variant, seed and ``panel/<member>/reward``.
    """
    columns = [f"panel/{m}/reward" for m in members]
    means = summary.groupby("variant", sort=False)[columns].mean()
    fig, ax = plt.subplots(figsize=(WIDTH, 0.24 * len(members) + 1.6))
    heat_map(ax, means, lambda value: value < 0.6)
    for i, variant in enumerate(means.index):
        for j, member in enumerate(members):
            if member in seen.get(str(variant), set()):
                frame = plt.Rectangle((i - 0.5, j - 0.5), 1, 1, fill=False, ec="#D55E00", lw=1.8)
                ax.add_patch(frame)
    names = [METHOD_LABELS.get(str(v), str(v)) for v in means.index]
    ax.set_xticks(range(len(means)), names, rotation=35, ha="right", rotation_mode="anchor", fontsize=8)
    ax.set_yticks(range(len(members)), members, fontsize=8)
    footnote(fig, f"mean of {summary['seed'].nunique()} seeds, end of training; framed: trained with")
    return fig


def draw_doses(ax: Axes, doses: pd.Series, values: pd.Series, colour: str, label: str, shift: float) -> None:
    """A point a run, and the mean with its 95 % t-interval a dose; doses are evenly spaced."""
    doses, values = doses[values.notna()], values.dropna()
    levels = np.sort(doses.unique())
    ax.plot(np.searchsorted(levels, doses) + shift, values, "o", ms=3, alpha=0.4, color=colour, mew=0)
    intervals = [t_interval(values[doses == level].to_numpy()) for level in levels]
    at = np.arange(len(levels)) + shift
    ax.errorbar(
        at, [i.mean for i in intervals], [i.half for i in intervals], color=colour, lw=1.5, capsize=2, label=label
    )
    ax.set_xticks(range(len(levels)), [f"{d:g}" for d in levels])
    ax.set_ylim(-0.03, 1.03)


def dose_response(summary: pd.DataFrame, x: str, columns: Sequence[str], xlabel: str, by: str | None = None) -> Figure:
    """Reward at the end of training against a dial, a line a column; of one column, with ``by``, a line a value."""
    fig, ax = plt.subplots(figsize=(3.8, 2.9))
    lines = [(LABELS.get(column, column), summary, column) for column in columns]
    if by:
        ax.set_title(lines[0][0])
        lines = [(str(name), rows, columns[0]) for name, rows in summary.groupby(by, sort=False)]
    for k, ((label, rows, column), colour) in enumerate(zip(lines, DOSE_COLOURS[bool(by)], strict=False)):
        draw_doses(ax, rows[x], rows[column], colour, label, 0.12 * (k - (len(lines) - 1) / 2))
    ax.set(xlabel=xlabel, ylabel="reward, end of training")
    fig.legend(loc="outside upper center", ncols=2)
    footnote(fig, f"nano · {summary['seed'].nunique()} seeds (points), 95 % t-interval")
    return fig
