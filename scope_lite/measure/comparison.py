"""Several models' reply tables side by side, at the same histories: one row a model and condition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from scope_lite.measure.human_baseline import (
    DIRECT,
    OWN,
    PEOPLE,
    POOLED,
    acts_beside_people,
    effective_gammas,
    reference_recovery,
)
from scope_lite.measure.replies import LEVELS, by_history
from scope_lite.measure.stats import clustered_interval, paired_gaps
from scope_lite.store.errors import ScopeError

FREE = "VS, free"


def compare(tables: Mapping[str, pd.DataFrame], pairs: pd.DataFrame | None = None) -> pd.DataFrame:
    """What every condition does to the variety of each model, and to its likeness to people.

    Args:
        tables: reply tables by model, the smallest first; of each the P4G histories that all of them have.
        pairs: as ``human_baseline.acts_beside_people``.

    Returns:
        Columns: model, condition, histories, outputs, unread and cut (shares of the outputs: could not be read; ended
        by the token limit), and each with ``_low`` and ``_high`` (95 %, histories as units):

        - epsilon_string, epsilon_cluster, epsilon_act: 1 - mode share at one history, for three meanings of the same
          reply; entropy: of acts at one history (nats);
        - entropy_change: this condition's - direct sampling's at T = 1; entropy_step: this model's - the one's before,
          of as many replies each; both over the same histories;
        - pooled (entropy given the persuader's act), gamma: beside people;
        - to_people, to_own (total variation), and to_people_change, to_own_change against direct sampling at T = 1.

        NaN where fewer than half of the outputs could be read.

    Raises:
        ScopeError: the tables have no history in common.
    """
    p4g = {model: table[table["task"] == "p4g"] for model, table in tables.items()}
    common = set.intersection(*(set(table["history"]) for table in p4g.values()))
    if not common:
        raise ScopeError("the reply tables have no history of Persuasion for Good in common: draw the same --histories")
    parts = {model: table[table["history"].isin(common)] for model, table in p4g.items()}
    fewest = min(int(part["reply"].max()) + 1 for part in parts.values())
    rows, before = [], pd.DataFrame()
    for model, part in parts.items():
        equal = _entropies(part[part["reply"] < fewest])
        rows += [{"model": model, **row} for row in _conditions(part, equal, before, pairs)]
        before = equal
    return pd.DataFrame(rows)


def _conditions(
    part: pd.DataFrame, equal: pd.DataFrame, before: pd.DataFrame, pairs: pd.DataFrame | None
) -> list[dict[str, Any]]:
    """One model's rows; ``equal`` and ``before``: act entropies by history, its own and those of the model before."""
    levels, entropies = by_history(part), _entropies(part)
    beside = acts_beside_people(part, pairs).query("view == @POOLED", local_dict={"POOLED": POOLED})
    distances = reference_recovery(part, pairs).set_index(["reference", "condition"])
    people = {"pooled": beside.set_index("condition"), "gamma": effective_gammas(part, pairs).set_index("condition")}
    rows = []
    for condition, said in part.groupby("condition", sort=False):
        name = str(condition)
        row: dict[str, Any] = {
            "condition": name, "histories": said["history"].nunique(), "outputs": len(said),
            "unread": (said["failure"] != "").mean(), "cut": (~said["finished"].astype(bool)).mean(),
        }  # fmt: skip
        for level in LEVELS:
            own = levels[(levels["condition"] == name) & (levels["level"] == level)]
            row |= clustered_interval((1 - own["mode_share"]).tolist()).columns(f"epsilon_{level}")
        row |= clustered_interval(entropies[name].tolist()).columns("entropy", most=math.inf)
        row |= _gap(entropies, name, entropies, DIRECT, "entropy_change")
        row |= _gap(equal, name, before, name, "entropy_step")
        for column, source, frame in (("pooled", "entropy", people["pooled"]), ("gamma", "gamma", people["gamma"])):
            row |= {f"{column}{end}": frame.loc[name, f"{source}{end}"] for end in ("", "_low", "_high")}
        for reference, column in ((PEOPLE, "to_people"), (OWN, "to_own")):
            for source, end in (("distance", ""), ("change", "_change")):
                found = distances.loc[(reference, name)] if (reference, name) in distances.index else {}
                row |= {f"{column}{end}{e}": found.get(f"{source}{e}", math.nan) for e in ("", "_low", "_high")}
        rows.append(row)
    return rows


def _entropies(part: pd.DataFrame) -> pd.DataFrame:
    """Entropy of acts: a row a history, a column a condition."""
    return by_history(part, ["act"]).pivot(index="history", columns="condition", values="entropy")


def _gap(ours: pd.DataFrame, name: str, theirs: pd.DataFrame, other: str, column: str) -> dict[str, float]:
    """The mean difference over histories that both have; NaN without the other, or against itself."""
    known = other in theirs and not (ours is theirs and name == other)
    gaps = paired_gaps(ours[name], theirs[other]).tolist() if known else []
    return clustered_interval(gaps).columns(column, -math.inf, math.inf)
