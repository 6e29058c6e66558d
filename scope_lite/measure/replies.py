"""The reply table: one row a reply, written and read word for word, and what it says by history and by condition.

Columns: model, task ("p4g", "retail"), history (its name), after (the act that it ends with, P4G only), condition,
reply (number), text (missing if there is none that can be used), act (P4G only, as the shipped classifier reads it),
finished, failure (why there is none: ``verbalized.REASONS``), raw (the whole output, of Verbalized Sampling and of a
direct reply that failed), and the exact token-level quantities of :func:`direct_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scope_lite.measure import samples
from scope_lite.measure.samples import cluster_labels, mode_share, normalise_reply
from scope_lite.measure.stats import clustered_interval
from scope_lite.models.gate import hear, readable
from scope_lite.models.verbalized import VerbalizedParseError, read_output
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_csv
from scope_lite.store.files import replace_text

if TYPE_CHECKING:
    from scope_lite.models.replies import Reply

OPENING_TOKENS = (1, 2, 4, 8)
"""Lengths k of an opening at which token-level quantities are kept."""
LEVELS = ("string", "cluster", "act")
"""What counts as the same reply, from strict to coarse: equal after :func:`normalise_reply`; alike in wording
(:func:`cluster_labels`); the same dialogue act."""
Measure = Callable[[Sequence[Hashable]], float]
ESTIMATORS: dict[str, Measure] = {
    "plug-in": samples.plug_in_entropy,
    "Miller-Madow": samples.miller_madow_entropy,
    "Chao-Shen": samples.chao_shen_entropy,
}
"""Estimates of entropy, in nats."""
SHARES: dict[str, Measure] = {
    "mode share": mode_share,
    "mode share, cross-validated": samples.cross_validated_mode_share,
}
VARIETY: dict[str, Measure] = {
    "mode_share": mode_share,
    "cross_validated": samples.cross_validated_mode_share,
    "entropy": samples.chao_shen_entropy,
}
"""the columns of :func:`by_history`"""
HISTORY = ["task", "history"]


# -- rows --------------------------------------------------------------------------------------------------------------


def direct_rows(condition: str, replies: Sequence[Sequence[Reply]], tokens: int | None = None) -> list[dict[str, Any]]:
    """Rows of the reply table for replies taken as they come, one per history (its number) and reply.

    One that does not pass the gate (``tokens`` is the most that were asked for) keeps its row, as an unreadable list
    does.

    Exact, at the condition's temperature, straight from the model's probabilities: ``first_token_epsilon`` is 1 - the
    largest probability of the first token; ``logprob_k`` the log-probability of the reply's first k tokens, and
    ``entropy_k`` the summed entropy of the distributions that these were drawn from (nats; its mean over replies
    estimates the entropy of the first k tokens without bias, by the chain rule). What ended before k counts whole.
    """
    return [
        {"condition": condition, "history": h, "reply": i, "text": None if failure else words,
         "finished": reply.finished, "failure": failure, "raw": readable(reply.text) if failure else "",
         **_token_level(reply, thought)}
        for h, drawn in enumerate(replies)
        for i, reply in enumerate(drawn)
        for words, failure, thought in [hear(reply, tokens)]
    ]  # fmt: skip


def _token_level(reply: Reply, thought: bool) -> dict[str, float]:
    """The exact quantities of a reply; NaN where nothing was sampled, or a thought first."""
    unknown = thought or not reply.logprobs
    logprobs, entropies = ((math.nan,), (math.nan,)) if unknown else (reply.logprobs, reply.entropies)
    return {
        "first_token_epsilon": math.nan if unknown else 1 - reply.top_probs[0],
        **{f"logprob_{k}": math.fsum(logprobs[:k]) for k in OPENING_TOKENS},
        **{f"entropy_{k}": math.fsum(entropies[:k]) for k in OPENING_TOKENS},
    }


def verbalized_rows(
    condition: str,
    outputs: Sequence[Sequence[Reply]],
    candidates: int,
    seed: int,
    tokens: int | None = None,
    uniform: bool = False,
) -> list[dict[str, Any]]:
    """Rows of the reply table for verbalized outputs: one candidate drawn from each, with its stated probability.

    An output that can't be read keeps its row, with no text and the reason in ``failure``: nothing stands in for it.
    With ``uniform`` every different candidate weighs the same; the outputs are then not kept a second time (``raw``).
    """
    rows = []
    for h, i, output in ((h, i, output) for h, drawn in enumerate(outputs) for i, output in enumerate(drawn)):
        outcome = read_output(output.text, candidates, tokens=tokens, finished=output.finished)
        row: dict[str, Any] = {"condition": condition, "history": h, "reply": i, "text": None, "failure": ""}
        if isinstance(outcome, VerbalizedParseError):
            row["failure"] = output.failure or outcome.reason
        else:
            row["text"] = outcome.draw(np.random.default_rng([seed, h, i]).random(), uniform)
        rows.append(row | {"finished": output.finished, "raw": "" if uniform else readable(output.text)})
    return rows


def write_replies(table: pd.DataFrame, path: Path) -> None:
    """Write a reply table as CSV in one step; an interrupted write leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, for_csv(table, "%.6g"))


def read_replies(path: Path) -> pd.DataFrame:
    """Read a reply table; texts come back word for word, even "None" or an empty one.

    Raises:
        ScopeError: the file is absent or is no reply table.
    """
    words = dict.fromkeys(("task", "history", "after", "text", "act", "raw", "failure"), str)
    numbers = ("first_token_epsilon", *(f"{name}_{k}" for name in ("logprob", "entropy") for k in OPENING_TOKENS))
    try:
        table = pd.read_csv(path, dtype=words, keep_default_na=False, na_values={name: [""] for name in numbers})
        return table.assign(text=table["text"].where(table["failure"] == ""))
    except (OSError, ValueError, KeyError) as error:
        raise ScopeError(f"could not read the reply table {path}: {str(error).splitlines()[0]}") from error


# -- measures ----------------------------------------------------------------------------------------------------------


def labels_of(part: pd.DataFrame, level: str) -> list[str]:
    """A label for every reply of one condition at one history: equal labels count as the same reply.

    Replies of an output that could not be read have none, and where fewer than half could be read the list is empty:
    the mode share of a few survivors is high by arithmetic alone.
    """
    said = part[part["failure"] == ""]
    if 2 * len(said) < len(part):
        return []
    if level == "act":
        return said["act"].tolist() if "act" in said and (said["act"] != "").all() else []
    texts = said["text"].tolist()
    return [normalise_reply(text) for text in texts] if level == "string" else list(map(str, cluster_labels(texts)))


def by_history(table: pd.DataFrame, levels: Sequence[str] = LEVELS) -> pd.DataFrame:
    """How varied the replies of each condition are at each history, at each level of sameness.

    Returns:
        Columns: condition, task, history, level, outputs, replies (those that could be read), mode_share (the plug-in
        estimate, floor 1/n), cross_validated (biased the other way), entropy (Chao-Shen, nats). The last three are NaN
        where :func:`labels_of` gives fewer than two labels.
    """
    rows = []
    for (condition, task, history), part in table.groupby(["condition", *HISTORY], sort=False):
        place = {"condition": condition, "task": task, "history": history}
        counts = {"outputs": len(part), "replies": int((part["failure"] == "").sum())}
        for level in levels:
            labels = labels_of(part, level)
            values = {name: measure(labels) if len(labels) > 1 else math.nan for name, measure in VARIETY.items()}
            rows.append({**place, "level": level, **counts, **values})
    return pd.DataFrame(rows)


def intervals(histories: pd.DataFrame) -> dict[str, float]:
    """The mean of each column of numbers by history, with its t-interval, cut at what is possible."""
    found = {name: clustered_interval(histories[name].tolist()) for name in histories}
    return {
        column: value
        for name, interval in found.items()
        for column, value in interval.columns(name, most=math.inf if name == "entropy" else 1.0).items()
    }


def summarise(measures: pd.DataFrame) -> pd.DataFrame:
    """One row per condition and level from :func:`by_history`: means with 95 % t-intervals over histories.

    Columns: condition, level, histories, failure_rate (share of outputs that could not be read), and for mode_share,
    cross_validated and entropy the mean, ``_low`` and ``_high``, cut at what is possible.
    """
    return pd.DataFrame(
        {"condition": condition, "level": level, "failure_rate": 1 - part["replies"].sum() / part["outputs"].sum(),
         "histories": part["entropy"].count(), **intervals(part[list(VARIETY)])}
        for (condition, level), part in measures.groupby(["condition", "level"], sort=False)
    )  # fmt: skip


def size_curve(table: pd.DataFrame, level: str, sizes: Sequence[int]) -> pd.DataFrame:
    """What each estimator would say with fewer replies a history, mean over histories with 95 % t-intervals.

    Returns:
        Columns: condition, level, replies (n), measure (a key of :data:`ESTIMATORS` or :data:`SHARES`), mean, low,
        high.
    """
    rows = []
    for condition, part in table.groupby("condition", sort=False):
        labels = [labels_of(history, level) for _, history in part.groupby(HISTORY, sort=False)]
        for name, measure in (ESTIMATORS | SHARES).items():
            values = np.array([samples.at_smaller_sizes(drawn, sizes, measure) for drawn in labels])
            for size, column in zip(sizes, values.T, strict=True):
                found = clustered_interval(column.tolist())
                rows.append({"condition": condition, "level": level, "replies": size, "measure": name,
                             "mean": found.mean, "low": found.low, "high": found.high})  # fmt: skip
    return pd.DataFrame(rows)


def token_level(table: pd.DataFrame) -> pd.DataFrame:
    """The exact quantities of the first k tokens, by condition (direct sampling) and k, over histories.

    Returns:
        Columns: condition, tokens (k), mode_probability with ``_low`` and ``_high``, entropy with ``_low`` and
        ``_high`` (nats). At k = 1 the mode's probability is exact; beyond, it is the largest exact probability among
        the drawn openings, so a lower bound, close where the mode is likely enough to be drawn. Intervals: 95 %,
        histories as units.
    """
    rows = []
    direct = table[table["condition"].str.startswith("direct") & (table["failure"] != "context")]
    for condition, part in direct.groupby("condition", sort=False):
        histories = part.groupby(HISTORY, sort=False)
        for k in OPENING_TOKENS:
            exact = 1 - histories["first_token_epsilon"].nth(0) if k == 1 else np.exp(histories[f"logprob_{k}"].max())
            values = {"mode_probability": exact.to_numpy(), "entropy": histories[f"entropy_{k}"].mean().to_numpy()}
            rows.append({"condition": condition, "tokens": k, **intervals(pd.DataFrame(values))})
    return pd.DataFrame(rows)
