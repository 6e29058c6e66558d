"""A simulator's health in one picture: every measure with its interval, and the side of its threshold to look at."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scope_lite.figures.style import footnote

GOOD, LOOK, NEUTRAL = "#009E73", "#D55E00", "#7f7f7f"
_COLOURS = {"good": GOOD, "look at it": LOOK}


def health_report(table: pd.DataFrame, values: pd.DataFrame, title: str, note: str = "") -> Figure:
    """The report's shares on one axis, entropy and tokens on axes of their own below.

    Args:
        table: as ``measure.diagnostics.report``; columns key, measure, value, low, high, unit, threshold, good_if,
            reading, settled.
        values: as ``measure.diagnostics.measure``: a column a key, one row a dialogue (the small dots).
        title: whose report it is.
        note: scenario, seeds, number of replies.
    """
    units = [unit for unit in ("share", "nats", "tokens") if (table["unit"] == unit).any()]
    parts = [table[table["unit"] == unit].reset_index(drop=True) for unit in units]
    rows = [len(part) + 0.9 for part in parts]
    fig, axes = plt.subplots(len(parts), 1, figsize=(7.6, 0.36 * sum(rows) + 1.1), height_ratios=rows, squeeze=False)
    for ax, unit, part in zip(axes[:, 0], units, parts, strict=True):
        top = _top(unit, part, values)
        ax.set(xlim=(-0.02 * top, top * 1.02), ylim=(len(part) - 0.45, -0.55), xlabel=unit)
        ax.set_yticks(range(len(part)), list(part["measure"]))
        ax.grid(axis="y", visible=False)
        for place, row in enumerate(part.itertuples()):
            _draw_row(ax, place, row, values[row.key].dropna().tolist(), top)
    axes[0, 0].set_title(title, fontsize=9, parse_math=False)
    handles = [
        Line2D([], [], color=GOOD, marker="o", markersize=6, linewidth=2, label="good"),
        Line2D([], [], color=LOOK, marker="o", markersize=6, linewidth=2, label="look at it"),
        Line2D([], [], color=NEUTRAL, marker="o", markersize=6, markerfacecolor="white", linestyle="",
               label="hollow: the interval reaches past the threshold"),
        plt.Rectangle((0, 0), 1, 1, color=LOOK, alpha=0.12, linewidth=0, label="side to look at"),
    ]  # fmt: skip
    fig.legend(handles=handles, loc="outside upper left", ncols=4, handletextpad=0.5, columnspacing=1.2)
    how = "small dots: dialogues; bars: 95 % intervals over dialogues; thresholds are ours"
    footnote(fig, f"{note}; {how}" if note else how)
    return fig


def _top(unit: str, part: pd.DataFrame, values: pd.DataFrame) -> float:
    """The axis's end: 1 for shares, else what holds the widest interval, threshold and dialogue."""
    if unit == "share":
        return 1.0
    seen = pd.concat([part["value"], part["high"], part["threshold"], *[values[key] for key in part["key"]]]).dropna()
    return 1.05 * float(seen.max()) if len(seen) and seen.max() > 0 else 1.0


def _draw_row(ax: Axes, place: int, row: Any, dots: list[float], top: float) -> None:
    if not math.isnan(row.threshold):
        left, right = (
            (-0.02 * top, row.threshold) if row.good_if.startswith("at least") else (row.threshold, 1.02 * top)
        )
        ax.fill_betweenx([place - 0.42, place + 0.42], left, right, color=LOOK, alpha=0.12, linewidth=0)
    colour = _COLOURS.get(row.reading, NEUTRAL)
    if math.isnan(row.value):
        ax.text(0.5 * top, place, "not measured", va="center", ha="center", fontsize=8, style="italic", color="#555555")
        return
    ax.scatter(dots, [place - 0.24] * len(dots), s=9, color=colour, alpha=0.45, linewidths=0, clip_on=False)
    if not math.isnan(row.low):
        ax.plot([row.low, row.high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
    face = colour if row.settled or not row.good_if else "white"
    ax.plot([row.value], [place], "o", markersize=6, color=colour, markerfacecolor=face, zorder=3, clip_on=False)
    shown = f"{row.value:.0f}" if row.unit == "tokens" else f"{row.value:.2f}"
    ax.annotate(shown, (1.0, place), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                va="center", fontsize=8, color=colour)  # fmt: skip
