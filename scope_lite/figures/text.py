"""Figures of a text simulator: its replies, their variety beside people and by sample size, its health report.

Tables in (from ``measure.replies``, ``human_baseline`` and ``diagnostics``), figures out. Bars and bands are 95 %
intervals with histories (for people and the health report: dialogues) as units.
"""

from __future__ import annotations

import math
import textwrap
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
    STYLE,
    WIDTH,
    finish,
    footnote,
    name_rows,
    panel_grid,
    title_with_legend,
)

PEOPLE = "people"
NARROW, HEAD = 24, 66
"""letters of a line of the title of a panel whose axis is shared, and of a figure's"""
LINE = 0.12
"""height of a line of a reply, in inches"""
UNREAD = "too few could be read"
LEVELS = {"string": "the same words", "cluster": "alike in wording", "act": "the same dialogue act"}
OUTCOMES: dict[str, tuple[str, str]] = STYLE["outcomes"]
GOOD, LOOK, NEUTRAL = "#009E73", "#D55E00", "#7f7f7f"
DASHED: dict[str, Any] = {"color": "black", "lw": 0.8, "ls": (0, (3, 2))}
_KINDS = {PEOPLE: "#000000", "direct": "single", "personas": "persona", "VS": "verbalized"}
_COLD, _HOT = 0.4, 1.3
"""temperatures at the dark and the pale end of the ramp of direct sampling"""


def colour_of(condition: str) -> str | tuple[float, float, float]:
    """People black, Verbalized Sampling blue, personas amber, direct sampling from dark (cold) to pale (hot)."""
    kind = _KINDS.get(condition.split(",")[0].split(" ")[0], "base")
    colour = to_rgb(METHOD_COLOURS.get(kind, kind))
    if not condition.startswith("direct") or "T = " not in condition:
        return colour
    heat = np.clip((float(condition.split("T = ")[1].split()[0]) - _COLD) / (_HOT - _COLD), 0, 1)
    dark, pale = 0.62 * np.array(colour), 0.62 * np.array(colour) + 0.38
    red, green, blue = dark + heat * (pale - dark)
    return float(red), float(green), float(blue)


def _say_unread(ax: Axes, place: int, why: str = UNREAD) -> None:
    ax.annotate(why, (0.04, place), xycoords=("axes fraction", "data"), fontsize=6.5, style="italic", color="#777777",
                va="center", bbox={"facecolor": "white", "lw": 0, "pad": 0.5})  # fmt: skip


def _title(fig: Figure, title: str) -> None:
    fig.suptitle(textwrap.fill(title, HEAD), fontsize=8.5, x=0.01, ha="left", parse_math=False)


# -- beside people ----------------------------------------------------------------------------------------------------


def acts_beside_people(table: pd.DataFrame, note: str, title: str = "How varied is the next dialogue act?") -> Figure:
    """People, and every way to sample a model, on the same axes; readable in a column of 9 cm.

    Columns: condition ("people" first), view ("given the act", "at one history"), and entropy and mode_share, each
    with ``_low`` and ``_high``. ``note`` says model, sizes and intervals.
    """
    names = list(dict.fromkeys(table["condition"]))
    panels = {"entropy": ("entropy (nats)", None), "mode_share": ("share of the most\ncommon act", 1.02)}
    fig = plt.figure(figsize=(COLUMN, 1.5 + 0.235 * len(names)))
    axes = fig.subplots(1, 2, sharey=True)
    for ax, (column, (label, end)) in zip(axes, panels.items(), strict=True):
        people = table[table["condition"] == PEOPLE].iloc[0]
        ax.axvspan(people[f"{column}_low"], people[f"{column}_high"], color="black", alpha=0.12, lw=0)
        ax.axvline(people[column], **DASHED)
        for place, name in enumerate(names):
            _draw_condition(ax, place, table[table["condition"] == name], column)
        ax.set_xlabel(label, fontsize=8)
        ax.tick_params(labelsize=7.5)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
        ax.set_xlim(0, end)
    axes[0].set_yticks(range(len(names)), names)
    for tick, name in zip(axes[0].get_yticklabels(), names, strict=True):
        tick.set_fontweight("bold" if name == PEOPLE else "normal")
    axes[0].set_ylim(len(names) - 0.45, -0.55)
    dot: dict[str, Any] = {"color": "#555555", "ls": "none", "marker": "o"}
    marks = [Line2D([], [], ms=5, **dot), Line2D([], [], ms=3.4, mfc="white", **dot)]
    handles = [*marks, Patch(color="black", alpha=0.18, lw=0)]
    fig.legend(handles, ["after the same act", "at one history", "people, 95 %"], loc="outside upper left", ncols=3,
               title=title, title_fontproperties={"size": 9, "weight": "bold"}, alignment="left",
               fontsize=6.8, handletextpad=0.4, columnspacing=0.9, handlelength=1.2, borderpad=0.1)  # fmt: skip
    return footnote(fig, note)


def _draw_condition(ax: Axes, place: int, rows: pd.DataFrame, column: str) -> None:
    colour = colour_of(str(rows["condition"].iloc[0]))
    seen = rows[rows[column].notna()]
    if seen.empty:
        _say_unread(ax, place)
    for row in seen.to_dict("records"):
        pooled = row["view"] == "given the act"
        y = place - 0.1 if pooled else place + 0.24
        span = [row[f"{column}_low"], row[f"{column}_high"]]
        ax.plot(span, [y, y], color=colour, lw=1.8 if pooled else 0.9, solid_capstyle="round")
        look: dict[str, Any] = {"ms": 5.2, "color": colour, "mec": "white", "mew": 0.6}
        look = look if pooled else {"ms": 3.4, "color": "white", "mec": colour, "mew": 0.9}
        ax.plot(row[column], y, "D" if row["condition"] == PEOPLE else "o", zorder=3, **look)


def recovery(table: pd.DataFrame, note: str) -> Figure:
    """How far each condition is from a reference, one panel a reference, with the floor that no sample can beat.

    Columns: reference, condition, distance with ``_low`` and ``_high``.
    """
    references, names = (list(dict.fromkeys(table[column])) for column in ("reference", "condition"))
    fig = plt.figure(figsize=(WIDTH, 1.4 + 0.25 * len(names)))
    axes = fig.subplots(1, len(references), sharey=True, squeeze=False)[0]
    for ax, reference in zip(axes, references, strict=True):
        part = table[table["reference"] == reference].set_index("condition")
        ax.axvline(part.loc[part.index[0] if reference == PEOPLE else "direct, T = 1", "distance"], **DASHED)
        for name, row in part.iterrows():
            place, colour = names.index(name), colour_of(name)
            if np.isnan(row["distance"]):
                _say_unread(ax, place)
                continue
            ax.plot([row["distance_low"], row["distance_high"]], [place, place], color=colour, lw=2)
            mark = "D" if name == PEOPLE else "o"
            ax.plot(row["distance"], place, mark, ms=6, color=colour, mec="white", mew=0.7, zorder=3)
        ax.set(xlim=(0, 1.02), xlabel="total variation of acts", title=textwrap.fill(f"from {reference}", NARROW))
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return footnote(fig, note)


def stated_donations(shares: pd.DataFrame, note: str) -> Figure:
    """What is stated in answer to a proposal to donate, one bar a condition ("people" first).

    Columns: condition, donation ("no amount", then bins from nothing to all), share, answers.
    """
    names, bins = (list(dict.fromkeys(shares[column])) for column in ("condition", "donation"))
    colours = ["#dddddd", *plt.get_cmap("YlGnBu")(np.linspace(0.2, 0.95, len(bins) - 1))]
    fig, ax = plt.subplots(figsize=(WIDTH, 1.3 + 0.25 * len(names)))
    wide = shares.pivot(index="condition", columns="donation", values="share").loc[names, bins].fillna(0)
    left = np.zeros(len(names))
    for name, colour in zip(bins, colours, strict=True):
        label = name if name == bins[0] else f"${name}"
        ax.barh(range(len(names)), wide[name], left=left, color=colour, label=label)
        left += wide[name].to_numpy()
    for place, answers in enumerate(shares.drop_duplicates("condition")["answers"]):
        if not answers:
            _say_unread(ax, place)
        ax.annotate(f"n = {answers}", (1.01, place), fontsize=6.5, va="center", annotation_clip=False)
    ax.set_yticks(range(len(names)), names)
    ax.get_yticklabels()[0].set_fontweight("bold")
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), xlabel="share of the answers")
    ax.grid(axis="y", visible=False)
    title_with_legend(ax, "Asked to donate: the amount that the answer states", ncols=3)
    return footnote(fig, note)


# -- how varied -------------------------------------------------------------------------------------------------------


def mode_shares(measures: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Share of the most common reply by what counts as the same, with every history visible.

    Columns of ``measures``: condition, level, mode_share, outputs. Of ``summary``: condition, level, mode_share with
    ``_low`` and ``_high``. The dashed line is the floor 1/n that n different replies reach.
    """
    levels = [level for level in LEVELS if summary.loc[summary["level"] == level, "mode_share"].notna().any()]
    names = list(dict.fromkeys(summary["condition"]))
    fig, axes = panel_grid(len(levels), 0.7 + 0.3 * len(names))
    floor = 1 / measures["outputs"].max()
    one, mean = measures.groupby(["condition", "level"])["mode_share"], summary.set_index(["condition", "level"])
    for ax, level in zip(axes, levels, strict=True):
        for place, name in enumerate(names):
            _draw_shares(ax, place, one.get_group((name, level)).dropna(), mean.loc[(name, level)], floor)
        ax.axvline(floor, color="black", linestyle="--", linewidth=0.8, label="floor 1/n: all different")
        ax.set(xlim=(0, 1.02), xlabel="share of the most common", title=LEVELS[level])
        ax.grid(axis="y", visible=False)
    name_rows(axes, names)
    grey: dict[str, Any] = {"color": "#555555", "marker": "o"}
    axes[0].plot([], [], ms=3, ls="", alpha=0.5, mew=0, label="one history", **grey)
    axes[0].plot([], [], ms=5, label="mean, 95 % interval", **grey)
    _title(fig, title)
    return finish(fig)


def _draw_shares(ax: Axes, place: int, seen: pd.Series, mean: pd.Series, floor: float) -> None:
    if seen.empty:
        _say_unread(ax, place, UNREAD if mean["failure_rate"] > 0.5 else "not known here")
        return
    colour = colour_of(str(mean.name[0]))
    # Above the mean's row and spread, so that equal values stay countable.
    spread = np.linspace(-0.4, -0.16, len(seen)) if len(seen) > 1 else np.array([-0.28])
    ax.scatter(seen, place + spread, s=9, color=colour, alpha=0.5, linewidths=0)
    low, high = max(floor, mean["mode_share_low"]), mean["mode_share_high"]
    ax.plot([low, high], [place, place], color=colour, linewidth=2)
    ax.scatter([mean["mode_share"]], [place], s=36, color=colour, edgecolors="white", zorder=3)


def size_curves(entropy: pd.DataFrame, shares: pd.DataFrame, condition: str, note: str) -> Figure:
    """What the estimates would be with fewer replies a history: entropy of the act, and mode shares at every level.

    Columns of both: condition, level, replies, measure, mean, low, high.
    """
    fig, axes = panel_grid(2, 2.7)
    rows = entropy[entropy["condition"] == condition]
    for name, colour in (("plug-in", "#7f7f7f"), ("Miller-Madow", "#E69F00"), ("Chao-Shen", "#0072B2")):
        _draw_curve(axes[0], rows[rows["measure"] == name], colour, name)
    title_with_legend(axes[0], "entropy of the act (nats)")
    for level, colour in (("string", "#009E73"), ("cluster", "#CC79A7"), ("act", "#D55E00")):
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
    return footnote(fig, note)


def _draw_curve(ax: Axes, rows: pd.DataFrame, colour: str, label: str | None, line: str = "-") -> None:
    ax.plot(rows["replies"], rows["mean"], line, color=colour, marker="o", ms=3.5, lw=1.5, label=label)
    if label:
        ax.fill_between(rows["replies"], rows["low"], rows["high"], color=colour, alpha=0.12, lw=0)


def token_level(table: pd.DataFrame, note: str) -> Figure:
    """The most probable opening and the entropy of openings, by their length in tokens.

    Columns: condition, tokens, mode_probability and entropy, each with ``_low`` and ``_high``.
    """
    panels = {"mode_probability": "P(the most likely opening)", "entropy": "entropy of the opening (nats)"}
    fig, axes = panel_grid(2)
    for ax, (column, title) in zip(axes, panels.items(), strict=True):
        for condition, rows in table.groupby("condition", sort=False):
            colour, low, high = colour_of(str(condition)), rows[f"{column}_low"], rows[f"{column}_high"]
            ax.plot(rows["tokens"], rows[column], "o-", ms=4, color=colour, label=condition)
            ax.fill_between(rows["tokens"], low, high, color=colour, alpha=0.12, lw=0)
        ax.set(xlabel="first k tokens", xticks=sorted(set(table["tokens"])), ylim=(0, None), title=title)
    return finish(fig, note)


# -- the replies themselves -------------------------------------------------------------------------------------------


def replies_side_by_side(table: pd.DataFrame, history: str, title: str, rows: int = 5, width: int = 42) -> Figure:
    """The first replies at one history, a panel a condition, word for word.

    Columns: condition, history, reply, text (missing if the output could not be read), failure, raw.
    """
    part = table[(table["history"] == history) & (table["reply"] < rows)]
    cells = {
        str(name): [_cell(row, width) for row in said.itertuples()]
        for name, said in part.groupby("condition", sort=False)
    }
    heights = [1 + max(len(words) for words, _ in row) for row in zip(*cells.values(), strict=True)]
    head = len(textwrap.wrap(title, HEAD))
    fig, axes = panel_grid(len(cells), LINE * (sum(heights) + 2.5), LINE * (1.5 * head + 1))
    for ax, (name, said) in zip(axes, cells.items(), strict=True):
        ax.set(xlim=(0, 1), ylim=(sum(heights), 0), xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[["left", "bottom"]].set_visible(False)
        ax.set_title(name, fontsize=9, color=colour_of(name), fontweight="bold")
        top = 0
        for (words, readable), height in zip(said, heights, strict=True):
            look: dict[str, Any] = {} if readable else {"color": "#888888", "style": "italic"}
            ax.axhline(top, color="#cccccc", linewidth=0.6)
            text = ax.text(0.01, top + 0.4, "\n".join(words), va="top", fontsize=6.5, parse_math=False, **look)
            text.set_in_layout(False)  # a long line must not narrow its column
            top += height
    _title(fig, title)
    return fig


def _cell(row: Any, width: int) -> tuple[list[str], bool]:
    """A reply in lines as wide as the column (at most four), and whether it could be read."""
    said = f"[could not be read: {OUTCOMES[row.failure][0]}] {row.raw}" if row.failure else str(row.text)
    lines = 2 if row.failure else 4
    # The figure's font has no emoji or Asian scripts; a box says that something stood there.
    shown = "".join(char if ord(char) < 0x2500 else "□" for char in " ".join(said.split()))
    wrapped = textwrap.wrap(shown, width) or ["(nothing)"]
    cut = wrapped if len(wrapped) <= lines else [*wrapped[: lines - 1], wrapped[lines - 1][: width - 2] + " …"]
    return cut, not row.failure


def parse_outcomes(table: pd.DataFrame, title: str) -> Figure:
    """What became of the verbalized outputs: the share that could be read, and why the others could not.

    Columns: condition (those starting with "VS" are shown, not a second draw from the same outputs), failure ("" if
    the output could be read).
    """
    shown = table[table["condition"].str.fullmatch("VS, [^,]+")]
    names = list(dict.fromkeys(shown["condition"]))
    fig, (ax,) = panel_grid(1, 1.2 + 0.4 * len(names))
    left = np.zeros(len(names))
    for reason, (label, colour) in OUTCOMES.items():
        shares = (shown["failure"] == reason).groupby(shown["condition"]).mean().loc[names].to_numpy()
        if shares.any():
            ax.barh(names, shares, left=left, color=colour, label=label, height=0.6)
            left += shares
    ax.set(xlim=(0, 1), xlabel="share of outputs", title=textwrap.fill(title, HEAD))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    return finish(fig)


# -- the health report ------------------------------------------------------------------------------------------------


def health_report(table: pd.DataFrame, values: pd.DataFrame, title: str, note: str = "") -> Figure:
    """A simulator's health report: its shares on one axis, entropy and tokens on axes of their own below.

    Args:
        table: as ``measure.diagnostics.report``; columns key, measure, value, low, high, unit, threshold, good_if,
            reading, settled.
        values: as ``measure.diagnostics.measure``: a column a key, one row a dialogue (the small dots).
    """
    parts = {u: part for u in ("share", "nats", "tokens") if len(part := table[table["unit"] == u])}
    rows = [len(part) + 0.9 for part in parts.values()]
    fig, axes = plt.subplots(len(parts), 1, figsize=(7.6, 0.36 * sum(rows) + 1.1), height_ratios=rows, squeeze=False)
    for ax, (unit, part) in zip(axes[:, 0], parts.items(), strict=True):
        # the end of the axis: 1 for shares, else what holds the widest interval, threshold and dialogue
        seen = pd.concat([part["value"], part["high"], part["threshold"], values[part["key"]].stack()]).max()
        top = 1.0 if unit == "share" or not seen > 0 else 1.05 * float(seen)
        ax.set(xlim=(-0.02 * top, top * 1.02), ylim=(len(part) - 0.45, -0.55), xlabel=unit)
        ax.set_yticks(range(len(part)), list(part["measure"]))
        ax.grid(axis="y", visible=False)
        for place, row in enumerate(part.itertuples()):
            _draw_measure(ax, place, row, values[row.key].dropna(), top)
    axes[0, 0].set_title(title, fontsize=9, parse_math=False)
    dot: dict[str, Any] = {"marker": "o", "markersize": 6, "linewidth": 2}
    hollow: dict[str, Any] = {"color": NEUTRAL, "markerfacecolor": "white", "linestyle": ""}
    handles = [
        Line2D([], [], color=GOOD, label="good", **dot),
        Line2D([], [], color=LOOK, label="look at it", **dot),
        Line2D([], [], label="hollow: the interval reaches past the threshold", **dot, **hollow),
        plt.Rectangle((0, 0), 1, 1, color=LOOK, alpha=0.12, linewidth=0, label="side to look at"),
    ]
    fig.legend(handles=handles, loc="outside upper left", ncols=4, handletextpad=0.5, columnspacing=1.2)
    how = "small dots: dialogues; bars: 95 % intervals over dialogues; thresholds are ours"
    return footnote(fig, f"{note}; {how}" if note else how)


def _draw_measure(ax: Axes, place: int, row: Any, dialogues: pd.Series, top: float) -> None:
    if not math.isnan(row.threshold):
        edge = -0.02 * top if row.good_if.startswith("at least") else 1.02 * top
        band, sides = [place - 0.42, place + 0.42], sorted((edge, row.threshold))
        ax.fill_betweenx(band, *sides, color=LOOK, alpha=0.12, linewidth=0)
    if math.isnan(row.value):
        ax.text(0.5 * top, place, "not measured", va="center", ha="center", fontsize=8, style="italic", color="#555555")
        return
    colour = {"good": GOOD, "look at it": LOOK}.get(row.reading, NEUTRAL)
    above = [place - 0.24] * len(dialogues)
    ax.scatter(dialogues, above, s=9, color=colour, alpha=0.45, linewidths=0, clip_on=False)
    if not math.isnan(row.low):
        ax.plot([row.low, row.high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
    face = colour if row.settled or not row.good_if else "white"
    ax.plot([row.value], [place], "o", markersize=6, color=colour, markerfacecolor=face, zorder=3, clip_on=False)
    shown = f"{row.value:.0f}" if row.unit == "tokens" else f"{row.value:.2f}"
    ax.annotate(shown, (1.0, place), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                va="center", fontsize=8, color=colour)  # fmt: skip
