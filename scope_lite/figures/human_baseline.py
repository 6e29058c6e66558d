"""Figures of a text simulator's variety: beside people, by what counts as the same, by sample size, by token.

Tables in (from ``measure.replies`` and ``measure.human_baseline``), figures out. Bars and bands are 95 % intervals with
histories (for people: dialogues) as units.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scope_lite.figures.style import (
    COLUMN,
    METHOD_COLOURS,
    WIDTH,
    footnote,
    name_rows,
    panel_grid,
    shared_legend,
    title_with_legend,
)

PEOPLE = "people"
NARROW = 24
"""letters of a line of the title of a panel whose axis is shared"""
UNREAD = "too few could be read"
LEVELS = {"string": "the same words", "cluster": "alike in wording", "act": "the same dialogue act"}
_KINDS = {"people": "#000000", "direct": METHOD_COLOURS["single"], "personas": METHOD_COLOURS["persona"],
          "VS": METHOD_COLOURS["verbalized"]}  # fmt: skip
_COLD, _HOT = 0.4, 1.3
"""temperatures at the dark and the pale end of the ramp of direct sampling"""


def colour_of(condition: str) -> str | tuple[float, float, float]:
    """People black, Verbalized Sampling blue, personas amber, direct sampling from dark (cold) to pale (hot)."""
    kind = condition.split(",")[0].split(" ")[0]
    colour = to_rgb(_KINDS.get(kind, METHOD_COLOURS["base"]))
    if kind != "direct" or "T = " not in condition:
        return colour
    heat = np.clip((float(condition.split("T = ")[1].split()[0]) - _COLD) / (_HOT - _COLD), 0, 1)
    dark, pale = 0.62 * np.array(colour), 0.62 * np.array(colour) + 0.38
    red, green, blue = dark + heat * (pale - dark)
    return float(red), float(green), float(blue)


def acts_beside_people(table: pd.DataFrame, note: str, title: str = "How varied is the next dialogue act?") -> Figure:
    """People, and every way to sample a model, on the same axes; readable in a column of 9 cm.

    Columns: condition ("people" first), view ("given the act", "at one history"), and entropy and mode_share, each
    with ``_low`` and ``_high``. ``note`` says model, sizes and intervals.
    """
    names = list(dict.fromkeys(table["condition"]))
    panels = {"entropy": "entropy (nats)", "mode_share": "share of the most\ncommon act"}
    fig = plt.figure(figsize=(COLUMN, 1.5 + 0.235 * len(names)))
    axes = fig.subplots(1, 2, sharey=True)
    for ax, (column, label) in zip(axes, panels.items(), strict=True):
        people = table[table["condition"] == PEOPLE].iloc[0]
        ax.axvspan(people[f"{column}_low"], people[f"{column}_high"], color="black", alpha=0.12, lw=0)
        ax.axvline(people[column], color="black", lw=0.8, ls=(0, (3, 2)))
        for place, name in enumerate(names):
            _draw_condition(ax, place, table[table["condition"] == name], column)
        ax.set_xlabel(label, fontsize=8)
        ax.tick_params(labelsize=7.5)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(names)), names)
    for tick, name in zip(axes[0].get_yticklabels(), names, strict=True):
        tick.set_color("black")
        tick.set_fontweight("bold" if name == PEOPLE else "normal")
    axes[0].set_ylim(len(names) - 0.45, -0.55)
    axes[0].set_xlim(0, None)
    axes[1].set_xlim(0, 1.02)
    _legend(fig, title)
    footnote(fig, note)
    return fig


def _draw_condition(ax: Axes, place: int, rows: pd.DataFrame, column: str) -> None:
    colour = colour_of(str(rows["condition"].iloc[0]))
    seen = rows[rows[column].notna()]
    if seen.empty:
        _say_unread(ax, place)
    for row in seen.itertuples():
        pooled = row.view == "given the act"
        low, high = getattr(row, f"{column}_low"), getattr(row, f"{column}_high")
        y = place - 0.1 if pooled else place + 0.24
        ax.plot([low, high], [y, y], color=colour, lw=1.8 if pooled else 0.9, solid_capstyle="round")
        marker = "D" if row.condition == PEOPLE else "o"
        ax.plot(getattr(row, column), y, marker, ms=5.2 if pooled else 3.4, color=colour if pooled else "white",
                mec="white" if pooled else colour, mew=0.6 if pooled else 0.9, zorder=3)  # fmt: skip


def _say_unread(ax: Axes, place: int, why: str = UNREAD) -> None:
    ax.annotate(why, (0.04, place), xycoords=("axes fraction", "data"), fontsize=6.5, style="italic", color="#777777",
                va="center", bbox={"facecolor": "white", "lw": 0, "pad": 0.5})  # fmt: skip


def _legend(fig: Figure, title: str) -> None:
    dot: dict[str, Any] = {"color": "#555555", "ls": "none", "marker": "o"}
    handles = [
        Line2D([], [], ms=5, **dot),
        Line2D([], [], ms=3.4, mfc="white", **dot),
        Patch(color="black", alpha=0.18, lw=0),
    ]
    fig.legend(handles, ["after the same act", "at one history", "people, 95 %"], loc="outside upper left", ncols=3,
               title=title, title_fontproperties={"size": 9, "weight": "bold"}, alignment="left",
               fontsize=6.8, handletextpad=0.4, columnspacing=0.9, handlelength=1.2, borderpad=0.1)  # fmt: skip


def recovery(table: pd.DataFrame, note: str) -> Figure:
    """How far each condition is from a reference, one panel a reference, with the floor that no sample can beat.

    Columns: reference, condition, distance with ``_low`` and ``_high``.
    """
    references = list(dict.fromkeys(table["reference"]))
    names = [name for name in dict.fromkeys(table["condition"])]
    fig = plt.figure(figsize=(WIDTH, 1.4 + 0.25 * len(names)))
    axes = fig.subplots(1, len(references), sharey=True, squeeze=False)
    for ax, reference in zip(axes[0], references, strict=True):
        part = table[table["reference"] == reference].set_index("condition")
        floor = part.index[0] if reference == PEOPLE else "direct, T = 1"
        ax.axvline(part.loc[floor, "distance"], color="black", lw=0.8, ls=(0, (3, 2)))
        for place, name in enumerate(names):
            if name not in part.index:
                continue
            row, colour = part.loc[name], colour_of(name)
            if np.isnan(row["distance"]):
                _say_unread(ax, place)
                continue
            ax.plot([row["distance_low"], row["distance_high"]], [place, place], color=colour, lw=2)
            mark = "D" if name == PEOPLE else "o"
            ax.plot(row["distance"], place, mark, ms=6, color=colour, mec="white", mew=0.7, zorder=3)
        ax.set(xlim=(0, 1.02), xlabel="total variation of acts", title=textwrap.fill(f"from {reference}", NARROW))
        ax.grid(axis="y", visible=False)
    axes[0][0].set_yticks(range(len(names)), names)
    axes[0][0].set_ylim(len(names) - 0.5, -0.5)
    footnote(fig, note)
    return fig


def stated_donations(shares: pd.DataFrame, note: str) -> Figure:
    """What is stated in answer to a proposal to donate, one bar a condition ("people" first).

    Columns: condition, donation ("no amount", then bins from nothing to all), share, answers.
    """
    names = list(dict.fromkeys(shares["condition"]))
    bins = list(dict.fromkeys(shares["donation"]))
    colours = ["#dddddd", *plt.get_cmap("YlGnBu")(np.linspace(0.2, 0.95, len(bins) - 1))]
    fig, ax = plt.subplots(figsize=(WIDTH, 1.3 + 0.25 * len(names)))
    left = np.zeros(len(names))
    for name, colour in zip(bins, colours, strict=True):
        part = shares[shares["donation"] == name].set_index("condition").loc[names, "share"].fillna(0).to_numpy()
        ax.barh(range(len(names)), part, left=left, color=colour, label=name if name == bins[0] else f"${name}")
        left += part
    for place, name in enumerate(names):
        answers = int(shares.loc[shares["condition"] == name, "answers"].iloc[0])
        if not answers:
            _say_unread(ax, place)
        ax.annotate(f"n = {answers}", (1.01, place), fontsize=6.5, va="center", annotation_clip=False)
    ax.set_yticks(range(len(names)), names)
    ax.get_yticklabels()[0].set_fontweight("bold")
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), xlabel="share of the answers")
    ax.grid(axis="y", visible=False)
    title_with_legend(ax, "Asked to donate: the amount that the answer states", ncols=3)
    footnote(fig, note)
    return fig


def mode_shares(measures: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Share of the most common reply by what counts as the same, with every history visible.

    Columns of ``measures``: condition, level, mode_share, outputs. Of ``summary``: condition, level, mode_share with
    ``_low`` and ``_high``. The dashed line is the floor 1/n that n different replies reach.
    """
    levels = [level for level in LEVELS if summary.loc[summary["level"] == level, "mode_share"].notna().any()]
    names = list(dict.fromkeys(summary["condition"]))
    fig, axes = panel_grid(len(levels), 0.7 + 0.3 * len(names))
    floor = 1 / measures["outputs"].max()
    for ax, level in zip(axes, levels, strict=True):
        for place, name in enumerate(names):
            mine = (summary["condition"] == name) & (summary["level"] == level)
            values = measures.loc[(measures["condition"] == name) & (measures["level"] == level), "mode_share"]
            _draw_shares(ax, place, values, summary[mine].iloc[0], floor)
        ax.axvline(floor, color="black", linestyle="--", linewidth=0.8, label="floor 1/n: all different")
        ax.set(xlim=(0, 1.02), xlabel="share of the most common", title=LEVELS[level])
        ax.grid(axis="y", visible=False)
    name_rows(axes, names)
    grey: dict[str, Any] = {"color": "#555555", "marker": "o"}
    axes[0].plot([], [], ms=3, ls="", alpha=0.5, mew=0, label="one history", **grey)
    axes[0].plot([], [], ms=5, label="mean, 95 % interval", **grey)
    shared_legend(fig)
    fig.suptitle(textwrap.fill(title, 66), fontsize=8.5, x=0.01, ha="left", parse_math=False)
    return fig


def _draw_shares(ax: Axes, place: int, values: pd.Series, summary: pd.Series, floor: float) -> None:
    seen = values.dropna().to_numpy()
    if not len(seen):
        _say_unread(ax, place, UNREAD if summary["failure_rate"] > 0.5 else "not known here")
        return
    colour = colour_of(str(summary["condition"]))
    # Above the mean's row and spread, so that equal values stay countable.
    spread = np.linspace(-0.4, -0.16, len(seen)) if len(seen) > 1 else np.array([-0.28])
    ax.scatter(seen, place + spread, s=9, color=colour, alpha=0.5, linewidths=0)
    low, high = max(floor, summary["mode_share_low"]), summary["mode_share_high"]
    ax.plot([low, high], [place, place], color=colour, linewidth=2)
    ax.scatter([summary["mode_share"]], [place], s=36, color=colour, edgecolors="white", zorder=3)


def size_curves(entropy: pd.DataFrame, shares: pd.DataFrame, condition: str, note: str) -> Figure:
    """What the estimates would be with fewer replies a history: entropy of the act, and mode shares at every level.

    Columns of both: condition, level, replies, measure, mean, low, high.
    """
    fig, axes = panel_grid(2, 2.7)
    estimators = {"plug-in": "#7f7f7f", "Miller-Madow": "#E69F00", "Chao-Shen": "#0072B2"}
    rows = entropy[entropy["condition"] == condition]
    for name, colour in estimators.items():
        _draw_curve(axes[0], rows[rows["measure"] == name], colour, name)
    title_with_legend(axes[0], "entropy of the act (nats)")
    levels = {"string": "#009E73", "cluster": "#CC79A7", "act": "#D55E00"}
    for level, colour in levels.items():
        part = shares[(shares["condition"] == condition) & (shares["level"] == level)]
        _draw_curve(axes[1], part[part["measure"] == "mode share"], colour, LEVELS[level])
        _draw_curve(axes[1], part[part["measure"] == "mode share, cross-validated"], colour, None, "--")
    sizes = np.array(sorted(set(shares["replies"])))
    axes[1].plot(sizes, 1 / sizes, ":", color="black", lw=1, label="floor 1/n")
    axes[1].plot([], [], "--", color="#555555", label="cross-validated")
    axes[1].set_ylim(0, 1)
    title_with_legend(axes[1], "share of the most common")
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.set_xlabel("replies a history")
    footnote(fig, note)
    return fig


def _draw_curve(ax: Axes, rows: pd.DataFrame, colour: str, label: str | None, line: str = "-") -> None:
    ax.plot(rows["replies"], rows["mean"], line, color=colour, marker="o", ms=3.5, lw=1.5, label=label)
    if label:
        ax.fill_between(rows["replies"], rows["low"], rows["high"], color=colour, alpha=0.12, lw=0)


def token_level(table: pd.DataFrame, note: str) -> Figure:
    """The most probable opening and the entropy of openings, by their length in tokens.

    Columns: condition, tokens, mode_probability and entropy, each with ``_low`` and ``_high``.
    """
    panels: Sequence[tuple[str, str]] = (
        ("mode_probability", "P(the most likely opening)"),
        ("entropy", "entropy of the opening (nats)"),
    )
    fig, axes = panel_grid(2)
    for ax, (column, title) in zip(axes, panels, strict=True):
        for condition, rows in table.groupby("condition", sort=False):
            colour = colour_of(str(condition))
            ax.plot(rows["tokens"], rows[column], "o-", ms=4, color=colour, label=condition)
            ax.fill_between(rows["tokens"], rows[f"{column}_low"], rows[f"{column}_high"], color=colour, alpha=0.12,
                            lw=0)  # fmt: skip
        ax.set(xlabel="first k tokens", xticks=sorted(set(table["tokens"])), ylim=(0, None), title=title)
    shared_legend(fig)
    footnote(fig, note)
    return fig
