"""Read from a persuadee's own words how much of the payment goes to the charity: dollars in [0, 2], or nothing said.

Samples: "a dollar and a quarter" is 1.25; "$2 is a little high, go with a dollar?" is 1; "I'd rather keep my two
dollars" is 0; "does the $2 from me really matter?" states nothing, so None. What counts as a statement:

- an own offer for now, also as a question ("how about 50 cents?") or hedged ("maybe a dollar", "up to $1": the amount
  that was named, as the data's annotators took it); of alternatives and ranges the lower, of statements the last;
- a refusal is 0, also of an amount ("I won't donate 2 dollars"), unless less than that was offered before: that stays;
  what is kept is not given;
- a yes without an amount, past gifts, others' money, prices, other currencies, and amounts called too high are None;
- shares are of the payment, or of the amount just named ("half of that"); ".50 cents" is half a dollar, as its writers
  mean it; more than the payment is the payment.

Rules, not a model, so that every reading can be explained: a grammar over tokens finds the amounts of a clause, and
rules on the clause say whether its speaker gives them. ``data/README.md`` says how often they are right.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import DATA
from scope_lite.store.plain_yaml import read_yaml

if TYPE_CHECKING:
    import pandas as pd  # a run in text reads amounts, and no table

PAYMENT = 2.0
"""Dollars that a participant is paid for the dialogue: the most that can be given."""
UTTERANCES = DATA / "p4g" / "donation_utterances.csv"
SENTENCES = DATA / "p4g" / "donation_sentences.csv"

# -- amounts ----------------------------------------------------------------------------------------------------------

_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
_ONES += "seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_WORDS = {word: n for n, word in enumerate(_ONES)} | {word: 10 * n for n, word in enumerate(_TENS, start=2)}
_WORDS |= {"a": 1, "an": 1, "another": 1, "couple": 2, "both": 2, "hundred": 100, "thousand": 1000}
_FRACTIONS = {"hal": 1 / 2, "thi": 1 / 3, "qua": 1 / 4, "fou": 1 / 4, "fif": 1 / 5, "ten": 1 / 10}
_COINS = {"c": 0.01, "p": 0.01, "n": 0.05, "d": 0.10}
_PAY = r"(?:payment|pay|earnings?|bonus|reward|money|compensation|hit)"

# Every token has a kind, a letter, so that a grammar is a regex over letters. Fillers are dropped, "w" is all else.
_KINDS = {
    "F": r"(?<![\d/.])[1-9]/(?:[2-9]|10)(?![\d/a-z])|\b(?:half|halves)\b"
    r"|(?:(?<=\ba )|(?<=one )|(?<=two )|(?<=three )|(?<=\d ))(?:third|quarter|fourth|fifth|tenth)s?\b",
    "N": rf"(?<![\d.])(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?!\d|/\d|(?:st|nd|rd|th|k)\b)"
    rf"|\b(?:(?:{'|'.join(_TENS)})[ -](?:{'|'.join(_ONES[1:10])})|(?:(?:{'|'.join(_ONES)}) )?(?:hundred|thousand)"
    rf"|{'|'.join(w for w in _WORDS if w[0] != 'a')})\b",
    "A": r"\b(?:an?|another)\b", "S": r"\$", "P": r"%|\bper ?cent\b", "D": r"(?:dollars?|bucks?|usd|dl)\b",
    "C": r"(?:c|c?ents?|penn(?:y|ies)|nickels?|dimes?)\b", "T": r"\b(?:and|plus|n)\b|&",
    "O": r"\bof\b|(?<=half )(?:the|my|this)\b", "R": r"\b(?:to|or)\b|-", "E": r"[€£¥₹]",
    "X": r"\b(?:hours?|min\w*|days?|weeks?|months?|years?|times?|kids?|child\w*|people|states|world|countries|turns?|"
    r"chats?|hits|miles?|siblings|million\w*|billion\w*|euros?|pounds?|rupees?|yen|pesos?|francs?|sure|certain)\b",
    "L": r"\b(?:all|everything)\b", "W": r"\b(?:entire|full|whole)\b",
    "V": r"\b(?:donat\w+|giv(?:e|ing)(?: up)?|contribut\w+)\b",
    "M": rf"\b(?:my|this|the) (?:(?!entire|full|whole)\w+ )?{_PAY}\b", "Y": rf"\b{_PAY}\b",
    "I": r"\b(?:it|what i|i (?:earn|make|get))\b", "H": r"\bthat\b", "G": r"\b(?:amount|thing)\b",
    "filler": r"\b(?:my|the|this|more|american|us|single|measly)\b", "w": r"[^\W\d_]+|\S",
}  # fmt: skip
_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))

_SHARE = r"(?:[NA]P|[NA]?F)"
# "$1 and 25 cents", "one and a half dollars", "a dollar and a quarter", "a dollar fifty", "ten of my cents"
_MONEY = r"(?:(?:SNF?|(?:NTA?N?F|[NA]?F|[NA])[WO]?D)(?:T?NO?C|TAC|TA?N?F|N(?![NDCPXF]))?|[NA]O?C)"
_AMOUNT = re.compile(
    rf"(?P<none>E?N(?:RN)?[EX]|EN|[NA]?FO?A?[XE]|NPO?X|FAw)|(?P<of>{_SHARE}(?:O|(?=A))(?P<whole>{_MONEY}))"
    rf"|(?P<range>NRN[DC])|(?P<money>{_MONEY})|(?P<it>{_SHARE}O?[IH])|(?P<share>{_SHARE}(?P<pay>O?[YM])?)"
    r"|(?P<all>LO?[YMI]|W[YMG]|VIL|IL(?!w)|VM)|(?P<bare>NN(?![DCPXFR])|N)"
)


class _Amount(NamedTuple):
    """One amount in a clause: "money" (it has a unit), "share" (of the payment) or "bare" (a number alone)."""

    start: int
    dollars: float
    kind: str


def _worth(tokens: Sequence[re.Match[str]]) -> float:
    """What the tokens of one amount come to: dollars, or a number where they have no unit."""
    total, count, decimal = 0.0, None, False
    for kind, text in ((token.lastgroup, token[0]) for token in tokens):
        if kind in ("N", "A"):
            total, decimal = total + (count or 0.0), text[0] in ".0"
            words = re.split("[ -]", text)
            joined = math.prod if words[-1] in ("hundred", "thousand") else sum
            count = float(joined(_WORDS[w] for w in words) if words[0] in _WORDS else text.replace(",", ""))
        elif kind == "F" and "/" in text:
            total, count = total + (count or 0.0) + float(Fraction(text)), None
        elif kind == "F":
            total, count = total + (1.0 if count is None else count) * _FRACTIONS[text[:3]], None
        elif kind in ("T", "D", "P", "C"):
            unit = 0.01 if kind == "P" else _COINS.get(text[0], 0.01) if kind == "C" and not decimal else 1.0
            total, count = total + unit * (count or 0.0), None
    if count is not None:  # "a dollar fifty": what follows dollars without a unit is cents
        total += count if not total else count / 100 if count < 100 else 0.0
    return min(total, 1e9)


def _amounts(clause: str, payment: float, named: float) -> list[_Amount]:
    """The amounts of a clause from left to right; hours, children and the like are no amounts.

    ``named``: dollars that were mentioned last before, of which "half of that" is a share.
    """
    tokens = [token for token in _TOKEN.finditer(clause) if token.lastgroup != "filler"]
    found = []
    for match in _AMOUNT.finditer("".join(str(token.lastgroup) for token in tokens)):
        part, rule = tokens[match.start() : match.end()], str(match.lastgroup)
        if rule == "none":
            continue
        first, last = part[0][0], part[-1][0]
        if rule == "of":
            whole = tokens[slice(*match.span("whole"))]
            kind, dollars = "money", _worth(part[: -len(whole)]) * _worth(whole)
        elif rule in ("money", "range", "bare") or (last.startswith("quarter") and not match["pay"]):  # a coin
            number_alone = rule == "bare" and "." not in first and (len(part) == 1 or first.isdigit())
            kind, dollars = "bare" if number_alone else "money", _worth(part[::3] if rule == "range" else part)
        else:
            kind, dollars = "share", (named if rule == "it" else payment) * (1.0 if rule == "all" else _worth(part))
        if kind == "money":
            named = dollars
        found.append(_Amount(part[0].start(), dollars, kind))
    return found


# -- clauses ----------------------------------------------------------------------------------------------------------

_DATA = read_yaml(Path(__file__).with_suffix(".yaml"))


def _regex(items: Sequence[str | list[str]]) -> re.Pattern[str]:
    """Any of the items of a rule: expressions, and lists of whole words and phrases."""
    text = "|".join(item if isinstance(item, str) else rf"\b(?:{'|'.join(item)})\b" for item in items)
    for name, part in reversed(_DATA["parts"].items()):  # "give" holds "@gift"
        text = text.replace(f"@{name}", part)
    return re.compile(text)


_CUT = _regex(_DATA["cuts"])
_SAYS = {name: _regex(items) for name, items in _DATA["rules"].items()}


def _says(clause: str, *rules: str) -> bool:
    return any(_SAYS[rule].search(clause) for rule in rules)


def _clauses(text: str) -> Iterator[str]:
    """The text in lower case, cut where a statement may start; money is written one way."""
    plain = unicodedata.normalize("NFKC", re.sub("([¼-¾⅐-⅞])", r" \1", text)).lower()
    for pattern, way in _DATA["rewritten"]:
        plain = re.sub(pattern, way, plain)
    yield from (part for piece in _CUT.split(plain) if (part := piece.strip(' .,;-!()"')))


def _own_amount(clause: str, amounts: list[_Amount]) -> _Amount:
    """The amount given, of several in one clause: money before shares before bare numbers; the lower of two."""
    kind = next(kind for kind in ("money", "share", "bare") if any(a.kind == kind for a in amounts))
    same = [amount for amount in amounts if amount.kind == kind]
    between = clause[same[0].start : same[-1].start]
    if _says(clause, "changed"):
        return same[-1]
    if _says(between, "alternatives"):
        return min(same, key=lambda amount: amount.dollars)
    verbs = [match.end() for match in _SAYS["giving"].finditer(clause)]
    after = [a for verb in reversed(verbs) for a in same if a.start >= verb]
    return (after or same)[0]


def _is_offer(clause: str, amount: _Amount) -> bool:
    """Whether the clause says, or asks, that the speaker gives this amount now."""
    asking = _says(clause, "asking") and not (clause.endswith("?") and _says(clause, "fine"))
    elsewhere = _says(clause, "elsewhere") and not _says(clause, "gift")
    if asking or elsewhere or _says(clause, "supposed", "too high", "funds", "past"):
        return False
    marked = clause[: amount.start] + re.sub(r"^\d+", "#", clause[amount.start :])
    if amount.kind == "bare" and not _SAYS["bare"].fullmatch(marked):
        return False
    short, mine = len(re.findall(r"[a-z']+", clause)) <= 7, _says(clause, "mine")
    return (
        _says(clause, "offer")
        or (mine and _says(clause, "giving"))
        or (short and (mine or not _says(clause, "others")))
    )


def _refuses(clause: str, amounts: list[_Amount], before: float | None) -> bool:
    """Whether a clause with a negation refuses to give at all, rather than to give more, often, or than was offered."""
    money = [amount.dollars for amount in amounts if amount.kind == "money"]
    if before is not None and any(before < dollars for dollars in money):
        return False
    if _says(clause, "refused") and _says(clause, "coin"):
        return True
    open_ended = _says(clause, "of more", "past", "asking", "supposed")
    return not open_ended and (_says(clause, "refused amount") if money else not amounts and _says(clause, "refused"))


def _statement(clause: str, amounts: list[_Amount], payment: float, before: float | None) -> float | None:
    """What one clause states, in dollars that may exceed the payment; None if nothing."""
    if any(amount.dollars == 0 and amount.kind != "bare" for amount in amounts) or _says(clause, "nothing"):
        return 0.0
    kept = _SAYS["keep"].search(clause)
    gift = _SAYS["gift"].search(clause, kept.end()) if kept else None
    if kept and not (gift and any(amount.start > gift.start() for amount in amounts)):
        return max(0.0, payment - min([a.dollars for a in amounts if a.kind != "bare"], default=payment))
    if _says(_SAYS["harmless"].sub("", clause), "negation") and not (amounts and _says(clause, "cap")):
        return 0.0 if _refuses(clause, amounts, before) else None
    if not amounts:
        return None
    amount = _own_amount(clause, amounts)
    return amount.dollars if _is_offer(clause, amount) else None


def read_donation(
    text: str, payment: float = PAYMENT, before: float | None = None, asked: bool = False
) -> float | None:
    """The donation that one utterance states for its speaker, in dollars from 0 to ``payment``; None if it states none.

    The last statement counts, so a pledge can be taken back or replaced in the same breath.

    Args:
        before: what the speaker has stated so far, in dollars; a refusal of a larger amount leaves it as it is.
        asked: the text answers the question what was given, so "I donated $1" is no gift of another day.
    """
    if asked:
        text = re.sub(r"(?i)\b(i)(?: have|'ve)?(?: just)? (?:donated|gave|given)\b", r"\1 donate", text)
    clauses, named, stated = list(_clauses(text)), payment, None
    for clause in clauses:
        # A number alone is an answer if it is the whole answer; beside other clauses it is an age or an item of a list.
        if len(clauses) > 1 and clause.isdigit():
            continue
        amounts = _amounts(clause, payment, named)
        named = next((amount.dollars for amount in reversed(amounts) if amount.kind == "money"), named)
        value = _statement(clause, amounts, payment, before)
        if value is not None:
            stated = before = min(value, payment)
    return stated


def read_pledge(texts: Iterable[str], payment: float = PAYMENT, asked: bool = False) -> float | None:
    """The last donation stated in a speaker's utterances, oldest first; dollars from 0 to ``payment``, None if none.

    ``asked``: the last of them answers the question what was given.
    """
    texts, stated = list(texts), None
    for number, text in enumerate(texts, start=1):
        value = read_donation(text, payment, stated, asked and number == len(texts))
        stated = stated if value is None else value
    return stated


# -- how often it is right --------------------------------------------------------------------------------------------


def read_table(path: Path = UTTERANCES) -> pd.DataFrame:
    """Hand-labelled utterances and how they are read: people's (``UTTERANCES``) or ours (``SENTENCES``), one a row.

    Columns: utterance, label and read (dollars, NaN if none), right (to half a cent), split, and what else the file has
    (id, kind; of people's dialogue, why_hard). ``read_table().query("not right")`` is what is read wrong.

    Raises:
        ScopeError: the file is absent or has other columns.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path, keep_default_na=False, na_values={"label": [""]}, dtype={"utterance": str})
        read = table["utterance"].map(read_donation).astype(float)
        return table.assign(read=read, right=np.isclose(read, table["label"], rtol=0, atol=0.005, equal_nan=True))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ScopeError(f"could not read the labelled utterances {path}: {error}") from error


def measured(table: pd.DataFrame, by: Sequence[str] = ("split",)) -> pd.DataFrame:
    """Per split (and kind): how many utterances, how many state an amount, are read as one, and are so rightly (hits).

    ``precision`` is hits of what was read, ``recall`` hits of what was stated (NaN of none), ``accuracy`` the share of
    the utterances that are read right, "none" among them.
    """
    amounts = table.assign(utterances=1, stated=table["label"].notna(), amount=table["read"].notna())
    groups = amounts.assign(hits=amounts["right"] & amounts["amount"]).groupby(list(by), sort=False)
    sums = groups[["utterances", "stated", "amount", "hits"]].sum().rename(columns={"amount": "read"})
    return sums.assign(
        precision=sums["hits"] / sums["read"], recall=sums["hits"] / sums["stated"], accuracy=groups["right"].mean()
    )
