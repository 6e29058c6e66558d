"""The collapse alarm: what a policy earns in training holds, and what it earns from simulators it never met falls.

One function over a table of metrics, whoever wrote it. Entropy is told and not judged: it falls for a good policy too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from scope_lite.store.files import read_lines

REWARD, UNSEEN, ENTROPY = "reward", "panel/unseen/reward", "entropy"
LAST = 2
"""evaluations in a row that must lie below the peak: the peak of many noisy ones always lies a little above the last"""
LEAST = 4
"""evaluations from which on noise can be told from a fall"""
NOISES = 3.0
"""standard deviations of one evaluation that a fall is deeper than"""
MARGIN = 0.05
"""of reward, which a fall is deeper than in any case: an alarm is about what matters"""


class Verdict(NamedTuple):
    """What a run's curves say."""

    collapsed: bool | None
    """None: not to be judged by these metrics"""
    steps: tuple[int, ...]
    """the evaluations at which the alarm sounds, by step"""
    told: str
    """in one line"""


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows of metrics as columns by name; None where a row lacks one."""
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}


def collapse(metrics: Any) -> Verdict:
    """Judge one run by the rows that hold an evaluation.

    The alarm sounds at an evaluation where it and the one before lie below the highest one earlier in the run, by more
    than ``MARGIN`` and ``NOISES`` times the noise, while the training reward of these two is not below that of the
    highest by as much. Noise is the median step from one evaluation to the next, as a standard deviation of one:
    a slow fall raises it, so that it is rather missed than imagined.

    Args:
        metrics: one run's columns by name (:func:`columns_of`, or a data frame): ``step``, ``reward`` and
            ``panel/unseen/reward``, and perhaps ``entropy``. What is no number was not measured.
    """
    if missing := [name for name in ("step", REWARD, UNSEEN) if name not in metrics]:
        return Verdict(None, (), f"collapse: not judged, the metrics have no column {', '.join(missing)}")
    names = [name for name in ("step", REWARD, UNSEEN, ENTROPY) if name in metrics]
    numbers = {name: _numbers(metrics[name]) for name in names}
    evaluated = np.flatnonzero(np.isfinite(numbers["step"]) & np.isfinite(numbers[UNSEEN]))
    order = evaluated[np.argsort(numbers["step"][evaluated], kind="stable")]
    step, reward, unseen = (numbers[name][order] for name in names[:3])
    if len(step) < LEAST:
        words = f"{len(step)} evaluations on unseen simulators are too few, {LEAST} it takes"
        return Verdict(None, (), f"collapse: not judged, {words}")
    peaks = {i: _fallen_from(unseen[: i + 1], reward[: i + 1]) for i in range(LEAST - 1, len(step))}
    fallen = [i for i, peak in peaks.items() if peak is not None]
    if not fallen:
        told = f"no collapse alarm: unseen reward {unseen[-1]:.2f} at the end, {unseen.max():.2f} at its peak"
        return Verdict(False, (), told)
    first, peak = fallen[0], peaks[fallen[0]]
    told = f"collapse alarm at step {step[first]:.0f}: unseen reward {unseen[first]:.2f}, and {unseen[peak]:.2f} at "
    told += f"step {step[peak]:.0f}, while training reward held ({reward[first]:.2f})"
    spoken = numbers.get(ENTROPY, np.array([]))
    if (spoken := spoken[np.isfinite(spoken)]).size:
        told += f"; entropy went from {spoken[0]:.2f} to {spoken[-1]:.2f}"
    return Verdict(True, tuple(int(step[i]) for i in fallen), told)


def collapse_of(folder: Path) -> Verdict:
    """The verdict on a run's folder; ScopeError if its metrics are damaged."""
    path = folder / "metrics.jsonl"
    return collapse(columns_of(read_lines(path) if path.is_file() else []))


def _numbers(values: Iterable[Any]) -> Float[np.ndarray, " n"]:
    found = []
    for value in values:
        try:
            found.append(float(value))
        except (TypeError, ValueError):
            found.append(np.nan)
    return np.array(found)


def _fallen_from(unseen: Float[np.ndarray, " n"], reward: Float[np.ndarray, " n"]) -> int | None:
    """The number of the evaluation that the last ones have fallen from, None if they have not."""
    peak = int(unseen[:-LAST].argmax())
    if not unseen[peak] - unseen[-LAST:].max() > _margin(unseen):
        return None
    trained = reward[np.isfinite(reward)]
    # before the first step there is no training reward that could be lost
    lost = reward[peak] - reward[-LAST:].mean() if np.isfinite(reward[peak]) else 0.0
    return peak if lost <= _margin(trained) else None


def _margin(values: Float[np.ndarray, " n"]) -> float:
    """How much of a difference is more than noise."""
    return max(MARGIN, NOISES * 1.4826 / 2**0.5 * float(np.median(np.abs(np.diff(values)))) if len(values) > 1 else 0)
