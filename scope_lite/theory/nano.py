"""A nano world with a short horizon as an exactly enumerated process, so that the theorems can be tried on it.

Nothing here imports the worlds: any world and any filter of users with the members below will do. The reward of a
finished dialogue is its expected outcome under the un-sharpened filter, so every sharpness γ shares one reward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from scope_lite.theory.gradients import accumulated_distance, gradient_gap, rollout_distance
from scope_lite.theory.process import (
    History,
    Logits,
    Process,
    mode_replies,
    process_from_callables,
    return_gradient,
    tabular_theta,
)
from scope_lite.theory.quantities import accumulate, coin_split, collapse_errors, reward_variance, score_sup

NewUsers = Callable[[float], Any]
"""γ -> a user (a batch of one row) at the start of a dialogue, sharpened by γ: with ``observe``,
``reply_probabilities`` and ``outcome_probabilities`` given the dialogue so far, as in ``envs.nano.users``."""


def _shape(world: Any) -> tuple[int, int, int]:
    return world.horizon, len(world.spec.agent_acts), len(world.spec.user_acts)


def _listen(users: Any, history: History) -> Any:
    for act, reply in history:
        users.observe(np.array([act]), np.array([reply]))
    return users


def process_from_world(world: Any, new_users: NewUsers, gamma: float) -> Process:
    """Enumerate a world against its simulator sharpened by ``gamma``.

    Args:
        world: has ``horizon``, ``rewards`` and ``spec.agent_acts``, ``spec.user_acts``; keep the horizon at 2 (at 3 the
            persuasion world has 373,248 leaves).
    """
    return process_from_callables(
        *_shape(world),
        lambda history, act: _listen(new_users(gamma), history).reply_probabilities(np.array([act]))[0],
        lambda leaf: _listen(new_users(1.0), leaf).outcome_probabilities()[0] @ world.rewards,
        reward_max=float(np.max(world.rewards)),
    )


def bias_by_sharpness(
    world: Any, new_users: NewUsers, gammas: Sequence[float], policies: dict[str, Logits]
) -> pd.DataFrame:
    """Theorem 3.2 and Lemma 3.3 on a world, by sharpness of its simulator.

    Returns:
        policy, gamma, epsilon (ε̄_H under the φ-rollout), epsilon_min (under either), deviation (TV), gap (in units of
        B·R_max), relative (gap / ‖∇J_φ‖), simulator_share (the simulator's part of Var(R), Eq. 6), variance.
    """
    sharpened = {gamma: process_from_world(world, new_users, gamma) for gamma in gammas}
    thetas = {name: tabular_theta(*_shape(world), logits) for name, logits in policies.items()}
    return pd.DataFrame(
        {"policy": name, "gamma": gamma, **_bias(replace(process, theta=theta))}
        for name, theta in thetas.items()
        for gamma, process in sharpened.items()
    )


def _bias(process: Process) -> dict[str, float]:
    modes = mode_replies(process.replies)
    total, simulator = reward_variance(process), coin_split(process)[1]
    row = {
        "epsilon": accumulate(process, collapse_errors(process.replies)),
        "epsilon_min": accumulated_distance(process, modes),
        "deviation": rollout_distance(process, modes),
        "gap": gradient_gap(process, modes) / (score_sup(process, modes) * process.reward_max),
        "relative": gradient_gap(process, modes) / return_gradient(process).norm(dim=-1).clamp_min(1e-300),
        "simulator_share": simulator / total.clamp_min(1e-300),
        "variance": total,
    }
    return {name: float(value.squeeze()) for name, value in row.items()}


def favour(acts: Sequence[int], n_acts: int, strength: float = 3.0) -> Callable[[History], Sequence[float]]:
    """Policy logits that favour ``acts[t]`` at turn t by ``strength`` nats over the others."""

    return lambda history: [strength * (act == acts[len(history)]) for act in range(n_acts)]
