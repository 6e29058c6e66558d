"""Theorem 3.2, Propositions 3.7 and B.8: how far a policy gradient moves when the simulator is replaced.

The gradients against two simulators differ by at most ``B · R_max · TV``, where TV is the total variation between their
dialogues; in the theorem the second one is the first one's mode user. The paper has a factor 2 that centring the reward
at R_max/2 removes; constant 1 is reached. B.8 has a pool, one simulator drawn for each dialogue, against the mean of
their mode users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory import instances as make
from scope_lite.theory import quantities as q
from scope_lite.theory.inequality import Inequality, Mutation, Raw, Side, normal, one, scaled
from scope_lite.theory.process import (
    Levels,
    Process,
    mode_replies,
    policy,
    reach_probs,
    return_gradient,
    trajectory_probs,
)

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


def bound_paper(process: Process, other: Levels) -> Float[Tensor, "batch"]:
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
    paper=with_mode(bound_paper),
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
    paper=lambda pair: bound_paper(*pair),
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


@dataclass(frozen=True)
class Pool:
    """A policy's process with the first of its simulators, all simulators, and the odds that each plays a dialogue."""

    process: Process
    simulators: tuple[Levels, ...]
    weights: Float[Tensor, "batch simulators"]

    def mean(self, of: Callable[[Levels], Tensor]) -> Tensor:
        """Σ_k w_k of a quantity of each simulator."""
        parts = torch.stack([of(simulator) for simulator in self.simulators], 1)
        return (self.weights.reshape(*self.weights.shape, *[1] * (parts.dim() - 2)) * parts).sum(1)


def mixed_replies(pool: Pool) -> Levels:
    """The one simulator that a pool drawn once a dialogue amounts to: its members, by their odds given the history.

    Not Σ_k w_k φ_k at every turn: what was said tells who speaks. Histories that nobody reaches get the plain mixture.
    """
    reaches = [reach_probs(policy(pool.process), simulator)[:-1] for simulator in pool.simulators]
    mixed = []
    for reach, replies in zip(zip(*reaches, strict=True), zip(*pool.simulators, strict=True), strict=True):
        joint = torch.stack(reach, 1) * pool.weights[..., None]
        odds = torch.where(joint.sum(1, keepdim=True) > 0, joint, pool.weights[..., None])
        odds = odds / odds.sum(1, keepdim=True)
        mixed.append((odds[..., None, None] * torch.stack(replies, 1)).sum(1))
    return tuple(mixed)


def pool_gap(pool: Pool) -> Float[Tensor, "batch"]:
    """‖∇J(pool) − Σ_k w_k ∇J(mode user of k)‖₂ (Eq. 19)."""
    to_modes = pool.mean(lambda simulator: return_gradient(pool.process, mode_replies(simulator)))
    return (return_gradient(pool.process, mixed_replies(pool)) - to_modes).norm(dim=-1)


def _pool_bound(distance: Callable[[Process], Tensor], factor: float = 1.0) -> Side:
    def side(pool: Pool) -> Tensor:
        others = [levels for simulator in pool.simulators for levels in (simulator, mode_replies(simulator))]
        mean = pool.mean(lambda simulator: distance(replace(pool.process, replies=simulator)))
        return factor * q.score_sup(pool.process, *others) * pool.process.reward_max * mean

    return side


def _mixture_collapse(pool: Pool) -> Tensor:
    """Gap to the mode user of the mixture, as if it were the mean of the members' mode users."""
    return gradient_gap(replace(pool.process, replies=mixed_replies(pool)), mode_replies(mixed_replies(pool)))


def _sample_pools(generator: torch.Generator, n: int) -> Raw:
    return make.sample_raw(generator, n) | {"weights": normal(generator, n, 2)}


def _build_pool(raw: Raw) -> Pool:
    process, other = make.build_pair({name: part for name, part in raw.items() if name != "weights"})
    return Pool(process, (process.replies, other), torch.softmax(raw["weights"], -1))


def bits(*epsilon: float) -> Pool:
    """Simulators of one bit that deviate with these probabilities (above ½: of the opposite mode), equal odds."""
    simulators = tuple(make.one_bit(one(e)).replies for e in epsilon)
    return Pool(make.one_bit(one(epsilon[0])), simulators, one([1 / len(epsilon)] * len(epsilon)))


pool_bound = _pool_bound(with_mode(rollout_distance))
"""``B R_max Σ_k w_k TV_k``."""

PROPOSITION_B_8 = Inequality(
    key="prop-b.8",
    title="Prop B.8 gradient against a pool",
    sample=_sample_pools,
    build=_build_pool,
    left=pool_gap,
    paper=_pool_bound(lambda process: q.accumulate(process, q.collapse_errors(process.replies)), 2.0),
    sharp=pool_bound,
    tight=lambda: bits(0.1, 0.3),
    tight_text="bits of one mode, each with its own ε",
    mutations=(
        Mutation("constant 0.99", scaled(0.99, pool_bound), lambda: bits(0.1, 0.3)),
        Mutation("one mode user for the mean of the mode users", pool_bound, lambda: bits(0.0, 1.0), _mixture_collapse),
    ),
)
