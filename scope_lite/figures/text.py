"""Figures about real text: replies side by side, and what became of verbalized lists. Tables in, figures out."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_lite.figures.human_baseline import colour_of
from scope_lite.figures.style import panel_grid, shared_legend

LINE = 0.12
"""height of a line of a reply, in inches"""
HEAD = 66
"""letters of a title's line"""

_FAILURES = {
    "": ("read", "#0072B2"),
    "no_list": ("no list", "#D55E00"),
    "bad_json": ("invalid JSON", "#E69F00"),
    "wrong_count": ("wrong number", "#CC79A7"),
    "bad_item": ("wrong fields", "#7f7f7f"),
    "bad_text": ("empty text", "#bbbbbb"),
    "bad_probability": ("bad probability", "#56B4E9"),
    "zero_mass": ("all zero", "#000000"),
}


def replies_side_by_side(table: pd.DataFrame, history: str, title: str, rows: int = 5, width: int = 42) -> Figure:
    """The first replies at one history, a panel a condition, word for word.

    Columns: condition, history, reply, text (missing if the output could not be read), failure, raw.
    """
    part = table[(table["history"] == history) & (table["reply"] < rows)]
    conditions = list(dict.fromkeys(part["condition"]))
    cells = {name: [_cell(row, width) for row in part[part["condition"] == name].itertuples()] for name in conditions}
    heights = [
        1 + max(cells[name][i][0].count("\n") + 1 for name in conditions) for i in range(len(cells[conditions[0]]))
    ]
    head = textwrap.wrap(title, HEAD)
    fig, axes = panel_grid(len(conditions), LINE * (sum(heights) + 2.5), LINE * (1.5 * len(head) + 1))
    for ax, name in zip(axes, conditions, strict=True):
        _draw_column(ax, name, cells[name], heights)
    fig.suptitle("\n".join(head), fontsize=8.5, x=0.01, ha="left", parse_math=False)
    return fig


def _cell(row: Any, width: int, lines: int = 4) -> tuple[str, bool]:
    """A reply wrapped to the column (cut after ``lines`` lines), and whether it could be read."""
    failure = row.failure or ""
    if failure:
        label = f"[could not be read: {_FAILURES[failure][0]}] "
        return "\n".join(_wrap(label + str(row.raw), width, 2)), False
    return "\n".join(_wrap(str(row.text), width, lines)), True


def _wrap(text: str, width: int, lines: int) -> list[str]:
    # The figure's font has no emoji or Asian scripts; a box says that something stood there.
    shown = "".join(char if ord(char) < 0x2500 else "□" for char in " ".join(text.split()))
    wrapped = textwrap.wrap(shown, width) or ["(nothing)"]
    return wrapped if len(wrapped) <= lines else [*wrapped[: lines - 1], wrapped[lines - 1][: width - 2] + " …"]


def _draw_column(ax: Axes, name: str, cells: list[tuple[str, bool]], heights: list[int]) -> None:
    total = sum(heights)
    ax.set(xlim=(0, 1), ylim=(total, 0), xticks=[], yticks=[])
    ax.grid(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.set_title(name, fontsize=9, color=colour_of(name), fontweight="bold")
    top = 0
    for (text, readable), height in zip(cells, heights, strict=True):
        colour = "black" if readable else "#888888"
        style = "normal" if readable else "italic"
        ax.axhline(top, color="#cccccc", linewidth=0.6)
        words = ax.text(0.01, top + 0.4, text, va="top", fontsize=6.5, color=colour, style=style, parse_math=False)
        words.set_in_layout(False)  # a long line must not narrow its column
        top += height


def parse_outcomes(table: pd.DataFrame, title: str) -> Figure:
    """What became of the verbalized outputs: the share that could be read, and why the others could not.

    Columns: condition (those starting with "VS" are shown), failure ("" if the output could be read).
    """
    shown = table[table["condition"].str.startswith("VS")]
    names = list(dict.fromkeys(shown["condition"]))
    fig, (ax,) = panel_grid(1, 1.2 + 0.4 * len(names))
    left = np.zeros(len(names))
    for reason, (label, colour) in _FAILURES.items():
        shares = np.array([(shown.loc[shown["condition"] == name, "failure"] == reason).mean() for name in names])
        if shares.any():
            ax.barh(names, shares, left=left, color=colour, label=label, height=0.6)
            left += shares
    ax.set(xlim=(0, 1), xlabel="share of outputs")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_title(textwrap.fill(title, HEAD))
    shared_legend(fig)
    return fig
