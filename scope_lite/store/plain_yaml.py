"""The one reader of YAML: plain data, each key once, nothing that reads as another value than it looks.

Refused with file and line: a key given twice, tags, aliases, octal and sexagesimal numbers (``010`` is 8 and ``1:30``
is 90 to YAML 1.1), numbers that are infinite or too long for any field, nesting and files without end. Dates stay text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml

from scope_lite.store.errors import ScopeError

LARGEST, DEEPEST, DIGITS = 1 << 18, 32, 20
"""bytes of a file, levels of nesting, and characters of a number: far above anything written by hand"""
TEXT = "tag:yaml.org,2002:str"
LEFT_AS_TEXT = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "merge", "value")}


def _refuse(why: str, node: Any) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=why, problem_mark=node.start_mark)


class _Reader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar = {  # type: ignore[misc]
        first: [(tag, pattern) for tag, pattern in rules if tag not in LEFT_AS_TEXT]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            _refuse("aliases (*) are not followed: write the value out", event)
        if getattr(event, "tag", None) is not None:
            _refuse(f"tags ({event.tag}) are not followed: a file holds data only", event)
        if self.depth == DEEPEST:
            _refuse(f"nested more than {DEEPEST} levels deep", event)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag != TEXT:
                _refuse("a key that is no text: put it in quotes", key)
            if key.value in lines:
                _refuse(f"the key {key.value!r} is given twice (first in line {lines[key.value]})", key)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def number(self, node: yaml.ScalarNode) -> int | float:
        text = node.value
        if len(text) > DIGITS and node.tag.endswith("int"):
            _refuse(f"a number of {len(text)} characters", node)
        if ":" in text or re.fullmatch(r"[-+]?0[0-9_]+", text):
            _refuse(f"{text[:DIGITS]!r} can be read in two ways: write a decimal number, or quotes around a text", node)
        read = self.construct_yaml_int if node.tag.endswith("int") else self.construct_yaml_float
        value: int | float = read(node)
        if not math.isfinite(value):
            _refuse(f"{text[:DIGITS]!r} is no finite number", node)
        return value


_Reader.add_constructor("tag:yaml.org,2002:int", _Reader.number)
_Reader.add_constructor("tag:yaml.org,2002:float", _Reader.number)


def read_yaml(path: Path) -> Any:
    """What a YAML file (UTF-8) holds; None for an empty one.

    Raises:
        ScopeError: one line on whatever is wrong with it, with the line's number.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ScopeError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > LARGEST:
        raise ScopeError(f"{path}: larger than {LARGEST >> 10} KiB, which no file of settings is")
    try:
        return parse_yaml(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ScopeError(f"{path}, line {line}: not plain YAML: not UTF-8") from None


def parse_yaml(text: str, where: str) -> Any:
    """The same for text from somewhere else, such as an option.

    Raises:
        ScopeError: as :func:`read_yaml` does, beginning with ``where``.
    """
    try:
        return yaml.load(text, _Reader)
    except (yaml.YAMLError, ValueError) as error:
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark and "\n" in text else ""
        raise ScopeError(f"{where}{line}: not plain YAML: {reason}") from None


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Mappings within a mapping under dotted keys: ``{"simulator": {"k": 5}}`` as ``{"simulator.k": 5}``."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
