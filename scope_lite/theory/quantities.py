"""What the theorems talk about, computed exactly from an enumerated process.

Per-turn collapse error ε, its accumulation ε̄_H along a rollout, total variation between rollouts, the score bound B and
its weaker cousins, and the two ways to split the variance of the reward. Paper: Definition 3.1, Eqs. 4 and 6.
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
    """E Var(R | a_1:H): what is left of the reward's variance once the policy's realised acts are known (Eq. 6).

    Realised acts can repeat what the user said ("ask, then match"), so this can be zero with a lively simulator.
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


def doob_split(process: Process) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch"]]:
    """Var(R) as a sum of one-step surprises: (policy's part, simulator's part), turn by turn.

    Simulator's part: ``Σ_t E Var_u(V(s_t, a_t, u) | s_t, a_t)``; policy's part: ``Σ_t E Var_a(Q(s_t, a) | s_t)``.
    Nothing leaks: each surprise is charged to the party that made it, when it made it.
    """
    acts = policy(process)
    reach = reach_probs(acts, process.replies)
    value, by_policy, by_simulator = process.reward, torch.zeros(()), torch.zeros(())
    for p, act, reply in reversed(list(zip(reach[:-1], acts, process.replies, strict=True))):
        after = value.reshape(reply.shape)
        quality = (reply * after).sum(-1)
        by_simulator = by_simulator + (
            p[..., None, None] * act[..., None] * reply * (after - quality[..., None]).square()
        ).sum((1, 2, 3))
        value = (act * quality).sum(-1)
        by_policy = by_policy + (p[..., None] * act * (quality - value[..., None]).square()).sum((1, 2))
    return by_policy, by_simulator


def capped_bernoulli_variance(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """g(x) = x(1−x) up to ½, then ¼: the largest variance of a [0, 1] reward that is constant with probability 1−x."""
    capped = x.clamp(max=0.5)
    return capped * (1.0 - capped)
