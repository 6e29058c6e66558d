"""persuasion_hard: the persuasion world with tastes that change in mid-dialogue.

Six turns. Each user warms to one kind of appeal until it has heard three that fit, then
to another only; asking costs a turn and makes most users name what they warm to now. Two
types open with the same taste and part ways later, so that one question is not always
enough. The maximum takes six appeals that fit, so that nobody who asks can reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scope_lite.envs.nano.persuasion import (
    AGENT_ACTS,
    HABITS,
    OUTCOMES,
    REWARDS,
    SENTENCES,
    TOPICS,
    UNKNOWN_TYPES,
    USER_ACTS,
    PersuasionNumbers,
    react,
)
from scope_lite.envs.nano.spec import AgentHabit, History, State, WorldSpec, real_shares

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
KNOWN_TYPES = tuple(z for z in TASTES if z not in UNKNOWN_TYPES)
SATED_AFTER = 3
"""appeals that fit before the taste changes"""


NUMBERS = PersuasionNumbers(prior=(0.44, 0.16, 0.12, 0.10, 0.08, 0.10), horizon=6)
"""Those of ``persuasion``, but for the horizon and a prior with room for a sixth type.

Calibrated by exact values only: with a change of taste after two appeals instead of three, the agents of the mix
earned .04, too little to learn from.
"""


def persuasion_hard(n: PersuasionNumbers = NUMBERS) -> WorldSpec:
    """The world's description; a state is (interest, appeals that fitted, at most ``SATED_AFTER``)."""

    def step(user: str, state: State, act: str, said: str) -> State:
        interest, fitted = _parts(state)
        if act == f"appeal-{_wants(user, fitted)}":
            return interest + n.match_gain, min(fitted + 1, SATED_AFTER)
        if act.startswith("appeal-"):
            return interest - n.wrong_penalty, fitted
        return (interest - n.push_penalty if act == "push" else interest), fitted

    def reply(user: str, state: State, act: str) -> Mapping[str, float]:
        wants = _wants(user, _parts(state)[1])
        return react(n, user, wants, wants, act)

    return WorldSpec(
        name="persuasion_hard",
        agent_acts=AGENT_ACTS,
        user_acts=USER_ACTS,
        outcomes=OUTCOMES,
        rewards=REWARDS,
        user_types=tuple(TASTES),
        prior=dict(zip(KNOWN_TYPES, n.prior, strict=True)),
        real_prior=real_shares(KNOWN_TYPES, UNKNOWN_TYPES, n.unknown_share),
        horizon=n.horizon,
        initial_state=(0.0, 0),
        reply=reply,
        step=step,
        outcome=lambda user, state: _donation(_parts(state)[0], n.horizon),
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


def _donation(interest: float, horizon: int) -> Mapping[str, float]:
    """Interest as a share of the most that can be won, rounded to a level up or down so that the mean is kept."""
    top = len(OUTCOMES) - 1
    level = float(np.clip(interest / horizon * top, 0, top))
    low = min(int(level), top - 1)
    shares = dict.fromkeys(OUTCOMES, 0.0)
    shares[OUTCOMES[low]] += 1 - (level - low)
    shares[OUTCOMES[low + 1]] += level - low
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
