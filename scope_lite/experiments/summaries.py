"""What stands for a run in a comparison: its end, its area under the curve and its best checkpoint, side by side."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

SUMMARIES = ("end", "auc", "best")


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
    training = [c for c in ("reward", "entropy", "frac_reward_zero_std", "simulator/epsilon") if c in table]
    return summarise(judged, keys, [*columns, "panel_mean", *training], select="panel_mean")
