"""persuasion: the nano analogue of Persuasion for Good; and its twin without an exploit, a harder one, random ones.

An agent has four turns to move a user to a donation. A user warms to one kind of
appeal only; asking costs a turn and makes most users say which one. The prior over
types has a clear favourite, so a simulator that always plays the favourite pays an
agent that never asks: repeat one appeal, ignore what is said. That is the exploit.

``persuasion_plain`` is the twin without an exploit: the users talk just the same, but
all of them warm to the same appeal, so what works with one works with everyone.

In ``persuasion_hard`` tastes change in mid-dialogue. Six turns; each user warms to one
kind of appeal until it has heard three that fit, then to another only; whoever is asked
names what it warms to now. Two types open with the same taste and part ways later, so
that one question is not always enough. The maximum takes six appeals that fit, so that
nobody who asks can reach it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scope_lite.envs.nano.spec import PRIOR, UNKNOWN_SHARE, AgentHabit, History, WorldSpec, populations
from scope_lite.store.plain_yaml import read_yaml

_DATA = read_yaml(Path(__file__).with_suffix(".yaml"))
Tastes = Mapping[str, list[str]]
TASTES: Tastes = _DATA["tastes"]
"""type -> the topics that it warms to, one after the other"""
CHANGING_TASTES: Tastes = _DATA["changing_tastes"]
SATED_AFTER = 3
"""appeals that fit before a taste changes"""
SENTENCES: dict[str, str] = _DATA["sentences"]

TOPICS = tuple(act.removeprefix("reveal-") for act in SENTENCES if act.startswith("reveal-"))
APPEALS = tuple(f"appeal-{topic}" for topic in TOPICS)
AGENT_ACTS = ("greet", "ask", *APPEALS, "push")
OUTCOMES = tuple(act for act in SENTENCES if act.startswith("give-"))


@dataclass(frozen=True)
class PersuasionNumbers:
    """Every number of the world; the multiverse draws them at random.

    Calibrated once, before any method was compared: the prior, gains and penalties are
    the prototype's, chosen so that ask-then-match beats every policy that does not ask.
    """

    prior: tuple[float, ...] = PRIOR
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
    most: float = 4.0
    """interest that earns the largest donation"""
    exploit: bool = True
    """False: every user warms to the first topic, whatever it says"""
    unknown_share: float = UNKNOWN_SHARE
    """share of the real users whose type is outside the support of P"""


class Mood(NamedTuple):
    """Where a user stands."""

    interest: float = 0.0
    served: int = 0
    """appeals that fitted, counted as long as its taste may change"""


def persuasion(
    numbers: PersuasionNumbers | None = None, name: str = "persuasion", tastes: Tastes = TASTES
) -> WorldSpec[Mood]:
    """The world's description."""
    n = numbers or PersuasionNumbers()
    (prior, real_prior), favourite = populations(tuple(tastes), n.prior, n.unknown_share), tastes[TOPICS[0]]

    def names(user: str, mood: Mood) -> str:
        return tastes[user][mood.served // SATED_AFTER]

    def wants(user: str, mood: Mood) -> str:
        return f"appeal-{names(user, mood) if n.exploit else TOPICS[0]}"

    def step(user: str, mood: Mood, act: str, said: str) -> Mood:
        if act == wants(user, mood):
            changes = SATED_AFTER * (len(tastes[user]) - 1)
            return Mood(mood.interest + n.match_gain, min(mood.served + 1, changes))
        lost = {**dict.fromkeys(APPEALS, n.wrong_penalty), "push": n.push_penalty}.get(act, 0.0)
        return mood._replace(interest=mood.interest - lost)

    def reply(user: str, mood: Mood, act: str) -> Mapping[str, float]:
        return _react(n, user, wants(user, mood), names(user, mood), act)

    return WorldSpec(
        name=name,
        agent_acts=AGENT_ACTS,
        user_acts=("hi", *(f"reveal-{topic}" for topic in TOPICS), "yes", "no", "displeased"),
        outcomes=OUTCOMES,
        rewards=(0.0, 0.25, 0.5, 0.75, 1.0),
        user_types=tuple(tastes),
        prior=prior,
        real_prior=real_prior,
        horizon=n.horizon,
        initial_state=Mood(),
        reply=reply,
        step=step,
        outcome=lambda user, mood: _donation(mood.interest / n.most),
        reveals={z: f"reveal-{tastes[z][0]}" for z in prior},
        habits=_habits(asks_again=len(favourite) > 1),
        exploit=tuple(f"appeal-{favourite[min(t // SATED_AFTER, len(favourite) - 1)]}" for t in range(n.horizon)),
        sentences=SENTENCES,
    )


def _react(n: PersuasionNumbers, user: str, wants: str, names: str, act: str) -> Mapping[str, float]:
    """What a user says to an act: it ``wants`` one appeal, and ``names`` a topic where it is asked."""
    if act == "greet":
        return {"hi": 0.9, "yes": 0.1}
    if act == "ask":
        if user == "guarded":  # never says what it wants
            return {"hi": 0.9, "no": 0.1}
        said = "reveal-heart" if user == "contrary" else f"reveal-{names}"  # contrary says one thing, wants another
        return {said: n.reveal_rate, "hi": 1 - n.reveal_rate}
    if act == "push":
        return {"displeased": 0.8, "no": 0.2}
    if act == wants:
        return {"yes": 1 - n.dry_no, "no": n.dry_no}
    cold = 1 - n.polite_yes
    return {"no": cold * 2 / 3, "displeased": cold / 3, "yes": n.polite_yes}


def _donation(share: float) -> Mapping[str, float]:
    """A share of the most that can be given, rounded to a level up or down at random so that the mean is kept."""
    top = len(OUTCOMES) - 1
    level = float(np.clip(share * top, 0, top))
    low = min(int(level), top - 1)
    return {OUTCOMES[low]: 1 - (level - low), OUTCOMES[low + 1]: level - low}


def persuasion_plain() -> WorldSpec[Mood]:
    """The twin without an exploit (claim C1 must vanish here)."""
    return persuasion(PersuasionNumbers(exploit=False), "persuasion_plain")


def persuasion_hard() -> WorldSpec[Mood]:
    """The world whose tastes change; a prior with room for a sixth type.

    Calibrated by exact values only: with a change of taste after two appeals instead of three, the agents of the mix
    earned .04, too little to learn from.
    """
    numbers = PersuasionNumbers(prior=(0.44, 0.16, 0.12, 0.10, 0.08, 0.10), horizon=6, most=6.0)
    return persuasion(numbers, "persuasion_hard", CHANGING_TASTES)


# -- the multiverse ---------------------------------------------------------------------------------------------------

RANDOM_NAMES = "persuasion_<seed>"
"""how its worlds are called"""


def random_persuasion(seed: int) -> WorldSpec[Mood]:
    """One world of the multiverse: its numbers drawn from the ranges written here."""
    rng = np.random.default_rng([seed, 20260812])
    prior = np.sort(rng.dirichlet(np.full(len(TOPICS), 1.5)))[::-1]
    numbers = PersuasionNumbers(
        prior=tuple(float(p) for p in prior / prior.sum()),
        wrong_penalty=float(rng.choice([0.0, 0.5, 1.0])),
        push_penalty=float(rng.choice([0.5, 1.0])),
        reveal_rate=float(rng.uniform(0.5, 1.0)),
        polite_yes=float(rng.uniform(0.0, 0.4)),
        dry_no=float(rng.uniform(0.0, 0.3)),
        horizon=int(rng.integers(3, 6)),
        unknown_share=float(rng.uniform(0.0, 0.4)),
    )
    return persuasion(numbers, random_name(seed))


def random_name(seed: int) -> str:
    return RANDOM_NAMES.replace("<seed>", str(seed))


def random_seed(name: str) -> int | None:
    """The seed of a world of the multiverse; None for any other name."""
    found = re.fullmatch(r"persuasion_(0|[1-9][0-9]{0,8})", name)
    return int(found[1]) if found else None


# -- agents -----------------------------------------------------------------------------------------------------------


def _heard(history: History) -> list[str]:
    """The appeals that fit what the user has named so far."""
    return [said.replace("reveal", "appeal") for _, said in history if said.startswith("reveal-")]


def ask_again(history: History) -> str:
    """Ask, appeal to what was named until users have had enough of it, ask again: good and simple, for the hard one."""
    return "ask" if len(history) in (0, 1 + SATED_AFTER) else [APPEALS[0], *_heard(history)][-1]


def _habits(asks_again: bool) -> tuple[AgentHabit, ...]:
    """The agents of the pre-training dialogues: a broad mix, of whom a quarter adapt.

    ``asks_again``: these ask anew now and then when an appeal falls flat.
    """

    def adapts(history: History, rng: np.random.Generator) -> str:
        flat = bool(history) and history[-1][0] in APPEALS and history[-1][1] != "yes"
        if asks_again and flat and rng.random() < 0.5:
            return "ask"
        if heard := _heard(history):
            return heard[-1]
        liked = [act for act, said in history if said == "yes" and act in APPEALS]
        if liked and rng.random() < 0.7:
            return liked[-1]
        other = "greet" if not history else str(rng.choice(APPEALS))
        return "ask" if rng.random() < 0.75 else other

    def repeats(history: History, rng: np.random.Generator) -> str:
        appeals = [act for act, _ in history if act in APPEALS]
        if appeals and rng.random() < 0.85:
            return appeals[-1]
        return str(rng.choice(APPEALS)) if history or rng.random() < 0.7 else "greet"

    def talks(history: History, rng: np.random.Generator) -> str:
        if not history:
            return "greet" if rng.random() < 0.7 else "ask"
        return str(rng.choice(AGENT_ACTS))

    def pushes(history: History, rng: np.random.Generator) -> str:
        return "push" if rng.random() < 0.6 else str(rng.choice(APPEALS))

    return (
        AgentHabit("adapts", 0.25, adapts),
        AgentHabit("repeats", 0.35, repeats),
        AgentHabit("talks", 0.3, talks),
        AgentHabit("pushes", 0.1, pushes),
    )
