"""Verbalized Sampling on real text: from a model's output to a distribution over replies, or to a counted failure.

The model is asked for k candidate replies with probabilities (Section 3 of the paper; Zhang et al. 2025). What comes
back is parsed, renormalised, and one candidate is drawn. An output that can't be read raises
:class:`VerbalizedParseError`; it never turns into a single candidate with probability 1, because that would look
exactly like the collapse that we set out to measure. Every candidate passes the same gate as a direct reply
(:mod:`gate`), and of several different lists none is taken: a draft must not be answered with.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Any

import numpy as np

from scope_lite.models import gate

GRAMMAR = r"""
root ::= "[" item (", " item){$more} "]"
item ::= "{\"text\": \"" text "\", \"probability\": 0." [0-9] [0-9] "}"
text ::= [A-Za-z0-9$$] [ !#-\[\]-~]{1,$characters}
"""
"""EBNF for a verbalized list, in which everything is bounded.

A JSON schema, the only form that endpoints know, leaves spaces, line ends and digits free, so a small model runs into
its token limit: an endpoint is asked without. A text has every printable ASCII character but the two that JSON escapes,
and begins with a letter, a digit or $: a smaller alphabet is not neutral (without $ and % fewer amounts are stated).
"""
REASONS = gate.REASONS | {
    "no_list": "no JSON list of candidates in the output",
    "bad_json": "the list is not valid JSON, for instance cut short",
    "many_lists": "several different lists, so that one of them may be a draft",
    "wrong_count": "another number of candidates than asked for, or fewer than two",
    "bad_item": "a candidate is not an object with a text and a probability",
    "bad_text": "a candidate's text is empty, broken or no text",
    "bad_probability": "a probability is not a number from 0 to 1",
    "zero_mass": "all probabilities are zero",
}
SUM_TOLERANCE = 0.02
"""Stated probabilities may miss 1 by this much (two decimals, five candidates) before it is counted."""
MOST_BROKEN = 20
"""Beginnings of a list that are tried: a pathological output costs no more than a long one."""
_TEXT_NAMES = ("text", "message", "reply", "response")
_PROBABILITY_NAMES = ("probability", "prob", "p")


class VerbalizedParseError(ValueError):
    """An output that is no verbalized distribution; ``reason`` is a key of :data:`REASONS`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(REASONS[reason] + (f": {detail}" if detail else ""))
        self.reason = reason


@dataclass(frozen=True)
class VerbalizedDistribution:
    """Distinct candidate replies and their renormalised probabilities (sum 1), with what had to be put right."""

    texts: tuple[str, ...]
    probabilities: tuple[float, ...]
    stated_sum: float
    """what the stated probabilities added up to before they were renormalised"""
    duplicates: int
    """candidates that repeated another one; their probabilities were added"""
    repairs: tuple[str, ...] = ()
    """what had to be forgiven; empty if the output was exactly as asked"""

    def draw(self, uniform: float, alike: bool = False) -> str:
        """The candidate at ``uniform`` (in [0, 1)) of the cumulative distribution; ``alike``: all weigh the same."""
        weights = [1 / len(self.texts)] * len(self.texts) if alike else self.probabilities
        index = int(np.searchsorted(np.cumsum(weights), uniform, side="right"))
        return self.texts[min(index, len(self.texts) - 1)]


@dataclass
class ParseAccount:
    """What became of every output: the numbers that must stand beside any result obtained by Verbalized Sampling."""

    calls: int = 0
    repaired: int = 0
    """read, but not exactly as asked"""
    failures: Counter[str] = field(default_factory=Counter)
    """outputs that could not be read, by reason"""
    sum_off: int = 0
    """read, but the stated probabilities miss 1 by more than ``SUM_TOLERANCE``"""
    with_duplicates: int = 0
    """read, but some candidate was given twice"""
    single: int = 0
    """read, but all candidates are the same text: the collapse that VS is to undo"""
    certain: int = 0
    """read, but all the probability is on one text, the ``single`` ones among them"""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def failure_rate(self) -> float:
        """Share of outputs that could not be read; NaN before the first."""
        return self.failed / self.calls if self.calls else math.nan

    def add(self, outcome: VerbalizedDistribution | VerbalizedParseError) -> None:
        """Count one output."""
        self.calls += 1
        if isinstance(outcome, VerbalizedParseError):
            self.failures[outcome.reason] += 1
            return
        self.repaired += bool(outcome.repairs)
        self.sum_off += abs(outcome.stated_sum - 1) > SUM_TOLERANCE
        self.with_duplicates += outcome.duplicates > 0
        self.single += len(outcome.texts) == 1
        self.certain += max(outcome.probabilities) == 1


Outcome = VerbalizedDistribution | VerbalizedParseError


def grammar(candidates: int = 5, characters: int = 60) -> str:
    """EBNF grammar of a list of ``candidates`` replies of at most ``characters`` + 1 characters each."""
    return Template(GRAMMAR).substitute(more=candidates - 1, characters=characters)


def read_outputs(outputs: Iterable[str], candidates: int = 5) -> tuple[list[Outcome], ParseAccount]:
    """Parse many outputs; return one outcome each, in order, and the account. Nothing is dropped or replaced."""
    account, outcomes = ParseAccount(), [read_output(output, candidates) for output in outputs]
    for outcome in outcomes:
        account.add(outcome)
    return outcomes, account


def read_output(output: str, candidates: int = 5, tokens: int | None = None, finished: bool = True) -> Outcome:
    """What :func:`parse` gives, or why it gives nothing."""
    try:
        return parse(output, candidates, tokens, finished)
    except VerbalizedParseError as error:
        return error


def parse(output: str, candidates: int = 5, tokens: int | None = None, finished: bool = True) -> VerbalizedDistribution:
    """Read one output as a distribution over replies; what is thought aloud before it is passed over.

    As asked, an output is one JSON list of exactly ``candidates`` objects with the keys "text" and "probability".
    Forgiven, and named in ``repairs``, are text around the list, a wrapping object, other common key names, extra keys,
    probabilities as "0.3" or "30%", and another number of candidates (two or more). Probabilities are numbers from 0
    to 1, not all zero; they are renormalised.

    Args:
        tokens: the most that a candidate was to have; None: no limit.
        finished: whether the output ended by itself. One that was cut is read only if it is a whole list: what stands
            in running text may be a draft of the list that was to come.

    Raises:
        VerbalizedParseError: nothing else, whatever the output.
    """
    said = gate.after_thoughts(output)
    if said is None:
        raise VerbalizedParseError("thought")
    repairs = ["thought"] if said != output else []
    output = said.strip()
    exact = _load(output)
    if not finished and exact is None:
        raise VerbalizedParseError("bad_json")
    items = exact if isinstance(exact, list) else _find_list(output, exact, repairs)
    if len(items) < 2:
        raise VerbalizedParseError("wrong_count", f"{len(items)} instead of {candidates}")
    if len(items) != candidates:
        repairs.append("count")
    pairs = [_candidate(item, repairs, tokens) for item in items]
    return _distribution(pairs, tuple(dict.fromkeys(repairs)))


def _load(text: str) -> Any:
    """The JSON value that the whole text is, or None; a repeated key makes it invalid."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("repeated key")
    return dict(pairs)


def _find_list(output: str, whole: Any, repairs: list[str]) -> list[Any]:
    """The list of objects in a wrapping object or in running text; it may stand there again, but no other one."""
    if isinstance(whole, dict):
        lists = [value for value in whole.values() if isinstance(value, list)]
        if len(lists) != 1:
            raise VerbalizedParseError("no_list")
        repairs.append("wrapped")
        return lists[0]
    found: list[Any] = []
    decoder, broken, end = json.JSONDecoder(object_pairs_hook=_unique), 0, 0
    for start in (match.start() for match in re.finditer(r"\[\s*\{", output)):
        if start < end:  # inside the list before
            continue
        try:
            items, end = decoder.raw_decode(output, start)
        except (ValueError, RecursionError):
            broken += 1
            if found or broken == MOST_BROKEN:  # the list that counts may be the one that was cut
                raise VerbalizedParseError("bad_json") from None
            continue
        if found and items != found:
            raise VerbalizedParseError("many_lists")
        found = items
    if not found:
        raise VerbalizedParseError("bad_json" if broken else "no_list")
    repairs.append("surroundings")
    return found


def _candidate(item: Any, repairs: list[str], tokens: int | None) -> tuple[str, float]:
    """Text and probability of one candidate."""
    known = (_TEXT_NAMES, _PROBABILITY_NAMES)
    found = [[name for name in names if name in item] for names in known] if isinstance(item, dict) else []
    if [len(names) for names in found] != [1, 1]:
        raise VerbalizedParseError("bad_item")
    if set(item) != {"text", "probability"}:
        repairs.append("keys")
    text, probability = (item[name] for (name,) in found)
    if not isinstance(text, str):
        raise VerbalizedParseError("bad_text")
    words, failure, thought = gate.heard(text, tokens=tokens)
    if failure or thought:
        raise VerbalizedParseError("bad_text" if failure in ("empty", "broken") else failure or "thought")
    return words, _probability(probability, repairs)


def _probability(value: Any, repairs: list[str]) -> float:
    if isinstance(value, str) and (number := re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,9})?)\s*(%?)\s*", value, re.ASCII)):
        repairs.append("percent" if number[2] else "quoted number")
        value = float(number[1]) / (100 if number[2] else 1)
    # bool is an int to Python; NaN fails both comparisons, and a huge int compares without becoming a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise VerbalizedParseError("bad_probability", repr(value)[:40])
    return float(value)


def _distribution(pairs: Sequence[tuple[str, float]], repairs: tuple[str, ...]) -> VerbalizedDistribution:
    """Merge repeated texts and renormalise."""
    masses: dict[str, float] = {}
    for text, probability in pairs:
        masses[text] = masses.get(text, 0.0) + probability
    total = math.fsum(masses.values())
    if not total > 0:
        raise VerbalizedParseError("zero_mass")
    probabilities = tuple(mass / total for mass in masses.values())
    return VerbalizedDistribution(tuple(masses), probabilities, total, len(pairs) - len(masses), repairs)
