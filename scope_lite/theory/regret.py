"""Proposition 3.6: what a policy that has settled on the mode's exploits loses with real users.

On a set E of users with mass ρ (the paper's B_x, q_*), every exploit in A_x loses at least δ. Against the best single
policy, what A_x gains on the other users is subtracted (the paper's ν); Eq. 9 also subtracts (1 − π(A_x))·R_max, which
is not needed where the rival is that best policy. Against the oracle, who knows the user, ρδ·π(A_x) is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, normal, one, scaled


@dataclass(frozen=True)
class Deployment:
    """Users, strategies and payoffs; A_x is the first ``n_exploit`` strategies, E the first ``n_lost`` users."""

    payoff: Float[Tensor, "batch users strategies"]
    users: Float[Tensor, "batch users"]
    policy: Float[Tensor, "batch strategies"]
    n_exploit: int = 1
    n_lost: int = 1

    @property
    def rho(self) -> Float[Tensor, "batch"]:
        """Mass of E."""
        return self.users[:, : self.n_lost].sum(-1)

    @property
    def exploit_mass(self) -> Float[Tensor, "batch"]:
        """π(A_x)."""
        return self.policy[:, : self.n_exploit].sum(-1)


def value(case: Deployment) -> Float[Tensor, "batch"]:
    """Expected payoff of the policy over users."""
    return (case.users * (case.payoff * case.policy[:, None, :]).sum(-1)).sum(-1)


def strategy_values(case: Deployment) -> Float[Tensor, "batch strategies"]:
    """Expected payoff of each single strategy over users."""
    return (case.users[..., None] * case.payoff).sum(1)


def oracle_regret(case: Deployment) -> Float[Tensor, "batch"]:
    """Payoff lost against the best reply to every user, V*(z)."""
    return (case.users * case.payoff.amax(-1)).sum(-1) - value(case)


def single_regret(case: Deployment) -> Float[Tensor, "batch"]:
    """Payoff lost against the best single strategy y*."""
    return strategy_values(case).amax(-1) - value(case)


def oracle_loss(case: Deployment) -> Float[Tensor, "batch"]:
    """δ: the least that any exploit loses to V*(z) on any user of E."""
    loss = case.payoff.amax(-1, keepdim=True) - case.payoff
    return loss[:, : case.n_lost, : case.n_exploit].amin((-2, -1))


def _advantage_over_exploits(case: Deployment) -> Tensor:
    """How much y* earns above each exploit, by user: (batch, users, n_exploit)."""
    best = strategy_values(case).argmax(-1)
    chosen = case.payoff.gather(-1, best[:, None, None].expand(-1, case.payoff.shape[1], 1))
    return chosen - case.payoff[..., : case.n_exploit]


def single_loss(case: Deployment) -> Float[Tensor, "batch"]:
    """δ against y*: the least that an exploit loses to it on average over E."""
    weight = case.users[:, : case.n_lost, None]
    lost = (weight * _advantage_over_exploits(case)[:, : case.n_lost]).sum(1) / weight.sum(1)
    return lost.amin(-1)


def exploit_gain(case: Deployment) -> Float[Tensor, "batch"]:
    """The most that an exploit gains over y* on average off E."""
    weight = case.users[:, case.n_lost :, None]
    gained = -(weight * _advantage_over_exploits(case)[:, case.n_lost :]).sum(1) / weight.sum(1)
    return gained.amax(-1)


def oracle_bound(case: Deployment) -> Float[Tensor, "batch"]:
    """ρ δ π(A_x)."""
    return case.rho * oracle_loss(case) * case.exploit_mass


def single_bound(case: Deployment) -> Float[Tensor, "batch"]:
    """π(A_x) (ρ δ − (1−ρ)·gain), δ and gain against y*."""
    return case.exploit_mass * (case.rho * single_loss(case) - (1 - case.rho) * exploit_gain(case))


def single_bound_paper(case: Deployment) -> Float[Tensor, "batch"]:
    """Eq. 9 against y*: π(A_x) (ρ δ − (1−ρ) ν) − (1−π(A_x)) R_max; δ, ν on every single user, payoffs in [0, 1]."""
    better = _advantage_over_exploits(case)
    delta, nu = better[:, : case.n_lost].amin((-2, -1)), (-better[:, case.n_lost :]).amax((-2, -1))
    return case.exploit_mass * (case.rho * delta - (1 - case.rho) * nu) - (1 - case.exploit_mass)


def single_bound_uncorrected(case: Deployment) -> Float[Tensor, "batch"]:
    """π(A_x) ρ δ with δ against y*, as if exploits gained nothing off E: false."""
    return case.exploit_mass * case.rho * single_loss(case)


def sample_deployments(generator: torch.Generator, n: int, users: int = 4, strategies: int = 4) -> Raw:
    """Unconstrained numbers for ``n`` deployments."""
    spread = 0.5 + 5 * torch.rand(n, 1, 1, generator=generator, dtype=torch.float64)
    return {
        "payoff": spread * normal(generator, n, users, strategies),
        "users": normal(generator, n, users),
        "policy": 2 * normal(generator, n, strategies),
    }


def build_deployments(raw: Raw, n_exploit: int = 2, n_lost: int = 2) -> Deployment:
    """Squash payoffs into [0, 1], softmax the two distributions."""
    users, policy = torch.softmax(raw["users"], -1), torch.softmax(raw["policy"], -1)
    return Deployment(torch.sigmoid(raw["payoff"]), users, policy, n_exploit, n_lost)


def exact_loss() -> Deployment:
    """One exploit, perfect on the mode's users and worth nothing on the others; the other strategy is always right."""
    return Deployment(one([[0.0, 1.0], [1.0, 1.0]]), one([0.6, 0.4]), one([0.9, 0.1]))


def gains_elsewhere() -> Deployment:
    """The exploit earns 1 off E and 0 on E; the single best policy earns .8 everywhere: .3 is lost, not ρδ = .4."""
    return Deployment(one([[0.0, 0.8], [1.0, 0.8]]), one([0.5, 0.5]), one([1.0, 0.0]))


PROPOSITION_3_6_ORACLE = Inequality(
    key="prop-3.6a",
    title="Prop 3.6 regret, against the oracle",
    sample=sample_deployments,
    build=build_deployments,
    left=oracle_bound,
    source=oracle_regret,
    sharp=oracle_regret,
    tight=exact_loss,
    tight_text="the exploit loses δ on all of E and nothing elsewhere; the rest of π is optimal",
    mutations=(
        Mutation("1.01·ρδπ(A_x)", oracle_regret, exact_loss, left=scaled(1.01, oracle_bound)),
        Mutation("without π(A_x)", oracle_regret, exact_loss, left=lambda c: c.rho * oracle_loss(c)),
    ),
)

PROPOSITION_3_6_SINGLE = Inequality(
    key="prop-3.6b",
    title="Prop 3.6 regret, against the best single policy",
    sample=sample_deployments,
    build=build_deployments,
    left=single_bound,
    source=single_regret,
    source_left=single_bound_paper,
    sharp=single_regret,
    tight=gains_elsewhere,
    tight_text="one exploit: 1 off E, 0 on E, against .8 everywhere",
    mutations=(
        Mutation("no correction for gains off E", single_regret, gains_elsewhere, left=single_bound_uncorrected),
        Mutation("1.01·bound", single_regret, gains_elsewhere, left=scaled(1.01, single_bound)),
    ),
)
