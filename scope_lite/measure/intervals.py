"""Intervals whose independent unit is a history (or a dialogue), never a reply."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import stats as scipy_stats

from scope_lite.store.errors import ScopeError

Observation = TypeVar("Observation")


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float
    clusters: int
    """independent units behind it"""


def clustered_interval(values: Sequence[float], confidence: float = 0.95, method: str = "t", seed: int = 0) -> Interval:
    """Interval for the mean of one value per history; histories are the independent units.

    Args:
        values: one summary per history, such as its mode share; NaN (nothing observed there) is left out.
        confidence: between 0 and 1.
        method: ``"t"`` (Student's t over histories; the choice for few), or ``"bootstrap"`` (BCa, for some 20 or more).
        seed: of the bootstrap.

    Raises:
        ScopeError: unknown method.

    With fewer than two histories the bounds are NaN: one history says nothing about others.
    """
    if method not in ("t", "bootstrap"):
        raise ScopeError(f"unknown interval method {method!r}: choose t or bootstrap")
    seen = np.array([value for value in values if not math.isnan(value)], dtype=float)
    mean = float(seen.mean()) if len(seen) else math.nan
    if len(seen) < 2:
        return Interval(mean, math.nan, math.nan, len(seen))
    if np.ptp(seen) == 0:
        # All histories agree: t gives width 0 and BCa fails; the honest reading is in ``clusters``.
        return Interval(mean, mean, mean, len(seen))
    if method == "t":
        half = float(scipy_stats.t.ppf(0.5 + confidence / 2, len(seen) - 1)) * float(scipy_stats.sem(seen))
        return Interval(mean, mean - half, mean + half, len(seen))
    drawn = scipy_stats.bootstrap(
        (seen,), np.mean, confidence_level=confidence, rng=np.random.default_rng(seed), method="BCa"
    )
    low, high = drawn.confidence_interval
    return Interval(mean, float(low), float(high), len(seen))


def jackknife_interval(
    statistic: Callable[[Sequence[Observation]], float],
    clusters: Sequence[Sequence[Observation]],
    confidence: float = 0.95,
) -> Interval:
    """A statistic of all observations, with a t-interval from dropping one cluster (history, dialogue) at a time.

    A percentile bootstrap is no choice here: a resample has fewer distinct acts than the data, so its entropies lie
    too low. With fewer than two clusters the bounds are NaN.
    """
    everything = [one for cluster in clusters for one in cluster]
    whole, n = statistic(everything), len(clusters)
    if n < 2:
        return Interval(whole, math.nan, math.nan, n)
    without, start = [], 0
    for cluster in clusters:
        stop = start + len(cluster)
        without.append(statistic(everything[:start] + everything[stop:]))
        start = stop
    error = math.sqrt((n - 1) * float(np.var(without)))
    half = float(scipy_stats.t.ppf(0.5 + confidence / 2, n - 1)) * error
    return Interval(whole, whole - half, whole + half, n)
