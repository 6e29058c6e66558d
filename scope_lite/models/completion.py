"""What an endpoint says: replies, an account of tokens, refusals; each believed as far as it can be true."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from scope_lite.models.endpoint import UNTRUNCATED
from scope_lite.models.replies import Message, Reply

MOST_TOKENS = 10**8
"""More than any request reads or writes; an account of more is none."""
TEMPLATE_TOKENS = (256, 16)
"""Allowed for a chat template: in all (a default system prompt, say), and for each message."""
NEUTRAL = {"top_p": 1, **UNTRUNCATED, "frequency_penalty": 0, "presence_penalty": 0, "temperature": 1}
"""Fields of a request that say nothing at these values: left out where they are refused, in this order."""
LENGTH_FIELDS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Two names for one limit: where one is refused, the other is sent."""
WISHES = ("seed", "n", "top_logprobs", "logprobs")
"""Fields that replies can do without: the endpoint's own seed, replies one at a time, and unknown probabilities."""
TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size)|(prompt|input|messages?) (is |are |was |were )?too (long|large)"
    r"|reduce the length|inputs?\W? tokens? (\+|.{0,40}exceed)",
    re.IGNORECASE,
)
"""How a refusal says that a chat outgrew what the model reads."""


def most_tokens(messages: Sequence[Message]) -> int:
    """No fewer tokens than the endpoint reads: a token stands for one byte at least, plus the chat template's own."""
    text = sum(len(part.encode(errors="surrogatepass")) for message in messages for part in message.values())
    return text + TEMPLATE_TOKENS[0] + TEMPLATE_TOKENS[1] * len(messages)


def read_completion(said: Any, most: int, with_logprobs: bool) -> tuple[list[Reply], str, tuple[int, int] | None]:
    """What concerns us of a chat completion, which may be anything that came as JSON.

    Returns:
        The first ``most`` replies, what the endpoint calls the model that answered, and the tokens read and written;
        None for these where the endpoint does not say it, or says what can't be true.

    Raises:
        ValueError: it is no chat completion.
    """
    try:
        replies = [read_choice(choice, with_logprobs) for choice in said["choices"][:most]]
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError from error
    if not replies:
        raise ValueError
    usage = said.get("usage")
    account = usage if isinstance(usage, dict) else {}
    # Nobody reads nothing, or writes words of no tokens.
    least = (("prompt_tokens", 1), ("completion_tokens", int(any(reply.text for reply in replies))))
    read, written = (_count(account.get(name), lowest) for name, lowest in least)
    return replies, one_line(said.get("model")), None if read is None or written is None else (read, written)


def read_choice(choice: Any, with_logprobs: bool) -> Reply:
    """One choice of a chat completion; AttributeError, KeyError or TypeError if it is none."""
    message = choice["message"]
    text = message.get("content")
    if text is None:
        text = message.get("refusal") or ""
    if isinstance(text, list):  # in parts, of which some may be thoughts
        text = "".join(part["text"] for part in text if part["type"] == "text")
    thought = message.get("reasoning_content") or message.get("reasoning")
    logprobs, top_probs = _probabilities(choice.get("logprobs") if with_logprobs and not thought else None)
    unknown = (math.nan,) * len(logprobs)
    return Reply(text.strip(), (), logprobs, unknown, top_probs, choice.get("finish_reason") == "stop")


def _probabilities(given: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Log-probabilities of a reply's tokens, and the largest probability at each; one NaN where they are not told."""
    try:
        tokens = given["content"]
        logprobs = tuple(_logprob(token["logprob"]) for token in tokens)
        tops = [max((_logprob(top["logprob"]) for top in token.get("top_logprobs") or ()), default=math.nan)
                for token in tokens]  # fmt: skip
    except (AttributeError, KeyError, TypeError):
        logprobs, tops = (), []
    return logprobs or (math.nan,), tuple(float(f"{math.exp(top):.6g}") for top in tops) or (math.nan,)


def spare_field(refusal: str, sent: Mapping[str, Any], refused: Collection[str]) -> str | None:
    """The field of a request to be left out (or named otherwise) after this refusal; None if it is about another thing.

    One that names no field of ``sent`` may mean several replies or their probabilities, which are refused most often.
    """
    named = [name for name in (*NEUTRAL, *LENGTH_FIELDS, *WISHES) if name in sent and _named(name, refusal)]
    if not any(_named(name, refusal) for name in sent):
        named = [name for name in ("n", "logprobs") if name in sent]
    other = {name for name, alias in LENGTH_FIELDS.items() if alias not in refused}
    return next((name for name in named if can_spare(name, sent[name]) or name in other), None)


def can_spare(field: str, value: Any) -> bool:
    """Whether a request without this field, of this value, says the same, or nearly."""
    return field in WISHES or (field in NEUTRAL and NEUTRAL[field] == value)


def _named(field: str, refusal: str) -> bool:
    """Whether a refusal names a field: "top_p", "top-p", "topP", "Top P"."""
    return bool(re.search(rf"(?<![\w\\]){field.replace('_', '[ _-]?')}(?!\w)", refusal, re.IGNORECASE))


def one_line(said: object) -> str:
    """What an endpoint said, to be printed: without ends of lines and what a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(said)[:2000]).split())[:200]


def _count(tokens: object, least: int) -> int | None:
    """A number of tokens; None for what can be none."""
    real = isinstance(tokens, int) and not isinstance(tokens, bool) and least <= tokens <= MOST_TOKENS
    return tokens if real else None  # type: ignore[return-value]


def _logprob(value: object) -> float:
    """To six digits; NaN for what can be no log-probability."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < 1e-3
    return float(f"{value:.6g}") if real else math.nan
