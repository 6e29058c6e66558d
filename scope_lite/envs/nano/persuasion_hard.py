"""persuasion_hard: the persuasion world with tastes that change in mid-dialogue.

Six turns. Each user warms to one kind of appeal until it has heard three that fit, then
to another only; asking costs a turn and makes most users name what they warm to now. Two
types open with the same taste and part ways later, so that one question is not always
enough. The maximum takes six appeals that fit, so that nobody who asks can reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scope_lite.envs.nano.persuasion import HABITS, SENTENCES, TOPICS
from scope_lite.envs.nano.spec import AgentHabit, History, State, WorldSpec

TASTES: dict[str, tuple[str, str]] = {
    "heart": ("heart", "facts"),
    "facts": ("facts", "trust"),
    "trust": ("trust", "social"),
    "budget": ("budget", "heart"),
    "social": ("social", "budget"),
    "restless": ("heart", "social"),
    # real users only
    "guarded": ("trust", "heart"),
    "contrary": ("facts", "budget"),
}
"""type -> what it warms to first, and from then on"""
UNKNOWN_TYPES = ("guarded", "contrary")
KNOWN_TYPES = tuple(z for z in TASTES if z not in UNKNOWN_TYPES)
SATED_AFTER = 3
"""appeals that fit before the taste changes"""


@dataclass(frozen=True)
class HardNumbers:
    """Every number of the world: those of ``persuasion``, but for the horizon and a prior with room for a sixth type.

    Calibrated by exact values only: with a change of taste after two appeals instead of
    three, the agents of the mix earned .04, too little to learn from.
    """

    prior: tuple[float, ...] = (0.44, 0.16, 0.12, 0.10, 0.08, 0.10)
    wrong_penalty: float = 0.5
    push_penalty: float = 1.0
    reveal_rate: float = 0.95
    polite_yes: float = 0.1
    dry_no: float = 0.05
    horizon: int = 6
    unknown_share: float = 0.2


def persuasion_hard(numbers: HardNumbers | None = None) -> WorldSpec:
    """The world's description; a state is (interest, appeals that fitted, at most ``SATED_AFTER``)."""
    n = numbers or HardNumbers()
    outcomes = tuple(a for a in SENTENCES if a.startswith("give-"))
    real = {z: (1 - n.unknown_share) / len(KNOWN_TYPES) for z in KNOWN_TYPES}
    real |= {z: n.unknown_share / len(UNKNOWN_TYPES) for z in UNKNOWN_TYPES}

    def step(user: str, state: State, act: str, said: str) -> State:
        interest, fitted = _parts(state)
        if act == f"appeal-{_wants(user, fitted)}":
            return interest + 1.0, min(fitted + 1, SATED_AFTER)
        if act.startswith("appeal-"):
            return interest - n.wrong_penalty, fitted
        return (interest - n.push_penalty if act == "push" else interest), fitted

    return WorldSpec(
        name="persuasion_hard",
        agent_acts=("greet", "ask", *(f"appeal-{t}" for t in TOPICS), "push"),
        user_acts=("hi", *(f"reveal-{t}" for t in TOPICS), "yes", "no", "displeased"),
        outcomes=outcomes,
        rewards=(0.0, 0.25, 0.5, 0.75, 1.0),
        user_types=tuple(TASTES),
        prior=dict(zip(KNOWN_TYPES, n.prior, strict=True)),
        real_prior=real,
        horizon=n.horizon,
        initial_state=(0.0, 0),
        reply=lambda user, state, act: _reply(n, user, _parts(state)[1], act),
        step=step,
        outcome=lambda user, state: _donation(outcomes, _parts(state)[0], n.horizon),
        reveals={z: f"reveal-{TASTES[z][0]}" for z in KNOWN_TYPES},
        habits=(_asks_again(HABITS[0]), *HABITS[1:]),
        exploit=tuple(f"appeal-{_wants('heart', t)}" for t in range(n.horizon)),
        sentences=SENTENCES,
    )


def _parts(state: State) -> tuple[float, int]:
    assert isinstance(state, tuple)
    return state


def _wants(user: str, fitted: int) -> str:
    return TASTES[user][fitted >= SATED_AFTER]


def _reply(n: HardNumbers, user: str, fitted: int, act: str) -> Mapping[str, float]:
    if act == "greet":
        return {"hi": 0.9, "yes": 0.1}
    if act == "ask":
        if user == "guarded":  # never says what it wants
            return {"hi": 0.9, "no": 0.1}
        # contrary says one thing and wants another
        said = "reveal-heart" if user == "contrary" else f"reveal-{_wants(user, fitted)}"
        return {said: n.reveal_rate, "hi": 1 - n.reveal_rate}
    if act == "push":
        return {"displeased": 0.8, "no": 0.2}
    if act == f"appeal-{_wants(user, fitted)}":
        return {"yes": 1 - n.dry_no, "no": n.dry_no}
    cold = 1 - n.polite_yes
    return {"no": cold * 2 / 3, "displeased": cold / 3, "yes": n.polite_yes}


def _donation(outcomes: tuple[str, ...], interest: float, horizon: int) -> Mapping[str, float]:
    """Interest as a share of the most that can be won, rounded to a level up or down so that the mean is kept."""
    top = len(outcomes) - 1
    level = float(np.clip(interest / horizon * top, 0, top))
    low = min(int(level), top - 1)
    shares = dict.fromkeys(outcomes, 0.0)
    shares[outcomes[low]] += 1 - (level - low)
    shares[outcomes[low + 1]] += level - low
    return shares


def _asks_again(adapts: AgentHabit) -> AgentHabit:
    """The habit that adapts, asking anew now and then when an appeal falls flat."""

    def act(history: History, rng: np.random.Generator) -> str:
        flat = bool(history) and history[-1][0].startswith("appeal-") and history[-1][1] != "yes"
        return "ask" if flat and rng.random() < 0.5 else adapts.act(history, rng)

    return replace(adapts, act=act)


def ask_again(history: History) -> str:
    """Ask, appeal to what was named until users have had enough of it, ask again: good and simple."""
    if len(history) in (0, 1 + SATED_AFTER):
        return "ask"
    heard = [said.removeprefix("reveal-") for _, said in history if said.startswith("reveal-")]
    return f"appeal-{heard[-1] if heard else TOPICS[0]}"
