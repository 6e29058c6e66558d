"""Tool calls as an agent writes them: parsed strictly, executed in an environment, answered with a bounded output.

A message that calls a tool is one JSON object with exactly two keys, bare, between <tool_call> tags, or in a code
fence, and nothing beside it:

    <tool_call>
    {"name": "get_order_details", "arguments": {"order_id": "#W2378156"}}
    </tool_call>

Any other message is speech, unless it looks like a call that went wrong (a tag that is not the whole message, a message
that begins as a JSON object): then the agent hears what was wrong, and the customer hears nothing. Arguments are JSON
values; nothing in them is ever evaluated, and what the benchmark's calculator would evaluate is checked before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_OUTPUT = 8_000
"""characters of a tool's output that the agent reads; no output of the gold replays is that long"""
MAX_EXPRESSION = 200
_FENCE = re.compile(r"\A```[A-Za-z_]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_TAG = re.compile(r"\A<tool_call>(.*)</tool_call>\Z", re.DOTALL)
_MARK = re.compile(r"</?tool_(?:call|response)>")
_CALCULATOR = frozenset("0123456789+-*/(). ")


@dataclass(frozen=True)
class ToolCall:
    """What the agent wants done."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ToolOutput:
    """What the environment answered, whole."""

    text: str
    error: bool = False


class CallError(ValueError):
    """A message that was meant to call a tool and does not; its text is for the agent."""


class Environment(Protocol):
    """What an agent works with: a policy, tools as JSON schemas, and the state that their calls read and write."""

    policy: str
    schemas: Sequence[dict[str, Any]]
    """one a tool: ``name``, ``description`` and ``parameters`` (JSON schema of an object)"""

    def call(self, call: ToolCall) -> ToolOutput:
        """Execute; a wrong name or wrong arguments are an output with ``error``, not an exception."""
        ...


def parse_call(message: str) -> ToolCall | None:
    """The tool call that a message is, or None if it is speech.

    Raises:
        CallError: neither; the text says what to write instead.
    """
    body, tagged = message.strip(), False
    for pattern in (_FENCE, _TAG, _FENCE):  # a fence around the tag, or within it
        if match := pattern.match(body):
            body, tagged = match[1].strip(), tagged or pattern is _TAG
    if not tagged and "<tool_call>" in body:
        raise CallError("a message that calls a tool is one <tool_call>...</tool_call> and nothing else")
    if not tagged and not re.match(r"\{|\[\s*\{", body):
        return None
    try:
        call = json.loads(body, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise CallError(f"the tool call is not valid JSON ({error})") from error
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        raise CallError('a tool call is one JSON object with the keys "name" and "arguments", one call a message')
    if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
        raise CallError('in a tool call "name" is a string and "arguments" is an object')
    return ToolCall(call["name"], call["arguments"])


def refusal(call: ToolCall) -> str | None:
    """Why a call must not reach the environment; None if it may.

    The calculator of the benchmark evaluates its expression as Python after a look at the characters. Powers pass that
    look, and ``9**9**9`` never ends, so they are refused here; so is a long expression.
    """
    if call.name != "calculate" or "expression" not in call.arguments:
        return None
    expression = call.arguments["expression"]
    if not isinstance(expression, str) or not set(expression) <= _CALCULATOR:
        return "the expression is a string of numbers, + - * / ( ) and spaces"
    if "**" in "".join(expression.split()) or len(expression) > MAX_EXPRESSION:
        return f"no powers, and at most {MAX_EXPRESSION} characters in an expression"
    return None


def shown(output: str, limit: int = MAX_OUTPUT) -> str:
    """A tool's output as the agent hears it: between tags, cut with a note where it is longer than ``limit``."""
    if len(output) > limit:
        output = f"{output[:limit]}\n[cut here: {len(output)} characters in all]"
    return f"<tool_response>\n{without_marks(output)}\n</tool_response>"


def without_marks(text: str) -> str:
    """Words from outside without our tags: neither a customer nor a record in a database can forge a tool's output."""
    while (cleaned := _MARK.sub("", text)) != text:  # until nothing is left that removing one tag could have made
        text = cleaned
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice in an object")
    return dict(pairs)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
