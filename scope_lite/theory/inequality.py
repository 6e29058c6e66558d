"""One shape for every result: left side, the paper's right side, the sharp right side, and mutations that must fail.

A result is checked on random instances, on instances found by gradient ascent on the ratio left/right, and on a
constructed one that reaches the sharp bound. A statement that no instance can break proves nothing about the check, so
each result also carries mutations (a smaller constant, a weaker condition) with an instance on which they break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Raw = dict[str, Tensor]
"""Unconstrained numbers from which an instance is built; gradient ascent moves these."""
Side = Callable[[Any], Tensor]
"""A side of an inequality: instance (batched) -> one number for each instance."""

ROUNDOFF = 1e-13
"""absolute error forgiven on the left side; every left side is of order one or less where this matters"""


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in double precision."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sampler(**parts: tuple[float, tuple[int, ...]]) -> Callable[[torch.Generator, int], Raw]:
    """A sampler of unconstrained numbers, all normal: the standard deviation and the shape of each part by its name."""
    return lambda generator, n: {name: sd * normal(generator, n, *shape) for name, (sd, shape) in parts.items()}


def one(*values: Any) -> Tensor:
    """These numbers (or nested lists of them) as a batch in double precision: of one where a single list is given."""
    return torch.tensor(list(values), dtype=torch.float64)


@dataclass(frozen=True)
class Mutation:
    """A slightly wrong statement, and an instance on which it is false."""

    name: str
    right: Side
    counterexample: Callable[[], Any]
    left: Side | None = None
    """the mutated left side, when the mutation is on the left"""


@dataclass(frozen=True)
class Inequality:
    """``left ≤ sharp`` always; ``left ≤ paper`` as the paper states it, which may need a condition."""

    key: str
    title: str
    sample: Callable[[torch.Generator, int], Raw]
    build: Callable[[Raw], Any]
    left: Side
    paper: Side
    sharp: Side
    tight: Callable[[], Any]
    tight_text: str
    mutations: tuple[Mutation, ...]
    paper_left: Side | None = None
    """the paper's left side, where it differs"""
    paper_holds: bool = True
    """False where the paper's statement, read literally, needs a condition that it does not state"""
    frozen: frozenset[str] = frozenset()
    """raw entries that the ascent leaves alone"""


def ratio(left: Float[Tensor, "batch"], right: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """left/right, above 1 where the inequality fails; 0/0 counts as holding, positive/0 as infinite."""
    nonzero = right.abs() > 10 * ROUNDOFF
    at_zero = torch.where(left > 100 * ROUNDOFF, torch.inf, 0.0)
    return torch.where(nonzero, (left - ROUNDOFF) / torch.where(nonzero, right, 1.0), at_zero)


def random_instances(result: Inequality, n: int, seed: int) -> Any:
    """A batch of ``n`` random instances of the result."""
    return result.build(result.sample(torch.Generator().manual_seed(seed), n))


def adversarial_instances(
    result: Inequality, n: int, seed: int, steps: int = 100, lr: float = 0.1, right: Side | None = None
) -> Any:
    """Push ``n`` random instances uphill with Adam and return where they end.

    Uphill is log(left/right) where both are positive, left − right elsewhere (a lower bound may start below zero).

    Args:
        right: the right side to attack; the sharp one when left out.
    """
    raw = result.sample(torch.Generator().manual_seed(seed), n)
    moving = {k: v.clone().requires_grad_(k not in result.frozen) for k, v in raw.items()}
    optimizer = torch.optim.Adam([v for v in moving.values() if v.requires_grad], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        instance = result.build(moving)
        left, bound = result.left(instance), (right or result.sharp)(instance)
        usable = (left > 1e-9) & (bound > 1e-9)
        safe_left, safe_bound = torch.where(usable, left, 1.0), torch.where(usable, bound, 1.0)
        height = torch.where(usable, safe_left.log() - safe_bound.log(), left - bound)
        (-height.sum()).backward()
        for value in moving.values():
            if value.grad is not None:
                value.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
    return result.build({k: v.detach() for k, v in moving.items()})


def batches(result: Inequality, n: int, n_adversarial: int, seed: int) -> dict[str, Any]:
    """Instances of three kinds: random ones, ones pushed uphill, and the constructed one that is tight."""
    return {
        "random": random_instances(result, n, seed),
        "gradient ascent": adversarial_instances(result, n_adversarial, seed),
        "constructed": result.tight(),
    }


def largest_ratio(result: Inequality, instance: Any, right: Side | None = None, left: Side | None = None) -> float:
    """The worst left/right over a batch of instances, of the sharp statement unless other sides are given."""
    return float(ratio((left or result.left)(instance), (right or result.sharp)(instance)).max())


def paper_ratio(result: Inequality, instance: Any) -> float:
    """The worst ratio of the statement as the paper gives it, over a batch of instances."""
    return largest_ratio(result, instance, result.paper, result.paper_left)


def mutation_ratio(result: Inequality, mutation: Mutation) -> float:
    """left/right of the mutated statement on its counterexample; above 1 means that the check bites."""
    return largest_ratio(result, mutation.counterexample(), mutation.right, mutation.left)


def scaled(factor: float, side: Side) -> Side:
    """The same side multiplied by ``factor``."""
    return lambda instance: factor * side(instance)
