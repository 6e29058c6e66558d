"""The real environment of tau2-bench: policy, tools and a database, one copy for each episode.

Of the package only domains, environment and data models are imported, and only when something here is called. Loading
and checking a database takes 0.3 s (retail) to 0.5 s (airline); it is done once, and every episode gets a copy of the
loaded one (0.05 and 0.12 s of one core; copying object by object takes 0.4 and 1.1 s).
"""

from __future__ import annotations

import copy
import gc
import importlib
import json
import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scope_lite.envs.tau2.scenarios import DOMAINS, INSTALL
from scope_lite.envs.tau2.tools import ToolCall, ToolOutput
from scope_lite.store.errors import ScopeError

INSTALL_ENVIRONMENT = (
    f"{INSTALL} && pip install pydantic loguru toml PyYAML addict deepdiff python-dotenv docstring-parser pandas"
)
SPLITS = ("train", "test", "base")  # base: both


class Domain(NamedTuple):
    """What all episodes of a domain share."""

    module: Any
    """the package's module of the domain"""
    database: bytes
    """the loaded database, pickled: each load is a copy"""
    policy: str
    schemas: tuple[dict[str, Any], ...]


class Tau2Environment:
    """The shop or airline of one episode, with a database of its own."""

    def __init__(self, domain: str = "retail"):
        """Raises ScopeError if the package or one of its requirements is not installed, or the domain is unknown."""
        shared = load_domain(domain)
        self.domain = domain
        self.inner = new_environment(domain)
        self.policy = shared.policy
        self.schemas: Sequence[dict[str, Any]] = shared.schemas

    def call(self, call: ToolCall) -> ToolOutput:
        """Execute one call, as the package does: what goes wrong in a tool is an output that begins with "Error:"."""
        # a copy: a tool may keep an argument in its database and change it there later
        arguments = copy.deepcopy(call.arguments)
        answer = self.inner.get_response(
            tau2_module("data_model.message").ToolCall(name=call.name, arguments=arguments)
        )
        return ToolOutput(answer.content, answer.error)

    def writes(self, name: str) -> bool:
        """Whether a tool changes the database; False for a tool that does not exist."""
        tools = self.inner.tools
        return tools.has_tool(name) and tools.tool_type(name).value == "write"


def new_environment(domain: str, solo_mode: bool = False) -> Any:
    """A fresh environment of the package itself, on a copy of the database; its evaluator calls it so too."""
    shared = load_domain(domain)
    return shared.module.get_environment(db=_copy(shared.database), solo_mode=solo_mode)


def load_tasks(domain: str = "retail", split: str = "base", tasks_path: Path | None = None) -> list[Any]:
    """The package's tasks of one domain and split, in its order.

    Args:
        split: "train", "test", or "base" for both (retail 74 + 40, airline 30 + 20).
        tasks_path: a folder with ``tasks.json`` and ``split_tasks.json`` to read instead of the package's own, for
            instance ``data/tau2/domains/retail`` of a checkout of the upstream repository.

    Raises:
        ScopeError: unknown domain or split, package absent, or files that are not tau2-bench's.
    """
    if split not in SPLITS:
        raise ScopeError(f"unknown tau2 split {split!r}: choose one of {', '.join(SPLITS)}")
    module = load_domain(domain).module
    if tasks_path is None:
        return module.get_tasks(split)
    make = tau2_module("data_model.tasks").Task.model_validate
    try:
        kept = set(json.loads((tasks_path / "split_tasks.json").read_text(encoding="utf-8"))[split])
        tasks = [make(task) for task in json.loads((tasks_path / "tasks.json").read_text(encoding="utf-8"))]
    except (OSError, ValueError, KeyError, TypeError) as error:  # pydantic's error is a ValueError
        raise ScopeError(f"{tasks_path} holds no tau2-bench tasks with a {split} split: {_line(error)}") from error
    return [task for task in tasks if task.id in kept]


def guidelines() -> str:
    """The package's instructions to whoever plays the customer."""
    folder = Path(tau2_module("utils.utils").DATA_DIR)
    return (folder / "tau2" / "user_simulator" / "simulation_guidelines.md").read_text(encoding="utf-8")


@cache
def load_domain(domain: str) -> Domain:
    """Load a domain once.

    Raises:
        ScopeError: unknown domain, or something is not installed.
    """
    if domain not in DOMAINS:
        raise ScopeError(f"unknown tau2 domain {domain!r}: choose one of {', '.join(DOMAINS)}")
    module = tau2_module(f"domains.{domain}.environment")
    environment = module.get_environment()
    schemas = tuple(tool.openai_schema["function"] for tool in environment.get_tools())
    return Domain(module, pickle.dumps(environment.tools.db, -1), environment.get_policy(), schemas)


def tau2_module(name: str) -> Any:
    """A module of the package by its dotted name, without its log lines on every import and every failed tool call.

    Raises:
        ScopeError: the package, or something that it needs, is not installed; says the one command.
    """
    try:
        from loguru import logger

        logger.disable("tau2")
        return importlib.import_module(f"tau2.{name}")
    except ImportError as error:
        raise ScopeError(f"tau2-bench cannot run here ({_line(error)}): run `{INSTALL_ENVIRONMENT}`") from error


def _copy(database: bytes) -> Any:
    # The garbage collector would walk over the growing database again and again: two thirds of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return pickle.loads(database)
    finally:
        if collecting:
            gc.enable()


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
