"""Diagnostics of a text simulator, its health: measures of its replies in short dialogues, held against thresholds.

The simulator plays users against a partner who says the same lines to everyone (``scripted.play``), and at every turn
several replies are drawn. What does not pass the gate (``models.gate``) has rows of its own, and the other measures are
of the rest: a simulator that says nothing is not measured, not collapsed. :func:`measure` turns the replies into
numbers, one per dialogue, and :func:`report` into means with intervals and a reading. Dialogues are the independent
units: turns of one dialogue share their beginning. The detectors are plain word patterns (diagnostics.yaml), made to be
read and argued with; they find the blatant cases and miss the subtle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

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
from scope_lite.measure.samples import miller_madow_entropy, mode_share, normalise_reply
from scope_lite.measure.stats import UNMEASURED, Interval, clustered_interval, share_interval
from scope_lite.models.gate import REASONS
from scope_lite.store.escaping import for_markdown
from scope_lite.store.plain_yaml import read_yaml

OPENING_WORDS = 3
"""Two replies open alike if their first three words agree: a coarser "same" that a few replies can resolve."""
LEAK_WORDS = 7
"""So many words in a row from the instructions count as leaked (no human turn of P4G has them; 6 would find one)."""
ECHO_WORDS = 7
"""So many words in a row of the partner's, word for word, count as a reversed role."""
VARIETY = ("entropy", "mode_share")

_DATA = read_yaml(Path(__file__).with_name("diagnostics.yaml"))
SUPPORT_TALK, PERSUADER_TALK, REFUSAL = (
    re.compile("|".join(_DATA["patterns"][name]), re.IGNORECASE | re.MULTILINE)
    for name in ("support talk", "persuader talk", "refusal")
)


@dataclass(frozen=True)
class Script:
    """The partner's part of a dialogue, and how the simulator is prompted in it."""

    lines: tuple[str, ...]
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


# -- detectors --------------------------------------------------------------------------------------------------------


def stops(text: str, script: Script = CUSTOMER) -> bool:
    """Whether a reply ends the dialogue, in the exact words that the prompt asks for (letter case apart)."""
    return bool(script.stop) and script.stop.casefold() in text.casefold()


def inverts_role(text: str, script: Script = CUSTOMER, turn: int | None = None) -> bool:
    """Whether a user's reply is the partner's: a phrase of theirs, or a run of words of theirs up to line ``turn``."""
    heard = {run for line in script.lines[: None if turn is None else turn + 1] for run in _runs(line, ECHO_WORDS)}
    return bool(script.talk.search(text.replace("’", "'")) or _runs(text, ECHO_WORDS) & heard)


def leaks(text: str, situation: Situation) -> bool:
    """Whether a reply repeats its instructions word for word (:data:`LEAK_WORDS` in a row).

    The facts may be repeated, but not in the words that address the user as "you".
    """
    said = text.replace(situation.script.stop or "\n", " ")
    addressed = {run for run in _runs(situation.told, LEAK_WORDS) if {"you", "your", "you're"} & set(run)}
    return bool(_runs(said, LEAK_WORDS) & (_runs(situation.hidden, LEAK_WORDS) | addressed))


def refuses(text: str) -> bool:
    """Whether a reply is a model's refusal to play."""
    return bool(REFUSAL.search(text.replace("’", "'")))


def _runs(text: str, length: int) -> set[tuple[str, ...]]:
    """Every run of ``length`` words of a text, normalised."""
    words = normalise_reply(text).split()
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


# -- the report -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """One row of the report."""

    key: str
    label: str
    definition: str
    at_least: float = math.nan
    """what the mean has to reach, or not to exceed, to be good; a measure with neither is not judged"""
    at_most: float = math.nan
    unit: str = "share"

    @property
    def threshold(self) -> float:
        return self.at_most if math.isnan(self.at_least) else self.at_least

    @property
    def good_if(self) -> str:
        """The threshold in words."""
        words = "at most" if math.isnan(self.at_least) else "at least"
        return "" if math.isnan(self.threshold) else f"{words} {self.threshold:.3g}"

    def reading(self, mean: float) -> str:
        """What the mean over dialogues says; empty for a measure that is not judged."""
        if math.isnan(self.threshold) or math.isnan(mean):
            return "" if math.isnan(self.threshold) else UNMEASURED
        return "look at it" if mean < self.at_least or mean > self.at_most else "good"


def measures(replies: int) -> list[Measure]:
    """The report's rows (diagnostics.yaml); the entropy's threshold depends on the number of replies a history."""
    numbers = {"replies": replies, "OPENING_WORDS": OPENING_WORDS, "ECHO_WORDS": ECHO_WORDS, "LEAK_WORDS": LEAK_WORDS}
    by_key = {row["key"]: {"definition": REASONS.get(row["key"], ""), **row} for row in _DATA["measures"]}
    by_key["entropy"]["at_least"] = 0.5 * math.log(replies)
    return [Measure(**row | {"definition": row["definition"].format(**numbers)}) for row in by_key.values()]


def measure(rows: pd.DataFrame, situations: Sequence[Situation]) -> pd.DataFrame:
    """One value per dialogue and measure, the mean over its histories; NaN where nothing could be observed.

    Columns: dialogue, and one for each key of :func:`measures`.
    """
    usable = rows["failure"] == ""
    said = rows[usable]
    users = [situations[dialogue] for dialogue in said["dialogue"]]
    heard = list(zip(said["text"], users, said["turn"], strict=True))
    replies = said[["dialogue", "turn"]].assign(
        role_inversion=[inverts_role(text, user.script, turn) for text, user, turn in heard],
        leaked=[leaks(text, user) for text, user, _ in heard],
        early_stop=[stops(t, u.script) if u.script.stop and n < u.script.done else math.nan for t, u, n in heard],
        refusal=[refuses(text) for text, *_ in heard],
        cut_off=1.0 - said["finished"],
    )
    outputs = rows[["dialogue", "turn", "thought", "tokens_written", "tokens_read"]].assign(
        unusable=~usable, **{reason: rows["failure"] == reason for reason in REASONS if reason != "thought"}
    )
    history = ["dialogue", "turn"]
    means = [part.astype(float).groupby(history).mean() for part in (replies, outputs)]
    varied = pd.DataFrame({key: _variety(part) for key, part in rows.groupby(history)}, index=VARIETY).T
    found = pd.concat([varied.rename_axis(history), *means], axis=1).groupby("dialogue").mean()
    path = said.drop_duplicates(history)
    ends = {d: _never_stops(path[path["dialogue"] == d], situations[int(d)].script) for d in found.index}
    return found.assign(never_stops=pd.Series(ends, dtype=float)).reset_index()


def _variety(history: pd.DataFrame) -> tuple[float, float]:
    """Entropy and mode share of openings, only where most of a history's replies, and two, can be used."""
    texts = history.loc[history["failure"] == "", "text"]
    if len(texts) < 2 or 2 * len(texts) < len(history):
        return math.nan, math.nan
    openings = [normalise_reply(text, OPENING_WORDS) for text in texts]
    return miller_madow_entropy(openings), mode_share(openings)


def _never_stops(path: pd.DataFrame, script: Script) -> float:
    """Whether a dialogue, of the replies that went on, had no stop; NaN if it ended, or fell silent, too early."""
    stopped = [stops(text, script) for text in path["text"]]
    early = any(stop and turn < script.done for stop, turn in zip(stopped, path["turn"], strict=True))
    silent = not any(stopped) and len(path) < len(script.lines)
    return math.nan if not script.stop or early or silent else float(not any(stopped))


def report(rows: pd.DataFrame, situations: Sequence[Situation]) -> pd.DataFrame:
    """The health report: one row a measure.

    Args:
        rows: as ``scripted.play`` gives them.
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
        found = _interval(values[m.key].dropna().tolist(), m.unit)
        bounds = found.columns("value", *((0.0, 1.0) if m.unit == "share" else (-math.inf, math.inf)))
        low, high = bounds["value_low"], bounds["value_high"]
        table.append({"key": m.key, "measure": m.label, "value": found.mean, "low": low, "high": high, "unit": m.unit,
                      "dialogues": found.n, "threshold": m.threshold, "good_if": m.good_if,
                      "reading": m.reading(found.mean), "settled": low >= m.threshold or high <= m.threshold,
                      "definition": m.definition + of * (m.key in VARIETY)})  # fmt: skip
    return pd.DataFrame(table)


def _interval(values: list[float], unit: str) -> Interval:
    """Of the mean over dialogues; t gives width 0 where all agree: "0 of 8" would look like certainty."""
    if values and unit == "share" and set(values) <= {0.0, 1.0}:
        return share_interval(int(sum(values)), len(values))
    return clustered_interval(values)


def as_markdown(table: pd.DataFrame, title: str) -> str:
    """The report as a Markdown page."""
    head = "| measure | value | 95 % interval | good if | reading | what it is |"
    lines = [f"# {for_markdown(title)}", "", head, "|---" * 6 + "|"]
    for row in table.itertuples():
        unit = "" if row.unit == "share" else f" {row.unit}"
        interval = "" if math.isnan(row.low) else f"{row.low:.2f} to {row.high:.2f}"
        value = "" if math.isnan(row.value) else f"{row.value:.2f}{unit}"
        unsure = "" if row.settled or not row.good_if else " (the interval reaches past the threshold)"
        cells = (row.measure, value, interval, row.good_if, f"{row.reading}{unsure}", row.definition)
        lines.append("| " + " | ".join(map(for_markdown, cells)) + " |")
    return "\n".join(lines) + "\n"
