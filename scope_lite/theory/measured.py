"""Measured odds of an exploit, from a training run's table, held against the geometric law of Corollary 3.5.

The table has one row per run, seed and step: run, seed, step, odds_exploit, eta, source. ``odds_exploit`` is
π(A_x)/(1 − π(A_x)) of the policy at that step, from act probabilities (``odds_from_logprobs``) or from counts, which
saturate at twice the number of dialogues: a curve that flattens there has run out of dialogues, not of growth.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from scope_lite.store.errors import ScopeError

COLUMNS = ("variant", "seed", "step", "odds_exploit", "learning_rate")


def load_odds(path: Path) -> pd.DataFrame | None:
    """The table of the experiment ``theory_odds`` at ``path``, checked; None when there is no such file.

    Returns:
        run, seed, step, odds_exploit, eta (the learning rate), source.

    Raises:
        ScopeError: if a column is missing, or odds are not positive and finite.
    """
    if not path.exists():
        return None
    table = pd.read_csv(path)
    missing = [c for c in COLUMNS if c not in table.columns]
    if missing:
        raise ScopeError(f"{path.name} lacks the columns {', '.join(missing)}; it needs {', '.join(COLUMNS)}")
    if not (np.isfinite(table.odds_exploit) & (table.odds_exploit > 0)).all():
        raise ScopeError(f"{path.name}: odds_exploit must be positive and finite; use (inside + 0.5) / (outside + 0.5)")
    source = "language model, the exploit in every turn"
    table = table.assign(run="nano, " + table["variant"], eta=table["learning_rate"], source=source)
    return table[["run", "seed", "step", "odds_exploit", "eta", "source"]]


def growth_rates(table: pd.DataFrame, early: tuple[float, float] = (0.5, 8.0)) -> pd.DataFrame:
    """Early and late growth of the log-odds in nats a step, for each run and seed.

    Early: from the first step at which the odds pass ``early[0]`` to the first at which they pass ``early[1]`` (these
    bounds bracket even odds, where a group has most of its variance). Late: the last third of the steps. Under the
    geometric law the two are equal; a ratio late/early near 0 says that concentration has slowed down.

    Returns:
        run, seed, source, start (step), early, late, ratio, power (late slope of log odds on log step: about 1 to 2 for
        polynomial growth); NaN where the odds never pass the bounds.
    """
    rows = []
    for (run, seed, source), part in table.groupby(["run", "seed", "source"]):
        part = part.sort_values("step")
        step, log_odds = part.step.to_numpy(float), np.log(part.odds_exploit.to_numpy(float))
        late = step >= step.max() - (step.max() - step.min()) / 3
        first, start = _crossing_rate(step, log_odds, np.log(early[0]), np.log(early[1]))
        last = _slope(step[late], log_odds[late])
        power = _slope(np.log(step[late] + 1), log_odds[late])
        row = {"run": run, "seed": seed, "source": source, "start": start, "early": first}
        rows.append(row | {"late": last, "ratio": last / first, "power": power})
    return pd.DataFrame(rows)


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(x, y, 1)[0]) if len(x) > 1 else float("nan")


def _crossing_rate(step: np.ndarray, log_odds: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Mean slope between the first crossings of ``low`` and ``high``, and the step of the first."""
    above_low, above_high = np.flatnonzero(log_odds >= low), np.flatnonzero(log_odds >= high)
    if not len(above_low) or not len(above_high) or above_high[0] == above_low[0]:
        return float("nan"), float("nan")
    i, j = above_low[0], above_high[0]
    return float((log_odds[j] - log_odds[i]) / (step[j] - step[i])), float(step[i])


def geometric_law(table: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """The median run's geometric prediction: odds from the early rate, continued to the last step, per run and source.

    Returns:
        run, source, step, odds_exploit.
    """
    laws = [pd.DataFrame(columns=["run", "source", "step", "odds_exploit"])]
    for (run, source), part in rates.dropna().groupby(["run", "source"]):
        odds = table[(table.run == run) & (table.source == source)].groupby("step").odds_exploit.median()
        later = odds.loc[part.start.median() :]
        law = later.iloc[0] * np.exp(part.early.median() * (later.index - part.start.median()))
        laws.append(pd.DataFrame({"run": run, "source": source, "step": later.index, "odds_exploit": law}))
    return pd.concat(laws[1:] or laws, ignore_index=True)
