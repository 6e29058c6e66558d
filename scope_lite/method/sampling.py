"""How a reply is drawn from a simulator: directly, or through the nano model of Verbalized Sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm

from scope_lite.envs.nano.users import draw
from scope_lite.models.rng import RowKeys

LISTS = 8  # lists averaged to estimate the marginal law of a verbalized reply
Shares = Float[np.ndarray, "b n"]
Drawn = tuple[Int[np.ndarray, " b"], Shares]
"""the options drawn, and the distribution that each draw followed"""


class SamplingRule(Protocol):
    """Draws one of n options a row."""

    @property
    def sharpness(self) -> float | None:
        """The sharpness at which the model is read; None is the model's own."""
        ...

    def __call__(self, probabilities: Shares, keys: RowKeys, turn: int, seat: str, token: int) -> Drawn: ...


@dataclass(frozen=True)
class Direct:
    """Sample the model's own distribution."""

    sharpness: float | None = None

    def __call__(self, probabilities: Shares, keys: RowKeys, turn: int, seat: str, token: int) -> Drawn:
        return draw(probabilities, keys.uniforms(turn, seat, token)[:, 0]), probabilities


@dataclass(frozen=True)
class VerbalizedModel:
    """A model of Verbalized Sampling, for nano scale only: evidence for VS itself comes from real text models.

    The simulator lists ``k`` distinct replies, drawn without replacement from P_eta, and states a probability for each:
    the true one times exp(noise * standard normal), renormalised over the list. One is drawn from what was stated.

    P_eta = (1 - eta) P + eta Q is where the reference recovery of Prop. 3.7 is dialled away. ``direction`` chooses Q:
    "mode" puts it on P's own mode (VS that still collapses), "wrong" on P's least likely possible reply (VS that
    invents users).
    """

    k: int = 5
    noise: float = 0.3
    """standard deviation of the stated probabilities' error, in nats"""
    eta: float = 0.0
    direction: Literal["mode", "wrong"] = "mode"
    sharpness: float | None = 1.0  # VS reads what the model knows, not what it would say

    def target(self, probabilities: Shares) -> Shares:
        """P_eta; its total variation from P is eta times (1 - P(the reply that Q sits on))."""
        if self.direction == "mode":
            at = probabilities.argmax(axis=1)
        else:
            at = np.where(probabilities > 1e-3, probabilities, np.inf).argmin(axis=1)
        moved = (1 - self.eta) * probabilities
        moved[np.arange(len(moved)), at] += self.eta
        return moved

    def stated(self, probabilities: Shares, uniforms: Float[np.ndarray, "b m"]) -> Shares:
        """One list's stated distribution: at most ``k`` non-zero entries a row; needs m = 2n uniforms."""
        n = probabilities.shape[1]
        log_p = np.log(np.maximum(self.target(probabilities), 1e-30))
        keys = log_p - np.log(-np.log(uniforms[:, :n].clip(1e-12, 1 - 1e-12)))  # Gumbel top-k: without replacement
        cut = np.sort(keys, axis=1)[:, -min(self.k, n)][:, None]
        error = self.noise * norm.ppf(uniforms[:, n : 2 * n].clip(1e-12, 1 - 1e-12))
        weight = np.where(keys >= cut, np.exp(log_p + error), 0.0)
        return weight / weight.sum(axis=1, keepdims=True)

    def __call__(self, probabilities: Shares, keys: RowKeys, turn: int, seat: str, token: int) -> Drawn:
        n = probabilities.shape[1]
        uniforms = keys.uniforms(turn, seat, token, n=1 + 2 * n * LISTS)
        lists = [self.stated(probabilities, uniforms[:, 1 + 2 * n * i : 1 + 2 * n * (i + 1)]) for i in range(LISTS)]
        return draw(lists[0], uniforms[:, 0]), np.mean(lists, axis=0)
