"""The matrix of claims and worlds that ``experiments.claims`` makes, as a picture and in words.

Beside each row stand the paper's own numbers. They are shown, and have no part in any verdict.
"""

from __future__ import annotations

from functools import partial
from textwrap import fill

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from scope_lite.experiments import claims as judged
from scope_lite.experiments.claims import CLAIMS, WORLDS, Claim
from scope_lite.figures.paper import VERSION, paper_numbers
from scope_lite.figures.style import STYLE, WIDTH, footnote
from scope_lite.store.errors import ScopeError

BEGIN, END = "<!-- claims: made by scope-lite results claims -->", "<!-- /claims -->"
BENCHMARKS = {
    "persuasion": ("Persuasion for Good",),
    "retail": ("τ²-bench retail", "τ²-bench"),
    "airline": ("τ²-bench airline", "τ²-bench"),
    "coding": ("CooperBench",),
}
"""world -> what the paper calls that which it is modelled on"""
CLAUSES = {
    judged.HOLDS: "it holds in {}",
    judged.NOT: "it does not hold in {}",
    judged.OPEN: "it is open in {}",
    judged.VACUOUS: "it is vacuous in {}",
    judged.LATER: "it is not measured yet in {}",
    judged.UNTESTABLE: "it is not testable",
}
_wrapped = partial(fill, break_on_hyphens=False)
LABEL, CELL, ROW = 1.68, 0.73, 0.55
"""inches: width of a row's name and of a cell, height of a row"""


def paper_values(claim: Claim) -> dict[str, str]:
    """World -> the numbers of the paper that stand beside the claim, in the paper's order, with strokes between."""
    if not claim.paper:
        return {}
    rows = paper_numbers()
    for column in claim.paper.keys() - {"of"}:
        told = claim.paper[column]
        rows = rows[rows[column].isin(told if isinstance(told, list) else [told])]
    found = {world: rows.loc[rows["benchmark"].isin(names), "value"] for world, names in BENCHMARKS.items()}
    whole = max(map(len, found.values()))  # no half of a comparison
    return {world: " / ".join(values) for world, values in found.items() if len(values) == whole}


def _deciding(claims: pd.DataFrame) -> dict[tuple[str, str], pd.Series]:
    """The row that decides each claim in each world."""
    rows = claims[claims["kind"] != "context"]
    return {(row["claim"], row["world"]): row for _, row in rows.iterrows()}


# -- in words ---------------------------------------------------------------------------------------------------------


def sentence(claim: Claim, claims: pd.DataFrame) -> str:
    """What follows for a claim from the tables, in a sentence."""
    rows = claims[(claims["claim"] == claim.id) & (claims["kind"] != "context")]
    parts = []
    for verdict, clause in CLAUSES.items():
        worlds = [f"`{world}`" for world in rows.loc[rows["verdict"] == verdict, "world"]]
        if worlds:
            parts.append(clause.format(" and ".join(filter(None, [", ".join(worlds[:-1]), worlds[-1]]))))
    why = claim.untestable or (f"by construction, in part: {claim.built_in}" if claim.built_in else "")
    text = "; ".join(parts) + (f" ({why})" if why else "")
    return text[0].upper() + text[1:] + "."


def matrix(claims: pd.DataFrame) -> pd.DataFrame:
    """The matrix as text in Markdown: a row a claim, with the paper's numbers and a cell a world."""
    deciding = _deciding(claims)
    rows = {}
    for claim in CLAIMS:
        told = "; ".join(f"{WORLDS[world]} {value}" for world, value in paper_values(claim).items())
        paper = f"{claim.paper['of']}: {told}" if told else "–"
        cells = {f"`{w}` ↔ {benchmark}": _cell(deciding[claim.id, w]) for w, benchmark in WORLDS.items()}
        rows[f"**{claim.id}** {claim.name}"] = {"the paper's own numbers": paper, **cells}
    return pd.DataFrame(rows).T.rename_axis("claim")


def _cell(row: pd.Series) -> str:
    if row["verdict"] not in judged.JUDGED:
        return str(row["verdict"])
    exploratory = " (exploratory)" if row["kind"] == "exploratory" else ""
    return f"**{row['verdict']}**{exploratory}: {row['contrast']}, {row['why']}"


def page(claims: pd.DataFrame) -> str:
    """The matrix, three sentences a claim, and every other contrast, as Markdown."""
    built_in = "; ".join(f"{c.id}, since {c.built_in}" for c in CLAIMS if c.built_in)
    lines = [
        f"**Decided at nano by how the worlds are built, in part:** {built_in}.",
        "",
        *_table(matrix(claims).reset_index()),
        "",
    ]
    for claim in CLAIMS:
        lines += [
            f"**{claim.id}: {claim.name}**",
            f"- *The paper:* {claim.says}",
            f"- *Here:* {sentence(claim, claims)}",
            f"- *What would change our mind:* {claim.mind}",
            "",
        ]
    context = claims[(claims["kind"] == "context") & (claims["verdict"] != judged.LATER)]
    shown = context[["claim", "world", "experiment", "contrast", "column", "rule", "verdict", "why"]]
    told = f"{len(shown)} contrasts of context, which decide nothing, and are exploratory"
    return "\n".join([*lines, f"<details><summary>{told}</summary>", "", *_table(shown), "", "</details>"])


def _table(rows: pd.DataFrame) -> list[str]:
    lines = [list(rows.columns), ["---"] * rows.shape[1], *rows.astype(str).to_numpy().tolist()]
    return ["| " + " | ".join(line) + " |" for line in lines]


def fill_page(text: str, claims: pd.DataFrame) -> str:
    """The page's text with the verdicts on these claims between the two markers.

    Raises:
        ScopeError: if the text does not have both markers, once each, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in before + after:
        raise ScopeError(f"the page needs the lines '{BEGIN}' and '{END}', once each, around its verdicts")
    return f"{before}{BEGIN}\n{page(claims)}\n{END}{after}"


# -- as a picture -----------------------------------------------------------------------------------------------------


def claims_matrix(claims: pd.DataFrame) -> Figure:
    """The matrix: a row a claim, a column a world; a cell says verdict, difference, seeds, and the paper's numbers."""
    height = ROW * len(CLAIMS)
    fig, ax = plt.subplots(figsize=(WIDTH, height + 0.95))
    deciding = _deciding(claims)
    for i, claim in enumerate(CLAIMS):
        values = paper_values(claim)
        name = _wrapped(f"{claim.id}{'†' if claim.built_in else ''} {claim.name}", 25)
        below = _wrapped(claim.paper.get("of", ""), 33)
        ax.text(0, i + 0.06, name, va="top", fontsize=7.5, weight="bold")
        ax.text(0, i + 0.10 + 0.22 * (1 + name.count("\n")), below, va="top", fontsize=6.5, color="#555555")
        for j, world in enumerate(WORLDS):
            _draw_cell(ax, LABEL + j * CELL, i, deciding[claim.id, world], values.get(world, ""))
    for j, (world, benchmark) in enumerate(WORLDS.items()):
        ax.text(LABEL + (j + 0.5) * CELL, -0.08, f"{world}\n({benchmark})", ha="center", va="bottom", fontsize=7.5)
    ax.set(xlim=(0, LABEL + CELL * len(WORLDS)), ylim=(len(CLAIMS), -0.65))
    ax.axis("off")
    return footnote(
        fig,
        "nano · end of training, unseen simulators: difference, n seeds; below it, grey, the paper's own numbers "
        f"({VERSION}), which are of other models and tasks · * exploratory · † in part by construction",
    )


def _draw_cell(ax: Axes, x: float, i: int, row: pd.Series, paper: str) -> None:
    colour = STYLE["colours"]["verdicts"][row["verdict"]]
    ax.add_patch(Rectangle((x, i + 0.03), CELL - 0.03, 0.94, facecolor=colour, edgecolor="#bbbbbb", lw=0.5))
    measured = row["verdict"] in judged.JUDGED
    star = "*" if row["kind"] == "exploratory" and measured else ""
    word = row["verdict"] + star if measured else _wrapped(row["verdict"], 13)
    at = x + (CELL - 0.03) / 2
    ax.text(at, i + 0.08, word, ha="center", va="top", fontsize=7.5 if measured else 6.5,
            weight="bold" if measured else "normal", color="k" if measured else "#555555")  # fmt: skip
    if measured:
        number = f"{row['estimate']:+.2f}, n = {row['n_seeds']:.0f}"
        ax.text(at, i + 0.36, number, ha="center", va="top", fontsize=6.5)
    ax.text(at, i + 0.94, _wrapped(paper, 14), ha="center", va="bottom", fontsize=6.5, color="#555555")
