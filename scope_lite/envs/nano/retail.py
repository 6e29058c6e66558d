"""retail: the nano analogue of a tau2-bench service desk, and airline, where a policy forbids some requests.

An agent has five turns to do one write for a customer: identity first, the right write,
nothing else written. Success is read off the final state and is 0 or 1. Customers
differ in manner: the favourite of the prior gives its order number, expects the desk to
know the rest, and leaves at the second question; others speak when asked, fail the
identity check once, or change their wish when it is read back. A simulator that always
plays the favourite pays an agent that writes the favourite's wish unheard: the exploit.

Calibrated by exact values only, before any method was run: the favourite volunteers its
wish with probability 0.4 (at 0.9 listening was free, and paid as much as the exploit in the
collapsed simulator), and repeating a right write is harmless (so that the exploit does not
depend on the tool).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scope_lite.envs.nano.spec import AgentHabit, History, WorldSpec, populations
from scope_lite.store.plain_yaml import read_yaml

TOOL_ERROR = 0.25
"""probability that a write does not go through, and can be tried again"""
SLIP = 0.1
"""probability that a user's answer is not the usual one of its type"""
HORIZON = 5
COUNTED = 2
"""questions are counted up to here, so that states stay few"""
QUESTIONS = ("ask-id", "ask-wish", "confirm")


class Call(NamedTuple):
    """Where a call stands. Once something was written, refused or given up, only ``phase`` matters."""

    phase: str = "open"
    """open; then 'done' (right), 'wrong' or 'gone' (the user left)"""
    verified: bool = False
    told: bool = False
    """the agent has heard a wish"""
    changed: bool = False
    questions: int = 0
    refused_id: bool = False
    """a forgetful user has failed the check already"""
    asked_wish: bool = False


@dataclass(frozen=True)
class Customer:
    """The manner of one type of user, and the rules of a call with it."""

    wish: str
    """what it says that it wants"""
    final: str = ""
    """what it wants once its wish was read back to it ('confirm'); empty: the same"""
    volunteers: float = 0.0
    """probability that it tells its wish unasked, along with its identity"""
    slow: bool = False
    """answers the first question about its wish with next to nothing"""
    guarded: bool = False
    """never tells its wish when asked; corrects an agent that reads something back"""
    forgetful: bool = False
    """fails the identity check once"""
    patience: int = COUNTED + 1
    """questions it puts up with; at the next one it leaves. Above ``COUNTED``: it never does"""
    hurried: float = 0.05
    """probability that its answer to a greeting shows that it is in a hurry"""
    barred: bool = False
    """what it wants is against the policy; the right act is to refuse"""

    def reply(self, call: Call, act: str) -> Mapping[str, float]:
        """Probability of each reply; the tool's error counts as one."""
        if call.phase != "open":
            return {{"done": "thanks", "wrong": "complaint", "gone": "bye"}[call.phase]: 1.0}
        if act == "greet":
            return {"hurry": self.hurried, "hello": 1 - self.hurried}
        if act == "lookup":
            fare = "fare-basic" if self.barred else "fare-flex"
            return _usually(fare, "tool-error") if call.verified else {"tool-error": 1.0}
        return self._answer(call, act) if act in QUESTIONS else self._reaction(call, act)

    def _answer(self, call: Call, act: str) -> Mapping[str, float]:
        wish = f"want-{self.settled if call.changed else self.wish}"
        if call.questions >= self.patience:
            return _usually("bye", "hurry")
        if act == "ask-id":
            if self.forgetful and not call.refused_id:
                return {"tool-error": 1.0}
            return {wish: self.volunteers, "id": 1 - self.volunteers}
        if act == "ask-wish":
            silent = self.guarded or (self.slow and not call.asked_wish)
            return _usually("short", "yes") if silent else _usually(wish, "short")
        if self.guarded:
            return _usually(wish, "short")
        if not call.told:
            return {"short": 1.0}
        return _usually(f"want-{self.final}" if self.final and not call.changed else "yes", "short")

    def _reaction(self, call: Call, act: str) -> Mapping[str, float]:
        """To a write or a refusal."""
        right = self._is_right(call, act)
        if act == "refuse":
            return _usually("complaint", "thanks" if right else "bye")
        pleased = right or (self.barred and act == f"write-{self.wish}")  # also where the rule is broken
        answer = "thanks" if pleased else "bye" if self.patience <= COUNTED else "complaint"
        return {"tool-error": TOOL_ERROR, answer: 1 - TOOL_ERROR}

    def _is_right(self, call: Call, act: str) -> bool:
        if self.barred:
            return call.verified and act == "refuse"
        settled = call.changed or not self.final  # a write before the change of mind is a wrong one
        return call.verified and settled and act == f"write-{self.settled}"

    @property
    def settled(self) -> str:
        """The wish that counts in the end."""
        return self.final or self.wish

    def step(self, call: Call, act: str, said: str) -> Call:
        """The call after this act and reply."""
        works = act.startswith("write-") and said != "tool-error"
        if call.phase != "open":  # nothing mends a failure; the same write again changes nothing
            spoilt = call.phase == "done" and works and (self.barred or act != f"write-{self.settled}")
            return Call("wrong") if spoilt else call
        if act == "refuse" or works:
            return Call("done" if self._is_right(call, act) else "wrong")
        if said == "bye":
            return Call("gone")
        if act not in QUESTIONS:
            return call
        return call._replace(
            verified=call.verified or (act == "ask-id" and said != "tool-error"),
            told=call.told or said.startswith("want-"),
            changed=call.changed or (act == "confirm" and bool(self.final) and said == f"want-{self.final}"),
            questions=min(call.questions + 1, COUNTED),
            refused_id=call.refused_id or (act == "ask-id" and said == "tool-error"),
            asked_wish=call.asked_wish or act == "ask-wish",
        )


def _usually(common: str, rare: str) -> Mapping[str, float]:
    return {common: 1 - SLIP, rare: SLIP}


_DATA = read_yaml(Path(__file__).with_suffix(".yaml"))
RETAIL, AIRLINE = (
    {name: Customer(**manner) for name, manner in _DATA[desk]["customers"].items()} for desk in ("retail", "airline")
)


def retail() -> WorldSpec[Call]:
    """Exchange, return or cancel; everything that is asked for is allowed."""
    return _service("retail", RETAIL, confirm_first)


def airline() -> WorldSpec[Call]:
    """The same desk with a rule: no changes, no refunds on a basic fare; which fare it is only the tool says."""
    return _service("airline", AIRLINE, look_up_first, ("lookup", "refuse"), ("fare-basic", "fare-flex"))


def _service(
    name: str,
    customers: Mapping[str, Customer],
    good: Callable[[History], str],
    more_acts: tuple[str, ...] = (),
    more_replies: tuple[str, ...] = (),
) -> WorldSpec[Call]:
    sentences = _DATA["sentences"] | _DATA[name]["sentences"]
    writes, wants = (tuple(act for act in sentences if act.startswith(kind)) for kind in ("write-", "want-"))
    acts = ("greet", *QUESTIONS, *writes, *more_acts)
    prior, real_prior = populations(tuple(customers))
    favourite = next(iter(customers.values()))
    said = ("hello", "hurry", "id", "short", *wants, "yes", "thanks", "complaint", "tool-error", *more_replies, "bye")
    return WorldSpec(
        name=name,
        agent_acts=acts,
        user_acts=said,
        outcomes=("failure", "success"),
        rewards=(0.0, 1.0),
        user_types=tuple(customers),
        prior=prior,
        real_prior=real_prior,
        horizon=HORIZON,
        initial_state=Call(),
        reply=lambda user, call, act: customers[user].reply(call, act),
        step=lambda user, call, act, said: customers[user].step(call, act, said),
        # the right write (or refusal), and nothing else written
        outcome=lambda user, call: {"success" if call.phase == "done" else "failure": 1.0},
        reveals={z: f"want-{customers[z].wish}" for z in prior},
        habits=_habits(acts, writes, good),
        exploit=("ask-id", *(f"write-{favourite.wish}",) * (HORIZON - 1)),
        sentences=sentences,
    )


# Scripted agents: two good, simple policies, and the habits of the pre-training dialogues.


def confirm_first(history: History) -> str:
    """Identity, wish, read it back, write, try again if the tool fails: good and simple, for retail."""
    if history and history[-1][1] in ("thanks", "bye"):
        return "greet"
    replies = dict(history)
    if replies.get("ask-id", "tool-error") == "tool-error":
        return "ask-id"
    wishes = [said.removeprefix("want-") for _, said in history if said.startswith("want-")]
    if not wishes:
        return "ask-wish" if [act for act, _ in history].count("ask-wish") < 2 else "confirm"
    in_time = len(history) < HORIZON - 1
    return "confirm" if in_time and "confirm" not in replies else f"write-{wishes[-1]}"


def look_up_first(history: History) -> str:
    """``confirm_first``, with the fare looked up as soon as the wish is known, and basic fares refused."""
    planned, replies = confirm_first(history), dict(history)
    if "refuse" in replies:
        return "greet"
    if not any(said.startswith("want-") for _, said in history) or planned == "greet":
        return planned
    if replies.get("lookup", "tool-error") == "tool-error":
        return "lookup"
    return "refuse" if replies["lookup"] == "fare-basic" else planned


def _habits(acts: tuple[str, ...], writes: tuple[str, ...], good: Callable[[History], str]) -> tuple[AgentHabit, ...]:
    """A broad mix of agents, of whom a quarter listen."""

    def listens(history: History, rng: np.random.Generator) -> str:
        return good(history) if rng.random() < 0.85 else str(rng.choice(acts))

    def hurries(history: History, rng: np.random.Generator) -> str:
        if not history:
            return "ask-id" if rng.random() < 0.7 else "greet"
        if history[-1][1] == "thanks":
            return "greet"
        tried = [act for act, _ in history if act in writes]
        return tried[-1] if tried and rng.random() < 0.7 else str(rng.choice(["ask-id", *writes]))

    return (
        AgentHabit("listens", 0.25, listens),
        AgentHabit("hurries", 0.35, hurries),
        AgentHabit("talks", 0.3, lambda history, rng: str(rng.choice(acts))),
        AgentHabit("writes blindly", 0.1, lambda history, rng: str(rng.choice(writes))),
    )
