"""Lemmas B.7 and B.9: what a group of dialogues sees of a pool of simulators, and how far the pool dilutes a mode.

B.7: one of G dialogues shows a behaviour of mass q with probability 1 − (1 − q)^G ≤ Gq, where each draws its own
simulator; where one simulator plays the whole group, with less. B.9: the mixture's peak mass is at most the members'
mean peak, equal iff they peak at a common reply; K deterministic simulators of distinct modes have ε = 1 − 1/K. From
this the paper expects concentration to slow down "roughly by 1/K". Exact for an exploit's advantage is its gain on each
mode, weighed by all the checkpoints of that mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, one, sampler, scaled


@dataclass(frozen=True)
class Mixture:
    """A pool at one history: weights, each member's replies, and the size of a group."""

    weights: Float[Tensor, "batch members"]
    replies: Float[Tensor, "batch members replies"]
    group: int = 8

    @property
    def mixed(self) -> Float[Tensor, "batch replies"]:
        """The mixture Σ_k w_k φ_k."""
        return (self.weights[..., None] * self.replies).sum(1)


def seen(case: Mixture, q: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 − (1 − q)^G."""
    return 1 - (1 - q) ** case.group


def seen_of_one(case: Mixture) -> Float[Tensor, "batch"]:
    """Probability that a group sees the last reply at least once, where one member plays all of it."""
    return (case.weights * seen(case, case.replies[..., -1])).sum(-1)


def seen_of_all(case: Mixture) -> Float[Tensor, "batch"]:
    """The same where each dialogue draws its member: Lemma B.7 with the pool's mass q."""
    return seen(case, case.mixed[:, -1])


def seen_at_most(case: Mixture) -> Float[Tensor, "batch"]:
    """G q."""
    return case.group * case.mixed[:, -1]


def peak(case: Mixture) -> Float[Tensor, "batch"]:
    """The mixture's largest mass, 1 − ε."""
    return case.mixed.amax(-1)


def mean_peak(case: Mixture) -> Float[Tensor, "batch"]:
    """Σ_k w_k m_k (Eq. 20)."""
    return (case.weights * case.replies.amax(-1)).sum(-1)


def build_mixtures(raw: Raw) -> Mixture:
    """Softmax all of it."""
    return Mixture(torch.softmax(raw["weights"], -1), torch.softmax(raw["replies"], -1))


def members(*replies: list[float]) -> Mixture:
    """Equal weights on members with these replies."""
    return Mixture(one([1 / len(replies)] * len(replies)), one(list(replies)))


LEMMA_B_7 = Inequality(
    key="lem-b.7",
    title="Lem B.7 what a group sees",
    sample=sampler(weights=(1.0, (3,)), replies=(2.0, (3, 4))),
    build=build_mixtures,
    left=seen_of_one,
    paper=seen_at_most,
    sharp=seen_of_all,
    tight=lambda: members([0.7, 0.3], [0.7, 0.3]),
    tight_text="all members show it alike",
    mutations=(
        Mutation(
            "one simulator a group as good as one a dialogue",
            seen_of_one,
            lambda: members([1.0, 0.0], [0.5, 0.5]),
            left=seen_of_all,
        ),
        Mutation("constant 0.99", scaled(0.99, seen_of_all), lambda: members([0.7, 0.3], [0.7, 0.3])),
        Mutation("(G − 1)·q", lambda c: (c.group - 1) * c.mixed[:, -1], lambda: members([0.999, 0.001])),
    ),
)

LEMMA_B_9 = Inequality(
    key="lem-b.9",
    title="Lem B.9 a mixture's peak",
    sample=sampler(weights=(1.0, (3,)), replies=(2.0, (3, 4))),
    build=build_mixtures,
    left=peak,
    paper=mean_peak,
    sharp=mean_peak,
    tight=lambda: members([0.7, 0.2, 0.1], [0.5, 0.1, 0.4]),
    tight_text="all peak at one reply",
    mutations=(
        Mutation("mean peak also from below", peak, lambda: members([1.0, 0.0], [0.0, 1.0]), left=mean_peak),
        Mutation("1/K", lambda c: 1 / torch.tensor(c.weights.shape[1]), lambda: members([0.9, 0.1], [0.8, 0.2])),
        Mutation("constant 0.99", scaled(0.99, mean_peak), lambda: members([0.7, 0.3], [0.6, 0.4])),
    ),
)


@dataclass(frozen=True)
class Population:
    """The weight of each mode in a pool (checkpoints that share one add up), and what exploits gain."""

    weights: Float[Tensor, "batch modes"]
    gains: Float[Tensor, "batch modes modes"]
    """[i, m]: of the exploit of mode i on a user of mode m"""


def best_exploit_gap(case: Population) -> Float[Tensor, "batch"]:
    """The largest advantage, ``max_i Σ_m W_m gain(i, m)``, that one exploit has against the population."""
    return (case.gains * case.weights[:, None, :]).sum(-1).amax(-1)


def pool(weights: list[float], overlap: float = 0.0) -> Population:
    """Modes of these weights, whose exploits gain 1 on their own mode and ``overlap`` on every other."""
    own = torch.eye(len(weights), dtype=torch.float64)
    return Population(one(weights), (own + overlap * (1 - own))[None])
