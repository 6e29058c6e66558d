"""What the theorems talk about, computed exactly from an enumerated process.

Per-turn collapse error ε, its accumulation ε̄_H along a rollout, total variation between rollouts, the score bound B and
its weaker cousins, and the ways to split the variance of the reward. Paper: Definition 3.1, Eqs. 4 and 6.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.process import Levels, Process, policy, reach_probs, trajectory_probs, trajectory_scores


def collapse_errors(replies: Levels) -> Levels:
    """ε(s, a) = 1 − φ(mode | s, a) for each turn, shape (batch, histories, acts) (Definition 3.1)."""
    return tuple(1.0 - r.amax(-1) for r in replies)


def reply_distances(first: Levels, second: Levels) -> Levels:
    """Per-turn total variation D_TV(first(·|s,a), second(·|s,a)), shape (batch, histories, acts) (Prop. 3.7)."""
    return tuple(0.5 * (a - b).abs().sum(-1) for a, b in zip(first, second, strict=True))


def accumulate(process: Process, errors: Levels, rollout: Levels | None = None) -> Float[Tensor, "batch"]:
    """``E[Σ_t errors(s_t, a_t)]`` along the policy's dialogues with the ``rollout`` simulator (default: its own).

    With ``errors = collapse_errors(replies)`` this is ε̄_H(θ), Eq. 4. Under which rollout is part of the statement.
    """
    acts = policy(process)
    reach = reach_probs(acts, process.replies if rollout is None else rollout)
    turns = [(p[..., None] * a * e).sum((-2, -1)) for p, a, e in zip(reach, acts, errors, strict=False)]
    return torch.stack(turns).sum(0)


def total_variation(p: Float[Tensor, "batch leaves"], q: Float[Tensor, "batch leaves"]) -> Float[Tensor, "batch"]:
    """Total variation between two distributions over finished dialogues, in [0, 1]."""
    return 0.5 * (p - q).abs().sum(-1)


def score_sup(process: Process, *others: Levels) -> Float[Tensor, "batch"]:
    """B: the largest score norm over dialogues reachable with the process's simulator or any of ``others``."""
    norms = trajectory_scores(process).norm(dim=-1)
    reachable = trajectory_probs(process) > 0
    for replies in others:
        reachable = reachable | (trajectory_probs(process, replies) > 0)
    return torch.where(reachable, norms, 0.0).amax(-1)


def score_rms(process: Process) -> Float[Tensor, "batch"]:
    """Root mean square of the score norm under the process's own rollout: too small to serve as B."""
    square = trajectory_scores(process).square().sum(-1)
    return (trajectory_probs(process) * square).sum(-1).sqrt()


def turn_score_sup(process: Process) -> Float[Tensor, "batch"]:
    """B₁: the largest score norm of a single turn, over all histories; B ≤ H·B₁."""
    largest = []
    for feature, act in zip(process.features, policy(process), strict=True):
        step = feature - (act[:, :, None, :] @ feature)
        largest.append(step.norm(dim=-1).flatten(1).amax(-1))
    return torch.stack(torch.broadcast_tensors(*largest)).amax(0)


def reward_variance(process: Process) -> Float[Tensor, "batch"]:
    """Var(R) over the policy's dialogues with its simulator."""
    probs = trajectory_probs(process)
    mean = (probs * process.reward).sum(-1, keepdim=True)
    return (probs * (process.reward - mean).square()).sum(-1)


def variance_given_actions(process: Process) -> Float[Tensor, "batch"]:
    """E Var(R | a_1:H): what is left of the reward's variance once the policy's realised acts are known.

    A warning, and not Eq. 6, which fixes the policy's coins: realised acts can repeat what the user said ("ask, then
    match"), so this can be zero with a lively simulator.
    """
    probs, reward = (_acts_then_replies(process, x) for x in (trajectory_probs(process), process.reward))
    mass = probs.sum(-1)
    mean = (probs * reward).sum(-1) / mass.clamp_min(1e-300)
    return (probs * (reward - mean[..., None]).square()).sum((-2, -1))


def _acts_then_replies(process: Process, x: Float[Tensor, "batch leaves"]) -> Float[Tensor, "batch plans answers"]:
    n_acts, n_replies = process.replies[0].shape[2:]
    turns = process.horizon
    grid = x.reshape(x.shape[0], *([n_acts, n_replies] * turns))
    order = [0, *range(1, 2 * turns, 2), *range(2, 2 * turns + 1, 2)]
    return grid.permute(order).reshape(x.shape[0], n_acts**turns, n_replies**turns)


def coin_split(process: Process) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch"]]:
    """Var(R) by Eq. 6 with the policy's coins ξ_π: (policy's part, simulator's part).

    The coins are written down in advance, one for every history: policy's part ``Var_ξ E[R | ξ]``, simulator's part
    ``E_ξ Var(R | ξ)``. Coins of different histories are independent, so the second moment of ``E[R | ξ]`` needs no list
    of all plans: ``E m² = Σ_a π(a) [(Σ_u φ(u) E m_u)² + Σ_u φ(u)² Var m_u]``. How the coins are kept is part of the
    split: with one a turn, shared by all histories, some games are split otherwise.
    """
    mean, square = process.reward, process.reward.square()
    for act, reply in zip(reversed(policy(process)), reversed(process.replies), strict=True):
        spread = (square - mean.square()).reshape(reply.shape)
        quality = (reply * mean.reshape(reply.shape)).sum(-1)
        square = (act * (quality.square() + (reply.square() * spread).sum(-1))).sum(-1)
        mean = (act * quality).sum(-1)
    by_policy = (square - mean.square()).squeeze(-1)
    return by_policy, reward_variance(process) - by_policy


def capped_bernoulli_variance(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """g(x) = x(1−x) up to ½, then ¼: the largest variance of a [0, 1] reward that is constant with probability 1−x."""
    capped = x.clamp(max=0.5)
    return capped * (1.0 - capped)
