"""Dialogue processes on which the theorems are tried: random ones, tight ones, and counterexamples.

Random instances range over sharp and diffuse simulators, tied and tabular policies, smooth and 0/1 rewards. The others
are built by hand, because the interesting cases have measure zero: a bound that is reached, a condition that is needed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.theory.inequality import Raw, normal, one
from scope_lite.theory.process import Levels, Process, tabular_features


def _log_uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    u = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return low * (high / low) ** u


def sample_raw(
    generator: torch.Generator, n: int, horizon: int = 2, n_acts: int = 2, n_replies: int = 2, params: int | None = 3
) -> Raw:
    """Unconstrained numbers for ``n`` processes with two simulators each (the second one is for Prop. 3.7).

    Args:
        params: size of θ when features are shared by all histories at random; None for a tabular policy.
    """
    widths = [(n_acts * n_replies) ** t for t in range(horizon + 1)]
    if params is None:
        features = {f"features{t}": f for t, f in enumerate(tabular_features(horizon, n_acts, n_replies))}
        params = features["features0"].shape[-1]
    else:
        features = {f"features{t}": normal(generator, n, widths[t], n_acts, params) for t in range(horizon)}
    sharpness = _log_uniform(generator, 0.3, 12.0, n, 1, 1, 1)
    raw: Raw = {"theta": _log_uniform(generator, 0.1, 3.0, n, 1) * normal(generator, n, params), **features}
    for t in range(horizon):
        first = normal(generator, n, widths[t], n_acts, n_replies)
        raw[f"replies{t}"] = sharpness * first
        raw[f"others{t}"] = sharpness * (first + 0.5 * normal(generator, n, widths[t], n_acts, n_replies))
    raw["reward"] = _log_uniform(generator, 0.5, 20.0, n, 1) * normal(generator, n, widths[-1])
    return raw


def build_process(raw: Raw) -> Process:
    """Softmax the simulator's numbers and squash the rewards: any raw numbers give a valid batch of processes."""
    features = tuple(raw[key] for key in sorted(raw) if key.startswith("features"))
    return Process(raw["theta"], features, _softmax(raw, "replies"), torch.sigmoid(raw["reward"]))


def _softmax(raw: Raw, name: str) -> Levels:
    return tuple(torch.softmax(raw[key], -1) for key in sorted(raw) if key.startswith(name))


def build_pair(raw: Raw) -> tuple[Process, Levels]:
    """A batch of processes and a second simulator for each (the reference P, say)."""
    return build_process(raw), _softmax(raw, "others")


def one_bit(epsilon: Float[Tensor, "batch"], bound: float = 1.0, turns: int = 1) -> Process:
    """The instance that reaches Theorem 3.2 with constant 1.

    The first act is a fair coin with score ±``bound`` (later acts carry no score); every reply is a bit that deviates
    with probability ``epsilon``; R = 1 iff [act 0] agrees with [no deviation anywhere].
    """
    widths = [4**t for t in range(turns)]
    sizes = [bound, *[0.0] * (turns - 1)]
    features = tuple(one([x], [-x]).expand(1, w, 2, 1) for x, w in zip(sizes, widths, strict=True))
    bit = torch.stack([1 - epsilon, epsilon], -1)[:, None, None, :]
    grid = torch.arange(4**turns)
    deviated = torch.stack([(grid // w) % 2 for w in widths]).amax(0) == 1
    first_act = grid // (2 * widths[-1])
    reward = ((first_act == 0) != deviated).double().expand(len(epsilon), -1)
    replies = tuple(bit.expand(-1, w, 2, 2) for w in widths)
    return Process(torch.zeros(len(epsilon), 1, dtype=torch.float64), features, replies, reward)


def rare_act(p: Float[Tensor, "batch"], epsilon: float = 0.4) -> Process:
    """Why B is a supremum: the simulator deviates only after a rare act, whose score is large when it happens.

    Act 1 has probability ``p``; only after it does the user deviate (probability ``epsilon``); R = 1 iff he does.
    """
    theta = (p / (1 - p)).log()[:, None]
    features = one([0.0], [1.0]).expand(1, 1, 2, 1)
    replies = one([1.0, 0.0], [1 - epsilon, epsilon]).expand(len(p), 1, 2, 2)
    return Process(theta, (features,), (replies,), one([0, 0, 0, 1]).expand(len(p), -1))


def off_support(epsilon: float = 0.1, small: float = 0.05) -> Process:
    """Why B ranges over BOTH supports: scores are large only in histories that the mode user never reaches."""
    second = one(small, 1.0, small, 1.0).reshape(1, 4, 1, 1) * one([1.0], [-1.0])
    bit, silent = one(1 - epsilon, epsilon).expand(1, 1, 2, 2), one(1.0, 0.0).expand(1, 4, 2, 2)
    second_act = (torch.arange(16) // 2) % 2
    return Process(one([0.0]), (*_no_features(1), second), (bit, silent), (second_act == 0).double()[None])


def shared_score(epsilon: float = 0.2, turns: int = 3) -> Process:
    """Why H·B₁ needs the H: all turns push the same parameter, so their scores add up (one bit in the first reply)."""
    features = tuple(one([1.0], [-1.0]).expand(1, 4**t, 2, 1) for t in range(turns))
    bit, silent = one(1 - epsilon, epsilon), one(1.0, 0.0)
    replies = tuple((bit if t == 0 else silent).expand(1, 4**t, 2, 2) for t in range(turns))
    leaf = torch.arange(4**turns)
    total = sum(1 - 2 * ((leaf // (2 * 4**t)) % 2) for t in range(turns))
    deviated = (leaf // 4 ** (turns - 1)) % 2 == 1
    return Process(one([0.0]), features, replies, torch.where(deviated, total < 0, total > 0).double()[None])


def fair_bits(turns: int = 2) -> Process:
    """Fully diverse replies in every turn, R = the first reply: the variance bound's cap ¼ is reached, ε̄ = turns/2."""
    first_reply = (torch.arange(4**turns) // 4 ** (turns - 1)) % 2
    return Process(one([0.0]), _no_features(turns), _fair_replies(turns), first_reply.double()[None])


def _no_features(turns: int) -> Levels:
    return tuple(one(0.0).expand(1, 4**t, 2, 1) for t in range(turns))


def _fair_replies(turns: int) -> Levels:
    return tuple(one(0.5).expand(1, 4**t, 2, 2) for t in range(turns))


def ask_then(reward: str, sharpness: float = 40.0) -> Process:
    """A user with a fair private bit, told when asked in turn 1; the policy repeats it in turn 2.

    Args:
        reward: "match" pays 1 iff the second act repeats the bit (this policy always earns it); "bit" pays the bit
            itself, which is then the simulator's luck alone; "nothing" never pays (all-failure groups).
    """
    repeat = one([1.0, 0.0], [0.0, 1.0]).repeat(2, 1).reshape(1, 4, 2, 1)
    leaf = torch.arange(16)
    bit, second_act = (leaf // 4) % 2, (leaf // 2) % 2
    paid = {"match": bit == second_act, "bit": bit == 1, "nothing": leaf < 0}[reward].double()
    return Process(one([sharpness]), (*_no_features(1), repeat), _fair_replies(2), paid[None])
