"""Theorem 3.2 and Proposition 3.7: how far a policy gradient moves when the simulator is replaced.

Both say: the gradients against two simulators differ by at most ``B · R_max · TV``, where TV is the total variation
between their dialogues; in the theorem the second simulator is the first one's mode user. The paper has a factor 2 that
centring the reward at R_max/2 removes; constant 1 is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory import instances as make
from scope_lite.theory import quantities as q
from scope_lite.theory.inequality import Inequality, Mutation, Side, one, scaled
from scope_lite.theory.process import Levels, Process, mode_replies, return_gradient, trajectory_probs

Pair = tuple[Process, Levels]
"""a process, and the simulator that replaces its own"""


def gradient_gap(process: Process, other: Levels) -> Float[Tensor, "batch"]:
    """Left side: ‖∇J(own simulator) − ∇J(other simulator)‖₂."""
    return (return_gradient(process) - return_gradient(process, other)).norm(dim=-1)


def rollout_distance(process: Process, other: Levels) -> Float[Tensor, "batch"]:
    """Total variation between the dialogues with the two simulators; with the mode user, P(some deviation)."""
    return q.total_variation(trajectory_probs(process), trajectory_probs(process, other))


def accumulated_distance(process: Process, other: Levels) -> Float[Tensor, "batch"]:
    """The smaller of η̄_H under either rollout; with the mode user as ``other`` this is min of both ε̄_H."""
    distances = q.reply_distances(process.replies, other)
    return torch.minimum(q.accumulate(process, distances), q.accumulate(process, distances, other))


def bound(process: Process, other: Levels) -> Float[Tensor, "batch"]:
    """Sharp right side: ``B · R_max · TV``, B over the union of the supports."""
    return q.score_sup(process, other) * process.reward_max * rollout_distance(process, other)


def bound_accumulated(
    process: Process, other: Levels, size: Float[Tensor, "batch"] | None = None
) -> Float[Tensor, "batch"]:
    """``B R_max min(η̄_H under either rollout)``: weaker, still constant 1. ``size``: what stands for B."""
    size = q.score_sup(process, other) if size is None else size
    return size * process.reward_max * accumulated_distance(process, other)


def bound_source(process: Process, other: Levels) -> Float[Tensor, "batch"]:
    """The paper's right side: ``2 B R_max η̄_H`` under the first rollout."""
    distances = q.accumulate(process, q.reply_distances(process.replies, other))
    return 2.0 * q.score_sup(process, other) * process.reward_max * distances


def with_mode(side: Callable[[Process, Levels], Tensor]) -> Side:
    """A side of Theorem 3.2 from one of two simulators: the other one is the mode user."""
    return lambda process: side(process, mode_replies(process.replies))


def _with_b(size: Callable[[Process], Tensor]) -> Side:
    return with_mode(lambda process, modes: bound_accumulated(process, modes, size(process)))


def _against_mode(process: Process) -> Process:
    return replace(process, replies=mode_replies(process.replies))


def _one_bit() -> Process:
    return make.one_bit(one(0.1))


def _one_bit_pair() -> Pair:
    return _one_bit(), mode_replies(_one_bit().replies)


def _rare_mode_first() -> Pair:
    process = make.off_support()
    return _against_mode(process), process.replies


THEOREM_3_2 = Inequality(
    key="thm-3.2",
    title="Thm 3.2 gradient bias",
    sample=make.sample_raw,
    build=make.build_process,
    left=with_mode(gradient_gap),
    source=with_mode(bound_source),
    sharp=with_mode(bound),
    tight=_one_bit,
    tight_text="one user bit, score ±B, R = 1 iff the act fits the bit",
    mutations=(
        Mutation("constant 0.99", scaled(0.99, with_mode(bound)), _one_bit),
        Mutation("B as a root mean square", _with_b(q.score_rms), lambda: make.rare_act(one(1e-3))),
        Mutation(
            "B over the mode user's dialogues only",
            _with_b(lambda process: q.score_sup(_against_mode(process))),
            make.off_support,
        ),
        Mutation("B₁ without its factor H", _with_b(q.turn_score_sup), make.shared_score),
    ),
)

PROPOSITION_3_7 = Inequality(
    key="prop-3.7",
    title="Prop 3.7 reference recovery",
    sample=make.sample_raw,
    build=make.build_pair,
    left=lambda pair: gradient_gap(*pair),
    source=lambda pair: bound_source(*pair),
    sharp=lambda pair: bound(*pair),
    tight=_one_bit_pair,
    tight_text="the same bit, told with probabilities η apart",
    mutations=(
        Mutation("constant 0.99", lambda pair: 0.99 * bound(*pair), _one_bit_pair),
        Mutation(
            "B over the first support only",
            lambda pair: q.score_sup(pair[0]) * rollout_distance(*pair),
            _rare_mode_first,
        ),
    ),
)
