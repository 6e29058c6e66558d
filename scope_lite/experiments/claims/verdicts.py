"""The verdict on every contrast of every claim, from the shipped tables; the rules are in the package's docstring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from scope_lite.experiments.claims.data import (
    CLAIMS,
    ENSEMBLE,
    LACKED,
    LACKED_MINUS_OWN,
    NAMES,
    NOT_OWN,
    RELATED,
    SETTINGS,
    Claim,
    Contrast,
    Rule,
)
from scope_lite.experiments.contrasts import MARGIN, USERS, like_for_like, members_of
from scope_lite.experiments.summaries import run_summaries
from scope_lite.measure.stats import Interval, paired_gaps, share_interval, t_interval
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_csv
from scope_lite.store.files import replace_text
from scope_lite.store.paths import RESULTS

COLUMNS = [
    *("claim", "experiment", "world", "model", "contrast", "column", "rule", "summary"),
    *("estimate", "low", "high", "n_seeds", "verdict", "context"),
]


def verdict(interval: Interval, rule: Rule) -> str:
    """holds, fails, no difference or undecided, by the rules in the package's docstring."""
    low, high = interval.low, interval.high
    if np.isnan(low):
        return "undecided"
    if rule == "same":
        outside = low > MARGIN or high < -MARGIN
        return "holds" if -MARGIN < low and high < MARGIN else "fails" if outside else "undecided"
    if rule.endswith("below"):
        low, high = -high, -low
    if rule.startswith("at or"):
        return "holds" if low > -MARGIN else "fails" if high < -MARGIN else "undecided"
    within = -MARGIN < low and high < MARGIN
    return "holds" if low > 0 else "fails" if high < 0 else "no difference" if within else "undecided"


def holds_once(values: pd.Series, rule: Rule) -> pd.Series:
    """Whether a contrast holds in each world of the multiverse, from its one run there."""
    if rule == "same":
        return values.abs() < MARGIN
    toward = -values if rule.endswith("below") else values
    return toward > (-MARGIN if rule.startswith("at or") else MARGIN)


def with_member_groups(summaries: pd.DataFrame) -> pd.DataFrame:
    """Add the means over sets of panel members that are the same for every variant (names as in claims.yaml)."""
    simulators = [m for m in members_of(summaries) if m not in USERS]
    lacked = [m for m in simulators if m.startswith("sim-") and m not in ENSEMBLE]
    sets = {
        NOT_OWN: [m for m in simulators if m != "sim-a"],
        LACKED: lacked,
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
        (entropy: nats), of the multiverse shares of worlds (``n_seeds``: worlds).
    """
    tables: dict[str, pd.DataFrame] = {}
    for experiment in SETTINGS:
        path = results / f"{experiment}.csv"
        if path.exists():
            tables[experiment] = with_member_groups(run_summaries(pd.read_csv(path)))
    rows = [row for s in summaries for claim in CLAIMS for row in _evaluate_one(claim, tables, s)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _evaluate_one(claim: Claim, tables: Mapping[str, pd.DataFrame], summary: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    contrasts = [c for c in claim.contrasts if summary == "end" or c.b_summary == "end"]
    for experiment in dict.fromkeys([*claim.experiments, *(e for c in contrasts for e in c.where)]):
        own = [c for c in contrasts if experiment in (c.where or claim.experiments)]
        table = tables.get(experiment, pd.DataFrame())
        if experiment == "multiverse":
            found = _shares(claim, own, table, summary)
        else:
            found = [_row(c, column, table, summary) for c in own for column in c.columns]
        world, model = SETTINGS[experiment]
        about = {"claim": claim.id, "experiment": experiment, "world": world, "model": model, "summary": summary}
        rows += [{**about, **row} for row in found]
    return rows


def _row(contrast: Contrast, column: str, table: pd.DataFrame, summary: str) -> dict[str, object]:
    values = values_of(table, contrast, column, summary)
    interval = t_interval(values.to_numpy()) if len(values) else None
    found = verdict(interval, contrast.rule) if interval else "not measured"
    return _described(contrast, column, interval, found)


def _described(contrast: Contrast, column: str, interval: Interval | None, found: str) -> dict[str, object]:
    numbers = {"estimate": interval.mean, "low": interval.low, "high": interval.high} if interval else {}
    return {
        "contrast": contrast.text,
        "column": NAMES.get(column, column),
        "rule": contrast.rule,
        **numbers,
        "n_seeds": interval.n if interval else 0,
        "verdict": found,
        "context": contrast.context,
    }


def _shares(claim: Claim, contrasts: Sequence[Contrast], table: pd.DataFrame, summary: str) -> list[dict[str, object]]:
    """The share of random worlds in which each contrast holds, all of the claim's together, and those given C1."""
    rows: list[dict[str, object]] = []
    for contrast in contrasts:
        for column in contrast.columns:
            held = holds_once(values_of(table, contrast, column, summary), contrast.rule)
            rows.append(_share(contrast, column, held))
    together = Contrast("all of these in one world", "above", "")
    every = _in_every(contrasts, table, summary)
    rows.append(_share(together, "share of worlds", every))
    if claim.id != "C1":
        # whether RL (Single) collapsed is told by the end of its training, whatever is compared here
        collapsed = _in_every([c for c in CLAIMS[0].contrasts if not c.where], table, "end")
        given = every[collapsed.reindex(every.index, fill_value=False)]
        where = Contrast("all of these, of the worlds where C1 holds", "above", "", context=True)
        rows.append(_share(where, "share of worlds", given))
    return rows


def _in_every(contrasts: Sequence[Contrast], table: pd.DataFrame, summary: str) -> pd.Series:
    """For each world whether all counted contrasts hold in it."""
    counted = [(c, column) for c in contrasts if not c.context for column in c.columns]
    held = [holds_once(values_of(table, c, column, summary), c.rule) for c, column in counted]
    return pd.concat(held, axis=1, join="inner").all(axis=1)


def _share(contrast: Contrast, column: str, held: pd.Series) -> dict[str, object]:
    interval = share_interval(int(held.sum()), len(held)) if len(held) else None
    found = "not measured"
    if interval:
        found = "holds" if interval.low > 0.5 else "fails" if interval.high < 0.5 else "undecided"
    return _described(contrast, column, interval, found)


def overall(claims: pd.DataFrame) -> pd.DataFrame:
    """The verdict on each claim in each setting, and the row that decides it (the first that fails, if one does).

    Returns:
        claim, world, model, experiment, verdict, held (contrasts that hold), counted, and the deciding row's
        contrast, column, estimate, low, high, n_seeds.
    """
    found = []
    counted = claims[~claims["context"].astype(bool)]
    for (claim, experiment), rows in counted.groupby(["claim", "experiment"], sort=False):
        if experiment == "multiverse":
            rows = rows.tail(1)
        measured = rows[rows["verdict"] != "not measured"]
        ranked = measured if len(measured) else rows
        order = ["fails", "undecided", "no difference", "holds", "not measured"]
        worst = min(ranked["verdict"], key=order.index)
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
