"""Lemma B.9: how much a population of simulators dilutes one exploit, and what it does not do.

The paper bounds the mixture's peak mass by the weighted mean of its members' (equal iff all peak at one action); for K
deterministic simulators with disjoint modes ε = 1 - 1/K. The bound on an exploit's advantage below is ours.

Weights w_j over K checkpoints; several checkpoints may share one mode. An exploit's advantage against the population is
the weighted sum of its advantages on the modes, so K counts only through the weight of the heaviest mode, and only for
exploits that gain nothing elsewhere. The cost of staleness at the end is an assumption, and its optimum a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Inequality, Mutation, Raw, one, sampler, scaled


@dataclass(frozen=True)
class Population:
    """Checkpoint weights, each checkpoint's mode, and the gain of the exploit of mode i on a user of mode m."""

    weights: Float[Tensor, "batch checkpoints"]
    mode_of: tuple[int, ...]
    gains: Float[Tensor, "batch modes modes"]

    @property
    def mode_weights(self) -> Float[Tensor, "batch modes"]:
        """Total weight of each mode: duplicates add up."""
        index = torch.tensor(self.mode_of).expand_as(self.weights)
        return torch.zeros_like(self.gains[:, 0]).scatter_add(1, index, self.weights)

    @property
    def largest_gain(self) -> Float[Tensor, "batch"]:
        """Δ: the most that any exploit gains on its own mode."""
        return self.gains.diagonal(dim1=1, dim2=2).amax(-1)

    @property
    def overlap(self) -> Float[Tensor, "batch"]:
        """c: the most that any exploit gains on a foreign mode, as a share of Δ (at least 0)."""
        off = self.gains.masked_fill(torch.eye(self.gains.shape[-1], dtype=torch.bool), -torch.inf)
        return (off.amax((-2, -1)) / self.largest_gain).clamp_min(0.0)


def best_exploit_gap(case: Population) -> Float[Tensor, "batch"]:
    """The largest advantage, ``max_i Σ_m W_m gain(i, m)``, that one exploit has against the population."""
    return (case.gains * case.mode_weights[:, None, :]).sum(-1).amax(-1)


def bound(case: Population, heaviest: Float[Tensor, "batch"], overlap: bool = True) -> Float[Tensor, "batch"]:
    """Δ (w + c (1 − w)) for a heaviest weight w: that of a MODE is right; with c = 0 this is Δ/K_eff, K_eff = 1/w."""
    c = case.overlap.clamp(max=1.0) if overlap else torch.zeros_like(heaviest)
    return case.largest_gain * (heaviest + c * (1 - heaviest))


def bound_sharp(case: Population) -> Float[Tensor, "batch"]:
    """The bound with the heaviest mode: weights of checkpoints that share it add up."""
    return bound(case, case.mode_weights.amax(-1))


sample_populations = sampler(weights=(1.0, (5,)), own=(1.0, (3,)), foreign=(1.5, (3, 3)))
"""Pools of five checkpoints and three modes; own gains become larger than foreign ones in the build."""


def build_populations(raw: Raw) -> Population:
    """Own gains in (0, 1); foreign gains in (−1, 1) times the largest own gain. Checkpoints take modes in turn."""
    own = torch.sigmoid(raw["own"])
    foreign = torch.tanh(raw["foreign"]) * own.amax(-1)[:, None, None]
    eye = torch.eye(own.shape[-1], dtype=torch.bool)
    gains = torch.where(eye, torch.diag_embed(own), foreign)
    checkpoints = raw["weights"].shape[1]
    return Population(torch.softmax(raw["weights"], -1), tuple(j % own.shape[-1] for j in range(checkpoints)), gains)


def pool(weights: list[float], mode_of: list[int], overlap: float = 0.0) -> Population:
    """A pool whose exploits gain 1 on their own mode and ``overlap`` on every other."""
    modes = max(mode_of) + 1
    gains = torch.full((1, modes, modes), overlap, dtype=torch.float64)
    gains[:, range(modes), range(modes)] = 1.0
    return Population(one(weights), tuple(mode_of), gains)


def distinct_modes(k: int) -> Population:
    """K equally weighted checkpoints with K modes and no overlap: the only case in which Δ is divided by K."""
    return pool([1.0 / k] * k, list(range(k)))


def staleness_loss(k: Tensor, delta: float, cost: float, cadence: float) -> Tensor:
    """MODEL, not a lemma: an exploit's share Δ/K, plus ``cost`` per step of age, counted as cadence·(K−1)/2 steps.

    In the loop, where the present self plays, too, the mean age is less: 6 steps and not 8 at K = 5, cadence 4.
    """
    return delta / k + cost * cadence * (k - 1) / 2


def staleness_optimum(delta: float, cost: float, cadence: float) -> float:
    """K* = √(2Δ/(cost·cadence)) of that model."""
    return (2 * delta / (cost * cadence)) ** 0.5


LEMMA_B_9 = Inequality(
    key="lem-b.9",
    title="Lem B.9 population dilutes an exploit (our form)",
    sample=sample_populations,
    build=build_populations,
    left=best_exploit_gap,
    source=bound_sharp,
    sharp=bound_sharp,
    tight=lambda: pool([0.2] * 5, [0, 1, 2, 3, 4], overlap=0.3),
    tight_text="equal pairwise overlap; with none, Δ·w_max",
    mutations=(
        Mutation(
            "overlap ignored",
            lambda c: bound(c, c.mode_weights.amax(-1), False),
            lambda: pool([0.5, 0.5], [0, 1], 0.6),
        ),
        Mutation(
            "1/K for w_max",
            lambda c: bound(c, 1 / torch.tensor(len(c.mode_of))),
            lambda: pool([0.7, 0.2, 0.1], [0, 1, 2]),
        ),
        Mutation(
            "duplicates counted twice", lambda c: bound(c, c.weights.amax(-1)), lambda: pool([0.25] * 4, [0, 0, 0, 1])
        ),
        Mutation("constant 0.99", scaled(0.99, bound_sharp), lambda: distinct_modes(5)),
    ),
)
