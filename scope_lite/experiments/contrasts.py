"""Contrasts read as sentences: intervals in plain words, and panels compared like for like.

A difference of rewards is given in points: hundredths of the largest possible reward, never per cent of another reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from scope_lite.measure.stats import Interval

MARGIN = 0.05
"""differences inside five points count as none, if the interval lies inside them too"""
UNSEEN, REAL = "panel/unseen/reward", "panel/real/reward"
COMMON = "unseen by all/reward"
"""mean over the simulators that none of the compared runs trained with"""
USERS = ("reference", "real", "seen", "unseen")
"""columns of the panel that are scripted users or means, and so no simulator of their own"""


def verdict(difference: Interval, margin: float = MARGIN) -> str:
    """What an interval of a difference says: equal within the margin, higher, lower, or not told apart.

    A difference that lies surely within the margin is called equal even where it is surely not zero.

    Args:
        margin: half the width of what counts as equal, in the difference's own unit.
    """
    return difference.reading(margin=margin)


def contrast_table(contrasts: Mapping[str, Interval], unit: str = "points", margin: float = MARGIN) -> pd.DataFrame:
    """A row a contrast: the mean difference, its 95 % t-interval, how many pairs stand behind it, and the verdict.

    Args:
        unit: "points" shows rewards times 100; any other unit is shown as it is.
    """
    scale, digits = (100, 1) if unit == "points" else (1, 2)
    rows = {
        name: {
            f"difference ({unit})": f"{scale * d.mean:+.{digits}f}",
            "95 % t-interval": f"[{scale * d.low:+.{digits}f}, {scale * d.high:+.{digits}f}]" if d.n > 1 else "–",
            "pairs": d.n,
            "verdict": verdict(d, margin),
        }
        for name, d in contrasts.items()
    }
    return pd.DataFrame(rows).T


def in_points(difference: Interval) -> str:
    """A difference of rewards within a sentence: ``+48.1 points [+47.2, +49.0]``."""
    shown = f"{100 * difference.mean:+.1f} points"
    return f"{shown} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]" if difference.n > 1 else shown


def like_for_like(table: pd.DataFrame, trained_with: Iterable[str]) -> pd.DataFrame:
    """Add the mean over the simulators that no run trained with.

    ``panel/unseen/reward`` leaves out what *that run* trained with, so two runs with other simulators have other
    unseen members; compared side by side they need the same ones.

    Args:
        table: with a column ``panel/<member>/reward`` a member.
        trained_with: members that any of the compared runs trained with.

    Raises:
        ValueError: if that leaves nobody.
    """
    left_out = {*USERS, *trained_with}
    columns = [c for c in table.columns if c.startswith("panel/") and c.split("/")[1] not in left_out]
    if not columns:
        raise ValueError("no simulator is unseen by all of these runs")
    return table.assign(**{COMMON: table[columns].mean(axis=1)})


def rank_correlation(x: pd.Series, y: pd.Series) -> Interval:
    """Spearman's rank correlation with a 95 % interval on Fisher's scale (standard error of Bonett and Wright, 2000).

    NaN where one of the two does not vary; no bounds for fewer than four pairs, or where the ranks agree exactly.
    """
    n = len(x)
    if n < 2 or x.nunique() < 2 or y.nunique() < 2:
        return Interval(float("nan"), float("nan"), float("nan"), n)
    rho = float(scipy_stats.spearmanr(x, y).statistic)
    if n < 4 or abs(rho) > 1 - 1e-12:
        return Interval(rho, float("nan"), float("nan"), n)
    half = 1.96 * np.sqrt((1 + rho**2 / 2) / (n - 3))
    return Interval(rho, float(np.tanh(np.arctanh(rho) - half)), float(np.tanh(np.arctanh(rho) + half)), n)


def members_of(table: pd.DataFrame) -> list[str]:
    """The panel members that a table has results for, in the panel's order."""
    members = [c.split("/")[1] for c in table.columns if c.startswith("panel/") and c.endswith("/reward")]
    return [member for member in members if member not in ("seen", "unseen")]
