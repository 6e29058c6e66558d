"""Statistics over seeds: end, area under the curve and best checkpoint, with t-intervals.

Units are nested: seed > simulator > task > dialogue. Seeds are the unit here. With three
seeds a percentile bootstrap covers 73 % where it says 95 %; a t-interval does not lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats as scipy_stats

RESAMPLES = 2000
SUMMARIES = ("end", "auc", "best")


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with a two-sided t-interval; low and high are NaN for a single seed."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]" if self.n > 1 else f"{self.mean:.2f}"


def _finite(values: Sequence[float] | Float[np.ndarray, "*shape"] | pd.Series) -> Float[np.ndarray, "*shape"]:
    """Values that can be averaged, as doubles.

    Raises:
        ValueError: without any, or if one is no number: what was not measured is to be left out by whoever asks.
    """
    try:
        x = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot average what is no number: {error}") from error
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


def t_interval(values: Sequence[float] | Float[np.ndarray, " n"], level: float = 0.95) -> Interval:
    """Mean and t-interval of independent values.

    Raises:
        ValueError: without any value, or with one that is NaN or infinite.
    """
    x = _finite(values)
    mean = float(x.mean())
    if len(x) == 1:
        return Interval(mean, float("nan"), float("nan"), 1)
    half = float(scipy_stats.t.ppf((1 + level) / 2, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return Interval(mean, mean - half, mean + half, len(x))


def paired_interval(a: pd.Series, b: pd.Series, level: float = 0.95) -> Interval:
    """Mean of :func:`paired_gaps`.

    Raises:
        ValueError: if they share no seed, a seed stands twice, or a value is NaN or infinite.
    """
    return t_interval(paired_gaps(a, b), level)


def share_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """A share, with its exact (Clopper-Pearson) interval.

    Raises:
        ValueError: without any trial.
    """
    if n == 0:
        raise ValueError("no trials to take a share of")
    exact = scipy_stats.binomtest(successes, n).proportion_ci(level, method="exact")
    return Interval(successes / n, float(exact.low), float(exact.high), n)


def bootstrap_t_interval(values: Float[np.ndarray, " n"], level: float = 0.95, seed: int = 0) -> Interval:
    """Mean of at least five independent values with the studentised bootstrap (bootstrap-t) interval.

    It covers 94 and 95 % of the time at n = 5 and 10 with normal values (2,000 samples). At n = 3 it is 82 %, so that
    is refused: take ``t_interval``. (The percentile bootstrap covers 74, 83 and 88 % at n = 3, 5 and 10 and is not
    used anywhere.)

    Raises:
        ValueError: with fewer than five values, or with one that is NaN or infinite.
    """
    x = _finite(values)
    n = len(x)
    if n < 5:
        raise ValueError(f"the studentised bootstrap needs at least 5 values, got {n}: take t_interval")
    mean, error = float(x.mean()), float(scipy_stats.sem(x))
    drawn = x[np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))]
    errors = scipy_stats.sem(drawn, axis=1)
    # a resample of one value, drawn n times, has no spread to be measured by
    t = (drawn.mean(axis=1) - mean)[errors > 0] / errors[errors > 0]
    if not len(t):
        return Interval(mean, mean, mean, n)
    low, high = np.quantile(t, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, mean - float(high) * error, mean - float(low) * error, n)


def resampled_interval(values: Float[np.ndarray, "seeds simulators"], level: float = 0.95, seed: int = 0) -> Interval:
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
    rng = np.random.default_rng(seed)
    rows, columns = (rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n for n in x.shape)
    spread = float(((rows @ x) * columns).sum(axis=1).std())
    few = min(x.shape)
    half = float(scipy_stats.t.ppf((1 + level) / 2, few - 1)) * spread
    return Interval(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half, few)


def welch_holm(groups: Mapping[str, Float[np.ndarray, " n"]], control: str) -> pd.DataFrame:
    """Each group against the control by Welch's t-test, with p values adjusted for their number (Holm-Bonferroni).

    For groups whose seeds cannot be paired; where they can, ``paired_interval`` is sharper.

    Returns:
        A row a group: ``difference`` of means, ``p`` (two-sided), ``p_holm``.
    """
    from statsmodels.stats.multitest import multipletests  # slow to import, and most of what is here does without

    rivals = {name: _finite(values) for name, values in groups.items() if name != control}
    base = _finite(groups[control])
    tests = {name: scipy_stats.ttest_ind(values, base, equal_var=False).pvalue for name, values in rivals.items()}
    rows = {name: {"difference": np.mean(v) - base.mean(), "p": tests[name]} for name, v in rivals.items()}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.assign(p_holm=multipletests(table["p"], method="holm")[1])


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
    gap = a[:, None] - b[None, :]
    return float(((gap > 0) + 0.5 * (gap == 0)).mean())


def paired_improvement(a: pd.Series, b: pd.Series) -> float:
    """Share of the seeds that both have in which a is above b, ties counting half (both indexed by seed).

    Raises:
        ValueError: as :func:`paired_interval`.
    """
    gap = _finite(paired_gaps(a, b))
    return float(((gap > 0) + 0.5 * (gap == 0)).mean())


def auc(steps: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"]) -> float:
    """Area under the curve divided by its width, by the trapezoid rule: the mean over training.

    Steps without a value (NaN) are left out; without any value the area is NaN.
    """
    measured = ~np.isnan(values)
    steps, values = steps[measured], values[measured]
    if len(steps) < 2:
        return float(np.mean(values)) if len(steps) else float("nan")
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))


def summarise(evaluations: pd.DataFrame, keys: list[str], columns: list[str], select: str) -> pd.DataFrame:
    """End of training, area under the curve and best checkpoint of each run, side by side.

    Args:
        evaluations: one row per run and evaluated step, with ``keys``, ``step`` and ``columns``.
        keys: the columns that name a run (seed among them).
        select: the column by which the best checkpoint is chosen: one choice a run, so
            that all of ``columns`` are read off the same weights.

    Returns:
        One row per run and summary ("end", "auc", "best").
    """
    rows: list[tuple[object, ...]] = []
    for key, run in evaluations.groupby(keys, sort=False, dropna=False):
        run = run.sort_values("step")
        steps, curves = run["step"].to_numpy(dtype=float), run[columns].to_numpy(dtype=float)
        best = int(run[select].argmax())
        areas = [auc(steps, curve) for curve in curves.T]
        found = {"end": (curves[-1], steps[-1]), "auc": (areas, np.nan), "best": (curves[best], steps[best])}
        name = key if isinstance(key, tuple) else (key,)
        rows += [(*name, summary, *found[summary][0], found[summary][1]) for summary in SUMMARIES]
    return pd.DataFrame(rows, columns=[*keys, "summary", *columns, "at_step"])


def run_summaries(table: pd.DataFrame) -> pd.DataFrame:
    """End, AUC and best checkpoint of every run; the best is chosen by the mean over all simulators of the panel."""
    columns = [c for c in table.columns if c.startswith("panel/")]
    scripted = {"panel/reference/reward", "panel/real/reward", "panel/seen/reward", "panel/unseen/reward"}
    simulators = [c for c in columns if c not in scripted]
    judged = table.assign(panel_mean=table[simulators].mean(axis=1))
    keys = ["variant", "method", "world", "seed"]
    return summarise(
        judged, keys, [*columns, "panel_mean", "reward", "entropy", "simulator/epsilon"], select="panel_mean"
    )
