"""persuasion: the nano analogue of Persuasion for Good.

An agent has four turns to move a user to a donation. A user warms to one kind of
appeal only; asking costs a turn and makes most users say which one. The prior over
types has a clear favourite, so a simulator that always plays the favourite pays an
agent that never asks: repeat one appeal, ignore what is said. That is the exploit.

``persuasion_plain`` is the twin without an exploit: the users talk just the same, but
all of them warm to the same appeal, so what works with one works with everyone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scope_lite.envs.nano.spec import AgentHabit, History, State, WorldSpec, real_shares

TOPICS = ("heart", "facts", "trust", "budget", "social")
UNKNOWN_TYPES = ("guarded", "contrary")


@dataclass(frozen=True)
class PersuasionNumbers:
    """Every number of the world; the multiverse draws them at random.

    Calibrated once, before any method was compared: the prior, gains and penalties are
    the prototype's, chosen so that ask-then-match beats every policy that does not ask.
    """

    prior: tuple[float, ...] = (0.5, 0.18, 0.14, 0.10, 0.08)
    match_gain: float = 1.0
    """interest won by an appeal that fits the user"""
    wrong_penalty: float = 0.5
    """interest lost by one that does not"""
    push_penalty: float = 1.0
    reveal_rate: float = 0.95
    """probability that a user who is asked names its type"""
    polite_yes: float = 0.1
    """probability of a yes to an appeal that does not fit"""
    dry_no: float = 0.05
    """probability of a no to an appeal that fits"""
    horizon: int = 4
    exploit: bool = True
    """False: every user warms to the first topic, whatever it says"""
    unknown_share: float = 0.2
    """share of the real users whose type is outside the support of P"""


SENTENCES = {
    "greet": "Hi! How are you doing today?",
    "ask": "What matters to you when you think about giving?",
    "appeal-heart": "Picture one child who gets to eat tonight because of you.",
    "appeal-facts": "Audits show that 92 cents of each dollar reach the field.",
    "appeal-trust": "I work with them, and I put my own name behind it.",
    "appeal-budget": "Even a few cents from your payment would help.",
    "appeal-social": "Most people who chat with me end up giving something.",
    "push": "Come on, just donate now.",
    "hi": "Hello, I am fine, thanks.",
    "reveal-heart": "Honestly, it is the children's stories that get to me.",
    "reveal-facts": "I would want to see numbers first.",
    "reveal-trust": "I need to know who is behind it.",
    "reveal-budget": "Money is tight for me right now.",
    "reveal-social": "I guess I look at what others do.",
    "yes": "Yes, I see. That does speak to me.",
    "no": "Hmm, no. That does not do much for me.",
    "displeased": "Please stop pressing me.",
    "close": "The chat is over. How much of your payment do you donate?",
    **{f"give-{d}": f"I donate ${d}." for d in ("0.00", "0.50", "1.00", "1.50", "2.00")},
}
AGENT_ACTS = ("greet", "ask", *(f"appeal-{t}" for t in TOPICS), "push")
USER_ACTS = ("hi", *(f"reveal-{t}" for t in TOPICS), "yes", "no", "displeased")
OUTCOMES, REWARDS = tuple(act for act in SENTENCES if act.startswith("give-")), (0.0, 0.25, 0.5, 0.75, 1.0)


def persuasion(numbers: PersuasionNumbers | None = None, name: str = "persuasion") -> WorldSpec:
    """The world's description; interest is kept in half units so that states stay few."""
    n = numbers or PersuasionNumbers()
    types = TOPICS + UNKNOWN_TYPES

    def wants(user: str) -> str:
        if not n.exploit:
            return TOPICS[0]
        return {"guarded": "trust", "contrary": "facts"}.get(user, user)

    def step(user: str, state: State, act: str, said: str) -> State:
        assert isinstance(state, float)
        if act == f"appeal-{wants(user)}":
            return state + n.match_gain
        if act.startswith("appeal-"):
            return state - n.wrong_penalty
        return state - n.push_penalty if act == "push" else state

    return WorldSpec(
        name=name,
        agent_acts=AGENT_ACTS,
        user_acts=USER_ACTS,
        outcomes=OUTCOMES,
        rewards=REWARDS,
        user_types=types,
        prior=dict(zip(TOPICS, n.prior, strict=True)),
        real_prior=real_shares(TOPICS, UNKNOWN_TYPES, n.unknown_share),
        horizon=n.horizon,
        initial_state=0.0,
        reply=lambda user, state, act: react(n, user, wants(user), user, act),
        step=step,
        outcome=lambda user, state: _donation(state),
        reveals={z: f"reveal-{z}" for z in TOPICS},
        habits=HABITS,
        exploit=(f"appeal-{TOPICS[0]}",) * n.horizon,
        sentences=SENTENCES,
    )


def react(n: PersuasionNumbers, user: str, wants: str, names: str, act: str) -> Mapping[str, float]:
    """What a user says to an act: it ``wants`` appeals to one topic, and ``names`` one where it is asked."""
    if act == "greet":
        return {"hi": 0.9, "yes": 0.1}
    if act == "ask":
        if user == "guarded":  # never says what it wants
            return {"hi": 0.9, "no": 0.1}
        said = "reveal-heart" if user == "contrary" else f"reveal-{names}"  # contrary says one thing, wants another
        return {said: n.reveal_rate, "hi": 1 - n.reveal_rate}
    if act == "push":
        return {"displeased": 0.8, "no": 0.2}
    if act == f"appeal-{wants}":
        return {"yes": 1 - n.dry_no, "no": n.dry_no}
    cold = 1 - n.polite_yes
    return {"no": cold * 2 / 3, "displeased": cold / 3, "yes": n.polite_yes}


def _donation(interest: State) -> Mapping[str, float]:
    """floor(interest), with a coin deciding the half units: a fair, noisy rounding."""
    assert isinstance(interest, float)
    shares = dict.fromkeys(OUTCOMES, 0.0)
    for half in (0.0, 0.5):
        level = int(np.clip(np.floor(interest + half), 0, len(OUTCOMES) - 1))
        shares[OUTCOMES[level]] += 0.5
    return shares


def persuasion_plain() -> WorldSpec:
    """The twin without an exploit (claim C1 must vanish here)."""
    return persuasion(replace(PersuasionNumbers(), exploit=False), name="persuasion_plain")


def random_persuasion(seed: int) -> WorldSpec:
    """One world of the multiverse: its numbers drawn from the ranges written here."""
    rng = np.random.default_rng([seed, 20260812])
    prior = np.sort(rng.dirichlet(np.full(len(TOPICS), 1.5)))[::-1]
    numbers = PersuasionNumbers(
        prior=tuple(float(p) for p in prior / prior.sum()),
        match_gain=1.0,
        wrong_penalty=float(rng.choice([0.0, 0.5, 1.0])),
        push_penalty=float(rng.choice([0.5, 1.0])),
        reveal_rate=float(rng.uniform(0.5, 1.0)),
        polite_yes=float(rng.uniform(0.0, 0.4)),
        dry_no=float(rng.uniform(0.0, 0.3)),
        horizon=int(rng.integers(3, 6)),
        unknown_share=float(rng.uniform(0.0, 0.4)),
    )
    return persuasion(numbers, name=random_name(seed))


RANDOM_NAMES = "persuasion_<seed>"
"""how the worlds of the multiverse are called"""


def random_name(seed: int) -> str:
    return RANDOM_NAMES.replace("<seed>", str(seed))


def random_seed(name: str) -> int | None:
    """The seed of a world of the multiverse; None for any other name."""
    found = re.fullmatch(r"persuasion_(0|[1-9][0-9]{0,8})", name)
    return int(found[1]) if found else None


# The agents of the pre-training dialogues: a broad mix, of whom a quarter adapt.


def _adapts(history: History, rng: np.random.Generator) -> str:
    heard = [reply.removeprefix("reveal-") for _, reply in history if reply.startswith("reveal-")]
    if heard:
        return f"appeal-{heard[-1]}"
    liked = [act for act, reply in history if reply == "yes" and act.startswith("appeal-")]
    if liked and rng.random() < 0.7:
        return liked[-1]
    opening = ("ask", "greet") if not history else ("ask", f"appeal-{rng.choice(TOPICS)}")
    return opening[0] if rng.random() < 0.75 else opening[1]


def _repeats(history: History, rng: np.random.Generator) -> str:
    appeals = [act for act, _ in history if act.startswith("appeal-")]
    if appeals and rng.random() < 0.85:
        return appeals[-1]
    return f"appeal-{rng.choice(TOPICS)}" if history or rng.random() < 0.7 else "greet"


def _talks(history: History, rng: np.random.Generator) -> str:
    if not history:
        return "greet" if rng.random() < 0.7 else "ask"
    return str(rng.choice(["greet", "ask", *(f"appeal-{t}" for t in TOPICS), "push"]))


def _pushes(history: History, rng: np.random.Generator) -> str:
    return "push" if rng.random() < 0.6 else f"appeal-{rng.choice(TOPICS)}"


HABITS = (
    AgentHabit("adapts", 0.25, _adapts),
    AgentHabit("repeats", 0.35, _repeats),
    AgentHabit("talks", 0.3, _talks),
    AgentHabit("pushes", 0.1, _pushes),
)
