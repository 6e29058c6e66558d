"""Lemma 3.3: what a collapsed simulator does to the variance of the reward, and what zero variance does not prove.

Two splits are compared. Given the policy's realised acts, the rest of the variance is bounded by g(ε̄_H); but acts may
repeat what the user said. Doob's split charges each surprise to its author and obeys the same bound: with the policy's
coin flips written down in advance (as the paper conditions, Eq. 6), no deviation means no simulator-made randomness
(proof in the notebook).
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
"""P_φ(the user leaves his mode at some turn) ≤ ε̄_H."""


def simulator_variance(process: Process) -> Float[Tensor, "batch"]:
    """The simulator's part of Var(R) in Doob's split."""
    return q.doob_split(process)[1]


def variance_bound(process: Process) -> Float[Tensor, "batch"]:
    """Sharp right side: ``R_max² g(P(some deviation))``."""
    return process.reward_max**2 * q.capped_bernoulli_variance(deviation_probability(process))


def variance_bound_source(process: Process) -> Float[Tensor, "batch"]:
    """The paper's form: ``R_max² ε̄_H``."""
    return process.reward_max**2 * q.accumulate(process, q.collapse_errors(process.replies))


def _uncapped(process: Process) -> Tensor:
    deviation = deviation_probability(process)
    return process.reward_max**2 * deviation * (1.0 - deviation)


def _luck() -> Process:
    """One bit, and R = 1 iff it deviates, whatever the policy does."""
    return replace(make.one_bit(one(0.1)), reward=one([0.0, 1.0, 0.0, 1.0]))


LEMMA_3_3_ACTIONS = Inequality(
    key="lem-3.3a",
    title="Lem 3.3 variance given realised acts",
    sample=make.sample_raw,
    build=make.build_process,
    left=q.variance_given_actions,
    source=variance_bound_source,
    sharp=variance_bound,
    tight=_luck,
    tight_text="one bit, R = 1 iff it deviates",
    mutations=(
        Mutation("constant 0.99", scaled(0.99, variance_bound), _luck),
        Mutation("x(1−x) without the cap", _uncapped, make.fair_bits),
        Mutation(
            "realised acts as if they did not leak (Doob's part ≤ this one)",
            q.variance_given_actions,
            lambda: make.ask_then("bit"),
            left=simulator_variance,
        ),
    ),
)

LEMMA_3_3_DOOB = replace(
    LEMMA_3_3_ACTIONS,
    key="lem-3.3b",
    title="Lem 3.3 variance, Doob's split",
    left=simulator_variance,
    mutations=(
        *LEMMA_3_3_ACTIONS.mutations[:2],
        Mutation(
            "converse: no variance, hence no deviation",
            simulator_variance,
            lambda: make.ask_then("match"),
            left=deviation_probability,
        ),
    ),
)
