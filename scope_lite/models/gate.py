"""The one gate for what a simulator says in text, whoever asked for it: the words that it means, or why there are none.

Models fail in ways that look like speech: they think aloud, break off inside a thought, write their template's markup,
or play the other side as well. Nothing of that may be said, read for a reward or shown to a classifier; the caller asks
again or ends the dialogue uncounted, and counts the reason. Two things are let through: a reply that is merely cut at
its token limit, which is common with small models, and what stands after a closed thought, without the thought.

The patterns are made to be read and argued with. They would rather refuse a reply than say what was not meant, so a
person's unusual words (a tag, the label of a role) are refused, too. Of the 10,332 human persuadees' turns in P4G they
refuse none, of SmolLM2's 2,816 direct replies to such histories at temperature 1 (notebook 02) nine.
"""

from __future__ import annotations

import html
import re
import unicodedata
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scope_lite.models.replies import Reply

REASONS = {
    "context": "the chat outgrew what the model can read",
    "empty": "nothing was said",
    "thought": "a thought that was cut off, or that stands between the words",
    "broken": "half a character",
    "markup": "tags or tokens of a chat template",
    "role": "the other side's part, or a whole transcript",
    "too_long": "far longer than the tokens that were asked for",
}
"""Why there are no words, in the order in which it is looked for."""
CHARACTERS_A_TOKEN, SHORT = 16, 20
"""A reply of more characters for each token that it may have is far too long; English has 4 to 5. Fewer tokens than 20
are counted as 20: of a few the lengths differ too much."""

_NAME = (
    r"(?:\w+:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection|scratch_?pad|analysis|cot"
    r"|(?:inner|internal)[_ ](?:thoughts?|monologue))"
)
THOUGHT = re.compile(
    rf"(?P<open>[<\[◁]\s*{_NAME}(?:\s[^<>\]▷\n]*)?[>\]▷]|<\|(?:begin_?|start_?)?(?:of_)?{_NAME}\|>"
    r"|<\|channel\|>\s*(?:analysis|commentary)\b[^<]*<\|message\|>|\Aanalysis(?=[A-Z]|\s*\Z)"
    r"|<unused94>|<\|channel>\s*thought|\AHere is my thought process:)"
    rf"|[<\[◁]\s*/\s*{_NAME}\s*[>\]▷]|<\|(?:/|end_?)(?:of_)?{_NAME}\|>"
    r"|(?:<\|start\|>\s*assistant\s*)?<\|channel\|>\s*final\b[^<]*<\|message\|>|assistantfinal"
    r"|<unused95>|<channel\|>|Here is my response:",
    re.IGNORECASE,
)
"""Where a thought begins (``open``) or ends, in the forms of the usual models."""
_MARKUP = re.compile(
    r"</?[a-z_][\w:.=-]*(?:\s[^<>]*)?/?>|<\|[^<>]*\|?>|<[^<>]*\|>|◁[^▷]*▷|(?-i:\[/?[A-Z][A-Z_]{2,}\])", re.IGNORECASE
)
_FRAGMENT = re.compile(
    r"(?:<(?!3)\s?[|/]*\s?[a-z_:.|-]*|</?[a-z]\w*\s[^<>\n]{0,40}|\[/?\w{0,14}|◁[^▷]*|&\w*)\Z", re.IGNORECASE
)
"""markup that a cut may have left in part"""
_THINKS = re.compile(
    r"\A[\W_]*(?:my |inner |internal )?(?:thoughts?|thinking|reasoning|analysis|monologue)(?: process)?[*_ ]*:", re.I
)
_CHAT_ROLES = ("system", "user", "assistant")
_PARTNERS = (
    *_CHAT_ROLES, "persuader", "agent", "human", "support", "representative", "chatbot", "bot", "ai", "developer",
    "tool", "customer service", "service agent", "support agent",
)  # fmt: skip
_OWN = r"persuadee|customer|participant|client|caller|donor|me|you|them|other|other person|(?:person|speaker) \w"
_BEGINS = r"(?:\A|\n|[.!?…\"'”’)\]*]\s+)[\W_]{0,6}"
"""a line or a sentence, with the marks that may stand before a label"""
_LABEL = re.compile(
    rf"{_BEGINS}(?:{'|'.join(_PARTNERS)})(?: ?\d+)?[\W_]{{0,4}}:"
    rf"|(?-i:\b(?:{'|'.join(name.title() for name in _PARTNERS)}):\s)"
    r"|^\W*#+ *(?:instruction|response|input)\b|[\"']role[\"']\s*:",
    re.IGNORECASE | re.MULTILINE,
)
_HEADER = re.compile(rf"^[\W_]{{0,6}}(?:{'|'.join(_PARTNERS)}|model)[\W_]{{0,4}}$", re.IGNORECASE | re.MULTILINE)
_OWN_LABEL = re.compile(rf"{_BEGINS}(?:{_OWN})[*_ ]*:", re.IGNORECASE)
_LAST = re.compile(r"(?:\A|\n|[.!?…]\s)[\W_]*(?P<word>\w[\w ]*|)[\"*_ ]{0,4}\Z")
"""a last line or sentence of a few words"""


class Said(NamedTuple):
    """What came through the gate."""

    words: str
    """empty where there is a ``failure``"""
    failure: str = ""
    """a key of :data:`REASONS`; empty where there are words"""
    thought: bool = False
    """whether it thought aloud, cut out or refused"""


def hear(reply: Reply, tokens: int | None = None) -> Said:
    """What a sampled reply says; ``tokens`` is the most that was asked for."""
    return Said("", reply.failure) if reply.failure else heard(reply.text, reply.finished, tokens)


def heard(text: str, finished: bool = True, tokens: int | None = None) -> Said:
    """The words that a text means to say.

    Args:
        finished: whether it ended by itself; else it was cut.
        tokens: the most that was asked for; None: no limit.
    """
    words = after_thoughts(text)
    thought = words != text
    if words is None:
        return Said("", "thought", True)
    failure = _failure(words.strip(), finished, tokens)
    return Said("", failure, thought or failure == "thought") if failure else Said(words.strip(), "", thought)


def after_thoughts(text: str) -> str | None:
    """What stands after the last closed thought; None for a thought without end, or with words before it.

    A thought may lack its beginning, which then stood in the prompt.
    """
    marks = list(THOUGHT.finditer(text))
    if not marks:
        return text
    opened = sum(bool(mark["open"]) for mark in marks)
    before = [text[: marks[0].start()]] if marks[0]["open"] else []
    before += [text[a.end() : b.start()] for a, b in pairwise(marks) if b["open"] and not a["open"]]
    if marks[-1]["open"] or opened > len(marks) - opened or any(words.strip() for words in before):
        return None
    return text[marks[-1].end() :]


def readable(text: str) -> str:
    """The text as any file can hold it: half a character becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _failure(words: str, finished: bool, tokens: int | None) -> str:
    """Why these words cannot be said; empty if they can."""
    plain = html.unescape(unicodedata.normalize("NFKC", words))
    plain = "".join(char for char in plain if unicodedata.category(char) != "Cf").strip()
    if not plain.strip(" \n\"'`“”"):
        return "empty"
    if THOUGHT.search(plain) or _THINKS.search(plain):
        return "thought"
    if any("\ud800" <= char <= "\udfff" for char in words) or (not finished and words.endswith("\ufffd")):
        return "broken"
    if _MARKUP.search(plain) or (not finished and (_FRAGMENT.search(plain) or "analysis".startswith(plain))):
        return "markup"
    if _plays_others(plain, finished):
        return "role"
    return "too_long" if tokens is not None and len(words) > CHARACTERS_A_TOKEN * max(tokens, SHORT) else ""


def _plays_others(plain: str, finished: bool) -> bool:
    """Whether a label or a header of the other side stands there, or labels of a whole transcript."""
    headers = _HEADER.findall(plain)
    alone = "\n" not in plain and plain.casefold() not in _CHAT_ROLES
    if _LABEL.search(plain) or (headers and not alone) or len(_OWN_LABEL.findall(plain)) > 1:
        return True
    # what a cut has left of a label, marks before it or in its place
    last = _LAST.search(plain)
    begun = last["word"].strip().casefold() if last else "-"
    return not finished and any(name.startswith(begun) for name in (*_PARTNERS, "role"))
