"""Verdicts on the paper's claims C1 to C11 (C7 is ours), in each world after whose benchmark the paper makes them.

The claims are data, ``claims.yaml``. A contrast is one number a seed: variant a at the end of training minus variant b
of the same seed. **One primary contrast decides a claim in a world; all others are context.** From 8 seeds on it is
judged by where the 95 % t-interval of its mean lies, with a margin of .05 (points of reward, or shares):

    above         holds: interval above 0           does not: below 0, or within the margin
    at or above   holds: interval above -margin     does not: below 0
    below, at or below   the same, mirrored
    same          holds: interval within the margin   does not: otherwise, if 0 lies outside the interval

and is open otherwise. With fewer seeds counts alone decide, and no interval is given. A run is *rescued* if its reward
ends above halfway between RL (Single) and the un-sharpened control. The claim holds if an exact test at 5 % says that
more of a's runs are (for "below": fewer), does not if it says the reverse, and is open otherwise. Where halfway means
nothing (entropy, falls, a world without an exploit) seeds with a above b are counted instead.

A difference is *vacuous* if a and b both end at or below the floor: what the untrained policy earns, or RL (Single) if
that is more. Where each seed has a random world of its own, what is reported is the share of worlds in which a run of
each is enough to hold by more than the margin, with its exact interval: context always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from scope_lite.experiments.contrasts import COMMON, MARGIN, REAL, UNSEEN, USERS, like_for_like, members_of
from scope_lite.experiments.definitions import EXPERIMENTS, runs_of
from scope_lite.experiments.summaries import run_summaries
from scope_lite.measure.stats import NOTHING, Interval, paired_test, share_interval, sign_test, t_interval
from scope_lite.method.config import RunConfig
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_csv
from scope_lite.store.files import replace_text
from scope_lite.store.paths import RESULTS
from scope_lite.store.plain_yaml import read_yaml

WORLDS = {"persuasion": "P4G", "retail": "τ² retail", "airline": "τ² airline", "coding": "CooperBench"}
"""world -> the benchmark of the paper that it is modelled on"""
LEVELS = {
    "persuasion": "methods",
    "persuasion_hard": "methods_hard",
    "retail": "methods_retail",
    "airline": "methods_airline",
    "coding": "cooperation",
}
"""world -> the experiment that has RL (Single), Base and the control, for tables that lack them"""
ENOUGH = 8
"""seeds from which on an interval judges"""
HELD_OUT, NOT_OWN = COMMON, "all members but sim-a"
LACKED, LACKED_MINUS_OWN = "members whose mode it lacks", "members whose mode it lacks − its own"
RELATED = "twin and half, whose modes it has"
ENSEMBLE = ("sim-a", "sim-b", "sim-c")
NAMES = {UNSEEN: "unseen", REAL: "real users", HELD_OUT: "members that none trained with"}
COLUMNS = [
    *("claim", "world", "kind", "experiment", "contrast", "column", "rule", "estimate", "low", "high", "n_seeds"),
    *("count_a", "count_b", "p", "verdict", "why"),
]
HOLDS, NOT, OPEN, VACUOUS, LATER = "holds", "does not", "open", "vacuous", "not measured yet"
JUDGED = (HOLDS, NOT, OPEN, VACUOUS)
ELSEWHERE, UNTESTABLE = "not claimed there", "not testable here"

Rule = Literal["above", "at or above", "below", "at or below", "same"]


# -- the claims -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contrast:
    """One comparison; the head of ``claims.yaml`` says what the fields mean."""

    text: str
    rule: Rule
    a: tuple[str, ...]
    b: tuple[str, ...]
    where: tuple[str, ...]
    columns: tuple[str, ...] = (UNSEEN, REAL)
    measure: Literal["end", "fall", "relative"] = "end"
    first_seed: int = 0
    exploratory: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim, in our words."""

    id: str
    name: str
    says: str
    mind: str
    cells: Mapping[str, Contrast | None]
    """world -> what decides there; None where nothing of ours does"""
    context: tuple[Contrast, ...] = ()
    paper: Mapping[str, Any] = field(default_factory=dict)
    built_in: str = ""
    untestable: str = ""


def _contrasts(entry: Mapping[str, Any]) -> list[Contrast]:
    """The contrast of an entry of the file; of one with ``each``, one for every value."""
    made = []
    for value in map(str, entry.get("each", [""])):
        filled: dict[str, Any] = {**entry, "text": entry["text"].replace("{}", value)}
        for key in ("a", "b", "where", "columns"):
            if key in entry:
                several = entry[key] if isinstance(entry[key], list) else [entry[key]]
                filled[key] = tuple(one.replace("{}", value) for one in several)
        made.append(Contrast(**{key: told for key, told in filled.items() if key != "each"}))
    return made


def _claim(name: str, entry: Mapping[str, Any]) -> Claim:
    primary, cells = entry.get("primary"), entry["cells"]
    decides = {world: _contrasts({**primary, **cell})[0] if primary else None for world, cell in cells.items()}
    context = tuple(made for one in entry.get("context", []) for made in _contrasts(one))
    told = {key: value for key, value in entry.items() if key != "primary"}
    return Claim(**{**told, "id": name, "cells": decides, "context": context})


CLAIMS = tuple(_claim(*entry) for entry in read_yaml(Path(__file__).with_name("claims.yaml")).items())


@cache
def configs_of(experiment: str) -> dict[str, RunConfig]:
    """The config of each variant of an experiment, by its label."""
    return dict(runs_of(experiment, seeds=1))


def place_of(experiment: str, variant: str) -> str:
    """The world that a variant plays in (of many: the experiment's name), and the base model if it is another one."""
    config = configs_of(experiment)[variant]
    world = experiment if EXPERIMENTS[experiment].has_many_worlds else config.world
    return world if config.model == RunConfig().model else f"{world} with {config.model}"


# -- values ---------------------------------------------------------------------------------------------------------


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


def values_of(summaries: pd.DataFrame, contrast: Contrast, column: str, summary: str = "end") -> pd.DataFrame:
    """What a and b have, by seed (columns ``a``, ``b``); no rows where a variant or the column is missing."""
    if column not in summaries:
        return pd.DataFrame(columns=["a", "b"], dtype=float)
    rows = summaries[summaries["seed"] >= contrast.first_seed]

    def mean(variants: tuple[str, ...], of: str) -> pd.Series:
        table = rows[(rows["summary"] == of) & rows["variant"].isin(variants)]
        return (
            table.pivot(index="seed", columns="variant", values=column)
            .reindex(columns=list(variants))
            .mean(axis=1, skipna=False)
        )

    sides = {"a": contrast.a, "b": contrast.b}
    found = {name: mean(variants, summary) for name, variants in sides.items()}
    if contrast.measure == "fall":
        found = {name: values - mean(sides[name], "best") for name, values in found.items()}
    return pd.DataFrame(found).dropna()


def gap_of(values: pd.DataFrame, contrast: Contrast) -> pd.Series:
    """The contrast's number for each seed."""
    return values["a"] / values["b"] - 1 if contrast.measure == "relative" else values["a"] - values["b"]


@dataclass(frozen=True)
class Levels:
    """What a reward is held against in a world."""

    halfway: float
    floor: float


def levels_of(
    tables: Mapping[str, pd.DataFrame], experiment: str, world: str, column: str, summary: str
) -> Levels | None:
    """The levels of a column of rewards, from the experiment's own table or the world's; None where there are none.

    Base trained with nobody, so its "unseen" is a mean over other members; it is read over all but sim-a.
    """

    def mean(variant: str) -> float:
        of = NOT_OWN if (variant, column) == ("base", UNSEEN) else column
        for name in (experiment, LEVELS.get(world, "")):
            if name in tables and of in tables[name]:
                at = tables[name]["summary"] == summary
                rows = tables[name][at & (tables[name]["variant"] == variant)]
                if len(rows):
                    return float(rows[of].mean())
        return math.nan

    if not column.endswith("/reward") and column not in (NOT_OWN, LACKED, RELATED):
        return None
    single, control, base = map(mean, ("single", "unsharpened", "base"))
    if math.isnan(single) or not control - single > MARGIN:
        return None
    return Levels((single + control) / 2, single if math.isnan(base) else max(single, base))


# -- verdicts -------------------------------------------------------------------------------------------------------


def by_interval(interval: Interval, rule: Rule) -> str:
    """holds, does not or open, by the rules on top."""
    low, high = interval.low, interval.high
    within = -MARGIN < low and high < MARGIN
    if rule == "same":
        return HOLDS if within else NOT if low > 0 or high < 0 else OPEN
    if rule.endswith("below"):
        low, high = -high, -low
    if rule.startswith("at or"):
        return HOLDS if low > -MARGIN else NOT if high < 0 else OPEN
    return HOLDS if low > 0 else NOT if high < 0 or within else OPEN


def by_count(more_a: bool, p: float, rule: Rule) -> str:
    """The same from a count that a leads, or b, with the exact test's p."""
    if not p <= 0.05:
        return OPEN
    return HOLDS if rule != "same" and more_a == rule.endswith("above") else NOT


def holds_once(values: pd.Series, rule: Rule) -> pd.Series:
    """Whether a contrast holds in each of many worlds, from its one run there."""
    if rule == "same":
        return values.abs() < MARGIN
    toward = -values if rule.endswith("below") else values
    return toward > (-MARGIN if rule.startswith("at or") else MARGIN)


def judge(values: pd.DataFrame, contrast: Contrast, levels: Levels | None) -> dict[str, Any]:
    """Estimate, counts and verdict of a contrast, from what a and b have by seed."""
    gap, n = gap_of(values, contrast), len(values)
    if levels:
        a, b = values["a"] > levels.halfway, values["b"] > levels.halfway
        counts, p, leads = (int(a.sum()), int(b.sum())), paired_test(a, b), bool(a.sum() > b.sum())
        counted = f"rescued {counts[0]} of {n} against {counts[1]} of {n}"
    else:
        counts, p = (int((gap > 0).sum()), int((gap < 0).sum())), sign_test(gap)
        leads, counted = counts[0] > counts[1], f"above 0 in {counts[0]} of {n}"
    mean = t_interval(gap.to_numpy())
    interval = mean if n >= ENOUGH else Interval(mean.mean, math.nan, math.nan, n)
    found = by_interval(interval, contrast.rule) if n >= ENOUGH else by_count(leads, p, contrast.rule)
    why = f"{in_words(interval)}; {counted} (p = {p:.2g})"
    if levels and max(values["a"].mean(), values["b"].mean()) <= levels.floor:
        found = VACUOUS
        why = f"both at the floor of {levels.floor:.2f}: {values['a'].mean():.2f} and {values['b'].mean():.2f}"
    return {**_bounds(interval), "count_a": counts[0], "count_b": counts[1], "p": p, "verdict": found, "why": why}


def judge_worlds(values: pd.DataFrame, contrast: Contrast) -> dict[str, Any]:
    """The share of random worlds in which a contrast holds."""
    holds = holds_once(gap_of(values, contrast), contrast.rule)
    share = share_interval(int(holds.sum()), len(holds))
    found = HOLDS if share.low > 0.5 else NOT if share.high < 0.5 else OPEN
    why = f"{share.mean:.2f} [{share.low:.2f}, {share.high:.2f}] of {share.n} worlds"
    return {**_bounds(share), "verdict": found, "why": why}


def _bounds(interval: Interval) -> dict[str, float]:
    return {"estimate": interval.mean, "low": interval.low, "high": interval.high, "n_seeds": interval.n}


def in_words(interval: Interval) -> str:
    """A difference with its interval, if it has one."""
    # adding zero turns a rounded -0.0 into 0.0
    mean, low, high = (f"{round(x, 2) + 0.0:+.2f}" for x in (interval.mean, interval.low, interval.high))
    return mean if math.isnan(interval.low) else f"{mean} [{low}, {high}]"


# -- the matrix -----------------------------------------------------------------------------------------------------


def evaluate(results: Path = RESULTS, summary: str = "end") -> pd.DataFrame:
    """The matrix of claims and worlds in its long form, with every contrast of context below its claim.

    Args:
        results: the folder of tables; what is not there is "not measured yet".
        summary: what of a run is compared: "end" of training, "auc", "best" checkpoint. Falls are there for "end" only.

    Returns:
        One row per claim, contrast and column, with ``COLUMNS``; ``kind`` is "primary", "exploratory" (decides, but is
        not among the cells stated in advance) or "context". Differences in points of reward (``relative``: shares), of
        many worlds the share of them (``n_seeds``: worlds); ``count_a`` and ``count_b``: rescued runs, or seeds above
        and below 0.
    """
    needed = {name for claim in CLAIMS for c in (*claim.cells.values(), *claim.context) if c for name in c.where}
    paths = {name: results / f"{name}.csv" for name in (*needed, *LEVELS.values())}
    tables = {n: with_member_groups(run_summaries(pd.read_csv(p))) for n, p in sorted(paths.items()) if p.exists()}
    rows: list[dict[str, Any]] = []
    for claim in CLAIMS:
        for world in WORLDS:
            contrast = claim.cells.get(world)
            about = {"claim": claim.id, "world": world, "kind": "primary"}
            if contrast is None:
                found = (UNTESTABLE, claim.untestable) if world in claim.cells else (ELSEWHERE, "")
                rows.append({**about, "verdict": found[0], "why": found[1]})
                continue
            about["kind"] = "exploratory" if contrast.exploratory else "primary"
            own = _rows(contrast, contrast.where[0], world, tables, summary)
            rows += [{**about, **row} for row in own[:1]]
            rows += [{**about, "kind": "context", **row} for row in own[1:]]
        for contrast in claim.context if summary == "end" else [c for c in claim.context if c.measure != "fall"]:
            for experiment in contrast.where:
                world = place_of(experiment, contrast.a[0])
                about = {"claim": claim.id, "world": world, "kind": "context"}
                rows += [{**about, **row} for row in _rows(contrast, experiment, world, tables, summary)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(
    contrast: Contrast, experiment: str, world: str, tables: Mapping[str, pd.DataFrame], summary: str
) -> list[dict[str, Any]]:
    """A contrast in one experiment, a row a column."""
    rows = []
    for column in contrast.columns:
        values = values_of(tables.get(experiment, pd.DataFrame()), contrast, column, summary)
        if values.empty:
            found = {**_bounds(NOTHING), "verdict": LATER, "why": ""}
        elif EXPERIMENTS[experiment].has_many_worlds:
            found = judge_worlds(values, contrast)
        else:
            # against Base the floor is what is asked about
            rewards = contrast.measure == "end" and "base" not in contrast.b
            levels = levels_of(tables, experiment, world, column, summary) if rewards else None
            found = judge(values, contrast, levels)
        about = {"experiment": experiment, "contrast": contrast.text, "column": NAMES.get(column, column)}
        rows.append({**about, "rule": contrast.rule, **found})
    return rows


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
        raise ScopeError(f"no {path.name} in {path.parent}; make it with 'scope-lite results claims'")
    return pd.read_csv(path)
