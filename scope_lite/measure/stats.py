"""Which interval when, and what an interval says in words.

Units are nested: seed > simulator > task > dialogue (> history > reply), and the interval is over the outermost that
was drawn independently; what lies within it is averaged first.

| question                                            | unit                         | take                   |
|-----------------------------------------------------|------------------------------|------------------------|
| how high is a mean?                                 | a seed                       | ``t_interval``         |
| what does a change make, in runs that share seeds?  | a pair of one seed           | ``paired_interval``    |
| would other simulators say the same as well?        | seeds and simulators         | ``resampled_interval`` |
| how often does something hold?                      | a world, a dialogue          | ``share_interval``     |
| is a more often right than b; more often above 0?   | a pair of one seed           | ``paired_test``,       |
|                                                     |                              | ``sign_test`` (exact)  |
| how varied are replies, a number a history?         | a history; NaN is left out   | ``clustered_interval`` |
| a statistic that needs all replies at once, such as | a history or dialogue, which | ``jackknife_interval`` |
| an entropy                                          | is dropped whole             |                        |

All are at 95 %, from Student's t but for ``share_interval``. No percentile bootstrap: it covers 74, 83 and 88 % at 3, 5
and 10 seeds, and a resample's entropy lies too low, for it has fewer distinct values than the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats as scipy_stats

RESAMPLES = 2000
UNDECIDED, UNMEASURED = "not told apart", "not measured"

Observation = TypeVar("Observation")


@dataclass(frozen=True)
class Interval:
    """A mean (or another estimate) with its two-sided 95 % interval; low and high are NaN for a single unit."""

    mean: float
    low: float
    high: float
    n: int
    """independent units behind it: seeds, histories, dialogues"""

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]" if self.n > 1 else f"{self.mean:.2f}"

    @property
    def half(self) -> float:
        """Half its width, for an error bar; 0 without bounds."""
        return 0.0 if math.isnan(self.high) else self.high - self.mean

    def reading(self, below: str = "lower", above: str = "higher", margin: float | None = None) -> str:
        """What the interval of a difference says: ``below`` or ``above`` if 0 lies outside it, else not told apart.

        Args:
            margin: what lies surely within it counts as equal, even where it is surely not zero.
        """
        if math.isnan(self.low):
            return UNMEASURED if math.isnan(self.mean) else "no interval"
        if margin is not None and -margin <= self.low and self.high <= margin:
            return "equal within the margin"
        return above if self.low > 0 else below if self.high < 0 else UNDECIDED

    def minus(self, other: Interval) -> Interval:
        """Their difference, for two independent estimates: the half-widths are added in squares; of the fewer units."""
        gap, half = self.mean - other.mean, math.hypot(self.high - self.mean, other.high - other.mean)
        return Interval(gap, gap - half, gap + half, min(self.n, other.n))

    def columns(self, name: str, least: float = 0.0, most: float = 1.0) -> dict[str, float]:
        """Mean, low and high under ``name``, ``name_low`` and ``name_high``; the bounds are cut at what is possible."""
        low, high = float(np.maximum(self.low, least)), float(np.minimum(self.high, most))
        return {name: self.mean, f"{name}_low": low, f"{name}_high": high}


NOTHING = Interval(math.nan, math.nan, math.nan, 0)
"""where nothing was measured"""


def _finite(values: Sequence[float] | Float[np.ndarray, "*shape"] | pd.Series) -> Float[np.ndarray, "*shape"]:
    """Values that can be averaged, as doubles.

    Raises:
        ValueError: without any, or if one is no number: what was not measured is to be left out by whoever asks.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise ValueError("no values to average: nothing was measured, or no seed is shared")
    if bad := int((~np.isfinite(x)).sum()):
        raise ValueError(f"{bad} of {x.size} values are NaN or infinite: leave out what was not measured")
    return x


def paired_gaps(a: pd.Series, b: pd.Series) -> pd.Series:
    """a - b at every unit that both have: seeds, or histories (both indexed by them).

    Raises:
        ValueError: if a unit stands twice, for it would count twice, or has what is no number.
    """
    for index in (a.index, b.index):
        if index.has_duplicates:
            raise ValueError(f"{index[index.duplicated()][0]} stands twice in the index: give one value a seed")
    both = a.index.intersection(b.index)
    return a.loc[both].astype(float) - b.loc[both].astype(float)


def t_interval(values: Sequence[float] | Float[np.ndarray, " n"]) -> Interval:
    """Mean and t-interval of independent values; of no width where all are equal (how much that says, ``n`` tells).

    Raises:
        ValueError: without any value, or with one that is NaN or infinite.
    """
    x = _finite(values)
    mean, n = float(x.mean()), len(x)
    half = float(_t(n - 1) * (x.std(ddof=1) if np.ptp(x) else 0.0) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def _t(degrees: int) -> float:
    """Student's quantile of a 95 % interval; NaN, and so no bounds, for a single unit."""
    return float(scipy_stats.t.ppf(0.975, degrees))


def clustered_interval(values: Sequence[float]) -> Interval:
    """The t-interval of one value a history, such as its mode share; NaN, where nothing was observed, is left out."""
    seen = [value for value in values if not math.isnan(value)]
    return t_interval(seen) if seen else NOTHING


def jackknife_interval(
    statistic: Callable[[Sequence[Observation]], float], clusters: Sequence[Sequence[Observation]]
) -> Interval:
    """A statistic of all observations, with a t-interval from dropping one cluster (history, dialogue) at a time.

    With fewer than two clusters the bounds are NaN.
    """
    if not clusters:
        return NOTHING
    everything, n = [one for cluster in clusters for one in cluster], len(clusters)
    ends = np.cumsum([len(cluster) for cluster in clusters]).tolist()
    without = [
        statistic(everything[: end - len(cluster)] + everything[end:]) if n > 1 else math.nan
        for end, cluster in zip(ends, clusters, strict=True)
    ]
    whole, half = statistic(everything), _t(n - 1) * math.sqrt((n - 1) * float(np.var(without)))
    return Interval(whole, whole - half, whole + half, n)


def paired_interval(a: pd.Series, b: pd.Series) -> Interval:
    """Mean of :func:`paired_gaps`.

    Raises:
        ValueError: if they share no seed, a seed stands twice, or a value is NaN or infinite.
    """
    return t_interval(paired_gaps(a, b))


def paired_improvement(a: pd.Series, b: pd.Series) -> float:
    """Share of the seeds that both have in which a is above b, ties counting half (both indexed by seed).

    Raises:
        ValueError: as :func:`paired_interval`.
    """
    return _wins(_finite(paired_gaps(a, b)))


def _wins(gap: Float[np.ndarray, "*shape"]) -> float:
    """Share of the differences that are above 0, ties counting half."""
    return float((np.sign(gap) + 1).mean()) / 2


def share_interval(successes: int, n: int) -> Interval:
    """A share, with its exact (Clopper-Pearson) interval.

    Raises:
        ValueError: without any trial.
    """
    if n == 0:
        raise ValueError("no trials to take a share of")
    exact = scipy_stats.binomtest(successes, n).proportion_ci(0.95, method="exact")
    return Interval(successes / n, float(exact.low), float(exact.high), n)


LEAST_PAIRS = 6
"""with fewer, McNemar's test cannot reach 5 %, whatever comes"""


def paired_test(a: pd.Series, b: pd.Series) -> float:
    """Two-sided p of two arms' yes and no on the same seeds: McNemar's exact test, below 6 pairs Fisher's.

    Fisher's takes the arms for independent, which is on the safe side where seeds make them alike. Which of the two is
    read depends on the number of pairs alone, never on what came out.
    """
    if len(a) >= LEAST_PAIRS:
        return sign_test(a.astype(int) - b.astype(int))
    return float(scipy_stats.fisher_exact([[arm.sum(), len(arm) - arm.sum()] for arm in (a, b)]).pvalue)


def sign_test(gaps: pd.Series) -> float:
    """Two-sided p that as many are above 0 as below, ties left out (1 without any)."""
    above, below = int((gaps > 0).sum()), int((gaps < 0).sum())
    return float(scipy_stats.binomtest(above, above + below).pvalue) if above + below else 1.0


def resampled_interval(values: Float[np.ndarray, "seeds simulators"]) -> Interval:
    """Mean over seeds and simulators, both taken as samples: would other seeds, and other simulators, say the same?

    Whole seeds and whole simulators are resampled, apart from each other (Owen 2007's pigeonhole bootstrap); the spread
    of the resampled means is multiplied by a t quantile with min(seeds, simulators) - 1 degrees of freedom. Measured
    coverage at 95 %, 3 x 5 to 10 x 10, whichever of the two varies: 94 to 99 %. (The resampled means' own percentiles
    cover 78 to 93 % and are not used.)

    Returns:
        ``n`` is the smaller of the two numbers.

    Raises:
        ValueError: with fewer than two seeds or simulators, or a value that is NaN or infinite.
    """
    x = _finite(values)
    if x.ndim != 2 or min(x.shape) < 2:
        raise ValueError(f"need at least two seeds and two simulators, got shape {x.shape}")
    rng = np.random.default_rng(0)
    rows, columns = (rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n for n in x.shape)
    spread = float(((rows @ x) * columns).sum(axis=1).std())
    few = min(x.shape)
    half = _t(few - 1) * spread
    return Interval(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half, few)


def iqm(scores: Float[np.ndarray, "*shape"]) -> float:
    """Interquartile mean: the mean of the middle half of all runs on all tasks (rliable's; Agarwal et al. 2021).

    A quarter of the runs is left out at either end, rounded down, as scipy's trimmed mean does it.
    """
    return float(scipy_stats.trim_mean(_finite(scores), 0.25, axis=None))


def probability_of_improvement(a: Float[np.ndarray, "n tasks"], b: Float[np.ndarray, "m tasks"]) -> float:
    """How often a run of a beats a run of b on the same task, ties counting half (rliable's; Agarwal et al. 2021).

    Every run of a meets every run of b (the Mann-Whitney statistic divided by n m); the mean over tasks. An array
    without a task axis is one task.

    Raises:
        ValueError: if the two have different numbers of tasks, one has no runs, or a value is NaN or infinite.
    """
    a, b = (np.atleast_2d(_finite(x).T).T for x in (a, b))
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"need runs of both on the same tasks, got shapes {a.shape} and {b.shape}")
    return _wins(a[:, None] - b[None, :])
