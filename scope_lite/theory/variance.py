"""Lemma 3.3: what a collapsed simulator does to the variance of the reward, and what zero variance does not prove.

The paper fixes the policy's coins ξ_π (Eq. 6): written down in advance, one for every history, they make its policy a
plan, and a user who never deviates from its mode leaves such a plan nothing to chance. So the simulator's part of the
variance is at most g of the probability of a deviation. Fixing the acts that were realised instead hides what the user
did, since a policy may repeat what it was told.
"""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from scope_lite.theory import instances as make
from scope_lite.theory import quantities as q
from scope_lite.theory.gradients import rollout_distance, with_mode
from scope_lite.theory.inequality import Inequality, Mutation, one, scaled
from scope_lite.theory.process import Process

deviation_probability = with_mode(rollout_distance)
"""P_φ(the user leaves his mode at some turn) = E ε_H(x, ξ_π) ≤ ε̄_H."""


def simulator_variance(process: Process) -> Float[Tensor, "batch"]:
    """The simulator's part of Var(R), the policy's coins fixed: E Var(R | ξ_π)."""
    return q.coin_split(process)[1]


def variance_bound(process: Process) -> Float[Tensor, "batch"]:
    """Sharp right side: ``R_max² g(P(some deviation))``."""
    return process.reward_max**2 * q.capped_bernoulli_variance(deviation_probability(process))


def variance_bound_paper(process: Process) -> Float[Tensor, "batch"]:
    """The paper's form, its mean over ξ_π: ``R_max² E ε_H(x, ξ_π)``."""
    return process.reward_max**2 * deviation_probability(process)


def _uncapped(process: Process) -> Tensor:
    deviation = deviation_probability(process)
    return process.reward_max**2 * deviation * (1.0 - deviation)


def _luck() -> Process:
    """One bit, and R = 1 iff it deviates, whatever the policy does."""
    return replace(make.one_bit(one(0.1)), reward=one([0.0, 1.0, 0.0, 1.0]))


LEMMA_3_3 = Inequality(
    key="lem-3.3",
    title="Lem 3.3 variance that the simulator makes",
    sample=make.sample_raw,
    build=make.build_process,
    left=simulator_variance,
    paper=variance_bound_paper,
    sharp=variance_bound,
    tight=_luck,
    tight_text="one bit, R = 1 iff it deviates",
    mutations=(
        Mutation("constant 0.99", scaled(0.99, variance_bound), _luck),
        Mutation("x(1−x) without the cap", _uncapped, make.fair_bits),
        Mutation(
            "realised acts in place of coins",
            q.variance_given_actions,
            lambda: make.ask_then("bit"),
        ),
        Mutation(
            "converse: no variance, hence no deviation",
            simulator_variance,
            lambda: make.ask_then("match"),
            left=deviation_probability,
        ),
    ),
)
