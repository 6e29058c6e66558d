"""Lemma B.5 and Corollary B.6: log-odds of two strategies against a simulator that moves, and whose lead counts.

At step k the simulator pays strategy y the value Q_k(y) and exploits of its mode make up A_x^(k). The paper counts
exclusive leads, N⁺ (y in the set, y' not) and N⁻ (the reverse), and has the log-odds of y against y' grow by at least
g(N⁺ − N⁻). But Proposition 3.4 bounds what a lead wins from below only, so a step in which y' leads can cost any
amount, and so can a step in which neither does: as stated, lemma and corollary are false. Exact is
L_K − L_0 = η Σ_k (Q_k(y) − Q_k(y')), so nothing concentrates geometrically iff the summed gap is o(K).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, one, sampler, scaled


@dataclass(frozen=True)
class Chase:
    """A policy's steps after a moving simulator; y and y' are strategies 0 and 1."""

    value: Float[Tensor, "batch steps strategies"]
    exploits: Bool[Tensor, "batch steps strategies"]
    """A_x^(k): each strategy in it beats each other one"""
    eta: Float[Tensor, "batch"]


def exploit_set(value: Float[Tensor, "*batch strategies"]) -> Bool[Tensor, "*batch strategies"]:
    """The strategies above the widest gap between neighbouring values: Assumption B.3 with the largest Δ_x."""
    ranked = value.sort(-1).values
    place = ranked.diff(dim=-1).argmax(-1, keepdim=True)
    return value > ranked.gather(-1, place)


def set_gap(case: Chase) -> Float[Tensor, "batch"]:
    """Δ_x: the least by which a member of A_x^(k) beats a strategy outside, over all steps."""
    inside = case.value.masked_fill(~case.exploits, torch.inf).amin(-1)
    return (inside - case.value.masked_fill(case.exploits, -torch.inf).amax(-1)).amin(-1)


def leads(case: Chase) -> Int[Tensor, "batch steps"]:
    """1 where y alone is in the exploit set, −1 where y' alone is, 0 where both are or neither is."""
    return case.exploits[..., 0].int() - case.exploits[..., 1].int()


def overlap(exploits: Bool[Tensor, "*batch steps strategies"]) -> Float[Tensor, "*batch steps-1"]:
    """|A_k ∩ A_{k+1}| / |A_k ∪ A_{k+1}| from each step to the next: 1 where nothing moves."""
    now, after = exploits[..., :-1, :], exploits[..., 1:, :]
    return (now & after).sum(-1) / (now | after).sum(-1).clamp_min(1)


def advantage(case: Chase) -> Float[Tensor, "batch steps"]:
    """Q_k(y) − Q_k(y')."""
    return case.value[..., 0] - case.value[..., 1]


def log_odds_gain(case: Chase) -> Float[Tensor, "batch"]:
    """L_K − L_0 exactly, in nats: η times the summed advantage (exact steps: Eq. 17 with equality)."""
    return case.eta * advantage(case).sum(-1)


def gain_counted(case: Chase) -> Float[Tensor, "batch"]:
    """Lemma B.5 as stated: g (N⁺ − N⁻), g = ηΔ_x."""
    return case.eta * set_gap(case) * leads(case).sum(-1)


def gain_weighed(case: Chase, kinds: tuple[int, ...] = (1, -1, 0)) -> Float[Tensor, "batch"]:
    """The lemma repaired: g N⁺ − G N⁻ − h N⁰.

    With η: g the least that y wins in a lead of its own, G the most that it loses in one of y', h the most that it
    loses where nobody leads. ``kinds``: which of the three are counted.
    """
    ahead, total = advantage(case), torch.zeros_like(case.eta)
    for kind in kinds:
        these = leads(case) == kind
        least = ahead.masked_fill(~these, torch.inf).amin(-1)
        total = total + torch.where(these.any(-1), least * these.sum(-1), 0.0)
    return case.eta * total


def build_chases(raw: Raw) -> Chase:
    """Values between 0 and 1; at each step the exploit set with the widest gap."""
    value = raw["value"].sigmoid()
    return Chase(value, exploit_set(value), raw["log_eta"].exp())


def _repeated(steps: list[tuple[list[float], list[int]]], times: int) -> Chase:
    """These steps (values, members of the exploit set) over and over."""
    value, exploits = (one(list(part) * times) for part in zip(*steps, strict=True))
    return Chase(value, exploits.bool(), one(1.0))


def unequal_leads(won: float = 0.2, lost: float = 0.6, times: int = 10) -> Chase:
    """The counterexample: y and y' lead in turn, y by ``won`` and y' by ``lost``; N⁺ = N⁻ and Δ_x = ``won``."""
    return _repeated([([won, 0.0], [1, 0]), ([0.0, lost], [0, 1])], times)


def both_exploit(times: int = 10) -> Chase:
    """Both are in the exploit set all the time, y' by far the better one: N⁺ = N⁻ = 0, and y dies out."""
    return _repeated([([0.5, 0.9, 0.2], [1, 1, 0])], times)


def gain_factor(case: Chase) -> Float[Tensor, "batch"]:
    """The exact factor by which the odds of y against y' grow."""
    return log_odds_gain(case).exp()


LEMMA_B_5 = Inequality(
    key="lem-b.5",
    title="Lem B.5 log-odds under a moving exploit set",
    sample=sampler(value=(1.5, (6, 4)), log_eta=(0.5, ())),
    build=build_chases,
    left=lambda case: gain_weighed(case).exp(),
    paper=gain_factor,
    paper_left=lambda case: gain_counted(case).exp(),
    paper_holds=False,
    sharp=gain_factor,
    tight=unequal_leads,
    tight_text="leads in turn, each kind always of one size",
    mutations=(
        Mutation("leads counted, not weighed", gain_factor, unequal_leads, left=lambda c: gain_counted(c).exp()),
        Mutation("no h N⁰", gain_factor, both_exploit, left=lambda c: gain_weighed(c, (1, -1)).exp()),
        Mutation("factor 0.99", scaled(0.99, gain_factor), unequal_leads),
    ),
)
