"""retail: the nano analogue of a tau2-bench service desk, and airline, where a policy forbids some requests.

An agent has five turns to do one write for a customer: identity first, the right write,
nothing else written. Success is read off the final state and is 0 or 1. Customers
differ in manner: the favourite of the prior gives its order number, expects the desk to
know the rest, and leaves at the second question; others speak when asked, fail the
identity check once, or change their wish when it is read back. A simulator that always
plays the favourite pays an agent that writes the favourite's wish unheard: the exploit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scope_lite.envs.nano.spec import AgentHabit, History, State, WorldSpec, real_shares

COUNTED = 2
"""questions are counted up to here, so that states stay few"""


@dataclass(frozen=True)
class Customer:
    """The manner of one type of user."""

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

    @property
    def settled(self) -> str:
        """The wish that counts in the end."""
        return self.final or self.wish


@dataclass(frozen=True)
class ServiceNumbers:
    """Every number of the two worlds.

    Prior and unknown share are those of ``persuasion``. Calibrated by exact values only,
    before any method was run: the favourite volunteers its wish with probability 0.4 (at
    0.9 listening was free, and paid as much as the exploit in the collapsed simulator),
    and repeating a right write is harmless (so that the exploit does not depend on the tool).
    """

    prior: tuple[float, ...] = (0.5, 0.18, 0.14, 0.10, 0.08)
    unknown_share: float = 0.2
    """share of the real users whose type is outside the support of P"""
    tool_error: float = 0.25
    """probability that a write does not go through, and can be tried again"""
    slip: float = 0.1
    """probability that a user's answer is not the usual one of its type"""
    horizon: int = 5


RETAIL: dict[str, Customer] = {
    "impatient": Customer("exchange", volunteers=0.4, patience=1, hurried=0.8),
    "forthcoming": Customer("return", volunteers=0.9),
    "reticent": Customer("cancel", slow=True),
    "changing": Customer("exchange", final="cancel", volunteers=0.9),
    "forgetful": Customer("return", forgetful=True),
    # real users only
    "curt": Customer("return", final="exchange", volunteers=0.9, patience=2, hurried=0.5),
    "guarded": Customer("cancel", guarded=True),
}
AIRLINE: dict[str, Customer] = {
    "impatient": Customer("change", volunteers=0.4, patience=1, hurried=0.8),
    "forthcoming": Customer("bag", volunteers=0.9),
    "reticent": Customer("cancel", slow=True),
    "changing": Customer("change", final="bag", volunteers=0.9),
    "barred": Customer("cancel", volunteers=0.9, barred=True),
    # real users only
    "curt": Customer("bag", final="change", volunteers=0.9, patience=2, hurried=0.5),
    "pleading": Customer("change", slow=True, barred=True),
}


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


QUESTIONS = ("ask-id", "ask-wish", "confirm")


@dataclass(frozen=True)
class Desk:
    """The rules of one service world: who replies what, and what a write does."""

    customers: Mapping[str, Customer]
    numbers: ServiceNumbers

    def reply(self, user: str, state: State, act: str) -> Mapping[str, float]:
        """Probability of each reply; the tool's error counts as one."""
        assert isinstance(state, Call)
        who = self.customers[user]
        if state.phase != "open":
            return {{"done": "thanks", "wrong": "complaint", "gone": "bye"}[state.phase]: 1.0}
        if act == "greet":
            return {"hurry": who.hurried, "hello": 1 - who.hurried}
        if act == "lookup":
            return self._lookup(who, state)
        if act in QUESTIONS:
            return self._answer(who, state, act)
        return self._reaction(who, state, act)

    def _lookup(self, who: Customer, state: Call) -> Mapping[str, float]:
        if not state.verified:
            return {"tool-error": 1.0}
        return self._usually("fare-basic" if who.barred else "fare-flex", "tool-error")

    def _answer(self, who: Customer, state: Call, act: str) -> Mapping[str, float]:
        wish = f"want-{who.settled if state.changed else who.wish}"
        if state.questions >= who.patience:
            return self._usually("bye", "hurry")
        if act == "ask-id":
            if who.forgetful and not state.refused_id:
                return {"tool-error": 1.0}
            return {wish: who.volunteers, "id": 1 - who.volunteers}
        if act == "ask-wish":
            silent = who.guarded or (who.slow and not state.asked_wish)
            return self._usually("short", "yes") if silent else self._usually(wish, "short")
        if who.guarded:
            return self._usually(wish, "short")
        if not state.told:
            return {"short": 1.0}
        return self._usually(f"want-{who.final}" if who.final and not state.changed else "yes", "short")

    def _reaction(self, who: Customer, state: Call, act: str) -> Mapping[str, float]:
        """To a write or a refusal."""
        right = self._is_right(who, state, act)
        if act == "refuse":
            return self._usually("complaint", "thanks") if right else self._usually("complaint", "bye")
        error = self.numbers.tool_error
        if right:
            return {"tool-error": error, "thanks": 1 - error}
        if who.barred and act == f"write-{who.wish}":  # pleased, though the rule is broken
            return {"tool-error": error, "thanks": 1 - error}
        return {"tool-error": error, "bye" if who.patience <= COUNTED else "complaint": 1 - error}

    def _usually(self, common: str, rare: str) -> Mapping[str, float]:
        return {common: 1 - self.numbers.slip, rare: self.numbers.slip}

    def _is_right(self, who: Customer, state: Call, act: str) -> bool:
        if not state.verified:
            return False
        if who.barred:
            return act == "refuse"
        settled = state.changed or not who.final  # a write before the change of mind is a wrong one
        return settled and act == f"write-{who.settled}"

    def step(self, user: str, state: State, act: str, said: str) -> State:
        """The call after this act and reply."""
        assert isinstance(state, Call)
        who = self.customers[user]
        works = act.startswith("write-") and said != "tool-error"
        if state.phase != "open":  # nothing mends a failure; the same write again changes nothing
            spoilt = state.phase == "done" and works and (who.barred or act != f"write-{who.settled}")
            return Call("wrong") if spoilt else state
        if act == "refuse" or works:
            return Call("done" if self._is_right(who, state, act) else "wrong")
        if said == "bye":
            return Call("gone")
        if act not in QUESTIONS:
            return state
        return state._replace(
            verified=state.verified or (act == "ask-id" and said != "tool-error"),
            told=state.told or said.startswith("want-"),
            changed=state.changed or (act == "confirm" and bool(who.final) and said == f"want-{who.final}"),
            questions=min(state.questions + 1, COUNTED),
            refused_id=state.refused_id or (act == "ask-id" and said == "tool-error"),
            asked_wish=state.asked_wish or act == "ask-wish",
        )

    def outcome(self, user: str, state: State) -> Mapping[str, float]:
        """Success is the right write (or refusal) and nothing else written."""
        assert isinstance(state, Call)
        return {"success" if state.phase == "done" else "failure": 1.0}


COMMON = {
    "greet": "Thank you for contacting us. How are you today?",
    "ask-id": "Could I have your e-mail address or your order number?",
    "ask-wish": "What would you like me to do?",
    "confirm": "Let me read that back to you. Shall I go ahead?",
    "hello": "Hello.",
    "hurry": "I am in a hurry, so please just get it done.",
    "id": "Yes, it is ana@example.com.",
    "short": "It is about my order.",
    "yes": "Yes.",
    "thanks": "Great, thank you.",
    "complaint": "No, that is not what I wanted!",
    "tool-error": "(The system answers: request failed, please try again.)",
    "bye": "I have no time for this. Goodbye.",
    "close": "The call is over. Was it handled as it should be?",
    "failure": "No.",
    "success": "Yes.",
}
RETAIL_SENTENCES = COMMON | {
    "write-exchange": "Done: I have exchanged the lamp.",
    "write-return": "Done: I have taken the shoes back.",
    "write-cancel": "Done: I have cancelled the order of the chair.",
    "want-exchange": "I would like to exchange the lamp.",
    "want-return": "I would like to return the shoes.",
    "want-cancel": "I would like to cancel the chair that I ordered.",
}
AIRLINE_SENTENCES = COMMON | {
    "ask-id": "Could I have your booking number?",
    "id": "Yes, it is 4WQ150.",
    "short": "It is about my flight.",
    "lookup": "Let me look up the fare rules of your booking.",
    "refuse": "I am sorry, our policy does not allow that on a basic fare.",
    "write-change": "Done: you are on the later flight.",
    "write-cancel": "Done: I have cancelled your flight and refunded it.",
    "write-bag": "Done: I have added a bag.",
    "want-change": "I would like to take a later flight.",
    "want-cancel": "I would like to cancel my flight and have the money back.",
    "want-bag": "I would like to add a bag.",
    "fare-basic": "(The system answers: basic fare, no changes, no refunds.)",
    "fare-flex": "(The system answers: flexible fare, everything allowed.)",
}


def _service(
    name: str,
    customers: Mapping[str, Customer],
    sentences: Mapping[str, str],
    extra: tuple[str, ...],
    n: ServiceNumbers,
) -> WorldSpec:
    desk, types = Desk(customers, n), tuple(customers)
    known, unknown = types[: len(n.prior)], types[len(n.prior) :]
    writes = tuple(act for act in sentences if act.startswith("write-"))
    fares = ("fare-basic", "fare-flex") if "lookup" in extra else ()
    acts = ("greet", *QUESTIONS, *writes, *extra)
    wants = tuple(act for act in sentences if act.startswith("want-"))
    favourite = customers[types[0]].wish
    return WorldSpec(
        name=name,
        agent_acts=acts,
        user_acts=("hello", "hurry", "id", "short", *wants, "yes", "thanks", "complaint", "tool-error", *fares, "bye"),
        outcomes=("failure", "success"),
        rewards=(0.0, 1.0),
        user_types=types,
        prior=dict(zip(known, n.prior, strict=True)),
        real_prior=real_shares(known, unknown, n.unknown_share),
        horizon=n.horizon,
        initial_state=Call(),
        reply=desk.reply,
        step=desk.step,
        outcome=desk.outcome,
        reveals={z: f"want-{customers[z].wish}" for z in known},
        habits=_habits(acts, confirm_first if "lookup" not in extra else look_up_first),
        exploit=("ask-id", *(f"write-{favourite}",) * (n.horizon - 1)),
        sentences=sentences,
    )


def retail(numbers: ServiceNumbers | None = None) -> WorldSpec:
    """Exchange, return or cancel; everything that is asked for is allowed."""
    return _service("retail", RETAIL, RETAIL_SENTENCES, (), numbers or ServiceNumbers())


def airline(numbers: ServiceNumbers | None = None) -> WorldSpec:
    """The same desk with a rule: no changes, no refunds on a basic fare; which fare it is only the tool says."""
    return _service("airline", AIRLINE, AIRLINE_SENTENCES, ("lookup", "refuse"), numbers or ServiceNumbers())


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
    in_time = len(history) < ServiceNumbers.horizon - 1
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


def _habits(acts: tuple[str, ...], good: Callable[[History], str]) -> tuple[AgentHabit, ...]:
    """A broad mix of agents, of whom a quarter listen."""
    writes = [act for act in acts if act.startswith("write-")]

    def listens(history: History, rng: np.random.Generator) -> str:
        return good(history) if rng.random() < 0.85 else str(rng.choice(acts))

    def hurries(history: History, rng: np.random.Generator) -> str:
        if not history:
            return "ask-id" if rng.random() < 0.7 else "greet"
        if history[-1][1] == "thanks":
            return "greet"
        tried = [act for act, _ in history if act in writes]
        return tried[-1] if tried and rng.random() < 0.7 else str(rng.choice(["ask-id", *writes]))

    def talks(history: History, rng: np.random.Generator) -> str:
        return str(rng.choice(acts))

    def writes_blindly(history: History, rng: np.random.Generator) -> str:
        return str(rng.choice(writes))

    return (
        AgentHabit("listens", 0.25, listens),
        AgentHabit("hurries", 0.35, hurries),
        AgentHabit("talks", 0.3, talks),
        AgentHabit("writes blindly", 0.1, writes_blindly),
    )
