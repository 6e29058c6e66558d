"""How collapsed a simulator is: epsilon for exact distributions, and its estimates from sampled replies.

For a known distribution, epsilon = 1 - max probability (Def. 3.1). For text only samples are at hand, so "the same
reply" needs a definition (here: equal strings after normalisation, whole or the first few words), estimates need a
bias correction, and an interval must treat one history, not one reply, as the independent unit.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats as scipy_stats

from scope_lite.errors import ScopeError
from scope_lite.verbalized import VerbalizedParseError, read_outputs

if TYPE_CHECKING:
    from scope_lite.engines.reply_cache import Reply

OPENING_WORDS = 3
"""Two replies open alike if their first three words agree: a coarser "same" that 16 replies can resolve."""


def epsilon(probs: Float[np.ndarray, "*batch replies"]) -> Float[np.ndarray, "*batch"]:
    """Per-turn collapse error of exact reply distributions: 1 - max probability along the last axis (Def. 3.1)."""
    return 1.0 - np.asarray(probs, dtype=float).max(axis=-1)


def collapse_error(distributions: Sequence[Float[np.ndarray, "rows replies"]]) -> float:
    """Mean collapse error a turn on visited histories, one array of exact reply distributions a turn (Def. 3.1)."""
    return float(np.mean([epsilon(p).mean() for p in distributions]))


def normalise_reply(text: str, first_words: int | None = None) -> str:
    """Reduce a reply to what must agree for two replies to count as the same string.

    Unicode compatibility forms, letter case, punctuation and spacing are removed; digits stay. With ``first_words``,
    only that many opening words are kept. An empty string means that nothing was said.
    """
    plain = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    words = re.findall(r"\w+(?:'\w+)*", plain)
    return " ".join(words[:first_words])


def mode_share(labels: Sequence[Hashable]) -> float:
    """Share of the most common label: the plug-in estimate of 1 - epsilon. Its floor is 1/n, its bias upward.

    Raises:
        ScopeError: no labels.
    """
    return max(_counts(labels)) / len(labels)


def cross_validated_mode_share(labels: Sequence[Hashable]) -> float:
    """Share of labels that equal the most common one of the *others* (ties shared out): the bias goes the other way.

    Its expectation is the probability of a mode guessed from n - 1 samples, so at most 1 - epsilon, while the plug-in's
    is at least that: together they enclose the truth.

    Raises:
        ScopeError: fewer than two labels.
    """
    counts = Counter(labels)
    if counts.total() < 2:
        raise ScopeError("one reply cannot be compared with the others: draw at least two")
    hits = 0.0
    for label, count in counts.items():
        rest = [c for other, c in counts.items() if other != label]
        top = max(rest, default=0)
        if count - 1 >= top:
            hits += count / (1 + (rest.count(top) if count - 1 == top else 0))
    return hits / counts.total()


def plug_in_entropy(labels: Sequence[Hashable]) -> float:
    """Entropy of the observed shares, in nats; too low for few samples, and never above log n."""
    shares = np.array(_counts(labels)) / len(labels)
    return float(-(shares * np.log(shares)).sum()) + 0.0


def miller_madow_entropy(labels: Sequence[Hashable]) -> float:
    """Plug-in entropy plus (distinct labels - 1) / 2n, in nats: its first-order bias removed (Miller 1955)."""
    return plug_in_entropy(labels) + (len(_counts(labels)) - 1) / (2 * len(labels))


def distinct_n(texts: Sequence[str], n: int = 1) -> float:
    """Distinct word n-grams over all word n-grams of the normalised texts; NaN if there are none (Li et al. 2016)."""
    grams = [tuple(words[i : i + n]) for words in map(_words, texts) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else math.nan


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


@dataclass(frozen=True)
class ReplyMeasures:
    """What the replies at one history look like."""

    replies: int
    mode_share: float
    entropy: float
    """Miller-Madow, nats"""
    distinct_1: float
    distinct_2: float


def measure_replies(texts: Sequence[str], first_words: int | None = None) -> ReplyMeasures:
    """Measure the replies at one history; "the same" is equal after :func:`normalise_reply`. NaN if there are none."""
    if not texts:
        return ReplyMeasures(0, math.nan, math.nan, math.nan, math.nan)
    labels = [normalise_reply(text, first_words) for text in texts]
    return ReplyMeasures(
        len(texts), mode_share(labels), miller_madow_entropy(labels), distinct_n(texts, 1), distinct_n(texts, 2)
    )


def _counts(labels: Sequence[Hashable]) -> list[int]:
    if not labels:
        raise ScopeError("no replies to measure: draw at least one")
    return list(Counter(labels).values())


def _words(text: str) -> list[str]:
    return normalise_reply(text).split()


def direct_rows(condition: str, replies: Sequence[Sequence[Reply]]) -> list[dict[str, Any]]:
    """Rows of the reply table for replies taken as they come, one per history and reply.

    ``first_token_epsilon`` is exact, 1 - the largest probability of the first token at the condition's temperature.
    """
    return [
        {"condition": condition, "history": h, "reply": i, "text": reply.text, "finished": reply.finished,
         "failure": "", "raw": reply.text, "first_token_epsilon": 1 - reply.top_probs[0]}
        for h, drawn in enumerate(replies)
        for i, reply in enumerate(drawn)
    ]  # fmt: skip


def verbalized_rows(
    condition: str, outputs: Sequence[Sequence[Reply]], candidates: int, seed: int
) -> list[dict[str, Any]]:
    """Rows of the reply table for verbalized outputs: one candidate drawn from each, with its stated probability.

    An output that can't be read keeps its row, with no text and the reason in ``failure``: nothing stands in for it.
    """
    flat = [(h, i, output) for h, drawn in enumerate(outputs) for i, output in enumerate(drawn)]
    outcomes, _ = read_outputs([output.text for _, _, output in flat], candidates)
    rows = []
    for (h, i, output), outcome in zip(flat, outcomes, strict=True):
        row: dict[str, Any] = {"condition": condition, "history": h, "reply": i, "text": None, "failure": ""}
        if isinstance(outcome, VerbalizedParseError):
            row["failure"] = outcome.reason
        else:
            row["text"] = outcome.draw(np.random.default_rng([seed, h, i]).random())
        rows.append(row | {"finished": output.finished, "raw": output.text})
    return rows


def write_replies(table: pd.DataFrame, path: Path) -> None:
    """Write a reply table as CSV in one step; an interrupted write leaves the old file."""
    scratch = path.with_suffix(".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(scratch, index=False, lineterminator="\n")
    os.replace(scratch, path)


def read_replies(path: Path) -> pd.DataFrame:
    """Read a reply table; texts come back word for word, even "None" or an empty one.

    Raises:
        ScopeError: the file is absent or is no reply table.
    """
    try:
        table = pd.read_csv(path, dtype={"task": str, "text": str, "raw": str}, keep_default_na=False,
                            na_values={"first_token_epsilon": [""]})  # fmt: skip
        table["text"] = table["text"].where(table["failure"] == "")
    except (OSError, ValueError, KeyError) as error:
        raise ScopeError(f"could not read the reply table {path}: {str(error).splitlines()[0]}") from error
    return table


def by_history(table: pd.DataFrame) -> pd.DataFrame:
    """Measures per condition and history.

    Columns: condition, history, outputs, replies (those that could be read), same_reply and same_opening (shares of
    the most common one), opening_entropy (Miller-Madow, nats), distinct_2, first_token_epsilon. Shares are NaN where
    fewer than half of the outputs could be read: the mode share of a few survivors is high by arithmetic alone.
    """
    rows = []
    for (condition, history), part in table.groupby(["condition", "history"], sort=False):
        texts = [text for text in part["text"] if isinstance(text, str)]
        enough = texts if 2 * len(texts) >= len(part) else []
        whole, opening = measure_replies(enough), measure_replies(enough, OPENING_WORDS)
        rows.append({"condition": condition, "history": history, "outputs": len(part), "replies": len(texts),
                     "same_reply": whole.mode_share, "same_opening": opening.mode_share,
                     "opening_entropy": opening.entropy, "distinct_2": whole.distinct_2,
                     "first_token_epsilon": part["first_token_epsilon"].mean()})  # fmt: skip
    return pd.DataFrame(rows)


def summarise(measures: pd.DataFrame) -> pd.DataFrame:
    """One row per condition from :func:`by_history`: means with 95 % t-intervals over histories, and the failure rate.

    Columns: condition, failure_rate, and for same_reply and same_opening the mean, low, high and number of histories.
    """
    rows = []
    for condition, part in measures.groupby("condition", sort=False):
        row: dict[str, Any] = {"condition": condition}
        row["failure_rate"] = 1 - part["replies"].sum() / part["outputs"].sum()
        for name in ("same_reply", "same_opening"):
            interval = clustered_interval(part[name].tolist())
            row |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
            row["histories"] = interval.clusters
        rows.append(row)
    return pd.DataFrame(rows)
