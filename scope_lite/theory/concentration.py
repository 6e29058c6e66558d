"""Proposition 3.4 and Corollary 3.5: how fast a policy concentrates on the strategies that exploit the mode.

A policy over a handful of strategy clusters; the exploit set A_x is its first ``n_exploit`` strategies. By Assumption
B.3 each of these beats each other one by Δ_x in value against the mode user. A KL-regularised step (Eq. 17) multiplies
the odds of A_x by a constant factor at least, less three errors; plain softmax policy gradient does not (``dynamics``).
Logits and entropies in nats, rewards in [0, 1]; η is the step size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, Side, one, sampler

Policy = Float[Tensor, "*batch strategies"]


@dataclass(frozen=True)
class Updates:
    """Some steps on strategy clusters, and how far each of them misses the ideal one."""

    start: Float[Tensor, "batch strategies"]
    value: Float[Tensor, "batch steps strategies"]
    """Q_mode: what each strategy earns against the mode user"""
    errors: Float[Tensor, "batch 3 steps strategies"]
    """in [-1, 1], in units of ``sizes``: of Q_φ against Q_mode, of Q̂ against Q_φ, of the step's log-odds (halves)"""
    sizes: Float[Tensor, "batch 3"]
    """ε_x, ζ_x, ρ_x"""
    eta: Float[Tensor, "batch"]
    n_exploit: int = 1


def entropy(p: Policy) -> Float[Tensor, "*batch"]:
    """Entropy in nats."""
    return -torch.xlogy(p, p).sum(-1)


def exploit_odds(p: Policy, n_exploit: int) -> Float[Tensor, "*batch"]:
    """π(A_x) / π(not A_x)."""
    return p[..., :n_exploit].sum(-1) / p[..., n_exploit:].sum(-1)


def kl_step(p: Policy, advantage: Tensor, eta: Tensor) -> Policy:
    """π_{k+1}(y) ∝ π_k(y) exp(η A(y)), the maximiser of ⟨π, A⟩ − KL(π‖π_k)/η: Eq. 17 with ρ_x = 0."""
    return torch.softmax(p.log() + eta[..., None] * advantage, dim=-1)


def entropy_ceiling(p: Policy, n_exploit: int) -> Float[Tensor, "*batch"]:
    """Largest entropy at this π(A_x): binary entropy of π(A_x), plus π(A_x) log|A_x| and the same outside."""
    inside = p[..., :n_exploit].sum(-1)
    halves = torch.stack([inside, 1 - inside], -1)
    sizes = torch.tensor([n_exploit, p.shape[-1] - n_exploit], dtype=p.dtype)
    return entropy(halves) + (halves * sizes.log()).sum(-1)


def path(case: Updates) -> Float[Tensor, "batch steps+1 strategies"]:
    """q_0, q_1, ...: the policy before and after each step, errors and all."""
    of_mode, of_estimate, of_step = (case.errors * case.sizes[..., None, None]).unbind(1)
    push = case.eta[:, None, None] * (case.value + of_mode + of_estimate) + of_step / 2
    pushed = torch.cat([torch.zeros_like(push[:, :1]), push.cumsum(1)], 1)
    return torch.softmax(case.start.log()[:, None] + pushed, -1)


def odds_growth(case: Updates) -> Float[Tensor, "batch"]:
    """Factor by which all steps together multiply the odds of A_x."""
    odds = exploit_odds(path(case), case.n_exploit)
    return odds[:, -1] / odds[:, 0]


def uniform_gap(case: Updates) -> Float[Tensor, "batch steps"]:
    """Δ_x of Assumption B.3: worst value in A_x minus best value outside."""
    return case.value[..., : case.n_exploit].amin(-1) - case.value[..., case.n_exploit :].amax(-1)


def _mean_value(case: Updates, part: slice) -> Tensor:
    p = path(case)[:, :-1, part]
    return (p * case.value[..., part]).sum(-1) / p.sum(-1)


def sharp_gap(case: Updates) -> Float[Tensor, "batch steps"]:
    """The q_k-mean suffices inside A_x (Jensen helps there); outside it must stay the best one."""
    return _mean_value(case, slice(case.n_exploit)) - case.value[..., case.n_exploit :].amax(-1)


def mean_gap(case: Updates) -> Float[Tensor, "batch steps"]:
    """Difference of means: NOT a condition for growth, because Jensen hurts outside A_x."""
    return _mean_value(case, slice(case.n_exploit)) - _mean_value(case, slice(case.n_exploit, None))


def rates(case: Updates, gap: Side, weights: tuple[float, float, float] = (2, 2, 1)) -> Float[Tensor, "batch steps"]:
    """g_x = η(Δ_x − 2ε_x − 2ζ_x) − ρ_x of each step, in nats; ``weights`` are what the errors count."""
    of_mode, of_estimate, of_step = (torch.tensor(weights, dtype=case.sizes.dtype) * case.sizes).unbind(-1)
    return case.eta[:, None] * (gap(case) - (of_mode + of_estimate)[:, None]) - of_step[:, None]


def _growth_at(gap: Side, factor: float = 1.0, weights: tuple[float, float, float] = (2, 2, 1)) -> Side:
    return lambda case: (factor * rates(case, gap, weights).sum(-1)).exp()


def share(odds: Tensor) -> Tensor:
    """q(A_x) from its odds."""
    return odds / (1 + odds)


def final_share(case: Updates) -> Float[Tensor, "batch"]:
    """q_K(A_x) after all steps."""
    return path(case)[:, -1, : case.n_exploit].sum(-1)


def logistic_share(case: Updates) -> Float[Tensor, "batch"]:
    """Eq. 8 with each step's own sharp rate: 1 / (1 + (1 − q_0)/q_0 · e^{−Σ g_k})."""
    return share(exploit_odds(case.start, case.n_exploit) * _growth_at(sharp_gap)(case))


def logistic_share_paper(case: Updates) -> Float[Tensor, "batch"]:
    """Eq. 8: k steps at the smallest of their rates."""
    slowest = rates(case, uniform_gap)
    return share(exploit_odds(case.start, case.n_exploit) * (slowest.shape[-1] * slowest.amin(-1)).exp())


def _logistic_in_shares(case: Updates) -> Tensor:
    """1 − q shrinks by e^{−Σ g_k}: the odds' law told of the share itself."""
    return 1 - (1 - share(exploit_odds(case.start, case.n_exploit))) / _growth_at(uniform_gap)(case)


def sample_updates(steps: int) -> Callable[[torch.Generator, int], Raw]:
    """A sampler of ``steps`` updates on five strategies."""
    parts = {"value": (1.5, (steps, 5)), "errors": (2.0, (3, steps, 5)), "sizes": (1.0, (3,))}
    return sampler(start=(2.0, (5,)), log_eta=(0.8, ()), **parts)


def build_updates(raw: Raw, n_exploit: int = 2) -> Updates:
    """Values between 0 and 1, errors of up to .2."""
    start, value, errors = raw["start"].softmax(-1), raw["value"].sigmoid(), raw["errors"].tanh()
    return Updates(start, value, errors, 0.2 * raw["sizes"].sigmoid(), raw["log_eta"].exp(), n_exploit)


def _case(
    start: list[float], value: list[float], eta: float, n_exploit: int, sizes: tuple[float, ...] = (0, 0, 0)
) -> Updates:
    """One step, whose errors all work against A_x."""
    against = torch.ones(1, 3, 1, len(start), dtype=torch.float64)
    against[..., :n_exploit] = -1
    return Updates(one(start), one([value]), against, one(list(sizes)), one(eta), n_exploit)


def two_levels(sizes: tuple[float, ...] = (0, 0, 0)) -> Updates:
    """Equal values inside A_x, equal ones outside, and errors that all work against A_x: growth is exactly e^g."""
    return _case([0.02, 0.03, 0.45, 0.5], [1.0, 1.0, 0.25, 0.25], 0.8, 2, sizes)


def with_errors() -> Updates:
    """The same, every error at its worst."""
    return two_levels((0.05, 0.1, 0.15))


def jackpot_outside() -> Updates:
    """A_x at value 0; outside −1 with probability .99 and +5 with .01: the mean gap is .94, yet the odds shrink."""
    return _case([0.5, 0.495, 0.005], [0.0, -1.0, 5.0], 1.0, 1)


PROPOSITION_3_4 = Inequality(
    key="prop-3.4",
    title="Prop 3.4 odds of the exploit, a step",
    sample=sample_updates(1),
    build=build_updates,
    left=_growth_at(sharp_gap),
    paper=odds_growth,
    paper_left=_growth_at(uniform_gap),
    sharp=odds_growth,
    tight=with_errors,
    tight_text="equal values inside A_x, equal ones outside, all errors against A_x",
    mutations=(
        Mutation("no errors", odds_growth, with_errors, left=_growth_at(uniform_gap, weights=(0, 0, 0))),
        Mutation("ε_x once", odds_growth, with_errors, left=_growth_at(uniform_gap, weights=(1, 2, 1))),
        Mutation("ζ_x once", odds_growth, with_errors, left=_growth_at(uniform_gap, weights=(2, 1, 1))),
        Mutation("no ρ_x", odds_growth, with_errors, left=_growth_at(uniform_gap, weights=(2, 2, 0))),
        Mutation("gap of means", odds_growth, jackpot_outside, left=_growth_at(mean_gap)),
        Mutation("rate 1.01·g", odds_growth, two_levels, left=_growth_at(sharp_gap, 1.01)),
    ),
)

COROLLARY_3_5 = Inequality(
    key="cor-3.5",
    title="Cor 3.5 share of the exploit, k steps",
    sample=sample_updates(3),
    build=build_updates,
    left=logistic_share,
    paper=final_share,
    paper_left=logistic_share_paper,
    sharp=final_share,
    tight=with_errors,
    tight_text="the same at every step",
    mutations=(
        Mutation("1 − q shrinks by e^{−kg}", final_share, two_levels, left=_logistic_in_shares),
        Mutation(
            "entropy falls at every step",
            lambda case: entropy(case.start),
            lambda: _case([0.01, 0.99], [1.0, 0.0], 2.0, 1),
            left=lambda case: entropy(path(case)[:, -1]),
        ),
    ),
)
