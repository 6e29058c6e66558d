"""What a trained simulator is rewarded for, and a guard against variance that means nothing.

    reward              a rollout's, from the policy's R in [0, 1]           where
    adversarial         1 - R                                                the paper on Persuasion for Good (4.1)
    curriculum_group    exp(-(v - .25)^2 / .02), v the group's variance      the paper on τ²-bench (4.1, Table 9)
    curriculum_credit   (R - mean)^2, its share in v                         ours
    cooperative         R                                                    the paper on CooperBench; F.8 on τ²-bench
    disagreement        log ratio of its words, now against past selves      ours (``surprise``)
    zero, random        nothing; a uniform number                            controls

Each turns the policy's rewards of a batch, (groups, size) with NaN where a rollout does not count, into as many of the
simulator, which become advantages like any other (``grpo.group_advantages``). The paper writes -R for 1 - R, which is
the same once it is centred. A score that a group shares is nothing once it is centred in the group: it is centred over
the batch, or paid raw, as in the public launchers. Its gradient is then that of the mean score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_lite.method.grpo import ROUNDING, equal_values
from scope_lite.models.rng import RowKeys

TARGET_VARIANCE = 0.25  # the most that a reward in [0, 1] can have; the paper's target (Table 9)
SCORE_WIDTH = 0.02  # of the paper's score around it (Table 9)

Rewards = Float[Tensor, "groups size"]


def curriculum_group(rewards: Rewards, keys: RowKeys) -> Rewards:
    """The paper's: exp(-(v - .25)^2 / .02) of the group's population variance v (ddof 0), for every rollout of it.

    Of eight 0/1 rewards with 0 to 4 successes: .044, .372, .823, .988 and 1.
    """
    deviation = rewards - rewards.nanmean(dim=1, keepdim=True)
    variance = (deviation**2).nanmean(dim=1, keepdim=True)
    return (-((variance - TARGET_VARIANCE) ** 2) / SCORE_WIDTH).exp().expand_as(rewards)


def curriculum_credit(rewards: Rewards, keys: RowKeys) -> Rewards:
    """Ours: (R_i - group mean)^2, what rollout i adds to its group's variance (ddof 0).

    Up to a factor and a constant of the group, the leave-one-out share of rollout i in the group's variance. Its mean
    is the group's population variance, which cannot pass the target of 0.25, so more is always better; for 0/1 rewards
    with exactly half successes every credit is 0.25 and its z-score is zero: the target is reached. At p = 1/2 its
    expectation is 0.25 (1 - 1/G), .219 for G = 8. Rewards that are equally far from the mean up to rounding have equal
    credit.
    """
    if rewards.isnan().any():  # the mean of a group is that of the others
        rewards = torch.where(rewards.isnan(), rewards.nanmean(dim=1, keepdim=True), rewards)
    distance = (rewards - rewards.mean(dim=1, keepdim=True)).abs()
    equal = equal_values(distance, rewards.abs().amax(dim=1, keepdim=True))
    return torch.where(equal, distance[:, :1], distance) ** 2


SIMULATOR_REWARDS: dict[str, Callable[[Rewards, RowKeys], Rewards]] = {
    "curriculum_group": curriculum_group,
    "curriculum_credit": curriculum_credit,
    "adversarial": lambda rewards, keys: 1 - rewards,  # the policy's loss is the simulator's gain
    "cooperative": lambda rewards, keys: rewards.clone(),  # and here its gain
    # controls: no signal, so that only the KL anchor acts and the simulator is frozen in effect; and noise of the same
    # size under the same KL, so that movement itself is not mistaken for learning
    "zero": lambda rewards, keys: torch.zeros_like(rewards),
    "random": lambda rewards, keys: torch.from_numpy(keys.once("random reward")).to(rewards.dtype).view_as(rewards),
}
"""Those that are a function of the policy's rewards; "disagreement" reads the simulator's words (``surprise``)."""


def surprise(
    now: Float[Tensor, " n"], past: Float[Tensor, "m n"], row: Int[Tensor, " n"], rollouts: int
) -> Float[Tensor, " rollouts"]:
    """The reward "disagreement": mean log ratio of a rollout's replies, now against each past self (nats a token).

    Its expectation under the current weights is the mean KL from the past selves, so a simulator that is paid for it
    moves to where no snapshot of the pool speaks. ``now`` and ``past`` are log probabilities of the replies under the
    current weights and under each of m past selves; ``row[i]`` is the rollout of token i.
    """
    gaps = now - past.mean(dim=0)
    counts = torch.bincount(row, minlength=rollouts).clamp_min(1)
    return torch.zeros(rollouts).index_add(0, row, gaps) / counts


def variance_split(rewards: Sequence[float], acts: Sequence[Sequence[str]]) -> dict[str, float | None]:
    """Variance of the rewards of a batch, and the part that the policy's acts do not explain.

    Both are means of (R_i - R_j)^2 / 2 over pairs, hence unbiased: over all pairs, and over pairs whose acts were the
    same throughout. A simulator that flips a coin at the end meets any variance target, and all of it is unexplained.
    ``simulator/variance`` and ``simulator/unexplained_variance`` are None where there is no such pair.
    """
    r = np.asarray(rewards, dtype=np.float64)
    keys = np.unique(np.array(["|".join(a) for a in acts]), return_inverse=True)[1]
    gaps = np.abs(r[:, None] - r[None, :])
    gaps[gaps <= ROUNDING * np.abs(r).max()] = 0  # rounding, as in group_advantages
    half_squares = gaps**2 / 2
    pairs = ~np.eye(len(r), dtype=bool)
    same = pairs & (keys[:, None] == keys[None, :])
    unexplained = float(half_squares[same].mean()) if same.any() else None
    variance = float(half_squares[pairs].mean()) if pairs.any() else None
    return {"simulator/variance": variance, "simulator/unexplained_variance": unexplained}
