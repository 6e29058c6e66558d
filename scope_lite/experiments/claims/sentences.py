"""Verdicts in words: one sentence a setting, for a notebook and for ``docs/results.md`` between its two markers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from scope_lite.experiments.claims.data import CLAIMS
from scope_lite.experiments.claims.verdicts import overall
from scope_lite.store.errors import ScopeError

BEGIN, END = "<!-- claims: made from data/results/claims.csv by notebook 06 -->", "<!-- /claims -->"
NOT_YET = "not measured yet"


def number(row: Mapping[str, Any]) -> str:
    """Estimate and interval of a row: signed for a difference, plain for a share of worlds."""
    sign = "" if row["experiment"] == "multiverse" else "+"
    # adding zero turns a rounded -0.0 into 0.0
    mean, low, high = (f"{round(row[key], 2) + 0.0:{sign}.2f}" for key in ("estimate", "low", "high"))
    return mean if math.isnan(row["low"]) else f"{mean} [{low}, {high}]"


def _cell(row: Mapping[str, Any]) -> str:
    """A setting's verdict on a claim, with the contrast that decides it."""
    if row["verdict"] == "not measured":
        return NOT_YET
    if row["experiment"] == "multiverse":
        return f"{number(row)} of {row['n_seeds']} worlds"
    among = "" if row["held"] == row["counted"] else f" ({row['held']} of {row['counted']} hold)"
    return f"**{row['verdict']}**{among}: {row['contrast']}, {row['column']} {number(row)}"


def _place(row: Mapping[str, Any]) -> str:
    return row["world"] if row["model"] == "qwen3-tiny" else f"{row['world']} with {row['model']}"


def sentences(claims: pd.DataFrame) -> str:
    """Every claim with its verdict in each setting, and its caveat, as Markdown."""
    found = overall(claims)
    lines: list[str] = []
    for claim in CLAIMS:
        lines += [f"**{claim.id}: {claim.statement}.**" + (f" *({claim.caveat})*" if claim.caveat else ""), ""]
        for row in found[found["claim"] == claim.id].to_dict("records"):
            lines.append(f"- {_place(row)}: {_cell(row)}")
        lines.append("")
    return "\n".join(lines)


def fill_page(text: str, claims: pd.DataFrame) -> str:
    """The page's text with the verdicts on these claims between the two markers.

    Raises:
        ScopeError: if the text does not have both markers, once each, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in before + after:
        raise ScopeError(f"the page needs the lines '{BEGIN}' and '{END}', once each, around its verdicts")
    return f"{before}{BEGIN}\n{sentences(claims)}\n{END}{after}"
