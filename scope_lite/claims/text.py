"""Verdicts in words: one sentence a setting for a notebook, and the README's table between its two markers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from scope_lite.claims.statements import CLAIMS, WORLDS
from scope_lite.claims.verdicts import overall
from scope_lite.errors import ScopeError

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


def readme_table(claims: pd.DataFrame) -> str:
    """One line a claim: its verdict in each of the three worlds, elsewhere, and its share of the multiverse."""
    found = overall(claims)
    lines = [
        f"| claim of the paper | {' | '.join(f'`{w}`' for w in WORLDS)} | elsewhere | random worlds |",
        f"|{'---|' * (len(WORLDS) + 3)}",
    ]
    for claim in CLAIMS:
        rows = found[found["claim"] == claim.id].to_dict("records")
        at_home = [r for r in rows if r["world"] in WORLDS and r["model"] == "qwen3-tiny"]
        cells = ["; ".join(_cell(r) for r in at_home if r["world"] == world) or "–" for world in WORLDS]
        others = [r for r in rows if r not in at_home and r["experiment"] != "multiverse"]
        known = [f"{_place(r)}: {_cell(r)}" for r in others if r["verdict"] != "not measured"]
        cells.append("; ".join(known) or (NOT_YET if others else "–"))
        cells.append("; ".join(_cell(r) for r in rows if r["experiment"] == "multiverse") or "–")
        caveat = f" ({claim.caveat})" if claim.caveat else ""
        lines.append(f"| {claim.id}: {claim.statement}{caveat} | {' | '.join(cells)} |")
    return "\n".join(lines)


def fill_readme(text: str, claims: pd.DataFrame) -> str:
    """The README's text with the verdict table of these claims between the two markers.

    Raises:
        ScopeError: if the text does not have both markers, once each, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in before + after:
        raise ScopeError(f"the README needs the lines '{BEGIN}' and '{END}', once each, around its verdict table")
    return f"{before}{BEGIN}\n{readme_table(claims)}\n{END}{after}"
