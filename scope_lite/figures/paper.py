"""The paper's own published numbers (data/paper_numbers.csv): shown as the paper's, never a row of our tables.

They are of arXiv 2608.12253 v1, for models of billions of weights and real benchmarks. Success there and reward in a
nano world are different quantities, so no reward of ours gets such a line; the size of the pool is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_markdown
from scope_lite.store.paths import DATA

VERSION = "arXiv 2608.12253 v1"
"""the paper as it was read"""


@cache
def paper_numbers() -> pd.DataFrame:
    """Every number, as text: where in the paper, benchmark, model, method, quantity, value, spread, unit, our key.

    ``spread`` is the standard deviation over the panel's members (Tables 1 and 2) or people (Table 3); ``key`` is the
    setting of ours that means the same. What a row has nothing to say of is "".
    """
    return pd.read_csv(DATA / "paper_numbers.csv", dtype=str, keep_default_na=False)


def paper_value(where: str, quantity: str, **place: str) -> float:
    """One number: ``paper_value("Table 1", "success, best checkpoint", model="Qwen3-8B", ...)``.

    Raises:
        ScopeError: if the paper has none such, or more than one.
    """
    rows = paper_numbers()
    for column, wanted in {"where": where, "quantity": quantity, **place}.items():
        rows = rows[rows[column] == wanted]
    if len(rows) != 1:
        raise ScopeError(
            f"{len(rows)} numbers of the paper are {quantity!r} of {where} {place or ''}; name exactly one"
        )
    return float(rows["value"].iloc[0])


def paper_table(where: str, rows: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """A table of the paper: by these columns of its numbers, in their order; a cell is "value ± spread"."""
    found = paper_numbers().query("where == @where")
    cells = found["value"].where(found["spread"] == "", found["value"] + " ± " + found["spread"])
    cells.index = pd.MultiIndex.from_frame(found[[*rows, *columns]])
    table = cells.unstack(list(columns), sort=False).fillna("–")  # the paper's order, not the alphabet's
    return table.rename_axis([None] * len(columns), axis=1)


def paper_settings() -> dict[str, str]:
    """Our key -> what the paper states for it; where that differs by method or benchmark, each with its own."""
    said: dict[str, list[str]] = {}
    for row in paper_numbers().to_dict("records"):
        of = row["method"] or row["benchmark"]
        for key in row["key"].split():
            said.setdefault(key, []).append(f"{row['value']} ({of})" if of else row["value"])
    return {key: ", ".join(values) for key, values in said.items()}


def mark_paper_value(ax: Axes, positions: Mapping[float, float], *number: str, **place: str) -> None:
    """A dashed vertical line at a number of the paper, on an axis of evenly spaced levels of the same quantity.

    Args:
        positions: level -> its place on the axis; if the paper's value is no level, nothing is drawn.
        number, place: which, as ``paper_value`` takes it.
    """
    value = paper_value(*number, **place)
    if value in positions:
        ax.axvline(positions[value], color="#555555", lw=1, ls="--", zorder=0)
        text, at = f"the paper's best: {value:g}\n(other models\nand tasks)", (positions[value], 0.97)
        ax.annotate(text, at, xycoords=("data", "axes fraction"), xytext=(3, 0), textcoords="offset points",
                    fontsize=6.5, color="#555555", va="top")  # fmt: skip


def page_lines() -> list[str]:
    """The numbers that stand in no table of the paper, for the gallery page."""
    apart = paper_numbers()[lambda numbers: ~numbers["where"].str.startswith("Table")]
    return [
        "## The paper's own numbers, other models and tasks",
        "",
        f"Not results of ours, and of another size and unit than rewards of nano worlds. From {VERSION}; those of its",
        "tables stand in the tables below. Figure 17 marks its K, dashed.",
        "",
        "| where in the paper | quantity | the paper's value | of |",
        "|---|---|---|---|",
        *(_line(row) for row in apart.to_dict("records")),
    ]


def _line(row: Mapping[str, Any]) -> str:
    of = "; ".join(row[column] for column in ("benchmark", "model", "method", "note") if row[column])
    cells = (row["where"], row["quantity"], f"{row['value']} {row['unit']}".strip(), of)
    return "| " + " | ".join(map(for_markdown, cells)) + " |"
