"""The one format in which a nano world is described, and the arrays it compiles to.

A world is a dialogue of fixed horizon between an agent and a user with a hidden
type. Given the type, everything the user does depends on a small state that is a
deterministic function of the acts and replies so far. From this one description
come the scripted users, the exact reply distribution (Bayes filter), the exact
optimum (dynamic programming over beliefs), the pre-training dialogues, the
rendering as sentences, and the reward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from jaxtyping import Float, Int

State = TypeVar("State", bound=Hashable)
History = tuple[tuple[str, str], ...]
"""((agent act, user reply), ...); what the agent is told of its task comes first, as the reply to no act: ("", task)"""

AGENT, USER = "agent", "user"  # the system prompts of seats that are told nothing

PRIOR, UNKNOWN_SHARE = (0.5, 0.18, 0.14, 0.10, 0.08), 0.2
"""of the worlds that ship: shares of the types that P knows, and share of the real users whose type it does not

Calibrated once on persuasion, before any method was compared: asking first beats every policy that does not ask."""


@dataclass(frozen=True)
class AgentHabit:
    """One kind of agent in the pre-training dialogues."""

    name: str
    weight: float
    """share of the dialogues that this kind speaks in"""
    act: Callable[[History, np.random.Generator], str]


@dataclass(frozen=True)
class WorldSpec(Generic[State]):
    """A world, as a person would write it down."""

    name: str
    agent_acts: tuple[str, ...]
    user_acts: tuple[str, ...]
    outcomes: tuple[str, ...]
    rewards: tuple[float, ...]
    """reward of each outcome, in [0, 1]"""
    user_types: tuple[str, ...]
    prior: Mapping[str, float]
    """P: the types that a base model of users knows, and their shares"""
    real_prior: Mapping[str, float]
    """P_real: the users of the real world, some of a type outside P's support"""
    horizon: int
    """turns (an agent act and a user reply each)"""
    initial_state: State
    reply: Callable[[str, State, str], Mapping[str, float]]
    """(type, state, agent act) -> probability of each reply"""
    step: Callable[[str, State, str, str], State]
    """(type, state, agent act, reply) -> next state"""
    outcome: Callable[[str, State], Mapping[str, float]]
    """(type, final state) -> probability of each outcome"""
    reveals: Mapping[str, str]
    """type -> the reply by which a user names that type; a persona prompt can fake it"""
    habits: tuple[AgentHabit, ...]
    tasks: Mapping[str, State] = field(default_factory=dict)
    """what the agent alone may be told (its system prompt) and the state in which the dialogue then starts, drawn
    uniformly; empty: it is told nothing, and the dialogue starts in ``initial_state``"""
    told: Mapping[str, str] = field(default_factory=dict)
    """type -> what the user alone is told (its system prompt); empty: nothing"""
    outcome_by: Literal["simulator", "world"] = "simulator"
    """who says how a dialogue with a model ended: the simulator in its last word, or the world, by what was said"""
    turns: Callable[[History], int] = len
    """how many turns of a dialogue counted: fewer than the horizon where the work can be done before it is over"""
    exploit: tuple[str, ...] = ()
    """the acts that earn most against P's own mode, whatever is heard; empty where there is no such thing"""
    sentences: Mapping[str, str] = field(default_factory=dict)
    """act -> an English sentence, so that a dialogue can be read"""


def populations(
    types: Sequence[str], prior: Sequence[float] = PRIOR, unknown_share: float = UNKNOWN_SHARE
) -> tuple[dict[str, float], dict[str, float]]:
    """P and P_real of a world that ships: P knows the first types, P_real has equal shares of these and of the rest."""
    known, unknown = types[: len(prior)], types[len(prior) :]
    real = dict.fromkeys(known, (1 - unknown_share) / len(known)) | dict.fromkeys(unknown, unknown_share / len(unknown))
    return dict(zip(known, prior, strict=True)), real


@dataclass(frozen=True, eq=False)
class World:
    """A compiled world: Z types, S states, A agent acts, R replies, O outcomes."""

    spec: WorldSpec[Any]
    reply: Float[np.ndarray, "Z S A R"]
    next_state: Int[np.ndarray, "Z S A R"]
    outcome: Float[np.ndarray, "Z S O"]
    starts: Int[np.ndarray, " T"]
    """the state in which each task starts"""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def horizon(self) -> int:
        return self.spec.horizon

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the agent may be told: its system prompts, one a task."""
        return tuple(self.spec.tasks) or (AGENT,)

    @cached_property
    def prompts(self) -> tuple[str, ...]:
        """What the user may be told: its system prompts."""
        return tuple(dict.fromkeys(self.spec.told.values())) or (USER,)

    @cached_property
    def knows(self) -> Float[np.ndarray, "U Z"]:
        """1 where a user with that prompt can be of that type."""
        told = [self.spec.told.get(z, USER) for z in self.spec.user_types]
        return np.array([[float(t == prompt) for t in told] for prompt in self.prompts])

    def opening(self, task: int) -> History:
        """The history before the first turn."""
        return (("", self.tasks[task]),) if self.spec.tasks else ()

    @cached_property
    def open_question(self) -> int:
        """The act whose reply is least certain under P when it opens the dialogue (largest entropy)."""
        p = np.einsum("z,zar->ar", self.prior, self.reply[:, self.starts[0]])
        return int((-p * np.log(np.maximum(p, 1e-300))).sum(axis=1).argmax())

    @cached_property
    def rewards(self) -> Float[np.ndarray, " O"]:
        return np.array(self.spec.rewards)

    @cached_property
    def prior(self) -> Float[np.ndarray, " Z"]:
        return self.prior_vector(self.spec.prior)

    @cached_property
    def real_prior(self) -> Float[np.ndarray, " Z"]:
        return self.prior_vector(self.spec.real_prior)

    @cached_property
    def agent_index(self) -> dict[str, int]:
        return {act: i for i, act in enumerate(self.spec.agent_acts)}

    @cached_property
    def user_index(self) -> dict[str, int]:
        return {act: i for i, act in enumerate(self.spec.user_acts)}

    def prior_vector(self, shares: Mapping[str, float]) -> Float[np.ndarray, " Z"]:
        """Shares of types by name as a vector that sums to 1, zero for types not named.

        Raises:
            ValueError: on an unknown type or shares that do not sum to 1.
        """
        return _vector(shares, self.spec.user_types, f"the users of world {self.name}")

    def claiming(self, claimed: str) -> World:
        """The same users, each naming ``claimed`` wherever it would name its own type.

        What a persona prompt does to a simulator whose behaviour it does not reach:
        the words change, the reactions stay.
        """
        reply = self.reply.copy()
        for z, name in enumerate(self.spec.user_types):
            own = self.user_index[self.spec.reveals.get(name, self.spec.reveals[claimed])]
            said = self.user_index[self.spec.reveals[claimed]]
            if own != said:
                reply[z, :, :, said] += reply[z, :, :, own]
                reply[z, :, :, own] = 0.0
        return World(self.spec, reply, self.next_state, self.outcome, self.starts)

    def say(self, act: str) -> str:
        """The act as an English sentence (the act itself where the world has none)."""
        return self.spec.sentences.get(act, act)


def compile_world(spec: WorldSpec[State]) -> World:
    """Enumerate the reachable states of ``spec`` and tabulate it.

    Raises:
        ValueError: if a distribution of the spec does not sum to 1 or names an unknown act.
    """
    types, acts, replies, outcomes = spec.user_types, spec.agent_acts, spec.user_acts, spec.outcomes
    starts = list(spec.tasks.values()) or [spec.initial_state]
    index = {state: i for i, state in enumerate(dict.fromkeys(starts))}
    frontier = list(index)
    for _ in range(spec.horizon):  # breadth first: every state that some type can be in
        found = dict.fromkeys(
            spec.step(z, state, act, said) for state in frontier for z in types for act in acts for said in replies
        )
        frontier = [state for state in found if state not in index]
        index |= {state: i for i, state in enumerate(frontier, len(index))}
    reply = [
        [[_vector(spec.reply(z, s, act), replies, f"reply of {z} to {act}") for act in acts] for s in index]
        for z in types
    ]
    # a state beyond the horizon is never read; it stays where it is
    next_state = [
        [[[index.get(spec.step(z, s, act, said), i) for said in replies] for act in acts] for s, i in index.items()]
        for z in types
    ]
    outcome = [[_vector(spec.outcome(z, s), outcomes, f"outcome of {z}") for s in index] for z in types]
    tables = np.array(reply), np.array(next_state, dtype=np.int64), np.array(outcome)
    return World(spec, *tables, np.array([index[state] for state in starts]))


def _vector(shares: Mapping[str, float], names: Sequence[str], what: str) -> Float[np.ndarray, " n"]:
    if unknown := sorted(set(shares) - set(names)):
        raise ValueError(f"{what}: unknown {unknown}")
    vector = np.array([shares.get(name, 0.0) for name in names], dtype=np.float64)
    if abs(vector.sum() - 1) > 1e-9 or (vector < 0).any():
        raise ValueError(f"{what}: shares must be at least 0 and sum to 1, got a sum of {vector.sum():.6f}")
    return vector
