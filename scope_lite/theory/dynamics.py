"""How the odds of an exploit grow under four updates: KL-regularised, plain gradient, ideal GRPO, sampled GRPO.

One number tells them apart. Write x for the log-odds of two strategies whose rewards differ by Δ, p for the exploit's
probability. A KL-regularised step adds ηΔ to x, always. A centred gradient step adds lr·Δ·E[σ²] and a GRPO step
lr·E[σ], where σ is the standard deviation of a group's 0/1 outcomes: both die with the group's variance, and a group
with σ = 0 contributes nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import softmax
from scipy.stats import binom

Array = np.ndarray


def expected_group_sigma(p: float, group_size: int | None, power: int = 1) -> float:
    """E[σ^power] of a group of 0/1 rewards with success probability p (population σ, ddof 0).

    With ``group_size=None`` the infinite group, ``(p(1−p))^{power/2}``. For G = 8, p = ½, power 2 this is .219.
    """
    if group_size is None:
        return float((p * (1 - p)) ** (power / 2))
    k = np.arange(group_size + 1)
    share = k / group_size
    return float(np.sum(binom.pmf(k, group_size, p) * (share * (1 - share)) ** (power / 2)))


def two_strategy_log_odds(
    start: float, steps: int, lr: float, update: str, gap: float = 1.0, group_size: int | None = None
) -> Float[Array, "{steps}+1"]:
    """Log-odds of the better of two strategies (rewards ``gap`` and 0) after each expected update.

    Args:
        update: "kl" (Prop. 3.4 with η = lr), "gradient" (softmax policy gradient, or GRPO without division by σ),
            "grpo" (divided by σ; the size of the gap then cancels).
    """
    pull = {
        "kl": lambda p: gap,
        "gradient": lambda p: gap * expected_group_sigma(p, group_size, 2),
        "grpo": lambda p: expected_group_sigma(p, group_size),
    }[update]
    x = [start]
    for _ in range(steps):
        x.append(x[-1] + lr * pull(1 / (1 + np.exp(-x[-1]))))
    return np.array(x)


CURRICULUM_WIDTH = 0.02
"""of the paper's curriculum reward, exp(−(σ² − .25)² / .02) of a group (Table 9)"""


def _curriculum_slope(p: float, group_size: int) -> float:
    """d/dp of the expected curriculum reward of a group of 0/1 rewards with success probability p."""
    share = np.arange(group_size + 1) / group_size
    paid = np.exp(-((share * (1 - share) - 0.25) ** 2) / CURRICULUM_WIDTH)
    return float(group_size * binom.pmf(np.arange(group_size), group_size - 1, p) @ np.diff(paid))


TARGET_REWARDS: dict[str, Callable[[float], float]] = {
    "adversarial": lambda p: -1.0,
    "cooperative": lambda p: 1.0,
    "curriculum": lambda p: _curriculum_slope(p, 8),
}
"""What one more success in a group (of 8, for the curriculum) is worth to a simulator that is paid so."""


def target_log_odds(start: float, steps: int, eta: float, reward: str) -> Float[Array, "{steps}+1"]:
    """Log-odds that a simulator lets a fixed policy succeed, by its own KL-regularised steps (Remark B.10).

    Adversarial and cooperative rewards drive it to refuse all and to grant all, at the constant rate of Prop. 3.4; the
    curriculum to even odds, where the reward's variance p(1 − p) is largest.
    """
    x = [start]
    for _ in range(steps):
        x.append(x[-1] + eta * TARGET_REWARDS[reward](1 / (1 + np.exp(-x[-1]))))
    return np.array(x)


@dataclass(frozen=True)
class StrategyBandit:
    """Strategies against a simulated user of random type: the reward is ``payoff[type, strategy]``."""

    payoff: Float[Array, "types strategies"]
    types: Float[Array, "types"]
    n_exploit: int = 1


def appeal_bandit(prior: Float[Array, "types"], gamma: float, always: float = 0.75) -> StrategyBandit:
    """The persuasion game in one move: an appeal per type pays 1 if it fits, ask-then-match pays ``always``.

    The simulator's types follow the prior sharpened by ``gamma``; strategy 0 is the exploit of its mode.
    """
    types = np.sort(np.asarray(prior, float))[::-1] ** gamma
    payoff = np.hstack([np.eye(len(types)), np.full((len(types), 1), always)])
    return StrategyBandit(payoff, types / types.sum())


def group_advantages(rewards: Float[Array, "... group"], normalise: bool = True) -> Float[Array, "... group"]:
    """Eq. 2: centre each group and divide by its population σ; a group with equal rewards gets zero everywhere."""
    centred, sigma = rewards - rewards.mean(-1, keepdims=True), rewards.std(-1, keepdims=True)
    return np.where(sigma > 1e-12, centred / np.where(sigma > 1e-12, sigma, 1.0), 0.0) if normalise else centred


def _draw(probs: Float[Array, "seeds n"], size: tuple[int, int], rng: np.random.Generator) -> Array:
    """Indices drawn from each seed's distribution, shape (seeds, *size)."""
    u = rng.random((probs.shape[0], *size, 1))
    return (u > np.cumsum(probs, -1)[:, None, None, :-1]).sum(-1)


def sampled_grpo(
    bandit: StrategyBandit,
    steps: int,
    lr: float,
    seeds: int,
    seed: int = 0,
    groups: int = 8,
    group_size: int = 8,
    normalise: bool = True,
    optimizer: str = "sgd",
) -> pd.DataFrame:
    """A real, if small, GRPO run on strategy clusters: sampled groups, Eq. 2, the zero-variance rule, softmax logits.

    Args:
        optimizer: "sgd", or "adam", whose steps do not shrink with the gradient.

    Returns:
        One row per seed and step: run, seed, step, odds_exploit, eta, source.
    """
    rng = np.random.default_rng(seed)
    n = bandit.payoff.shape[1]
    logits = np.zeros((seeds, n))
    first, second = np.zeros_like(logits), np.zeros_like(logits)
    tables = []
    for step in range(steps + 1):
        probs = softmax(logits, axis=-1)
        chosen = _draw(probs, (groups, group_size), rng)
        users = _draw(np.tile(bandit.types, (seeds, 1)), (groups, group_size), rng)
        rewards = bandit.payoff[users, chosen]
        inside = probs[:, : bandit.n_exploit].sum(-1)
        odds = inside / np.maximum(1 - inside, 1e-16)
        tables.append(pd.DataFrame({"seed": np.arange(seeds), "step": step, "odds_exploit": odds}))
        advantage = group_advantages(rewards, normalise)
        gradient = (advantage[..., None] * (np.eye(n)[chosen] - probs[:, None, None, :])).mean((1, 2))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        corrected = (first / (1 - 0.9 ** (step + 1))) / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        logits = logits + lr * (corrected if optimizer == "adam" else gradient)
    runs = pd.concat(tables, ignore_index=True).assign(run="grpo_bandit", eta=lr, source=f"bandit, {optimizer}")
    return runs[["run", "seed", "step", "odds_exploit", "eta", "source"]]
