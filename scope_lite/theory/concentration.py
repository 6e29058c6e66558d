"""Proposition 3.4 and Corollary 3.5: how fast a policy concentrates on the strategies that exploit the mode.

A policy over a handful of strategy clusters; the exploit set A_x is its first ``n_exploit`` strategies. The step of
Proposition 3.4 multiplies odds by a constant factor (geometric); plain softmax policy gradient does not (polynomial).
Logits and entropies in nats; η is the step size of the KL-regularised step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, Side, one, sampler

Policy = Float[Tensor, "batch strategies"]


@dataclass(frozen=True)
class StepCase:
    """One policy step on strategy clusters: where we are, the advantages, and a rival policy to compare with."""

    start: Policy
    advantage: Float[Tensor, "batch strategies"]
    eta: Float[Tensor, "batch"]
    rival: Policy
    n_exploit: int = 1


def kl(p: Policy, q: Policy) -> Float[Tensor, "batch"]:
    """KL(p‖q) in nats; 0·log 0 = 0."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def entropy(p: Policy) -> Float[Tensor, "batch"]:
    """Entropy in nats."""
    return -torch.xlogy(p, p).sum(-1)


def exploit_odds(p: Policy, n_exploit: int) -> Float[Tensor, "batch"]:
    """π(A_x) / π(not A_x)."""
    return p[..., :n_exploit].sum(-1) / p[..., n_exploit:].sum(-1)


def kl_step(p: Policy, advantage: Tensor, eta: Tensor) -> Policy:
    """π_{k+1}(y) ∝ π_k(y) exp(η A(y)) (Proposition 3.4)."""
    return torch.softmax(p.log() + eta[..., None] * advantage, dim=-1)


def kl_objective(p: Policy, start: Policy, advantage: Tensor, eta: Tensor) -> Float[Tensor, "batch"]:
    """⟨π, A⟩ − KL(π‖π_k)/η, the quantity that the step maximises with A held fixed."""
    return (p * advantage).sum(-1) - kl(p, start) / eta


def entropy_ceiling(p: Policy, n_exploit: int) -> Float[Tensor, "batch"]:
    """Largest entropy at this π(A_x): binary entropy of π(A_x), plus π(A_x) log|A_x| and the same outside."""
    inside = p[..., :n_exploit].sum(-1)
    halves = torch.stack([inside, 1 - inside], -1)
    sizes = torch.tensor([n_exploit, p.shape[-1] - n_exploit], dtype=p.dtype)
    return entropy(halves) + (halves * sizes.log()).sum(-1)


def gain(case: StepCase, p: Policy) -> Float[Tensor, "batch"]:
    """What ``p`` gains over the policy that the step starts from, in the step's objective."""
    return kl_objective(p, case.start, case.advantage, case.eta) - (case.start * case.advantage).sum(-1)


def _best(case: StepCase) -> Policy:
    return kl_step(case.start, case.advantage, case.eta)


def _best_gain(case: StepCase) -> Tensor:
    return gain(case, _best(case))


def _wrong_reading(case: StepCase) -> Tensor:
    return gain(case, kl_step(case.start, case.advantage, 1.0 / case.eta))


def _reverse_kl_best(case: StepCase) -> Tensor:
    """Gain of the maximiser of ⟨π, A⟩ − KL(π_k‖π)/η, found by bisection on its normaliser."""
    low = case.advantage.amax(-1) + 1e-9
    high = case.advantage.amax(-1) + 1.0 / case.eta
    for _ in range(80):
        middle = (low + high) / 2
        mass = (case.start / (case.eta[..., None] * (middle[..., None] - case.advantage))).sum(-1)
        low, high = torch.where(mass > 1, middle, low), torch.where(mass > 1, high, middle)
    p = case.start / (case.eta[..., None] * (high[..., None] - case.advantage))
    return gain(case, p / p.sum(-1, keepdim=True))


def uniform_gap(case: StepCase) -> Float[Tensor, "batch"]:
    """Δ: worst advantage in A_x minus best advantage outside."""
    return case.advantage[..., : case.n_exploit].amin(-1) - case.advantage[..., case.n_exploit :].amax(-1)


def _mean_advantage(case: StepCase, part: slice) -> Tensor:
    p = case.start[..., part]
    return (p * case.advantage[..., part]).sum(-1) / p.sum(-1)


def sharp_gap(case: StepCase) -> Float[Tensor, "batch"]:
    """The π_k-mean suffices inside A_x (Jensen helps there); outside it must stay the best one."""
    return _mean_advantage(case, slice(case.n_exploit)) - case.advantage[..., case.n_exploit :].amax(-1)


def mean_gap(case: StepCase) -> Float[Tensor, "batch"]:
    """Difference of means: NOT a condition for growth, because Jensen hurts outside A_x."""
    return _mean_advantage(case, slice(case.n_exploit)) - _mean_advantage(case, slice(case.n_exploit, None))


def odds_growth(case: StepCase) -> Float[Tensor, "batch"]:
    """Factor by which one KL-regularised step multiplies the odds of A_x."""
    return exploit_odds(_best(case), case.n_exploit) / exploit_odds(case.start, case.n_exploit)


sample_steps = sampler(start=(2.0, (5,)), advantage=(1.0, (5,)), log_eta=(0.8, ()), rival=(2.0, (5,)))
"""Policy steps on five strategies."""


def build_steps(raw: Raw, n_exploit: int = 2) -> StepCase:
    """Softmax the policies, exponentiate η."""
    start, rival = torch.softmax(raw["start"], -1), torch.softmax(raw["rival"], -1)
    return StepCase(start, raw["advantage"], raw["log_eta"].exp(), rival, n_exploit)


def _case(start: list[float], advantage: list[float], eta: float, n_exploit: int) -> StepCase:
    return StepCase(one(start), one(advantage), one(eta), one(start), n_exploit)


def two_level_step() -> StepCase:
    """Equal advantages inside A_x and equal ones outside: the odds grow by exactly e^{ηΔ}."""
    case = _case([0.02, 0.03, 0.45, 0.5], [1.0, 1.0, 0.25, 0.25], 0.8, 2)
    return replace(case, rival=_best(case))


def jackpot_outside() -> StepCase:
    """A_x at advantage 0; outside −1 with probability .99 and +5 with .01: the mean gap is .94, yet the odds shrink."""
    return _case([0.5, 0.495, 0.005], [0.0, -1.0, 5.0], 1.0, 1)


PROPOSITION_3_4 = Inequality(
    key="prop-3.4",
    title="Prop 3.4 KL-regularised step",
    sample=sample_steps,
    build=build_steps,
    left=lambda case: gain(case, case.rival),
    source=_best_gain,
    sharp=_best_gain,
    tight=two_level_step,
    tight_text="any; equality only at the step itself (the shortfall is KL(π‖π_{k+1})/η)",
    mutations=(
        Mutation("exp(A/η) instead of exp(ηA)", _wrong_reading, two_level_step),
        Mutation("KL the other way round", _reverse_kl_best, two_level_step),
    ),
)


def _growth_at(gap: Side, factor: float = 1.0) -> Side:
    return lambda case: (factor * case.eta * gap(case)).exp()


COROLLARY_3_5 = Inequality(
    key="cor-3.5",
    title="Cor 3.5 odds of the exploit",
    sample=sample_steps,
    build=build_steps,
    left=_growth_at(sharp_gap),
    source=odds_growth,
    source_left=_growth_at(uniform_gap),
    sharp=odds_growth,
    tight=two_level_step,
    tight_text="equal advantages inside A_x, equal ones outside",
    mutations=(
        Mutation("gap of means", odds_growth, jackpot_outside, left=_growth_at(mean_gap)),
        Mutation("rate 1.01·ηΔ", odds_growth, two_level_step, left=_growth_at(sharp_gap, 1.01)),
        Mutation(
            "entropy falls at every step",
            lambda case: entropy(case.start),
            lambda: _case([0.01, 0.99], [1.0, 0.0], 2.0, 1),
            left=lambda case: entropy(_best(case)),
        ),
    ),
)
