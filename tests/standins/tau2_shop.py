"""A shop with one order, in which tau2-bench episodes are played without the package: a helper for tests."""

from __future__ import annotations

import json
from typing import Any

from scope_lite.envs.tau2.episode import Tau2Episode
from scope_lite.envs.tau2.tools import ToolCall, ToolOutput

SCHEMAS = [
    {
        "name": "look_up",
        "description": "Look an order up.\nSecond sentence.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
    },
    {
        "name": "book",
        "description": "Book. Only once.",
        "parameters": {
            "$defs": {"Person": {"properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}},
            "properties": {
                "cabin": {"enum": ["economy", "business"], "type": "string"},
                "people": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "object"}]}},
                "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            },
            "required": ["cabin", "people"],
        },
    },
]  # fmt: skip


class Shop:
    """An environment with one order, which can be looked up and cancelled."""

    policy = "Costs are in $dollars. Be kind."
    schemas = SCHEMAS

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []

    def call(self, call: ToolCall) -> ToolOutput:
        self.calls.append(call)
        if call.name != "look_up":
            return ToolOutput(f"Error: Tool '{call.name}' not found.", error=True)
        return ToolOutput(json.dumps({"order": call.arguments["order"], "status": "pending"}))


def episode(judge: Any = lambda events: 1.0, **options: Any) -> Tau2Episode:
    return Tau2Episode("shop/0", Shop(), "You bought a lamp.", judge, **options)


def written(call: ToolCall) -> str:
    """The call as the agent is to write it; parsing it gives the call back."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


LOOK_UP = written(ToolCall("look_up", {"order": "#1"}))
