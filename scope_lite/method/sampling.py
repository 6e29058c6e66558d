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
POSSIBLE = 1e-3  # a reply below it is none that a user would give
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
class Greedy:
    """The most likely option, the first of several: a temperature of 0."""

    sharpness: float | None = None

    def __call__(self, probabilities: Shares, keys: RowKeys, turn: int, seat: str, token: int) -> Drawn:
        best = probabilities.argmax(axis=1)
        return best, np.eye(probabilities.shape[1])[best]


def at_temperature(temperature: float | None) -> SamplingRule:
    """The rule of a model that speaks at this temperature; None: at its own."""
    if temperature == 0:
        return Greedy()
    return Direct(temperature and 1 / temperature)


@dataclass(frozen=True)
class VerbalizedModel:
    """A model of Verbalized Sampling, for nano scale only: evidence for VS itself comes from real text models.

    The simulator lists ``k`` distinct replies, drawn without replacement from P_eta, and states a probability for each:
    the true one times exp(noise * standard normal), renormalised over the list. One is drawn from what was stated, or
    uniformly from those that are possible: a list has no room for what nobody would say, and no weight would tell it.

    P_eta = (1 - eta) P + eta Q is where the reference recovery of Prop. 3.7 is dialled away. ``direction`` chooses Q:
    "mode" puts it on P's own mode (VS that still collapses), "wrong" on P's least likely possible reply (VS that
    invents users).
    """

    k: int = 5
    noise: float = 0.3
    """standard deviation of the stated probabilities' error, in nats"""
    eta: float = 0.0
    direction: Literal["mode", "wrong"] = "mode"
    vs_draw: Literal["stated", "uniform"] = "stated"
    sharpness: float | None = 1.0  # VS reads what the model knows, not what it would say

    def target(self, probabilities: Shares) -> Shares:
        """P_eta; its total variation from P is eta times (1 - P(the reply that Q sits on))."""
        if self.direction == "mode":
            at = probabilities.argmax(axis=1)
        else:
            at = np.where(probabilities > POSSIBLE, probabilities, np.inf).argmin(axis=1)
        moved = (1 - self.eta) * probabilities
        moved[np.arange(len(moved)), at] += self.eta
        return moved

    def stated(self, probabilities: Shares, uniforms: Float[np.ndarray, "b m"]) -> Shares:
        """The distribution that one list's reply is drawn from, at most ``k`` non-zero entries a row; m is 2n."""
        n = probabilities.shape[1]
        log_p = np.log(np.maximum(self.target(probabilities), 1e-30))
        keys = log_p - np.log(-np.log(uniforms[:, :n].clip(1e-12, 1 - 1e-12)))  # Gumbel top-k: without replacement
        cut = np.sort(keys, axis=1)[:, -min(self.k, n)][:, None]
        if self.vs_draw == "uniform":
            likeliest = np.where(keys >= cut, log_p, -np.inf).max(axis=1, keepdims=True)
            weight = ((keys >= cut) & (log_p >= np.minimum(likeliest, np.log(POSSIBLE)))).astype(float)
        else:
            error = self.noise * norm.ppf(uniforms[:, n : 2 * n].clip(1e-12, 1 - 1e-12))
            weight = np.where(keys >= cut, np.exp(log_p + error), 0.0)
        return weight / weight.sum(axis=1, keepdims=True)

    def __call__(self, probabilities: Shares, keys: RowKeys, turn: int, seat: str, token: int) -> Drawn:
        n = probabilities.shape[1]
        uniforms = keys.uniforms(turn, seat, token, n=1 + 2 * n * LISTS)
        lists = [self.stated(probabilities, uniforms[:, 1 + 2 * n * i : 1 + 2 * n * (i + 1)]) for i in range(LISTS)]
        return draw(lists[0], uniforms[:, 0]), np.mean(lists, axis=0)
