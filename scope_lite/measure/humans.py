"""Humans as the yardstick: how varied real persuadees' next acts and donations are, from the shipped P4G counts.

A simulator's epsilon and entropy say little alone; beside them stand those of people at the same kind of history,
the persuader's last act. The independent unit is the dialogue, so every interval drops one dialogue at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Float
from statsmodels.stats.proportion import proportion_confint

from scope_lite.envs.p4g import load_table
from scope_lite.measure import jackknife_interval, miller_madow_entropy, mode_share, stats

ANY = "any act"
GIVEN = "given the act"
CEILING = 2.0
"""Dollars: what a participant was paid, and the top of the paper's donation reward."""
DONATION_EDGES = (0.0, 0.5, 1.0, 1.5, 2.0)
"""Upper ends of the donation bins, in dollars; the first bin holds those who gave nothing."""
DONATION_BINS = ("0", *(f"{a:g} to {b:g}" for a, b in pairwise(DONATION_EDGES)))
UNSAID = "no amount"

Pair = tuple[str, str]
"""The persuader's last act, the persuadee's first act in answer."""


def conditional_entropy(pairs: Sequence[Pair]) -> float:
    """Entropy of the second given the first, in nats: Miller-Madow in each group, weighted by the group's size."""
    return _mean_within(pairs, miller_madow_entropy)


def human_acts(pairs: pd.DataFrame | None = None, column: str = "act", fewest: int = 20) -> pd.DataFrame:
    """How varied the persuadee's next act is: one row a persuader's act, and two over all.

    Args:
        pairs: as ``p4g.act_pairs``; the shipped table by default.
        column: ``"act"`` (the annotators' acts) or ``"read"`` (as the act classifier reads them, out of
            sample: what a simulator's read acts are to be held against).
        fewest: persuader's acts with fewer replies get no row of their own.

    Returns:
        Columns: after (the persuader's act; "any act" is without a condition, "given the act" the mean over acts
        weighted by their frequency), replies, dialogues, entropy with entropy_low and entropy_high (nats,
        Miller-Madow), entropy_bits, mode (the most common act), epsilon with epsilon_low and epsilon_high (1 - the
        mode's share).
        Intervals: 95 %, dialogues as units, cut at what is possible. Most common persuader's acts first.
    """
    table = load_table("act_pairs") if pairs is None else pairs
    rows = [_act_row(ANY, table, column), _act_row(GIVEN, table, column)]
    for act, count in table["after"].value_counts().items():
        if count >= fewest:
            rows.append(_act_row(str(act), table[table["after"] == act], column))
    return pd.DataFrame(rows)


def act_shares(pairs: pd.DataFrame, after: str | None = None, column: str = "act") -> pd.Series:
    """Share of each persuadee's act after one persuader's act (or after any), most common first: the human P."""
    rows = pairs if after is None else pairs[pairs["after"] == after]
    return rows[column].value_counts(normalize=True)


def human_donations(counts: pd.DataFrame | None = None) -> Float[np.ndarray, " persuadees"]:
    """Every persuadee's donation in dollars, clipped to [0, 2], smallest first; the shipped counts by default."""
    table = load_table("donations") if counts is None else counts
    return np.clip(np.repeat(table["donation"].to_numpy(float), table["persuadees"].to_numpy(int)), 0.0, CEILING)


def mean_donation(dollars: Float[np.ndarray, " people"] | Sequence[float]) -> stats.Interval:
    """Mean donation in dollars with its 95 % t-interval; one person a dialogue."""
    return stats.t_interval(np.asarray(dollars, dtype=float))


def donation_shares(dollars: Float[np.ndarray, " people"] | Sequence[float]) -> pd.DataFrame:
    """Share of people by donation, for people and for simulators alike.

    Columns: donation (the bin: "0", "0 to 0.5", ... each with its upper end), people, share, low, high (Wilson, 95 %).
    """
    given = np.asarray(dollars, dtype=float)
    people = np.bincount(np.searchsorted(DONATION_EDGES, given), minlength=len(DONATION_BINS))
    low, high = proportion_confint(people, len(given), method="wilson")
    shares = {"share": people / len(given), "low": low, "high": high}
    return pd.DataFrame({"donation": list(DONATION_BINS), "people": people} | shares)


def donation_bin(dollars: float | None) -> str:
    """The bin of a stated donation; "no amount" for None or NaN, a text that states none."""
    if dollars is None or math.isnan(dollars):
        return UNSAID
    return DONATION_BINS[int(np.searchsorted(DONATION_EDGES, dollars))]


def _mean_within(pairs: Sequence[Pair], measure: Callable[[Sequence[str]], float]) -> float:
    """A measure of the second within each group of the first, averaged with the groups' sizes as weights."""
    groups: dict[str, list[str]] = {}
    for given, then in pairs:
        groups.setdefault(given, []).append(then)
    return sum(len(group) * measure(group) for group in groups.values()) / len(pairs)


def _over(name: str, pairs: Sequence[Pair], measure: Callable[[Sequence[str]], float]) -> float:
    return _mean_within(pairs, measure) if name == GIVEN else measure([then for _, then in pairs])


def _act_row(name: str, table: pd.DataFrame, column: str) -> dict[str, object]:
    clusters = [
        list(zip(part["after"], part[column], strict=True)) for _, part in table.groupby("dialogue", sort=False)
    ]
    h = jackknife_interval(lambda pairs: _over(name, pairs, miller_madow_entropy), clusters)
    e = jackknife_interval(lambda pairs: 1 - _over(name, pairs, mode_share), clusters)
    return {
        "after": name, "replies": len(table), "dialogues": len(clusters),
        "entropy": h.mean, "entropy_low": max(h.low, 0.0), "entropy_high": h.high, "entropy_bits": h.mean / math.log(2),
        "mode": "" if name == GIVEN else table[column].value_counts().index[0],
        "epsilon": e.mean, "epsilon_low": max(e.low, 0.0), "epsilon_high": min(e.high, 1.0),
    }  # fmt: skip
