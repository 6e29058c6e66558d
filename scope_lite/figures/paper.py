"""The paper's own published numbers: shown as the paper's, never a row of our tables and never part of a claim.

They are for models of billions of weights and real benchmarks. Success there and reward in a nano world are different
quantities, so no reward of ours gets such a line; the size of the pool is the same in both.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from scope_lite.store.paths import DATA

NUMBERS = DATA / "paper_numbers.csv"
POOL_SIZE = "best pool size K"


def paper_numbers(path: Path = NUMBERS) -> pd.DataFrame:
    """The numbers of the paper that we know: quantity, value, unit, where in the paper, and our source for it."""
    return pd.read_csv(path)


def mark_paper_value(ax: Axes, quantity: str, positions: dict[float, float] | None = None) -> None:
    """A dashed vertical line at a number of the paper, on an axis that has the same quantity and unit.

    Args:
        quantity: as in ``data/paper_numbers.csv``.
        positions: value -> place on an axis of evenly spaced levels; without that value there, nothing is drawn.
    """
    numbers = paper_numbers().set_index("quantity")["value"]
    value = float(numbers[quantity])
    at = value if positions is None else positions.get(value)
    if at is None:
        return
    ax.axvline(at, color="#555555", lw=1, ls="--", zorder=0)
    text = f"the paper's best: {value:g}\n(other models\nand tasks)"
    ax.annotate(text, (at, 0.97), xycoords=("data", "axes fraction"), xytext=(3, 0), textcoords="offset points",
                fontsize=6.5, color="#555555", va="top")  # fmt: skip


def page_lines() -> list[str]:
    """The numbers as a table for the gallery page."""
    rows = paper_numbers()
    return [
        "## The paper's own numbers, other models and tasks",
        "",
        "Not results of ours, and of another size and unit than rewards of nano worlds. Figure 17 marks its K, dashed.",
        "",
        "| quantity | the paper's value | where in the paper | our source |",
        "|---|---|---|---|",
        *(f"| {r.quantity} | {r.value:g} {r.unit} | {r.where} | {r.source} |" for r in rows.itertuples()),
    ]
