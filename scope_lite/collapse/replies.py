"""The reply table: one row a reply, and what it says by condition and history."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scope_lite.collapse.intervals import clustered_interval
from scope_lite.collapse.samples import distinct_n, miller_madow_entropy, mode_share, normalise_reply
from scope_lite.errors import ScopeError
from scope_lite.verbalized import VerbalizedParseError, read_outputs

if TYPE_CHECKING:
    from scope_lite.engines.reply_cache import Reply

OPENING_WORDS = 3
"""Two replies open alike if their first three words agree: a coarser "same" that 16 replies can resolve."""


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
