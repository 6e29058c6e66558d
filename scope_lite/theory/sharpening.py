"""Propositions B.2 and F.1: alignment with a taste for the typical sharpens P to P^γ, and that starves rare replies.

B.2: where the reward has a term α log φ_ref, KL-regularised RL with weight β ends at φ* ∝ φ_ref^γ exp(r/β) with
γ = 1 + α/β. F.1: for P_γ ∝ P^γ, γ > 1, and a rare set B of mass ρ whose replies have at most λ times the mode's mass
m, P_γ(B) ≤ (ρ/m) λ^{γ−1}, while a distribution within η of P in total variation keeps at least ρ − η of B.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, Side, one, sampler, scaled
from scope_lite.theory.quantities import total_variation

Replies = Float[Tensor, "batch replies"]


@dataclass(frozen=True)
class Alignment:
    """A reference simulator, a reward for each reply beside its typicality, the weights of B.2, and a rival to φ*."""

    reference: Replies
    reward: Replies
    alpha: Float[Tensor, "batch"]
    beta: Float[Tensor, "batch"]
    rival: Replies


def aligned(case: Alignment, gamma: Float[Tensor, "batch"]) -> Replies:
    """φ_ref^γ exp(r/β), normalised."""
    return torch.softmax(gamma[:, None] * case.reference.log() + case.reward / case.beta[:, None], -1)


def gamma_of(case: Alignment) -> Float[Tensor, "batch"]:
    """γ = 1 + α/β."""
    return 1 + case.alpha / case.beta


def alignment_gain(case: Alignment, p: Replies) -> Float[Tensor, "batch"]:
    """E_p[r + α log φ_ref]/β − KL(p‖φ_ref), less the same of φ_ref itself."""
    reward = (case.reward + case.alpha[:, None] * case.reference.log()) / case.beta[:, None]
    divergence = torch.xlogy(p, p) - torch.xlogy(p, case.reference)
    return ((p - case.reference) * reward - divergence).sum(-1)


def _gain_at(gamma: Side) -> Side:
    """As a factor: a gain may be negative."""
    return lambda case: alignment_gain(case, aligned(case, gamma(case))).exp()


def build_alignments(raw: Raw) -> Alignment:
    """Distributions by softmax, weights by exp."""
    reference, rival = torch.softmax(raw["reference"], -1), torch.softmax(raw["rival"], -1)
    return Alignment(reference, raw["reward"], raw["alpha"].exp(), raw["beta"].exp(), rival)


def perfect_rival() -> Alignment:
    """A rival that is φ* itself, here φ_ref^3 exp(2 r)."""
    reference, reward = one([0.6, 0.3, 0.1]), one([0.0, 0.4, 0.9])
    return Alignment(reference, reward, one(1.0), one(0.5), torch.softmax(3 * reference.log() + 2 * reward, -1))


PROPOSITION_B_2 = Inequality(
    key="prop-b.2",
    title="Prop B.2 alignment sharpens",
    sample=sampler(reference=(1.5, (4,)), reward=(1.0, (4,)), alpha=(0.5, ()), beta=(0.5, ()), rival=(1.5, (4,))),
    build=build_alignments,
    left=lambda case: alignment_gain(case, case.rival).exp(),
    paper=_gain_at(gamma_of),
    sharp=_gain_at(gamma_of),
    tight=perfect_rival,
    tight_text="any; a rival falls short by KL(rival‖φ*)",
    mutations=(
        Mutation("γ = α/β", _gain_at(lambda case: case.alpha / case.beta), perfect_rival),
        Mutation("γ = 1 + β/α", _gain_at(lambda case: 1 + case.beta / case.alpha), perfect_rival),
    ),
)


@dataclass(frozen=True)
class Sharpening:
    """P over replies, mode first, an exponent, and what is verbalized; B is the last ``n_rare`` replies."""

    probs: Replies
    gamma: Float[Tensor, "batch"]
    verbalized: Replies
    n_rare: int = 1

    @property
    def mode_mass(self) -> Float[Tensor, "batch"]:
        """m."""
        return self.probs.amax(-1)

    @property
    def rare(self) -> Float[Tensor, "batch n_rare"]:
        """P on B."""
        return self.probs[:, -self.n_rare :]


def rare_mass(case: Sharpening) -> Float[Tensor, "batch"]:
    """P_γ(B), with P_γ ∝ P^γ."""
    return torch.softmax(case.gamma[:, None] * case.probs.log(), -1)[:, -case.n_rare :].sum(-1)


def lambda_paper(case: Sharpening) -> Float[Tensor, "batch"]:
    """λ = max_B P / m, below 1."""
    return case.rare.amax(-1) / case.mode_mass


def lambda_mean(case: Sharpening) -> Float[Tensor, "batch"]:
    """The mean of B for its largest reply: a reading under which the bound is false."""
    return case.rare.mean(-1) / case.mode_mass


def bound_paper(case: Sharpening, lam: Side = lambda_paper) -> Float[Tensor, "batch"]:
    """(ρ/m) λ^{γ−1}."""
    return case.rare.sum(-1) / case.mode_mass * lam(case) ** (case.gamma - 1)


def bound_sharp(case: Sharpening, lam: Side = lambda_paper) -> Float[Tensor, "batch"]:
    """x / (1 + x), x the paper's bound: the normaliser holds B beside the mode, so it is never above 1."""
    x = bound_paper(case, lam)
    return x / (1 + x)


def kept_at_least(case: Sharpening, factor: float = 1.0) -> Float[Tensor, "batch"]:
    """ρ − η, η the total variation between P and what Verbalized Sampling draws from."""
    return case.rare.sum(-1) - factor * total_variation(case.probs, case.verbalized)


def build_sharpenings(raw: Raw, n_rare: int = 2) -> Sharpening:
    """γ = 1 + exp(log_excess); the mode first; replies between it and B stay unnamed."""
    probs = torch.softmax(raw["logits"].sort(-1, descending=True).values, -1)
    verbalized = torch.softmax(probs.log() + 0.3 * raw["moved"], -1)
    return Sharpening(probs, 1 + raw["log_excess"].exp(), verbalized, n_rare)


def _case(probs: list[float], gamma: float, n_rare: int) -> Sharpening:
    """What is verbalized moves a quarter of B to the mode."""
    rare = probs[-n_rare:]
    moved = [probs[0] + sum(rare) / 4, *probs[1:-n_rare], *(0.75 * p for p in rare)]
    return Sharpening(one(probs), one(gamma), one(moved), n_rare)


def two_levels(gamma: float = 3.0) -> Sharpening:
    """One mode, three equal rare replies, nothing else."""
    return _case([0.4, 0.2, 0.2, 0.2], gamma, 3)


def lump(gamma: float = 3.0) -> Sharpening:
    """Among the rare replies one is nearly as large as the mode."""
    return _case([0.35, 0.3, 0.13, 0.12, 0.1], gamma, 4)


def long_tail(gamma: float = 0.2) -> Sharpening:
    """γ < 1 flattens: twenty replies of one in ten thousand each come to weigh more than the mode."""
    return _case([0.898, 0.1, *[1e-4] * 20], gamma, 21)


PROPOSITION_F_1 = Inequality(
    key="prop-f.1",
    title="Prop F.1 sharpening starves the rare",
    sample=sampler(logits=(1.5, (6,)), log_excess=(1.0, ()), moved=(1.0, (6,))),
    build=build_sharpenings,
    left=rare_mass,
    paper=bound_paper,
    sharp=bound_sharp,
    tight=two_levels,
    tight_text="one mode, equal rare replies, nothing else",
    mutations=(
        Mutation("λ = mean of B / m", lambda c: bound_paper(c, lambda_mean), lump),
        Mutation("γ < 1", bound_paper, long_tail),
        Mutation("λ^γ instead of λ^{γ−1}", lambda c: bound_sharp(c) * lambda_paper(c), two_levels),
        Mutation("constant 0.99", scaled(0.99, bound_sharp), two_levels),
    ),
)

PROPOSITION_F_1_VERBALIZED = Inequality(
    key="prop-f.1b",
    title="Prop F.1 what VS keeps of the rare",
    sample=PROPOSITION_F_1.sample,
    build=build_sharpenings,
    left=kept_at_least,
    paper=lambda case: case.verbalized[:, -case.n_rare :].sum(-1),
    sharp=lambda case: case.verbalized[:, -case.n_rare :].sum(-1),
    tight=two_levels,
    tight_text="all that is moved leaves B",
    mutations=(
        Mutation(
            "η counted half",
            lambda case: case.verbalized[:, -case.n_rare :].sum(-1),
            two_levels,
            left=lambda case: kept_at_least(case, 0.5),
        ),
    ),
)
