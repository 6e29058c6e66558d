"""Proposition 3.6: what a policy that has settled on the mode's exploits loses with real users.

Some users, B_x of mass q, need another strategy. Every exploit in A_x earns at least Δ less than a rival y_b on each of
them, and at most ν more on each of the others; π̂(A_x) = 1 − α. Eq. 9 says that y_b earns more than π̂ by at least
(1 − α)(Δ q − ν (1 − q)) − α R_max. Sharp is the best value outside A_x, less the rival's, in place of R_max: nothing is
subtracted for a rival that no strategy beats, such as the best single one, or one that always knows the user.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, Side, normal, one


@dataclass(frozen=True)
class Deployment:
    """Payoffs in [0, 1]; A_x: the first ``n_exploit`` strategies, y_b: the last, B_x: the first ``n_lost`` users."""

    payoff: Float[Tensor, "batch users strategies"]
    users: Float[Tensor, "batch users"]
    policy: Float[Tensor, "batch strategies"]
    n_exploit: int = 1
    n_lost: int = 1

    @property
    def lost_mass(self) -> Float[Tensor, "batch"]:
        """q: the mass of B_x."""
        return self.users[:, : self.n_lost].sum(-1)

    @property
    def values(self) -> Float[Tensor, "batch strategies"]:
        """Expected payoff of each single strategy over users."""
        return (self.users[..., None] * self.payoff).sum(1)


def earned(case: Deployment) -> Float[Tensor, "batch"]:
    """J(π̂)."""
    return (case.values * case.policy).sum(-1)


def regret(case: Deployment) -> Float[Tensor, "batch"]:
    """J(y_b) − J(π̂)."""
    return case.values[:, -1] - earned(case)


def _better(case: Deployment) -> Tensor:
    """How much y_b earns above each exploit, by user: (batch, users, n_exploit)."""
    return case.payoff[..., -1:] - case.payoff[..., : case.n_exploit]


def loss(case: Deployment) -> Float[Tensor, "batch"]:
    """Δ: the least that any exploit loses to y_b on any user of B_x."""
    return _better(case)[:, : case.n_lost].amin((-2, -1))


def gain(case: Deployment) -> Float[Tensor, "batch"]:
    """ν: the most that any exploit gains over y_b on any other user."""
    return (-_better(case)[:, case.n_lost :]).amax((-2, -1))


def bound(case: Deployment, off: bool = True, rest: Tensor | float = 0.0) -> Float[Tensor, "batch"]:
    """(1 − α)(Δ q − ν (1 − q)) − α·rest; ``off``: whether users outside B_x count."""
    settled, q = case.policy[:, : case.n_exploit].sum(-1), case.lost_mass
    return settled * (loss(case) * q - off * gain(case) * (1 - q)) - (1 - settled) * rest


def excess(case: Deployment) -> Float[Tensor, "batch"]:
    """What the best strategy outside A_x earns above y_b (at least 0: y_b is one of them)."""
    return case.values[:, case.n_exploit :].amax(-1) - case.values[:, -1]


def bound_paper(case: Deployment) -> Float[Tensor, "batch"]:
    """Eq. 9, with R_max = 1 for what is no exploit."""
    return bound(case, rest=1.0)


def bound_sharp(case: Deployment) -> Float[Tensor, "batch"]:
    """Eq. 9 with ``excess`` in place of R_max."""
    return bound(case, rest=excess(case))


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


def gains_elsewhere(lost_mass: Tensor | None = None, rival: float = 0.8) -> Deployment:
    """The exploit (.9 of π̂) earns 0 on B_x and 1 off it, another strategy (.1) earns 1, the rival .8 everywhere."""
    q = one(0.5) if lost_mass is None else lost_mass
    payoff = one([[0.0, 1.0, rival], [1.0, 1.0, rival]]).expand(len(q), -1, -1)
    return Deployment(payoff, torch.stack([q, 1 - q], -1), one([0.9, 0.1, 0.0]).expand(len(q), -1))


def at_most(bound: Side) -> Side:
    """What π̂ can earn by a bound on its regret, J(y_b) − bound: unlike a regret, never below 0."""
    return lambda case: case.values[:, -1] - bound(case)


PROPOSITION_3_6 = Inequality(
    key="prop-3.6",
    title="Prop 3.6 regret at deployment",
    sample=sample_deployments,
    build=build_deployments,
    left=earned,
    paper=at_most(bound_paper),
    sharp=at_most(bound_sharp),
    tight=gains_elsewhere,
    tight_text="exploit: 0 on B_x, 1 off it; rival: .8; the rest of π̂: 1 everywhere",
    mutations=(
        Mutation("no ν", at_most(lambda c: bound(c, off=False, rest=excess(c))), gains_elsewhere),
        Mutation("nothing for what is no exploit", at_most(bound), gains_elsewhere),
        Mutation("1.01·Δ q", at_most(lambda c: bound_sharp(c) + 0.01 * loss(c) * c.lost_mass), gains_elsewhere),
    ),
)
