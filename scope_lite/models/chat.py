"""How a tokenizer's chat template cuts a dialogue into appendable pieces of token ids.

A transcript only grows, so the template must extend by prefix: rendering one more message may not change what was
rendered before. That is probed once, at load. SmolLM2's, Qwen3-Instruct-2507's and Olmo-3-Instruct's do; Llama-3's
does, though it trims words and (from 3.1 on) tells today's date, which is fixed here. Templates of models that think
(Qwen3, Qwen3-Thinking-2507, Olmo-3-Think) take thoughts out of earlier turns and are refused.

Words that a partner says are words: markup in them, such as ``<|im_end|>``, is never read as the template's own
(``Shielded``), or a policy could close its turn in the simulator's name and go on as the system.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import FrameType
from typing import Any

from jinja2 import Environment, TemplateError

from scope_lite.models import gate
from scope_lite.models.records import Transcript
from scope_lite.store.errors import ScopeError, first_line

PROBE = ("zebra", "quartz", "lemon")
STAND_IN = f"{PROBE[0]}-"
"""how the stand-in of a hidden message begins (``Shielded``)"""
THOUGHT = "<think>\nplum\n</think>\n\n"
TEMPLATE_STEPS = 1_000_000
"""lines of Python that a template may take for one chat; SmolLM2's takes 100 a message"""
FIXED_DATE = "26 Jul 2024"
"""Stands where a template would put today's date (Llama 3.1's falls back to this one): a prompt must not change
overnight."""


def render(tokenizer: Any, messages: list[tuple[str, str]], goes_on: bool = True) -> str:
    """The chat as text, up to where the assistant is to speak (``goes_on``); dates are fixed.

    Raises:
        ScopeError: the template refuses these messages.
    """
    turns = [{"role": role, "content": content} for role, content in messages]
    source, options = str(getattr(tokenizer, "chat_template", None) or ""), dict[str, Any]()
    if "strftime_now" in source or "date_string" in source:
        options = {"date_string": FIXED_DATE, "strftime_now": lambda form: FIXED_DATE}
    try:
        _require_bounded(source)
        return _within_steps(
            lambda: tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=goes_on, **options)
        )
    except Exception as error:
        # a template is a program: it may fail in any way
        raise ScopeError(
            f"this model's chat template refuses a chat with a system prompt ({first_line(error)}); use an "
            "-Instruct model whose template has system, user and assistant"
        ) from error


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens at which a turn of the assistant ends, whoever samples: policy or simulator, in training or not.

    The tokenizer's end of text, all that the model's generation config names, and what the chat template writes after
    an assistant's words, in the middle of a chat and at its end. A model that was tuned on another end of turn than its
    tokenizer names would else go on and play everybody.
    """
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    stops = {tokenizer.eos_token_id, *(configured if isinstance(configured, list | tuple) else [configured])} - {None}
    first, said, _ = PROBE
    chat = [("user", first), ("assistant", said)]
    for messages, goes_on in (([*chat, ("user", first)], True), (chat, False)):
        after = render(tokenizer, messages, goes_on=goes_on).rpartition(said)[2].lstrip()
        if ends := [token for token in special_tokens(tokenizer) if after.startswith(token)]:
            stops.add(tokenizer.convert_tokens_to_ids(max(ends, key=len)))
    return frozenset(stops)


def opened_thought(tokenizer: Any, system: str = "") -> str:
    """The beginning of a thought that the prompt for a reply ends with; empty for most templates."""
    chat = [("system", system)] if system else []
    tail = render(tokenizer, [*chat, ("user", PROBE[0])]).rpartition(PROBE[0])[2]
    marks = list(gate.THOUGHT.finditer(tail))
    return marks[-1].group() if marks and marks[-1]["open"] else ""


def _within_steps(render: Callable[[], str]) -> str:
    """What ``render`` returns, if it takes no more than :data:`TEMPLATE_STEPS` lines of Python.

    Jinja's sandbox keeps a template from the machine, and not from going on for ever.
    """
    left = TEMPLATE_STEPS

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TemplateError(f"it goes on for more than {TEMPLATE_STEPS} steps")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return render()
    finally:
        sys.settrace(before)


@lru_cache
def _require_bounded(source: str) -> None:
    """Refuse what one step would compute for ever: powers, and numbers that no template needs."""
    for _, kind, value in Environment().lex(source):
        if (kind, value) == ("operator", "**") or (kind == "integer" and len(value) > len(str(TEMPLATE_STEPS))):
            raise TemplateError(f"it computes with {value[:20]}")


def special_tokens(tokenizer: Any) -> frozenset[str]:
    """The strings that this tokenizer reads as one special token wherever they stand."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    return frozenset(added) | frozenset(tokenizer.all_special_tokens)


@dataclass
class Shielded:
    """A chat whose messages carry no markup of their own: a message that does is out of the template's sight.

    ``hide`` gives a stand-in for such words, ``encode`` puts the words back, as ordinary characters. Words without
    markup pass as they are, so that their ids are those of the whole rendered text.
    """

    tokenizer: Any
    special: frozenset[str]
    hidden: list[tuple[str, str]] = field(default_factory=list)
    """stand-in and words, in the order of the chat"""

    def hide(self, words: str) -> str:
        # words that look like a stand-in are hidden, too, or they would be taken for one
        if not any(mark in words for mark in (*self.special, STAND_IN)):
            return words
        self.hidden.append((f"{STAND_IN}{len(self.hidden)}-{PROBE[1]}", words))
        return self.hidden[-1][0]

    def encode(self, text: str) -> list[int]:
        """Ids of the rendered chat."""
        ids: list[int] = []
        for stand_in, words in self.hidden:
            before, _, text = text.partition(stand_in)
            ids += self.tokenizer(before, add_special_tokens=False)["input_ids"]
            ids += self.tokenizer(words, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids + self.tokenizer(text, add_special_tokens=False)["input_ids"]


def chat_ids(tokenizer: Any, history: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of a chat of roles and contents, up to where the assistant is to speak; only a system prompt may hold markup.

    Raises:
        ScopeError: the template refuses these messages.
    """
    shield = Shielded(tokenizer, special_tokens(tokenizer))
    turns = [(m["role"], m["content"] if m["role"] == "system" else shield.hide(m["content"])) for m in history]
    return shield.encode(render(tokenizer, turns))


class ChatFormat:
    """Pieces of a dialogue as one seat sees it: itself as ``assistant``, the partner as ``user``."""

    def __init__(self, tokenizer: Any):
        """Probe the template: render a few short chats and compare.

        Raises:
            ScopeError: the template refuses a chat of system, user and assistant, or does not extend by prefix.
        """
        self.tokenizer, self._special = tokenizer, special_tokens(tokenizer)
        system, first, second = PROBE
        start = [("system", system), ("user", first)]
        opening = render(tokenizer, start)
        longer, thoughtful = (
            render(tokenizer, [*start, ("assistant", said), ("user", first)]) for said in (second, THOUGHT + second)
        )
        extends = longer.startswith(opening + second) and thoughtful.startswith(opening + THOUGHT + second)
        if not extends or opened_thought(tokenizer, system):
            raise ScopeError(
                "this model's chat template rewrites earlier turns, so a dialogue cannot grow token by token; use a "
                "non-thinking variant of the model (an -Instruct one), or a template that keeps every turn"
            )
        before, _, after = longer.partition(second)
        self._between = after.split(first)
        if len(self._between) != 2 or first not in before:
            raise ScopeError("this model's chat template changes the words of a message; use another template")
        self._trims = f" {second} " not in render(tokenizer, [*start[:1], ("user", f" {second} ")])
        self.opening = lru_cache(maxsize=4096)(self._opening)
        self.continuation = lru_cache(maxsize=4096)(self._continuation)

    def heard(self, transcript: Transcript, system: str, message: str) -> list[int]:
        """Ids that this seat's transcript goes on with when its partner says ``message``."""
        if not transcript.ids:
            return self.opening(system, message)
        ids = self.continuation(message)
        # a message that ended by its stop token has closed its own turn already
        closed = transcript.ids[-1] == ids[0] and transcript.generated[-1]
        return ids[1:] if closed else ids

    def _opening(self, system: str, heard: str | None = None) -> list[int]:
        """Ids from the first token to where this seat begins to speak."""
        shield = Shielded(self.tokenizer, self._special)
        messages = [("system", system)] + ([("user", shield.hide(self._trimmed(heard)))] if heard is not None else [])
        return shield.encode(render(self.tokenizer, messages))

    def _continuation(self, heard: str) -> list[int]:
        """Ids that follow this seat's last sampled token: close its turn, the partner's words, open the next."""
        shield = Shielded(self.tokenizer, self._special)
        return shield.encode(self._between[0] + shield.hide(self._trimmed(heard)) + self._between[1])

    def _trimmed(self, heard: str) -> str:
        return heard.strip() if self._trims else heard
