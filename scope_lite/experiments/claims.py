"""The paper's claims C1 to C8 (C7 is ours): data in ``claims.yaml``, and here the verdict on each and its sentence.

A contrast is one number a seed: a variant at the end of training minus another one of the same
seed (or minus its own best checkpoint). The mean over seeds, with its 95 % t-interval, is held
against the contrast's rule, with a margin of 0.05 (points of reward, or nats of entropy):

    above         holds: interval above 0; fails: below 0; "no difference": within the margin of 0
    at or above   holds: interval above -margin; fails: below -margin
    below, at or below   the same, mirrored
    same          holds: interval within the margin of 0; fails: wholly outside

Whatever is none of these is "undecided", and so is every contrast at one seed. A claim holds in a
setting if all of its contrasts hold there, and fails if one fails; a contrast of ``context`` is
reported and does not count. Where each seed has a random world of its own, with one run of each method, a
contrast holds in a world if it lies on the claimed side by more than the margin ("at or": not on
the other side by more than it), and what is reported is the share of worlds, with its exact
interval; the verdict there is "holds" if that interval lies above one half, "fails" if below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from scope_lite.experiments.contrasts import COMMON, MARGIN, REAL, UNSEEN, USERS, like_for_like, members_of
from scope_lite.experiments.definitions import EXPERIMENTS, runs_of
from scope_lite.experiments.summaries import run_summaries
from scope_lite.measure.stats import Interval, paired_gaps, share_interval, t_interval
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_csv
from scope_lite.store.files import replace_text
from scope_lite.store.paths import RESULTS
from scope_lite.store.plain_yaml import read_yaml

HELD_OUT, NOT_OWN = COMMON, "all members but sim-a"
LACKED, LACKED_MINUS_OWN = "members whose mode it lacks", "members whose mode it lacks − its own"
RELATED = "twin and half, whose modes it has"
ENSEMBLE = ("sim-a", "sim-b", "sim-c")
NAMES = {UNSEEN: "unseen", REAL: "real users", HELD_OUT: "members that none trained with"}
COLUMNS = [
    *("claim", "experiment", "world", "model", "contrast", "column", "rule", "summary"),
    *("estimate", "low", "high", "n_seeds", "verdict", "context"),
]
WORST_FIRST = ["fails", "undecided", "no difference", "holds", "not measured"]
BEGIN, END = "<!-- claims: made from data/results/claims.csv by notebook 06 -->", "<!-- /claims -->"

Rule = Literal["above", "at or above", "below", "at or below", "same"]


# -- the claims -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contrast:
    """One comparison that a claim stands or falls with; the head of ``claims.yaml`` says what the fields mean."""

    text: str
    rule: Rule
    a: str
    b: str | None = None
    columns: tuple[str, ...] = (UNSEEN, REAL)
    b_summary: str = "end"
    where: tuple[str, ...] = ()
    context: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim, in our words."""

    id: str
    statement: str
    experiments: tuple[str, ...]
    contrasts: tuple[Contrast, ...]
    caveat: str = ""
    """what a reader must know before believing the verdict"""


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


CLAIMS = tuple(
    Claim(name, **_plain({**entry, "contrasts": [Contrast(**_plain(one)) for one in entry["contrasts"]]}))
    for name, entry in read_yaml(Path(__file__).with_name("claims.yaml")).items()
)


def _setting(experiment: str) -> tuple[str, str]:
    (_, config), *_ = runs_of(experiment, seeds=1)
    return experiment if EXPERIMENTS[experiment].has_many_worlds else config.world, config.model


SETTINGS = {
    experiment: _setting(experiment)
    for experiment in dict.fromkeys(e for c in CLAIMS for k in c.contrasts for e in (*c.experiments, *k.where))
}
"""experiment -> its world (of many: the experiment's name) and the policy's base model"""


# -- verdicts -------------------------------------------------------------------------------------------------------


def verdict(interval: Interval, rule: Rule) -> str:
    """holds, fails, no difference or undecided, by the rules on top."""
    low, high = interval.low, interval.high
    within = -MARGIN < low and high < MARGIN
    if np.isnan(low):
        return "undecided"
    if rule == "same":
        return "holds" if within else "fails" if low > MARGIN or high < -MARGIN else "undecided"
    if rule.endswith("below"):
        low, high = -high, -low
    if rule.startswith("at or"):
        return "holds" if low > -MARGIN else "fails" if high < -MARGIN else "undecided"
    return "holds" if low > 0 else "fails" if high < 0 else "no difference" if within else "undecided"


def holds_once(values: pd.Series, rule: Rule) -> pd.Series:
    """Whether a contrast holds in each of many worlds, from its one run there."""
    if rule == "same":
        return values.abs() < MARGIN
    toward = -values if rule.endswith("below") else values
    return toward > (-MARGIN if rule.startswith("at or") else MARGIN)


def with_member_groups(summaries: pd.DataFrame) -> pd.DataFrame:
    """Add the means over sets of panel members that are the same for every variant (names as in claims.yaml)."""
    simulators = [m for m in members_of(summaries) if m not in USERS]
    sets = {
        NOT_OWN: [m for m in simulators if m != "sim-a"],
        LACKED: [m for m in simulators if m.startswith("sim-") and m not in ENSEMBLE],
        RELATED: ["twin", "half"],
    }
    means = {name: summaries[[f"panel/{m}/reward" for m in members]].mean(axis=1) for name, members in sets.items()}
    own = summaries[["panel/sim-b/reward", "panel/sim-c/reward"]].mean(axis=1)
    return like_for_like(summaries, ENSEMBLE).assign(**means, **{LACKED_MINUS_OWN: means[LACKED] - own})


def values_of(summaries: pd.DataFrame, contrast: Contrast, column: str, summary: str = "end") -> pd.Series:
    """The contrast's value for each seed that has it, indexed by seed; empty where a variant or column is missing."""
    if column not in summaries:
        return pd.Series(dtype=float)
    rows = summaries.set_index("seed")
    a = rows.loc[(rows["variant"] == contrast.a) & (rows["summary"] == summary), column]
    if contrast.b is None:
        return a.dropna()
    b_summary = summary if contrast.b_summary == "end" else contrast.b_summary
    b = rows.loc[(rows["variant"] == contrast.b) & (rows["summary"] == b_summary), column]
    return paired_gaps(a, b).dropna()


def evaluate(results: Path = RESULTS, summaries: Sequence[str] = ("end",)) -> pd.DataFrame:
    """The verdict on every contrast of every claim, from the tables in ``results``; "not measured" without a table.

    Args:
        summaries: what of a run is compared: "end" of training, "auc", "best" checkpoint. Falls from the best
            checkpoint are there for "end" only.

    Returns:
        One row per summary, claim, experiment, contrast and column, with ``COLUMNS``; differences in points of reward
        (entropy: nats), of many worlds the share of them (``n_seeds``: worlds).
    """
    paths = {experiment: results / f"{experiment}.csv" for experiment in SETTINGS}
    tables = {
        experiment: with_member_groups(run_summaries(pd.read_csv(path)))
        for experiment, path in paths.items()
        if path.exists()
    }
    rows = [row for s in summaries for claim in CLAIMS for row in _evaluate_one(claim, tables, s)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _evaluate_one(claim: Claim, tables: Mapping[str, pd.DataFrame], summary: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    contrasts = [c for c in claim.contrasts if summary == "end" or c.b_summary == "end"]
    for experiment in dict.fromkeys([*claim.experiments, *(e for c in contrasts for e in c.where)]):
        own = [c for c in contrasts if experiment in (c.where or claim.experiments)]
        table = tables.get(experiment, pd.DataFrame())
        judge = _shares if EXPERIMENTS[experiment].has_many_worlds else _differences
        world, model = SETTINGS[experiment]
        about = {"claim": claim.id, "experiment": experiment, "world": world, "model": model, "summary": summary}
        rows += [{**about, **row} for row in judge(claim, own, table, summary)]
    return rows


def _differences(
    claim: Claim, contrasts: Sequence[Contrast], table: pd.DataFrame, summary: str
) -> list[dict[str, object]]:
    """The mean difference of each contrast, over seeds."""
    rows = []
    for contrast, column in [(c, column) for c in contrasts for column in c.columns]:
        values = values_of(table, contrast, column, summary)
        interval = t_interval(values.to_numpy()) if len(values) else None
        rows.append(_described(contrast, column, interval, verdict(interval, contrast.rule) if interval else ""))
    return rows


def _shares(claim: Claim, contrasts: Sequence[Contrast], table: pd.DataFrame, summary: str) -> list[dict[str, object]]:
    """The share of random worlds in which each contrast holds, all of the claim's together, and those given C1."""
    held = [
        (c, column, holds_once(values_of(table, c, column, summary), c.rule)) for c in contrasts for column in c.columns
    ]
    every = _in_every(contrasts, table, summary)
    held.append((Contrast("all of these in one world", "above", ""), "share of worlds", every))
    if claim.id != "C1":
        # whether RL (Single) collapsed is told by the end of its training, whatever is compared here
        collapsed = _in_every([c for c in CLAIMS[0].contrasts if not c.where], table, "end")
        given = every[collapsed.reindex(every.index, fill_value=False)]
        where = Contrast("all of these, of the worlds where C1 holds", "above", "", context=True)
        held.append((where, "share of worlds", given))
    rows = []
    for contrast, column, holds in held:
        interval = share_interval(int(holds.sum()), len(holds)) if len(holds) else None
        found = "holds" if interval and interval.low > 0.5 else "fails" if interval and interval.high < 0.5 else ""
        rows.append(_described(contrast, column, interval, found or "undecided"))
    return rows


def _in_every(contrasts: Sequence[Contrast], table: pd.DataFrame, summary: str) -> pd.Series:
    """For each world whether all counted contrasts hold in it."""
    counted = [(c, column) for c in contrasts if not c.context for column in c.columns]
    held = [holds_once(values_of(table, c, column, summary), c.rule) for c, column in counted]
    return pd.concat(held, axis=1, join="inner").all(axis=1)


def _described(contrast: Contrast, column: str, interval: Interval | None, found: str) -> dict[str, object]:
    return {
        "contrast": contrast.text,
        "column": NAMES.get(column, column),
        "rule": contrast.rule,
        **({"estimate": interval.mean, "low": interval.low, "high": interval.high} if interval else {}),
        "n_seeds": interval.n if interval else 0,
        "verdict": found if interval else "not measured",
        "context": contrast.context,
    }


def overall(claims: pd.DataFrame) -> pd.DataFrame:
    """The verdict on each claim in each setting, and the row that decides it (the first that fails, if one does).

    Returns:
        claim, world, model, experiment, verdict, held (contrasts that hold), counted, and the deciding row's
        contrast, column, estimate, low, high, n_seeds.
    """
    found = []
    counted = claims[~claims["context"].astype(bool)]
    for (claim, experiment), rows in counted.groupby(["claim", "experiment"], sort=False):
        if EXPERIMENTS[str(experiment)].has_many_worlds:
            rows = rows.tail(1)
        measured = rows[rows["verdict"] != "not measured"]
        ranked = measured if len(measured) else rows
        worst = min(ranked["verdict"], key=WORST_FIRST.index)
        decides = ranked[ranked["verdict"] == worst].iloc[0].to_dict()
        held = int((measured["verdict"] == "holds").sum())
        found.append({**decides, "claim": claim, "experiment": experiment, "held": held, "counted": len(ranked)})
    return pd.DataFrame(found)


def write_claims(claims: pd.DataFrame, path: Path) -> Path:
    """Write the verdicts as CSV, whole or not at all."""
    replace_text(path, for_csv(claims, "%.6g"))
    return path


def read_claims(path: Path = RESULTS / "claims.csv") -> pd.DataFrame:
    """The shipped verdicts.

    Raises:
        ScopeError: if they have not been written yet.
    """
    if not path.exists():
        raise ScopeError(f"no {path.name} in {path.parent}; notebook 06_seven_methods writes it with freeze=True")
    return pd.read_csv(path)


# -- in words -------------------------------------------------------------------------------------------------------


def _number(row: Mapping[str, Any], sign: str) -> str:
    # adding zero turns a rounded -0.0 into 0.0
    mean, low, high = (f"{round(row[key], 2) + 0.0:{sign}.2f}" for key in ("estimate", "low", "high"))
    return mean if math.isnan(row["low"]) else f"{mean} [{low}, {high}]"


def _cell(row: Mapping[str, Any]) -> str:
    """A setting's verdict on a claim, with the contrast that decides it."""
    if row["verdict"] == "not measured":
        return "not measured yet"
    if EXPERIMENTS[row["experiment"]].has_many_worlds:
        return f"{_number(row, '')} of {row['n_seeds']} worlds"
    among = "" if row["held"] == row["counted"] else f" ({row['held']} of {row['counted']} hold)"
    return f"**{row['verdict']}**{among}: {row['contrast']}, {row['column']} {_number(row, '+')}"


def sentences(claims: pd.DataFrame) -> str:
    """Every claim with its verdict in each setting, and its caveat, as Markdown."""
    found = overall(claims)
    lines: list[str] = []
    for claim in CLAIMS:
        lines += [f"**{claim.id}: {claim.statement}.**" + (f" *({claim.caveat})*" if claim.caveat else ""), ""]
        for row in found[found["claim"] == claim.id].to_dict("records"):
            place = row["world"] if row["model"] == "qwen3-tiny" else f"{row['world']} with {row['model']}"
            lines.append(f"- {place}: {_cell(row)}")
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
