"""Group-relative policy optimisation on dialogues: advantages and loss, as pure functions.

Departures from textbook GRPO, all options: the KL term is off by default, the advantage can be another than the
z-score, and the mean is over trained tokens, so that each token weighs the same, or over dialogues. Tokens arrive as a
flat list of those that the seat generated: a token of the other seat or of the prompt is not in it at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scope_lite.method.config import Estimator

ROUNDING = 16 * torch.finfo(torch.float32).eps
"""what equal rewards may differ by, relative to the largest: sums are off by some units in the last place"""


def equal_values(
    values: Float[Tensor, "groups size"], scale: Float[Tensor, "groups 1"] | None = None
) -> Bool[Tensor, "groups 1"]:
    """Whether a group's values differ by no more than rounding; divided by their deviation, it would be a full signal.

    ``scale``: size of the numbers that the values were computed from; by default, the values' own.
    """
    size = values.abs().amax(dim=1, keepdim=True) if scale is None else scale
    spread = values.amax(dim=1, keepdim=True) - values.amin(dim=1, keepdim=True)
    # what is left of numbers near 1 that cancel is no value of its own: hence a floor
    return spread <= ROUNDING * size.clamp_min(ROUNDING)


def group_advantages(
    rewards: Float[Tensor, "groups size"], estimator: Estimator = "z", eps: float = 1e-6
) -> Float[Tensor, "groups size"]:
    """What each rollout's reward is worth, by one of four estimators.

    Of the groups ``[1, 0, 0, 1]`` and ``[1, 1, 1, 1]``:
        z        centred in the group, divided by its population standard deviation (Eq. 2): [1, -1, -1, 1] and zeros
        centred  centred in the group (Dr. GRPO): [.5, -.5, -.5, .5] and zeros
        raw      the reward itself (the public launchers): every success pushes, also in a group of successes
        batch    centred over all groups, for a score that a group shares: [.25, -.75, -.75, .25] and four times .25

    What is centred and equal up to rounding (:func:`equal_values`) is zero ("the update stalls", Section 2).

    Raises:
        ValueError: if a group that is centred has fewer than two rollouts.
    """
    if estimator == "raw":
        return rewards.clone()
    if estimator == "batch":
        return group_advantages(rewards.reshape(1, -1), "centred").view_as(rewards)
    if rewards.shape[1] < 2:
        raise ValueError(f"a group needs at least two rollouts, got {rewards.shape[1]}")
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    centred = torch.where(equal_values(rewards), torch.zeros_like(centred), centred)
    return centred / (rewards.std(dim=1, keepdim=True, correction=0) + eps) if estimator == "z" else centred  # Eq. 2


def counted_advantages(
    rewards: Float[Tensor, "groups size"], estimator: Estimator = "z"
) -> Float[Tensor, "groups size"]:
    """:func:`group_advantages` where NaN is a rollout that does not count: its advantage is zero, the others' is as if
    it were not there."""
    missing = rewards.isnan()
    if not missing.any():
        return group_advantages(rewards, estimator)
    together = rewards.reshape(1, -1) if estimator == "batch" else rewards  # those that are centred together
    advantages = torch.zeros_like(together)
    for group, counts, row in zip(together, ~together.isnan(), advantages, strict=True):
        if counts.sum() > 1 or estimator == "raw":
            row[counts] = group_advantages(group[counts][None], estimator)[0]
    return advantages.view_as(rewards)


def reward_metrics(rewards: Float[Tensor, "groups size"]) -> dict[str, float]:
    """Mean reward, mean standard deviation of a group, and shares of groups without a signal, and why (Fig. 19), by
    TRL's names; a reward of 1 counts as success, 0 as failure."""
    equal, first = equal_values(rewards)[:, 0], rewards[:, 0]
    return {
        "reward": rewards.mean().item(),
        "reward_std": rewards.std(dim=1, correction=0).mean().item(),
        "frac_reward_zero_std": equal.float().mean().item(),
        "frac_all_success": (equal & (first >= 1 - ROUNDING)).float().mean().item(),
        "frac_all_failure": (equal & (first <= ROUNDING**2)).float().mean().item(),
    }


def counted_metrics(rewards: Float[Tensor, "groups size"]) -> Mapping[str, float | None]:
    """:func:`reward_metrics` where NaN is a rollout that does not count: None where none counts."""
    missing = rewards.isnan()
    if not missing.any():
        return reward_metrics(rewards)
    if missing.all():
        return dict.fromkeys(reward_metrics(torch.zeros(1, 2)))
    parts = [reward_metrics(group[here][None]) for group, here in zip(rewards, ~missing, strict=True) if here.any()]
    means = {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
    return {**means, "reward": rewards.nanmean().item()}


def sampling_ratios(logprobs: Float[Tensor, " n"], sampled_logprobs: Float[Tensor, " n"]) -> dict[str, float]:
    """How far a sampler's probabilities are from the trainer's for the same tokens and, one hopes, the same weights.

    Returns:
        ``sampling/ratio_mean``, the mean of trainer over sampler (1 if the sampler is unbiased), and
        ``sampling/ratio_outside``, the share of tokens whose ratio leaves [0.9, 1.1]. No token at all gives 1 and 0.
    """
    if len(logprobs) == 0:
        return {"sampling/ratio_mean": 1.0, "sampling/ratio_outside": 0.0}
    ratio = (logprobs - sampled_logprobs).exp()
    outside = (ratio < 0.9) | (ratio > 1.1)
    return {"sampling/ratio_mean": ratio.mean().item(), "sampling/ratio_outside": outside.float().mean().item()}


class Loss(NamedTuple):
    """A scalar to minimise and the numbers to log (nats for kl, shares for clip_ratio)."""

    loss: Float[Tensor, ""]
    kl: float
    clip_ratio: float
    ratio_mean: float


def mean_of(
    values: Float[Tensor, " n"], row: Int[Tensor, " n"], over: Literal["token", "dialogue"]
) -> Float[Tensor, ""]:
    """Mean over tokens, or over the tokens of each dialogue and then over dialogues; ``row[i]`` is that of token i."""
    if over == "token":
        return values.mean()
    lengths = torch.bincount(row)
    return (values / lengths[row]).sum() / (lengths > 0).sum()


def kl_terms(
    gap: Float[Tensor, " n"], ratio: Float[Tensor, " n"], gradient: Literal["forward", "reverse"]
) -> Float[Tensor, " n"]:
    """What to add to the loss of each token to descend a KL divergence, by sampled tokens alone (Schulman 2020).

    Args:
        gap: log reference - log policy of each token, differentiable.
        ratio: policy over the weights that spoke.
        gradient: "forward": k3, exp(gap) - gap - 1, whose gradient is in expectation that of KL(reference ‖ policy) if
            the policy spoke, though its value estimates the other; the launchers' ``low_var_kl``.
            "reverse": k2, gap² / 2, weighted by the ratio: its gradient is that of KL(policy ‖ reference), whoever
            spoke.
    """
    return gap.exp() - gap - 1 if gradient == "forward" else ratio.detach() * gap**2 / 2


def clipped_loss(
    logprobs: Float[Tensor, " n"],
    old_logprobs: Float[Tensor, " n"],
    advantages: Float[Tensor, " rollouts"],
    row: Int[Tensor, " n"],
    clip_range: float = 0.2,
    kl_coef: float = 0.0,
    reference_logprobs: Float[Tensor, " n"] | None = None,
    clip_range_high: float | None = None,
    kl_gradient: Literal["forward", "reverse"] = "forward",
    loss_mean: Literal["token", "dialogue"] = "token",
) -> Loss:
    """The clipped surrogate (Schulman et al. 2017, Eq. 7), averaged over the n generated tokens of one seat.

    Args:
        logprobs: of the generated tokens under the current weights, differentiable.
        old_logprobs: under the weights that are being improved on (for a pooled
            simulator, those of the snapshot that spoke).
        advantages: one a rollout; ``row[i]`` is the rollout of token i.
        reference_logprobs: under the frozen start; needed when ``kl_coef`` is positive. ``kl_gradient`` says which
            divergence the KL term descends (:func:`kl_terms`). The number logged is k3's in either case, never negative
            and unbiased for KL(policy ‖ reference), nats a token.
        clip_range_high: how far the ratio may rise above 1; None: as far as ``clip_range`` lets it fall below.
        loss_mean: over what the loss is averaged; the numbers to log are means over tokens.

    No token at all (a fully masked batch) gives a loss of 0, not NaN.
    """
    if len(logprobs) == 0:
        return Loss(logprobs.sum(), 0.0, 0.0, 1.0)
    token_advantages = advantages[row]
    ratio = (logprobs - old_logprobs).exp()  # pi / pi_old, token by token: 1 at the first update
    low, high = 1 - clip_range, 1 + (clip_range if clip_range_high is None else clip_range_high)
    clipped = ratio.clamp(low, high)
    surrogate = torch.minimum(ratio * token_advantages, clipped * token_advantages)  # Eq. 7 of PPO, the clip
    loss = -mean_of(surrogate, row, loss_mean)
    kl = 0.0
    if reference_logprobs is not None:
        gap = reference_logprobs - logprobs
        kl = kl_terms(gap.detach(), ratio, "forward").mean().item()
        if kl_coef:
            loss = loss + kl_coef * mean_of(kl_terms(gap, ratio, kl_gradient), row, loss_mean)
    outside = ((ratio < low) & (token_advantages < 0)) | ((ratio > high) & (token_advantages > 0))
    return Loss(loss, kl, outside.float().mean().item(), ratio.mean().item())
