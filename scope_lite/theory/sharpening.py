"""Proposition F.1: sharpening P to P_γ ∝ P^γ starves rare replies.

The paper has one mode of mass m, a rare set of mass ρ whose replies have at most λm each, and the bound (ρ/m) λ^{γ−1}.
Here M is any set of replies (mass m) and λ = min_M P / max_rare P, the inverse of the paper's, so λ stands below the
line. Two other readings of λ, and γ < 1, make the bound false.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, one, sampler, scaled


@dataclass(frozen=True)
class Sharpening:
    """A reply distribution and an exponent; M is the first ``n_major`` replies, the rare set the last ``n_rare``."""

    probs: Float[Tensor, "batch replies"]
    gamma: Float[Tensor, "batch"]
    n_major: int = 1
    n_rare: int = 1

    @property
    def major(self) -> Float[Tensor, "batch n_major"]:
        """P on M."""
        return self.probs[:, : self.n_major]

    @property
    def rare(self) -> Float[Tensor, "batch n_rare"]:
        """P on the rare set."""
        return self.probs[:, -self.n_rare :]


def rare_mass(case: Sharpening) -> Float[Tensor, "batch"]:
    """The left side: P_γ(rare), with P_γ ∝ P^γ."""
    return torch.softmax(case.gamma[:, None] * case.probs.log(), -1)[:, -case.n_rare :].sum(-1)


def lambda_min_max(case: Sharpening) -> Float[Tensor, "batch"]:
    """λ = min_M P / max_rare P, the inverse of the paper's: the reading under which the bound is true."""
    return case.major.amin(-1) / case.rare.amax(-1)


def lambda_mass(case: Sharpening) -> Float[Tensor, "batch"]:
    """λ = m/ρ: a reading under which it is false."""
    return case.major.sum(-1) / case.rare.sum(-1)


def lambda_max_max(case: Sharpening) -> Float[Tensor, "batch"]:
    """λ = max_M P / max_rare P: another false reading."""
    return case.major.amax(-1) / case.rare.amax(-1)


def bound_source(case: Sharpening, lam: Tensor | None = None) -> Float[Tensor, "batch"]:
    """ρ / (m λ^{γ−1}): the paper's (ρ/m) λ^{γ−1}, whose λ is the inverse."""
    lam = lambda_min_max(case) if lam is None else lam
    return case.rare.sum(-1) / (case.major.sum(-1) * lam ** (case.gamma - 1))


def bound_sharp(case: Sharpening, lam: Tensor | None = None) -> Float[Tensor, "batch"]:
    """ρ / (ρ + m λ^{γ−1}), for disjoint sets: below the paper's, and never above 1."""
    x = bound_source(case, lam)
    return x / (1 + x)


sample_sharpenings = sampler(logits=(1.5, (6,)), log_excess=(1.0, ()))
"""Six replies, γ ≥ 1."""


def build_sharpenings(raw: Raw, n_major: int = 2, n_rare: int = 2) -> Sharpening:
    """γ = 1 + exp(log_excess); replies between M and the rare set stay unnamed."""
    return Sharpening(torch.softmax(raw["logits"], -1), 1 + raw["log_excess"].exp(), n_major, n_rare)


def two_levels(gamma: float = 3.0) -> Sharpening:
    """P constant on M, constant on the rare set, nothing else: the sharp bound is reached for every γ."""
    return Sharpening(one([0.35, 0.35, 0.1, 0.1, 0.1]), one(gamma), 2, 3)


def lumpy(gamma: float = 3.0) -> Sharpening:
    """Many small replies in M and one lump among the rare: masses say M is safe, the lump disagrees."""
    return Sharpening(one([0.08] * 10 + [0.15, 0.05]), one(gamma), 10, 2)


def uneven_major(gamma: float = 3.0) -> Sharpening:
    """M holds one large and many small replies, the rare set many equal ones."""
    return Sharpening(one([0.2] + [0.05] * 8 + [0.1] * 4), one(gamma), 9, 4)


def long_tail(gamma: float = 0.2) -> Sharpening:
    """γ < 1 flattens: twenty replies of one in ten thousand each come to weigh more than M."""
    return Sharpening(one([0.45, 0.448, 0.1] + [1e-4] * 20), one(gamma), 2, 21)


PROPOSITION_F_1 = Inequality(
    key="prop-f.1",
    title="Prop F.1 sharpening starves the rare",
    sample=sample_sharpenings,
    build=build_sharpenings,
    left=rare_mass,
    source=bound_source,
    sharp=bound_sharp,
    tight=two_levels,
    tight_text="P constant on M, constant on the rare set, nothing else",
    mutations=(
        Mutation("λ = m/ρ", lambda c: bound_source(c, lambda_mass(c)), lumpy),
        Mutation("λ = max_M/max_rare", lambda c: bound_source(c, lambda_max_max(c)), uneven_major),
        Mutation("γ < 1", bound_source, long_tail),
        Mutation("λ^γ instead of λ^{γ−1}", lambda c: bound_sharp(c) / lambda_min_max(c), two_levels),
        Mutation("constant 0.99", scaled(0.99, bound_sharp), two_levels),
    ),
)
