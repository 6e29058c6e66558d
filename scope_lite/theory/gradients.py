"""Theorem 3.2 and Proposition 3.7: how far a policy gradient moves when the simulator is replaced.

Both say: the gradients against two simulators differ by at most ``B · R_max · TV``, where TV is the total variation
between their dialogues. The paper has a factor 2 that centring the reward at R_max/2 removes; constant 1 is reached.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory import instances as make
from scope_lite.theory.inequality import Inequality, Mutation, scaled
from scope_lite.theory.process import Levels, Process, mode_replies, return_gradient, trajectory_probs
from scope_lite.theory.quantities import (
    accumulate,
    collapse_errors,
    reply_distances,
    score_rms,
    score_sup,
    total_variation,
    turn_score_sup,
)

Pair = tuple[Process, Levels]


def gradient_gap(process: Process, other: Levels) -> Float[Tensor, "batch"]:
    """‖∇J(own simulator) − ∇J(other simulator)‖₂."""
    return (return_gradient(process) - return_gradient(process, other)).norm(dim=-1)


def rollout_distance(process: Process, other: Levels) -> Float[Tensor, "batch"]:
    """Total variation between the dialogues with the two simulators; with the mode user, P(some deviation)."""
    return total_variation(trajectory_probs(process), trajectory_probs(process, other))


def accumulated_distance(process: Process, other: Levels) -> Float[Tensor, "batch"]:
    """The smaller of η̄_H under either rollout; with the mode user as ``other`` this is min of both ε̄_H."""
    distances = reply_distances(process.replies, other)
    return torch.minimum(accumulate(process, distances), accumulate(process, distances, other))


def mode_gap(process: Process) -> Float[Tensor, "batch"]:
    """Left side of Theorem 3.2."""
    return gradient_gap(process, mode_replies(process.replies))


def mode_bound(process: Process) -> Float[Tensor, "batch"]:
    """Sharp right side of Theorem 3.2: ``B · R_max · P_φ(some deviation)``."""
    modes = mode_replies(process.replies)
    return score_sup(process, modes) * process.reward_max * rollout_distance(process, modes)


def mode_bound_accumulated(process: Process) -> Float[Tensor, "batch"]:
    """The same with min(ε̄_H under φ, ε̄_H under the mode user) in place of the probability: weaker, still constant 1."""
    modes = mode_replies(process.replies)
    return score_sup(process, modes) * process.reward_max * accumulated_distance(process, modes)


def mode_bound_source(process: Process) -> Float[Tensor, "batch"]:
    """The source's right side: ``2 B R_max ε̄_H`` under the φ-rollout."""
    errors = accumulate(process, collapse_errors(process.replies))
    return 2.0 * score_sup(process) * process.reward_max * errors


def pair_gap(pair: Pair) -> Float[Tensor, "batch"]:
    """Left side of Proposition 3.7."""
    return gradient_gap(*pair)


def pair_bound(pair: Pair) -> Float[Tensor, "batch"]:
    """Sharp right side of Proposition 3.7, B over the union of the supports."""
    process, other = pair
    return score_sup(process, other) * process.reward_max * rollout_distance(process, other)


def pair_bound_accumulated(pair: Pair) -> Float[Tensor, "batch"]:
    """``B R_max min(η̄_H under either rollout)``."""
    process, other = pair
    return score_sup(process, other) * process.reward_max * accumulated_distance(process, other)


def pair_bound_source(pair: Pair) -> Float[Tensor, "batch"]:
    """The source's right side: ``2 B R_max η̄_H`` under the first rollout."""
    process, other = pair
    distances = reply_distances(process.replies, other)
    return 2.0 * score_sup(process, other) * process.reward_max * accumulate(process, distances)


def _bound_with(size: Tensor, process: Process) -> Tensor:
    return size * process.reward_max * accumulated_distance(process, mode_replies(process.replies))


def _bound_mode_support(process: Process) -> Tensor:
    modes = mode_replies(process.replies)
    return _bound_with(score_sup(Process(process.theta, process.features, modes, process.reward)), process)


def _epsilon(value: float = 0.1) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def _as_pair(process: Process) -> Pair:
    return process, mode_replies(process.replies)


def _rare_mode_first() -> Pair:
    process = make.off_support()
    modes = Process(process.theta, process.features, mode_replies(process.replies), process.reward)
    return modes, process.replies


THEOREM_3_2 = Inequality(
    key="thm-3.2",
    title="Thm 3.2 gradient bias",
    sample=make.sample_raw,
    build=make.build_process,
    left=mode_gap,
    source=mode_bound_source,
    sharp=mode_bound,
    tight=lambda: make.one_bit(_epsilon()),
    tight_text="one user bit, score ±B, R = 1 iff the act fits the bit",
    mutations=(
        Mutation("constant 0.99", scaled(0.99, mode_bound), lambda: make.one_bit(_epsilon())),
        Mutation(
            "B as a root mean square", lambda p: _bound_with(score_rms(p), p), lambda: make.rare_act(_epsilon(1e-3))
        ),
        Mutation("B over the mode user's dialogues only", _bound_mode_support, make.off_support),
        Mutation("B₁ without its factor H", lambda p: _bound_with(turn_score_sup(p), p), make.shared_score),
    ),
)

PROPOSITION_3_7 = Inequality(
    key="prop-3.7",
    title="Prop 3.7 reference recovery",
    sample=make.sample_raw,
    build=make.build_pair,
    left=pair_gap,
    source=pair_bound_source,
    sharp=pair_bound,
    tight=lambda: _as_pair(make.one_bit(_epsilon())),
    tight_text="the same bit, told with probabilities η apart",
    mutations=(
        Mutation("constant 0.99", scaled(0.99, pair_bound), lambda: _as_pair(make.one_bit(_epsilon()))),
        Mutation(
            "B over the first support only",
            lambda pair: score_sup(pair[0]) * rollout_distance(*pair),
            _rare_mode_first,
        ),
    ),
)
