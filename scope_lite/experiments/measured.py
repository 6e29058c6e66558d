"""What a page says of an experiment, from its table: between ``<!-- measured: NAME -->`` and ``<!-- /measured -->``.

``scope-lite results claims`` fills the pages again; a test says when that is due.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from scope_lite.experiments.claims import ENOUGH, LEVELS, levels_of
from scope_lite.experiments.contrasts import UNSEEN
from scope_lite.experiments.summaries import run_summaries
from scope_lite.measure.stats import t_interval
from scope_lite.store.paths import RESULTS

SPAN = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- /measured -->)", re.DOTALL)


def ends(name: str, results: Path = RESULTS) -> pd.DataFrame:
    """The last evaluation of every run of an experiment: a row a run, with world, variant, seed, measurements."""
    return run_summaries(pd.read_csv(results / f"{name}.csv")).query("summary == 'end'")


def halfway(world: str, results: Path = RESULTS) -> float | None:
    """Unseen reward above which a run counts as rescued, as the claims have it; None where there is no such level."""
    name = LEVELS.get(world)
    if name is None or world == "coding":  # whose arms met other partners, so "unseen" is another set for each
        return None
    found = levels_of({name: ends(name, results)}, name, world, UNSEEN, "end")
    return found.halfway if found else None


def measured(name: str, results: Path = RESULTS) -> str:
    """An experiment as a Markdown table: world, arm, unseen reward at the end, and how many runs are rescued."""
    if not (results / f"{name}.csv").exists():
        return f"*Not run yet: there is no table `{name}`.*"
    lines = ["| world | arm | unseen reward at the end | rescued |", "|---|---|---|---|"]
    last = ends(name, results)
    marks = {world: halfway(world, results) for world in last["world"].unique()}
    for (world, arm), runs in last.groupby(["world", "variant"], sort=False):
        values, mark = runs.sort_values("seed")[UNSEEN].to_numpy(), marks[world]
        shown = str(t_interval(values)) if len(values) >= ENOUGH else ", ".join(f"{value:.2f}" for value in values)
        rescued = "–" if mark is None else f"{(values > mark).sum()} of {len(values)}"
        lines.append(f"| {world} | {arm} | {shown} | {rescued} |")
    return "\n".join(lines)


def fill(text: str, results: Path = RESULTS) -> str:
    """The page's text with every span remade from the tables in ``results``."""
    return SPAN.sub(lambda span: f"{span[1]}{measured(span[2], results)}\n{span[3]}", text)
