"""Diagnostics of a text simulator, its health: measures of its replies in short dialogues, held against thresholds.

The simulator plays the users of some scenarios against a partner who says the same lines to everyone
(:func:`play`). At every turn several replies are drawn; the first that can be used continues the dialogue. What does
not pass the gate (``models.gate``) has rows of its own, and the other measures are of the rest: a simulator that
says nothing is not measured, not collapsed. :func:`measure` turns the replies into numbers, one per dialogue, and
:func:`report` into means with intervals and a reading. Dialogues are the independent units: turns of one dialogue share
their beginning. The detectors are plain word patterns, made to be read and argued with; they find the blatant cases and
miss the subtle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scope_lite.envs.prompts import (
    Message,
    persuadee,
    persuadee_chat,
    scripted_agent,
    user_simulator,
    user_simulator_chat,
)
from scope_lite.envs.tau2 import Scenario
from scope_lite.measure.patterns import PERSUADER_TALK, REFUSAL, SUPPORT_TALK
from scope_lite.measure.samples import distinct_n, miller_madow_entropy, mode_share, normalise_reply
from scope_lite.measure.stats import clustered_interval, share_interval
from scope_lite.models.gate import REASONS, hear, readable
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_markdown
from scope_lite.store.plain_yaml import read_yaml

if TYPE_CHECKING:
    from scope_lite.models.replies import Reply

DISTINCT_REPLIES = 8
"""distinct-n falls as replies are added, so it is always taken over the first eight of a history."""
OPENING_WORDS = 3
"""Two replies open alike if their first three words agree: a coarser "same" that a few replies can resolve."""
LEAK_WORDS = 7
"""So many words in a row from the instructions count as leaked (no human turn of P4G has them; 6 would find one)."""
ECHO_WORDS = 7
"""So many words in a row of the partner's, word for word, count as a reversed role."""

VARIETY = ("entropy", "mode_share", "distinct_1", "distinct_2")


@dataclass(frozen=True)
class Script:
    """The partner's part of a dialogue, and how the simulator is prompted in it."""

    lines: Sequence[str]
    chat: Callable[[str, Sequence[str]], list[Message]]
    """(the user's text, what was said so far) to the chat that the simulator reads"""
    talk: re.Pattern[str]
    """what only the partner says"""
    stop: str = ""
    """what the user writes to end the dialogue; empty where the task has no such sign"""
    done: int = 0
    """the line (from 0) with which the partner says that all is done"""


CUSTOMER = Script(
    scripted_agent.SUPPORT, user_simulator_chat, SUPPORT_TALK, scripted_agent.STOP, scripted_agent.SUPPORT_DONE
)
PERSUADEE = Script(scripted_agent.PERSUADER, lambda persona, turns: persuadee_chat(turns, persona), PERSUADER_TALK)


@dataclass(frozen=True)
class Situation:
    """One user to be played, and what the user must not say word for word."""

    name: str
    about: str
    """who the user is and what they want: goes into the simulator's system prompt"""
    hidden: str
    """instructions on how to behave: never to be said"""
    told: str
    """facts and wishes: a user may say them, but not as they stand there, addressed to "you" """
    script: Script = CUSTOMER


@dataclass(frozen=True)
class Measure:
    """One row of the report."""

    key: str
    label: str
    definition: str
    threshold: float
    """of the mean; NaN for a measure without judgement"""
    high_is_good: bool = False
    unit: str = "share"

    @property
    def good_if(self) -> str:
        """The threshold in words."""
        if math.isnan(self.threshold):
            return ""
        return f"{'at least' if self.high_is_good else 'at most'} {self.threshold:.3g}"


_DATA = read_yaml(Path(__file__).with_name("diagnostics.yaml"))


def measures(replies: int) -> tuple[Measure, ...]:
    """The report's rows (diagnostics.yaml); the entropy's threshold depends on the number of replies a history."""
    numbers = {"replies": replies, "OPENING_WORDS": OPENING_WORDS, "DISTINCT_REPLIES": DISTINCT_REPLIES}
    numbers |= {"ECHO_WORDS": ECHO_WORDS, "LEAK_WORDS": LEAK_WORDS}
    found = []
    for row in _DATA:
        key, definition = row["key"], row.get("definition") or REASONS[row["key"]]
        least = 0.5 * math.log(replies) if key == "entropy" else row.get("at_least", math.nan)
        threshold, unit = row.get("at_most", least), row.get("unit", "share")
        text = definition.format(**numbers)
        found.append(Measure(key, row["label"], text, threshold, not math.isnan(least), unit))
    return tuple(found)


def tau2_situations(scenarios: Sequence[Scenario]) -> list[Situation]:
    """The customers of tau2-bench: what they want and know may be told, the rest is hidden."""
    instructions = Template(user_simulator.SYSTEM).substitute(scenario="\n")
    return [
        Situation(f"{s.domain} {s.task_id}", s.as_text(),
                  "\n".join([instructions, s.persona, s.unknown_info, s.task_instructions]),
                  "\n".join([s.reason_for_call, s.known_info]))
        for s in scenarios
    ]  # fmt: skip


def persuadee_situations(personas: Sequence[str] = persuadee.PERSONAS) -> list[Situation]:
    """People who are asked to donate; background and instructions are hidden, and nothing ends the dialogue."""
    instructions = Template(persuadee.SYSTEM).substitute(persona="\n")
    return [Situation(f"persuadee {i}", p, f"{instructions}\n{p}", "", PERSUADEE) for i, p in enumerate(personas)]


def play(
    situations: Sequence[Situation],
    sample: Callable[[list[list[Message]]], list[list[Reply]]],
    count_read: Callable[[list[Message]], float] = lambda chat: math.nan,
    turn_done: Callable[[int, int], None] = lambda turn, turns: None,
    tokens: int | None = None,
) -> pd.DataFrame:
    """Let the simulator play every user against the scripted partner.

    Args:
        situations: the users, all of one script.
        sample: some replies, at least two, to each of the given chats.
        count_read: tokens of a chat, if the engine tells.
        turn_done: called with (turns played, turns in all).
        tokens: the most that a reply was to have; None: no limit.

    Returns:
        One row per dialogue, turn and reply: dialogue, situation, turn, reply, partner (the line answered), text,
        failure (why there is no text: ``gate.REASONS``), thought (whether it thought aloud), raw (the whole reply if it
        is more), finished, tokens_written and tokens_read (NaN where the engine does not tell). The first reply with a
        text goes on; a dialogue ends with the turn where that says STOP, or where there is none.

    Raises:
        ScopeError: no situations, or fewer than two replies a history.
    """
    if not situations:
        raise ScopeError("no dialogues to play: give at least one scenario")
    script = situations[0].script
    said: dict[int, list[str]] = {dialogue: [] for dialogue in range(len(situations))}
    rows = []
    for turn, line in enumerate(script.lines):
        going = [d for d, words in said.items() if not any(not w or stops(w, script) for w in words[1::2])]
        chats = [script.chat(situations[d].about, [*said[d], line]) for d in going]
        for d, chat, replies in zip(going, chats, sample(chats) if chats else [], strict=True):
            if len(replies) < 2:
                raise ScopeError("one reply cannot be compared with the others: draw at least two a history")
            read, heard = count_read(chat), [hear(reply, tokens) for reply in replies]
            rows += [
                {"dialogue": d, "situation": situations[d].name, "turn": turn, "reply": i, "partner": line,
                 "text": one.words, "failure": one.failure, "thought": one.thought,
                 "raw": readable(reply.text) if one.failure or one.thought else "",
                 "finished": reply.finished, "tokens_written": _length(reply), "tokens_read": read}
                for i, (reply, one) in enumerate(zip(replies, heard, strict=True))
            ]  # fmt: skip
            said[d] += [line, next((one.words for one in heard if one.words), "")]
        turn_done(turn + 1, len(script.lines))
    return pd.DataFrame(rows)


def stops(text: str, script: Script = CUSTOMER) -> bool:
    """Whether a reply ends the dialogue, in the exact words that the prompt asks for (letter case apart)."""
    return bool(script.stop) and script.stop.casefold() in text.casefold()


def inverts_role(text: str, script: Script = CUSTOMER, turn: int = -1) -> bool:
    """Whether a user's reply is the partner's: a phrase of theirs, or a run of words of theirs up to line ``turn``."""
    heard = script.lines if turn < 0 else script.lines[: turn + 1]
    phrase = script.talk.search(text.replace("’", "'"))
    return bool(phrase) or bool(_runs([text], ECHO_WORDS) & _runs(heard, ECHO_WORDS))


def leaks(text: str, situation: Situation) -> bool:
    """Whether a reply repeats its instructions word for word (:data:`LEAK_WORDS` in a row).

    The facts may be repeated, but not in the words that address the user as "you".
    """
    runs = _runs([text.replace(situation.script.stop or "\n", " ")], LEAK_WORDS)
    addressed = {run for run in _runs([situation.told], LEAK_WORDS) if {"you", "your", "you're"} & set(run)}
    return bool(runs & (_runs([situation.hidden], LEAK_WORDS) | addressed))


def refuses(text: str) -> bool:
    """Whether a reply is a model's refusal to play."""
    return bool(REFUSAL.search(text.replace("’", "'")))


def measure(rows: pd.DataFrame, situations: Sequence[Situation]) -> pd.DataFrame:
    """One value per dialogue and measure, the mean over its histories; NaN where nothing could be observed.

    Columns: dialogue, and one for each key of :func:`measures`.
    """
    table = []
    for dialogue, part in rows.groupby("dialogue"):
        situation = situations[int(dialogue)]
        means = pd.DataFrame([_history(h, situation) for _, h in part.groupby("turn")]).mean().to_dict()
        never = _never_stops(part[part["failure"] == ""].groupby("turn").first().reset_index(), situation.script)
        table.append({"dialogue": dialogue, **means, "never_stops": never})
    return pd.DataFrame(table)


def _never_stops(path: pd.DataFrame, script: Script) -> float:
    stopped = path["text"].map(lambda text: stops(text, script)).astype(bool)
    if not script.stop or stopped[path["turn"] < script.done].any():
        return math.nan
    if not stopped.any() and len(path) < len(script.lines):  # it fell silent before the goodbye
        return math.nan
    return float(not stopped.any())


def report(rows: pd.DataFrame, situations: Sequence[Situation]) -> pd.DataFrame:
    """The health report: one row a measure.

    Args:
        rows: as :func:`play` gives them.
        situations: those that were played.

    Returns:
        Columns: key, measure, value, low, high (95 %, over dialogues: t, exact binomial where each dialogue gives 0 or
        1), unit, dialogues, threshold, good_if, reading ("good", "look at it", "not measured", or "" for a measure
        without threshold), settled (whether the interval lies on one side of the threshold), definition.
    """
    values = measure(rows, situations)
    usable = int((rows["failure"] == "").sum())
    of = "" if usable == len(rows) else f"; of the {usable} of {len(rows)} replies that can be used"
    table = []
    for m in measures(int(rows.groupby(["dialogue", "turn"]).size().max())):
        seen = values[m.key].dropna()
        low, high = _bounds(seen.tolist(), m.unit)
        mean = float(seen.mean()) if len(seen) else math.nan
        reading, settled = _reading(m, mean, low, high)
        table.append({"key": m.key, "measure": m.label, "value": mean, "low": low, "high": high, "unit": m.unit,
                      "dialogues": len(seen), "threshold": m.threshold, "good_if": m.good_if, "reading": reading,
                      "settled": settled, "definition": m.definition + of * (m.key in VARIETY)})  # fmt: skip
    return pd.DataFrame(table)


def as_markdown(table: pd.DataFrame, title: str) -> str:
    """The report as a Markdown page."""
    lines = [
        f"# {for_markdown(title)}",
        "",
        "| measure | value | 95 % interval | good if | reading | what it is |",
        "|---" * 6 + "|",
    ]
    for row in table.itertuples():
        unit = "" if row.unit == "share" else f" {row.unit}"
        interval = "" if math.isnan(row.low) else f"{row.low:.2f} to {row.high:.2f}"
        value = "" if math.isnan(row.value) else f"{row.value:.2f}{unit}"
        unsure = "" if row.settled or not row.good_if else " (the interval reaches past the threshold)"
        cells = (row.measure, value, interval, row.good_if, f"{row.reading}{unsure}", row.definition)
        lines.append("| " + " | ".join(map(for_markdown, cells)) + " |")
    return "\n".join(lines) + "\n"


def _history(part: pd.DataFrame, situation: Situation) -> dict[str, float]:
    """The measures of one history's replies; of their variety only where most of them, and two, can be used."""
    usable, turn, script = part[part["failure"] == ""], int(part["turn"].iloc[0]), situation.script
    texts = usable["text"].tolist()
    compared = texts if len(texts) > 1 and 2 * len(texts) >= len(part) else []
    openings, few = [normalise_reply(t, OPENING_WORDS) for t in compared], compared[:DISTINCT_REPLIES]
    return {
        "entropy": miller_madow_entropy(openings) if openings else math.nan,
        "mode_share": mode_share(openings) if openings else math.nan,
        "distinct_1": distinct_n(few, 1),
        "distinct_2": distinct_n(few, 2),
        "role_inversion": _share(inverts_role(text, script, turn) for text in texts),
        "leaked": _share(leaks(text, situation) for text in texts),
        "early_stop": _share(stops(text, script) for text in texts) if script.stop and turn < script.done else math.nan,
        "refusal": _share(refuses(text) for text in texts),
        "cut_off": 1 - float(usable["finished"].mean()),
        **{reason: float((part["failure"] == reason).mean()) for reason in REASONS},
        "unusable": float((part["failure"] != "").mean()),
        "thought": float(part["thought"].mean()),
        "tokens_written": float(part["tokens_written"].mean()),
        "tokens_read": float(part["tokens_read"].mean()),
    }


def _length(reply: Reply) -> float:
    """Tokens of a reply; an endpoint tells them only through their log-probabilities, if at all."""
    told = [x for x in reply.logprobs if not math.isnan(x)]
    return len(reply.token_ids) or len(told) or math.nan


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return float(np.mean(values)) if values else math.nan


def _runs(texts: Sequence[str], length: int) -> set[tuple[str, ...]]:
    """Every run of ``length`` words in the texts, normalised."""
    found = set()
    for text in texts:
        words = normalise_reply(text).split()
        found |= {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}
    return found


def _bounds(values: Sequence[float], unit: str) -> tuple[float, float]:
    """A 95 % interval of the mean over dialogues; a share's stays within 0 and 1."""
    if values and unit == "share" and set(values) <= {0.0, 1.0}:
        # t gives width 0 where all dialogues agree: "0 of 8" would look like certainty
        exact = share_interval(int(sum(values)), len(values))
        return exact.low, exact.high
    t = clustered_interval(values)
    return (max(0.0, t.low), min(1.0, t.high)) if unit == "share" and t.n > 1 else (t.low, t.high)


def _reading(m: Measure, mean: float, low: float, high: float) -> tuple[str, bool]:
    if math.isnan(m.threshold):
        return "", False
    if math.isnan(mean):
        return "not measured", False
    good = mean >= m.threshold if m.high_is_good else mean <= m.threshold
    one_side = low >= m.threshold or high <= m.threshold  # False for NaN
    return "good" if good else "look at it", one_side
