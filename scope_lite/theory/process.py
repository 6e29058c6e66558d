"""A dialogue small enough to enumerate: every history, every reply, every probability, in float64.

A dialogue has H turns. At turn t the policy acts in history ``s_t`` and the simulator replies; the reward comes at the
end. Histories form a tree: level t holds ``(acts * replies) ** t`` of them, and the leaves are the finished dialogues.
All functions carry a leading batch axis: ten thousand dialogue processes cost one call. Paper: section 3 (setting).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_lite.store.errors import ScopeError

History = tuple[tuple[int, int], ...]
"""The (act, reply) pairs so far, as plain integers."""
Logits = Callable[[History], Sequence[float]] | None
"""A policy's logits at a history; None for a uniform policy."""
Levels = tuple[Tensor, ...]
"""One tensor per turn: entry t has one row per history of length t."""


@dataclass(frozen=True)
class Process:
    """A batch of dialogue processes with a softmax policy ``π_θ(a|s) ∝ exp(features(s, a) · θ)``.

    One-hot features give a tabular policy; features shared by several histories tie their scores together.
    """

    theta: Float[Tensor, "batch params"]
    features: tuple[Float[Tensor, "#batch _histories acts params"], ...]
    replies: tuple[Float[Tensor, "batch _histories acts replies"], ...]
    """φ(reply | history, act); each row sums to one"""
    reward: Float[Tensor, "batch leaves"]
    """terminal reward of each finished dialogue, in [0, reward_max]"""
    reward_max: float = 1.0

    @property
    def horizon(self) -> int:
        """Number of turns H."""
        return len(self.replies)


def policy(process: Process) -> Levels:
    """π_θ(act | history) for each turn, shape (batch, histories, acts)."""
    theta = process.theta[:, None, :, None]
    return tuple(torch.softmax((feature @ theta).squeeze(-1), dim=-1) for feature in process.features)


def reach_probs(acts: Levels, replies: Levels) -> Levels:
    """Probability of every history: entry t has shape (batch, histories of length t); the last entry is the leaves."""
    reach = [torch.ones_like(replies[0][:, :, 0, 0])]
    for act, reply in zip(acts, replies, strict=True):
        joint = reach[-1][:, :, None, None] * act[..., None] * reply
        reach.append(joint.flatten(1))
    return tuple(reach)


def trajectory_probs(process: Process, replies: Levels | None = None) -> Float[Tensor, "batch leaves"]:
    """Probability of each finished dialogue, under the process's own simulator or under ``replies``."""
    return reach_probs(policy(process), process.replies if replies is None else replies)[-1]


def trajectory_scores(process: Process) -> Float[Tensor, "batch leaves params"]:
    """Score of each dialogue, ``Σ_t ∇_θ log π_θ(a_t | s_t)``; its mean is zero under any simulator."""
    batch = process.theta.shape[0]
    total = process.theta.new_zeros(batch, 1, process.theta.shape[1])
    for feature, act, reply in zip(process.features, policy(process), process.replies, strict=True):
        step = feature - (act[:, :, None, :] @ feature)
        summed = total[:, :, None, :] + step
        total = summed[:, :, :, None, :].expand(*summed.shape[:3], reply.shape[3], -1).flatten(1, 3)
    return total


def expected_return(process: Process, replies: Levels | None = None) -> Float[Tensor, "batch"]:
    """J(θ): the exact expected reward, in reward units."""
    return (trajectory_probs(process, replies) * process.reward).sum(-1)


def return_gradient(process: Process, replies: Levels | None = None) -> Float[Tensor, "batch params"]:
    """∇_θ J(θ) by the score identity, ``Σ_τ P(τ) R(τ) Σ_t ∇ log π(a_t|s_t)``."""
    weight = trajectory_probs(process, replies) * process.reward
    return (weight[:, None, :] @ trajectory_scores(process)).squeeze(1)


def optimal_return(process: Process, replies: Levels | None = None) -> Float[Tensor, "batch"]:
    """Best expected reward of any history-dependent policy, by dynamic programming from the leaves."""
    value = process.reward
    for reply in reversed(process.replies if replies is None else replies):
        value = (reply * value.reshape(reply.shape)).sum(-1).amax(-1)
    return value.squeeze(-1)


def mode_replies(replies: Levels) -> Levels:
    """The deterministic mode user: all mass on the likeliest reply; ties go to the lowest index."""
    return tuple(torch.zeros_like(r).scatter(-1, r.argmax(-1, keepdim=True), 1.0) for r in replies)


def sample_dialogues(process: Process, n: int, generator: torch.Generator) -> Int[Tensor, "n"]:
    """Leaf indices of ``n`` dialogues of the first process, sampled turn by turn (for Monte Carlo checks only)."""
    node = torch.zeros(n, dtype=torch.long)
    for act, reply in zip(policy(process), process.replies, strict=True):
        chosen = torch.multinomial(act[0][node], 1, generator=generator).squeeze(1)
        heard = torch.multinomial(reply[0][node, chosen], 1, generator=generator).squeeze(1)
        node = (node * reply.shape[2] + chosen) * reply.shape[3] + heard
    return node


def histories(turn: int, n_acts: int, n_replies: int) -> list[History]:
    """All histories of ``turn`` turns, in the order of the tensors' rows."""
    out: list[History] = [()]
    for _ in range(turn):
        out = [(*h, (a, o)) for h in out for a in range(n_acts) for o in range(n_replies)]
    return out


def tabular_features(horizon: int, n_acts: int, n_replies: int) -> Levels:
    """One parameter per (history, act): features of shape (1, histories, acts, params)."""
    widths = [(n_acts * n_replies) ** t for t in range(horizon)]
    blocks = torch.eye(sum(widths) * n_acts, dtype=torch.float64).split([w * n_acts for w in widths])
    return tuple(block.reshape(1, width, n_acts, -1) for block, width in zip(blocks, widths, strict=True))


def tabular_theta(horizon: int, n_acts: int, n_replies: int, logits: Logits = None) -> Float[Tensor, "1 params"]:
    """The parameters of a tabular policy with the given logits (uniform when left out)."""
    rows = [h for t in range(horizon) for h in histories(t, n_acts, n_replies)]
    table = [[0.0] * n_acts if logits is None else list(logits(h)) for h in rows]
    return torch.tensor(table, dtype=torch.float64).reshape(1, -1)


def process_from_callables(
    horizon: int,
    n_acts: int,
    n_replies: int,
    reply_probs: Callable[[History, int], Sequence[float]],
    reward: Callable[[History], float],
    reward_max: float = 1.0,
) -> Process:
    """Enumerate any small world into a process (batch of one) with a uniform tabular policy.

    Args:
        reply_probs: ``(history, act) -> array of n_replies`` probabilities.
        reward: ``history of full length -> reward`` in [0, reward_max].

    Raises:
        ScopeError: if a row of probabilities does not sum to one, or a reward leaves its range.
    """
    levels = [histories(turn, n_acts, n_replies) for turn in range(horizon + 1)]
    rows = [[[[float(p) for p in reply_probs(h, a)] for a in range(n_acts)] for h in level] for level in levels[:-1]]
    replies = tuple(torch.tensor([level], dtype=torch.float64) for level in rows)
    if any(level.min() < 0 or (level.sum(-1) - 1).abs().max() > 1e-9 for level in replies):
        raise ScopeError("reply_probs must return non-negative probabilities that sum to one")
    rewards = torch.tensor([[float(reward(h)) for h in levels[-1]]], dtype=torch.float64)
    if rewards.min() < 0 or rewards.max() > reward_max + 1e-12:
        raise ScopeError(f"rewards must lie in [0, {reward_max}]; rescale them or set reward_max")
    theta = tabular_theta(horizon, n_acts, n_replies)
    return Process(theta, tabular_features(horizon, n_acts, n_replies), replies, rewards, reward_max)
