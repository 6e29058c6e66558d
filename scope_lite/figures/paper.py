"""The paper's own published numbers: shown as the paper's, never a row of our tables and never part of a claim.

They are for models of billions of weights and real benchmarks. Success there and reward in a nano world are different
quantities, so no reward of ours gets such a line; the size of the pool is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from scope_lite.store.paths import DATA

POOL_SIZE = "best pool size K"


def paper_numbers() -> pd.DataFrame:
    """The numbers of the paper that we know: quantity, value, unit, where in the paper, and our source for it."""
    return pd.read_csv(DATA / "paper_numbers.csv")


def mark_paper_value(ax: Axes, quantity: str, positions: Mapping[float, float]) -> None:
    """A dashed vertical line at a number of the paper, on an axis of evenly spaced levels of the same quantity.

    Args:
        positions: level -> its place on the axis; if the paper's value is no level, nothing is drawn.
    """
    value = float(paper_numbers().set_index("quantity")["value"][quantity])
    if value in positions:
        ax.axvline(positions[value], color="#555555", lw=1, ls="--", zorder=0)
        text, place = f"the paper's best: {value:g}\n(other models\nand tasks)", (positions[value], 0.97)
        ax.annotate(text, place, xycoords=("data", "axes fraction"), xytext=(3, 0), textcoords="offset points",
                    fontsize=6.5, color="#555555", va="top")  # fmt: skip


def page_lines() -> list[str]:
    """The numbers as a table for the gallery page."""
    return [
        "## The paper's own numbers, other models and tasks",
        "",
        "Not results of ours, and of another size and unit than rewards of nano worlds. Figure 17 marks its K, dashed.",
        "",
        "| quantity | the paper's value | where in the paper | our source |",
        "|---|---|---|---|",
        *(f"| {r.quantity} | {r.value:g} {r.unit} | {r.where} | {r.source} |" for r in paper_numbers().itertuples()),
    ]
