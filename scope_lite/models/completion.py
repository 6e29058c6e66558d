"""What an endpoint says: replies, an account of tokens, refusals, errors; each believed as far as it can be true."""

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
NEUTRAL = {"top_p": 1, **UNTRUNCATED, "temperature": 1}
"""Fields of a request that say nothing at these values: left out where they are refused, in this order."""
LENGTH_FIELDS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Two names for one limit: where one is refused, the other is sent."""
WISHES = ("n", "top_logprobs", "logprobs")
"""Fields that replies can do without: asked for one at a time, and with unknown probabilities."""
TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size)|(prompt|input|messages?) (is |are |was |were )?too (long|large)"
    r"|reduce the length|inputs?\W? tokens? (\+|.{0,40}exceed)",
    re.IGNORECASE,
)
"""How a refusal says that a chat outgrew what the model reads."""


def most_tokens(messages: Sequence[Message]) -> int:
    """No fewer tokens than the endpoint reads: a token stands for one byte at least, plus the chat template's own."""
    text = sum(len(part.encode()) for message in messages for part in message.values())
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
        replies = [_read_choice(choice, with_logprobs) for choice in said["choices"][:most]]
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError from error
    if not replies:
        raise ValueError
    usage = said.get("usage")
    account = usage if isinstance(usage, dict) else {}
    tokens: Any = account.get("prompt_tokens"), account.get("completion_tokens")
    # nobody reads nothing, or writes words of no tokens
    least = 1, int(any(reply.text for reply in replies))
    true = all(type(n) is int and low <= n <= MOST_TOKENS for n, low in zip(tokens, least, strict=True))
    return replies, one_line(said.get("model")), tokens if true else None


def _read_choice(choice: Any, with_logprobs: bool) -> Reply:
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


def _logprob(value: Any) -> float:
    """To six digits; NaN for what can be no log-probability."""
    return float(f"{value:.6g}") if type(value) in (int, float) and -math.inf < value < 1e-3 else math.nan


def error_in(said: Any) -> tuple[int, Any]:
    """The error that an answer of status 200 tells of, with the status that it should have had; (0, None) if none."""
    if not isinstance(said, dict):
        return 0, None
    error = said.get("error") or (said.get("object") == "error" and said)
    choices = said.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            broken = choice.get("finish_reason") == "error" and "the reply broke off with an error"
            error = error or choice.get("error") or broken
    if not error:
        return 0, None
    kind = f"{error.get('code')} {error.get('type')}" if isinstance(error, dict) else ""
    if code := re.match(r"[45]\d\d\b", kind):
        return int(code[0]), error
    # A bad gateway is repeated, and may have been billed: the worst is assumed of what says nothing of itself.
    return 400 if re.search("invalid|context_length", kind) else 502, error


def spare_field(refusal: str, sent: Mapping[str, Any], refused: Collection[str]) -> str | None:
    """The field of a request to be left out (or named otherwise) after this refusal; None if it is about another thing.

    Without it, at the value that was sent, a request says the same, or nearly. A refusal that names no field of
    ``sent`` may mean several replies or their probabilities, which are refused most often.
    """

    def is_named(field: str) -> bool:  # "top_p", "top-p", "topP", "Top P"
        return bool(re.search(rf"(?<![\w\\]){field.replace('_', '[ _-]?')}(?!\w)", refusal, re.IGNORECASE))

    spare = [name for name, value in NEUTRAL.items() if sent.get(name) == value]
    spare += [name for name, alias in LENGTH_FIELDS.items() if name in sent and alias not in refused]
    spare += [name for name in WISHES if name in sent]
    named = is_named if any(map(is_named, sent)) else ("n", "logprobs").__contains__
    return next(filter(named, spare), None)


def one_line(said: object) -> str:
    """What an endpoint said, to be printed: without ends of lines and what a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(said)[:2000]).split())[:200]
