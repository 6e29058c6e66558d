"""Read from a persuadee's own words how much of the payment goes to the charity: dollars in [0, 2], or nothing said.

Samples: "I can spare a nickel I guess" is 0.05; "$2 is a little high, go with a dollar?" is 1; "I'd rather keep the
money" is 0; "does the $2 from me really matter?" states nothing, so None. What counts as a statement:

- an own offer for now, also as a question ("how about 50 cents?"); of alternatives the lower, of statements the last;
- a refusal is 0; a yes without an amount, past gifts, others' money, hours, and amounts called too high are None;
- shares are of the payment; ".50 cents" is half a dollar, as its writers mean it; more than the payment is the payment.

Rules, not a model, so that every reading can be explained. They were written on the "dev" half of the hand-labelled
utterances of ``data/p4g/donation_utterances.csv``; the "test" half was chosen and labelled after, and never tuned on.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from scope_lite.errors import ScopeError
from scope_lite.paths import DATA

PAYMENT = 2.0
"""Dollars that a participant is paid for the dialogue: the most that can be given."""
UTTERANCES = DATA / "p4g" / "donation_utterances.csv"

# -- amounts ----------------------------------------------------------------------------------------------------------

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_WORDS = {word: n for n, word in enumerate(_ONES)} | {word: 10 * n for n, word in enumerate(_TENS, start=2)}
_WORDS |= {"a": 1, "an": 1, "another": 1, "couple": 2, "hundred": 100, "thousand": 1000}
_COINS = {"penny": 0.01, "nickel": 0.05, "dime": 0.10, "quarter": 0.25}
_FRACTIONS = {"half": 1 / 2, "1/2": 1 / 2, "50/50": 1 / 2, "third": 1 / 3, "quarter": 1 / 4}

_DIGITS = r"(?<![\d.$])(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_SPOKEN = rf"\b(?:{'|'.join(_WORDS)})(?:[ -](?:{'|'.join(_ONES)}))?\b"
_COUNT = rf"(?P<n>{_DIGITS}|{_SPOKEN})"
_OF = r"(?:[ -](?:of|more|american|us|whole|single|measly))*[ -]?"
_PAY = r"(?:payment|pay|earnings?|bonus|reward|money|compensation|hit|\$2(?:\.00)?|2 dollars)"


@dataclass(frozen=True)
class _Amount:
    """One amount in a clause: "money" (it has a unit), "share" (of the payment) or "bare" (a number alone)."""

    start: int
    dollars: float
    kind: str


def _count(match: re.Match[str]) -> float:
    text = match["n"]
    if text[0].isdigit() or text[0] == ".":
        return float(text.replace(",", ""))
    return float(sum(_WORDS[word] for word in re.split(r"[ -]", text)))


def _cents(match: re.Match[str]) -> float:
    n = _count(match)
    return n if "." in match["n"] and n < 1 else n / 100


# (pattern, kind, value); an earlier pattern claims its characters. A value is in dollars, a share's in payments.
_READERS: tuple[tuple[str, str, Callable[[re.Match[str]], float]], ...] = (
    (rf"{_COUNT} ?(?:%|per ?cent\b)", "share", lambda m: _count(m) / 100),
    (rf"{_COUNT}{_OF}(?:c?ents?|penn(?:y|ies))\b", "money", _cents),
    (r"\$(?P<n>\d[\d,]*(?:\.\d+)?|\.\d+)", "money", _count),
    (rf"{_COUNT}{_OF}(?:dollars?|bucks?|usd|dl)\b", "money", _count),
    (rf"\b(?:an?|one|1) (?P<n>{'|'.join(_COINS)})\b(?! of)", "money", lambda m: _COINS[m["n"]]),
    (rf"\b(?:a )?(?P<n>{'|'.join(_FRACTIONS)})\b(?! an? )", "share", lambda m: _FRACTIONS[m["n"]]),
    (rf"\ball (?:of )?(?:it\b|what i|i (?:earn|make|get)|(?:(?:my|the|this) )?(?:\w+ )?{_PAY}\b)"
     rf"|\b(?:whole|entire|full) (?:amount|thing|(?:\w+ )?{_PAY})\b"
     rf"|\b(?:donat\w+|giv(?:e|ing)(?: up)?|contribut\w+) (?:my|this|the) (?:\w+ )?{_PAY}", "share", lambda m: 1.0),
    (r"(?P<n>(?<![\d.$])\d*\.\d+)\b", "money", _count),
    (r"(?P<n>(?<![\d.$/-])\d+)(?![\d/-]|(?:st|nd|rd|th|k)\b)", "bare", _count),
)  # fmt: skip

_NO_MONEY = re.compile(
    rf"(?:{_COUNT}|half)[ -](?:an? |the |of the )?(?:hours?|min\w*|days?|weeks?|months?|years?|times?|kids?|child\w*|"
    r"people|states|world|countries|turns?|chats?|hits?|miles?|siblings|million\w*|billion\w*)\b"
)


def _blank(match: re.Match[str]) -> str:
    """As many characters as were matched, so that all else keeps its place."""
    return "_" * len(match[0])


def _amounts(clause: str, payment: float) -> list[_Amount]:
    """The amounts of a clause from left to right; hours, children and the like are no amounts."""
    rest = _NO_MONEY.sub(_blank, clause)
    found = []
    for pattern, kind, value in _READERS:
        for match in re.finditer(pattern, rest):
            dollars = value(match) * (payment if kind == "share" else 1.0)
            found.append(_Amount(match.start(), dollars, kind))
        rest = re.sub(pattern, _blank, rest)
    return sorted(found, key=lambda amount: amount.start)


# -- clauses ----------------------------------------------------------------------------------------------------------

_I = (
    r"(?:i'll|ill|i will|i would|i'd|i can|i could|i'm|im|i am|i may|i might|i think|i guess|let's|lets|"
    r"we (?:can|could|will|should))"
)
_SPLIT = re.compile(
    r"(?<=[?!;])\s*|(?<=[.,])\s+|\s+-+\s+|\s+(?=(?:but|however|because|since|instead|although|though)\b)"
    r"|(?<!\bfair)(?<!\bok)(?<!\bokay)(?<!\bgood)(?<!\bfine)(?<!\benough)(?<!\babout)\s+(?=if\b)"
    rf"|(?<!\bthink)(?<!\bthat)(?<!\bknow)(?<!\bif)(?<!\bamount)\s+(?={_I}\b)"
)
_GIVE = (
    r"(?:donat\w*|giv(?:e|ing)|contribut\w+|pledge|spare|part with|chip in|offer|go with|mak(?:e|ing) it|put|match|"
    r"commit|send|split|accept|agree\w*|afford|do|pay|compromise|say|add)"
)
_OFFER = re.compile(
    rf"\b(?:{_I}|willing|happy to|glad to|lik(?:e|ing) to|love to|want to|going to|gonna|how about|what about|how's|"
    r"hows|it(?:'ll| will)|have to be|my (?=\$?[\d.])|plan|choose|decid\w+|would|can i|could i|maybe)\b"
    rf"|^(?:so )?(?:just )?{_GIVE}\b"
)
_MINE = re.compile(r"\b(?:i|i'\w+|ill|im|id|me|my|we|our|us|let's|lets|how about|what about|hows|how's)\b")
_OTHERS = re.compile(
    r"\b(?:they|them|people|every(?:one|body)|you|your|their|majority|most|charit\w+|organi[sz]ations?|ceos?|she|"
    r"government)\b"
)
_PAST = re.compile(
    r"\b(?:(?:have|had|'ve|just|already|last \w+|always|usually) (?:\w+ )?(?:donated|given|sent|gave|made)|i gave|"
    r"i did|(?<!if )i donated|i sent|used to|ago|last (?:week|month|year|time)|in the past|usually|"
    r"normally|before that|asked me)\b"
)
_ASKING = re.compile(
    r"\b(?:how (?:much|many|far|does|do|would|will|is)|what(?:'s)? (?:percent\w*|will|would|does|do|can|is|part|are)|"
    r"where|what(?:'s)? portion|do you know|really matter)\b"
    r"|^(?:and |so |but |well )?(?:do you|did|does|are you|have you|would you|will you|is (?:it|that)|you mean)\b"
)
_FINE = re.compile(r"\b(?:ok|okay|enough|fine|fair|good|help|work for you|acceptable)\b")
_SUPPOSED = re.compile(r"^(?:and )?(?:if|let's say|say)\b|\blet's say\b|\bsuppose\b")
_ELSEWHERE = re.compile(
    r"\b(?:spen[dt]|costs?|earn(?:ed|ing)?|mak(?:e|es|ing) (?!it)|paying me|pays|worth|bills?|bank|keep\w*|"
    r"what you|tithing)\b"
)
_FUNDS = re.compile(
    r"\b(?:administrat\w+|overhead|of (?:the |every |each )?(?:funds|donations?|proceeds)|income|paycheck|goes|go to|"
    r"going (?:directly )?to(?: the| those| help|ward)|towards their)\b"
)
_TOO_HIGH = re.compile(r"\b(?:too (?:much|high)|(?:little|bit) (?:high|much|steep)|a lot|small amount)\b")
_HARMLESS = re.compile(
    r"\b(?:(?:do not|don't|would not|wouldn't|not) mind|no (?:problem|question|doubt|idea)|why not|"
    r"not (?:much|sure|only|bad|a lot)|(?:don't|do not|not) know|not (?:necessary|because|that i don't)|no need)\b"
)
_NEGATION = re.compile(r"\b(?:\w+n't|not|cannot|cant|dont|wont|never|no|unable|neither|nor)\b")
_LONE_UNIT = re.compile(r"\b(?:a|one|1|any|single|even a) (?:single )?(?:cent|penny|dollar|dime|nickel)\b")
_CAP = re.compile(r"\b(?:more|higher|over|above) (?:than)?\b|\bexceed\b")
_OF_MORE = re.compile(
    r"\b(?:more|anymore|much|that|higher|else|often|always|enough|how|half|all|until|without|before|regularly)\b"
)
_REFUSED = re.compile(
    r"\b(?:donat\w*|giv(?:e|ing)|contribut\w+|spare|afford(?: it| that| to (?:give|donate)| any\w*|$)|part with|"
    r"money to)\b"
)
_GIFTS = re.compile(r"donated|donations")
_KEEP = re.compile(
    r"(?:\b(?:rather|like to|going to|want to|prefer to|have to|need to|will|thinking of|i'll|choose to) "
    r"(?:just )?keep(?:ing)?|^keeping) (?:all|it|this|that|the(?! (?:other|rest|remain))|my|what|everything|"
    r"full)\b(?! in mind)"
)
_NOTHING = re.compile(
    r"\b(?:donat\w+|giv\w+|contribut\w+|be|amount is|choose|say|do) (?:\w+ )?(?:nothing|zero|none)\b"
    r"|^(?:nothing|zero)$|\bi(?:'ll| will)? pass\b|\bnot interested\b"
)


_FOR_THEM = re.compile(r"\b(?:to|for) (?:the|this|your|a|that) (?:charity|organi[sz]ation|cause|children|kids)\b")


def _clauses(text: str) -> Iterator[str]:
    """The text in lower case, cut where a statement may start; money is written one way."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("’", "'").replace("`", "'").replace("¢", " cents")
    plain = re.sub(r"(?<![\d.$])(\d[\d,]*(?:\.\d+)?|\.\d+) ?\$(?!\d)", r"$\1", plain)
    plain = re.sub(r"\$\s*\.?\s*(?=\.?\d)", lambda m: "$." if "." in m[0] else "$", plain)
    plain = re.sub(r"\$(?=[\d.]+ ?c?ents?\b)", "", plain)
    plain = re.sub(r"(?<=\d),(?=\d\d?(?!\d))", ".", plain)
    plain = re.sub(r"save[- ]the[- ]child\w*", "the charity", plain)
    plain = _FOR_THEM.sub("", plain)
    yield from (part for piece in _SPLIT.split(plain) if (part := piece.strip(' .,;-!()"')))


def _own_amount(clause: str, amounts: list[_Amount]) -> _Amount:
    """The amount given, of several in one clause: money before shares before bare numbers; the lower of two."""
    kind = next(kind for kind in ("money", "share", "bare") if any(a.kind == kind for a in amounts))
    same = [amount for amount in amounts if amount.kind == kind]
    if len(same) > 1 and re.search(r"\bor\b|\bbetween\b|\bmaximum\b", clause[same[0].start : same[-1].start]):
        return min(same, key=lambda amount: amount.dollars)
    verbs = [match.end() for match in re.finditer(rf"\b{_GIVE}\b", clause)]
    after = [a for verb in reversed(verbs) for a in same if a.start >= verb]
    return (after or same)[0]


def _is_offer(clause: str, amount: _Amount) -> bool:
    """Whether the clause says, or asks, that the speaker gives this amount now."""
    told = _ASKING.search(clause) is None or (clause.endswith("?") and _FINE.search(clause) is not None)
    if not told or any(rule.search(clause) for rule in (_SUPPOSED, _TOO_HIGH, _FUNDS)):
        return False
    giving = re.search(rf"\b{_GIVE}\b", clause) is not None
    if _ELSEWHERE.search(clause) and not re.search(r"\b(?:donat\w*|giv(?:e|ing)|contribut\w+)\b", clause):
        return False
    if _OFFER.search(clause) and _PAST.search(clause) is None:
        return amount.kind != "bare" or _bare_is_money(clause, amount)
    if _PAST.search(clause) or (_OTHERS.search(clause) and not _MINE.search(clause)):
        return False
    words = re.findall(r"[a-z']+", clause)
    short = len(words) <= 7
    return (short or (giving and _MINE.search(clause) is not None)) and (
        amount.kind != "bare" or _bare_is_money(clause, amount)
    )


def _bare_is_money(clause: str, amount: _Amount) -> bool:
    before, after = clause[: amount.start], clause[amount.start :]
    led = re.search(
        rf"\b{_GIVE}(?: (?:about|maybe|around|just|at least|only|up to|like|it|to|the|you|at|for|is))*\s*$", before
    )
    alone = re.fullmatch(
        r"(?:(?:yes|ok|okay|sure|nope|no|maybe|like|around|about|just|how about|hows|then|and|so) ?)*", before.strip()
    )
    ended = re.fullmatch(
        r"\d+(?: (?:is|would be|be|sounds|then|it is|please|for|to|today|if|now|from|and)\b.*| ?\?)?", after
    )
    return (led is not None or alone is not None) and ended is not None


def _refuses(clause: str, amounts: list[_Amount]) -> bool:
    """Whether a clause with a negation refuses to give at all, rather than to give more or often."""
    if not _REFUSED.search(clause):
        return False
    if _LONE_UNIT.search(clause):
        return True
    open_ended = any(rule.search(clause) for rule in (_OF_MORE, _PAST, _ASKING, _SUPPOSED, _GIFTS))
    return not amounts and not open_ended


def _statement(clause: str, payment: float) -> float | None:
    """What one clause states, in dollars that may exceed the payment; None if nothing."""
    amounts = _amounts(clause, payment)
    if any(amount.dollars == 0 and amount.kind != "bare" for amount in amounts) or _NOTHING.search(clause):
        return 0.0
    if _KEEP.search(clause) and all(amount.kind == "share" for amount in amounts):
        return 0.0
    negated = _NEGATION.search(_HARMLESS.sub("", clause)) and not clause.startswith(("no ", "nope "))
    if negated and not (amounts and _CAP.search(clause)):
        return 0.0 if _refuses(clause, amounts) else None
    if not amounts:
        return None
    amount = _own_amount(clause, amounts)
    return amount.dollars if _is_offer(clause, amount) else None


def read_donation(text: str, payment: float = PAYMENT) -> float | None:
    """The donation that one utterance states for its speaker, in dollars from 0 to ``payment``; None if it states none.

    The last statement counts, so a pledge can be taken back or replaced in the same breath.
    """
    clauses = list(_clauses(text))
    # A number alone is an answer if it is the whole answer; beside other clauses it is an age or an item of a list.
    told = [clause for clause in clauses if len(clauses) == 1 or not clause.isdigit()]
    stated = [value for clause in told if (value := _statement(clause, payment)) is not None]
    return min(stated[-1], payment) if stated else None


def read_pledge(texts: Iterable[str], payment: float = PAYMENT) -> float | None:
    """The last donation stated in a speaker's utterances, oldest first; dollars from 0 to ``payment``, None if none."""
    stated = [value for text in texts if (value := read_donation(text, payment)) is not None]
    return stated[-1] if stated else None


# -- how often it is right --------------------------------------------------------------------------------------------


def load_utterances(path: Path = UTTERANCES) -> pd.DataFrame:
    """The hand-labelled utterances, one a row.

    Columns: id (row of the dialogue file), dialogue, utterance, label (dollars, NaN if none), split, why_hard.

    Raises:
        ScopeError: the file is absent or has other columns.
    """
    try:
        table = pd.read_csv(path, keep_default_na=False, na_values={"label": [""]}, dtype={"utterance": str})
        return table[["id", "dialogue", "utterance", "label", "split", "why_hard"]]
    except (OSError, KeyError, ValueError) as error:
        raise ScopeError(f"could not read the labelled utterances {path}: {error}") from error


def read_table(table: pd.DataFrame) -> pd.DataFrame:
    """The labelled utterances with columns ``read`` (dollars, NaN for none) and ``right`` (to half a cent)."""
    read = pd.Series([read_donation(text) for text in table["utterance"]], index=table.index, dtype=float)
    right = (read - table["label"]).abs().lt(0.005) | (read.isna() & table["label"].isna())
    return table.assign(read=read, right=right)


def accuracy(table: pd.DataFrame) -> pd.DataFrame:
    """Per split: utterances and the share read right."""
    return read_table(table).groupby("split")["right"].agg(utterances="size", accuracy="mean")


def wrong_readings(table: pd.DataFrame) -> pd.DataFrame:
    """The utterances that are read wrong: split, utterance, label, read, why_hard."""
    read = read_table(table)
    return read.loc[~read["right"], ["split", "utterance", "label", "read", "why_hard"]]
