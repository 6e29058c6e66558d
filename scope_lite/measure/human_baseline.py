"""A text simulator beside people, at the level of dialogue acts: how varied, and how far from what people do.

Simulator and people are read by the same classifier. What people do is known given the persuader's last act (one answer
a history), so a simulator's replies are pooled over the histories that end with the same act; what it does at one
history stands apart, since no one has seen a person answer the same history twice. Every persuader's act counts the
same. Independent units are histories for a simulator and dialogues for people.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats as scipy_stats
from scipy.optimize import brentq

from scope_lite.envs.donation import read_donation
from scope_lite.envs.p4g import load_table
from scope_lite.measure.replies import HISTORY, by_history, intervals, labels_of
from scope_lite.measure.samples import chao_shen_entropy, cross_validated_mode_share
from scope_lite.measure.stats import Interval, clustered_interval, jackknife_interval

PEOPLE = "people"
PROPOSAL = "proposition-of-donation"
DIRECT = "direct, T = 1"
POOLED, WITHIN = "given the act", "at one history"
VARIED = ("less varied", "more varied")
"""how an interval below and above people's is called"""
OWN = "the model's own replies at T = 1"
GAMMAS = (0.01, 100.0)
"""between which an effective γ is looked for"""

DONATION_EDGES = (0.0, 0.5, 1.0, 1.5, 2.0)
"""Upper ends of the donation bins, in dollars; the first bin holds those who gave nothing, the last edge is what a
participant was paid, and the top of the paper's donation reward."""
DONATION_BINS = ("0", *(f"{a:g} to {b:g}" for a, b in pairwise(DONATION_EDGES)))
UNSAID = "no amount"

Answer = tuple[str, str]
"""The persuader's act, and the act of the answer."""


def over_acts(answers: Sequence[Answer], measure: Callable[[Sequence[str]], float]) -> float:
    """Mean of a measure of the answers to each persuader's act, every act counting the same; NaN without answers."""
    return _mean([measure(given) for given in _by_act(answers).values() if len(given) > 1])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def acts_beside_people(table: pd.DataFrame, pairs: pd.DataFrame | None = None) -> pd.DataFrame:
    """Entropy and mode share of the reply's act: people and every condition, on the same axes.

    Args:
        table: a reply table; its P4G histories are used.
        pairs: as ``p4g.act_pairs`` with the column ``read``; the shipped table by default.

    Returns:
        Columns: condition (people first), view ("given the act": pooled as above; "at one history": the mean over
        histories, simulators only), units (dialogues or histories), replies, and entropy (Chao-Shen, nats) and
        mode_share (cross-validated), each with ``_low`` and ``_high``: 95 %, dropping one unit at a time (pooled) or
        Student's t over histories. NaN where fewer than half of a condition's outputs could be read.
    """
    part = table[table["task"] == "p4g"]
    acts = set(part["after"])
    rows = [_pooled_row(PEOPLE, list(_people(acts, pairs).values()))]
    inside = by_history(part, ["act"])
    for condition, said in part.groupby("condition", sort=False):
        answers = _answers(said)
        rows.append(_pooled_row(str(condition), list(answers.values())))
        own = inside[inside["condition"] == condition]
        counts = {"units": own["entropy"].count(), "replies": own["replies"].sum()}
        varied = intervals(own[["entropy", "cross_validated"]].set_axis(["entropy", "mode_share"], axis=1))
        rows.append({"condition": condition, "view": WITHIN, **counts, **varied})
    return pd.DataFrame(rows)


def reference_recovery(table: pd.DataFrame, pairs: pd.DataFrame | None = None) -> pd.DataFrame:
    """Total variation between what a condition does and a reference, at the level of acts: the referee's test.

    Two references. "people": the answers of every second dialogue's person, given the persuader's act; the other
    dialogues' people are a row of their own. "the model's own replies at T = 1", at each history (as in Prop. 3.7):
    every second one of them; the others are the row ``direct, T = 1``. Those two rows are the floor: a sample's
    distance from its own distribution is not 0, and grows as the sample shrinks. So all conditions are compared at
    equal size, the smallest at hand for the act (or history): each distance is the exact mean over all subsamples of
    that size. The bias that remains is nearly the same for all; read distances against the floor.

    Returns:
        Columns: reference, condition, units, distance with ``_low`` and ``_high``, and change (this condition - direct
        sampling at T = 1, over the same histories) with ``_low`` and ``_high``. Intervals: 95 %, histories as units
        (dialogues for people), the reference taken as given. NaN where fewer than half of the outputs could be read.
    """
    part = table[table["task"] == "p4g"]
    return pd.DataFrame(_against_people(part, pairs) + _against_own(part))


def effective_gammas(table: pd.DataFrame, pairs: pd.DataFrame | None = None) -> pd.DataFrame:
    """How sharp each condition's acts are, as an exponent on people's.

    γ is where p ∝ P^γ, P what people do given the persuader's act, has the entropy of the condition's replies, both as
    means over acts (:func:`over_acts`): 1 is as varied as people. It says nothing of likeness. Proposition B.2's γ is
    about exact replies.

    Args:
        table, pairs: as :func:`acts_beside_people`.

    Returns:
        Columns: condition, gamma with ``_low`` and ``_high``: 95 %, dropping one history at a time, people's shares
        taken as given; within :data:`GAMMAS`. NaN where fewer than half of the outputs could be read.
    """
    part = table[table["task"] == "p4g"]
    people = _by_act(list(chain(*_people(set(part["after"]), pairs).values())))
    shares = {asked: np.array(list(_shares(given).values())) for asked, given in people.items()}
    rows = []
    for condition, said in part.groupby("condition", sort=False):
        found = jackknife_interval(partial(_gamma, people=shares), list(_answers(said).values()))
        rows.append({"condition": condition, **found.columns("gamma", *GAMMAS)})
    return pd.DataFrame(rows)


def _gamma(answers: Sequence[Answer], people: Mapping[str, Float[np.ndarray, " acts"]]) -> float:
    wanted, acts = over_acts(answers, chao_shen_entropy), sorted({asked for asked, _ in answers})

    def excess(gamma: float) -> float:
        sharpened = (people[asked] ** gamma for asked in acts)
        return _mean([float(scipy_stats.entropy(p)) for p in sharpened]) - wanted

    low, high = (excess(gamma) for gamma in GAMMAS)
    return GAMMAS[0] if low <= 0 else GAMMAS[1] if high >= 0 else float(brentq(excess, *GAMMAS, xtol=1e-6))


def answers_to_proposals(table: pd.DataFrame, pairs: pd.DataFrame | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The replies to a proposal to donate, and people's, with what they state in dollars (a bin) in place of the act.

    So :func:`reference_recovery` of the two says how far the stated donations are from people's. Both are read by the
    same rules, people's from all that they wrote in that turn, a simulator's as far as its reply goes.
    """
    part = table[(table["task"] == "p4g") & (table["after"] == PROPOSAL)]
    people = load_table("act_pairs") if pairs is None else pairs
    people = people[people["after"] == PROPOSAL]
    stated = [donation_bin(read_donation(text)) if isinstance(text, str) else "" for text in part["text"]]
    return part.assign(act=stated), people.assign(read=people["stated"].map(donation_bin))


def stated_donations(table: pd.DataFrame, pairs: pd.DataFrame | None = None) -> pd.DataFrame:
    """What is stated in answer to a proposal to donate: people, and every condition.

    Returns:
        Columns: condition (people first), donation ("no amount", then ``DONATION_BINS``), share, answers. The
        share is NaN where fewer than half of a condition's outputs could be read. No row if no history ends with one.
    """
    part, people = answers_to_proposals(table, pairs)
    if part.empty:
        return pd.DataFrame(columns=["condition", "donation", "share", "answers"])
    groups = {PEOPLE: people["read"].tolist()}
    for condition, said in part.groupby("condition", sort=False):
        groups[str(condition)] = [act for given in _answers(said).values() for _, act in given]
    return pd.DataFrame(
        {"condition": condition, "donation": name, "share": given.count(name) / len(given) if given else math.nan,
         "answers": len(given)}
        for condition, given in groups.items()
        for name in (UNSAID, *DONATION_BINS)
    )  # fmt: skip


def side_by_side(base: pd.DataFrame, others: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Reply tables of several simulators as one, in which a simulator is a condition.

    For :func:`acts_beside_people` and :func:`reference_recovery`, which then compare with ``base``: its direct replies
    at T = 1 keep their name. Of the others (by name) direct replies at T = 1 carry their simulator's name, those at the
    lowest temperature, the sharpened simulator, the name with it. Kept are the P4G histories that all tables have.
    """
    tables = {DIRECT: base, **others}
    parts = []
    for name, table in tables.items():
        direct = table[(table["task"] == "p4g") & table["condition"].str.startswith("direct")]
        parts.append(direct[direct["condition"] == DIRECT].assign(condition=name))
        temperatures = direct["condition"].str.extract(r"T = ([\d.]+)")[0].astype(float)
        if name != DIRECT and temperatures.min() < 1:
            cold = direct[temperatures == temperatures.min()]
            parts.append(cold.assign(condition=f"{name}, T = {temperatures.min():g}"))
    common = set.intersection(*(set(part["history"]) for part in parts))
    joined = pd.concat(parts, ignore_index=True)
    return joined[joined["history"].isin(common)].reset_index(drop=True)


def against_people(found: pd.DataFrame) -> pd.DataFrame:
    """Each condition's entropy given the act - people's, from :func:`acts_beside_people`.

    Columns: condition, gap with ``_low`` and ``_high`` (nats), and reading: "less varied", "more varied", "not told
    apart" (0 lies inside) or "not measured".
    """
    pooled = found[found["view"] == POOLED].set_index("condition")
    entropies = {
        name: Interval(row["entropy"], row["entropy_low"], row["entropy_high"], int(row["units"]))
        for name, row in pooled.iterrows()
    }
    people = entropies.pop(PEOPLE)
    gaps = {name: own.minus(people) for name, own in entropies.items()}
    return pd.DataFrame(
        {"condition": name, **gap.columns("gap", -math.inf, math.inf), "reading": gap.reading(*VARIED)}
        for name, gap in gaps.items()
    )


def human_donations(counts: pd.DataFrame | None = None) -> Float[np.ndarray, " persuadees"]:
    """Every persuadee's donation in dollars, clipped to [0, 2], smallest first; the shipped counts by default."""
    table = load_table("donations") if counts is None else counts
    given = np.repeat(table["donation"].to_numpy(float), table["persuadees"].to_numpy(int))
    return np.clip(given, 0.0, DONATION_EDGES[-1])


def donation_bin(dollars: float | None) -> str:
    """The bin of a stated donation; "no amount" for None or NaN, a text that states none."""
    if dollars is None or math.isnan(dollars):
        return UNSAID
    return DONATION_BINS[int(np.searchsorted(DONATION_EDGES, dollars))]


def expected_distance(answers: Sequence[str], reference: dict[str, float], size: int) -> float:
    """Total variation between ``size`` of the answers and reference shares: the mean over all subsamples, exactly.

    Half the sum over labels of E|X / size - q|, where X, the label's count in a subsample, is hypergeometric.

    Raises:
        ValueError: a size of 0 or above the number of answers.
    """
    if not 1 <= size <= len(answers):
        raise ValueError(f"cannot take {size} of {len(answers)} answers")
    counts = Counter(answers)
    inside = sum(_expected_gap(len(answers), count, size, reference.get(label, 0.0)) for label, count in counts.items())
    return 0.5 * (inside + sum(share for label, share in reference.items() if label not in counts))


@lru_cache(maxsize=1 << 16)  # dropping one unit at a time asks for the same few hundred again and again
def _expected_gap(total: int, count: int, size: int, share: float) -> float:
    x = np.arange(size + 1)
    return float(scipy_stats.hypergeom.pmf(x, total, count, size) @ np.abs(x / size - share))


# -- people ------------------------------------------------------------------------------------------------------------


def _people(acts: set[str], pairs: pd.DataFrame | None) -> dict[int, list[Answer]]:
    """Answers to these acts by dialogue, as the classifier reads them."""
    table = load_table("act_pairs") if pairs is None else pairs
    return _by_unit(table[table["after"].isin(acts)], "dialogue", "read")


def _answers(said: pd.DataFrame) -> dict[str, list[Answer]]:
    """One condition's answers by history; none where too few outputs of the condition could be read."""
    read = said[said["failure"] == ""]
    return _by_unit(read, "history", "act") if 2 * len(read) >= len(said) else {}


def _by_unit(rows: pd.DataFrame, unit: str, act: str) -> dict[Any, list[Answer]]:
    groups = rows.groupby(unit, sort=False)
    return {key: list(zip(part["after"], part[act], strict=True)) for key, part in groups}


def _by_act(answers: Sequence[Answer]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for asked, answered in answers:
        groups.setdefault(asked, []).append(answered)
    return groups


def _pooled_row(name: str, clusters: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    row = {"condition": name, "view": POOLED, "units": len(clusters), "replies": sum(map(len, clusters))}
    entropy, mode_share = (
        jackknife_interval(partial(over_acts, measure=measure), clusters)
        for measure in (chao_shen_entropy, cross_validated_mode_share)
    )
    return row | entropy.columns("entropy", most=math.inf) | mode_share.columns("mode_share")


# -- distances ---------------------------------------------------------------------------------------------------------


def _shares(answers: Sequence[str]) -> dict[str, float]:
    return {label: count / len(answers) for label, count in Counter(answers).items()}


def _against_people(part: pd.DataFrame, pairs: pd.DataFrame | None) -> list[dict[str, Any]]:
    people = _people(set(part["after"]), pairs)
    even = [answer for number, given in people.items() if number % 2 == 0 for answer in given]
    reference = {asked: _shares(given) for asked, given in _by_act(even).items()}
    clusters: dict[str, dict[Any, list[Answer]]] = {PEOPLE: {n: given for n, given in people.items() if n % 2}}
    clusters |= {str(condition): _answers(said) for condition, said in part.groupby("condition", sort=False)}
    known = [_by_act(list(chain(*own.values()))) for own in clusters.values() if own]
    size = {asked: min(len(groups.get(asked, ())) for groups in known) for asked in reference}

    def distance(answers: Sequence[Answer]) -> float:
        return _mean([
            expected_distance(given, reference[asked], min(size[asked], len(given)))
            for asked, given in _by_act(answers).items()
            if size.get(asked)
        ])  # fmt: skip

    def change(both: Sequence[tuple[list[Answer], list[Answer]]]) -> float:
        """This condition's distance - direct sampling's, at the same histories."""
        ours, theirs = (distance(list(chain(*answers))) for answers in zip(*both, strict=True))
        return ours - theirs

    rows = []
    for condition, own in clusters.items():
        direct = {} if condition in (PEOPLE, DIRECT) else clusters.get(DIRECT, {})
        changes = jackknife_interval(change, [[(own[h], direct[h])] for h in own if h in direct])
        rows.append(_distance_row(PEOPLE, condition, jackknife_interval(distance, list(own.values())), changes))
    return rows


def _against_own(part: pd.DataFrame) -> list[dict[str, Any]]:
    plain = part[part["condition"] == DIRECT]
    halves = {
        key: [labels_of(rows[rows["reply"] % 2 == half], "act") for half in (0, 1)]
        for key, rows in plain.groupby(HISTORY, sort=False)
    }
    labels: dict[str, dict[Any, list[str]]] = {}
    for condition, said in part.groupby("condition", sort=False):
        places = {key: rows for key, rows in said.groupby(HISTORY, sort=False) if key in halves}
        labels[str(condition)] = {
            key: halves[key][1] if condition == DIRECT else labels_of(rows, "act") for key, rows in places.items()
        }
    size = {key: min(len(own[key]) for own in labels.values() if own.get(key)) for key in halves}
    distances = {
        condition: {
            key: expected_distance(own[key], _shares(halves[key][0]), size[key]) for key in halves if own.get(key)
        }
        for condition, own in labels.items()
        if own
    }
    rows = []
    for condition, found in distances.items():
        gaps = [] if condition == DIRECT else [found[key] - distances[DIRECT][key] for key in found]
        whole, change = clustered_interval(list(found.values())), clustered_interval(gaps)
        rows.append(_distance_row(OWN, condition, whole, change))
    return rows


def _distance_row(reference: str, condition: str, found: Interval, change: Interval) -> dict[str, Any]:
    row: dict[str, Any] = {"reference": reference, "condition": condition, "units": found.n}
    return row | found.columns("distance") | change.columns("change", -math.inf, math.inf)
