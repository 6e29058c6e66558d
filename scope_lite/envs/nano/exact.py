"""Exact values in a nano world: the optimum by dynamic programming over beliefs, and any scripted policy's value.

A history matters only through the belief over types and the state each type would be
in, so histories that agree on both are one node: that keeps the tree small enough to
enumerate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
from jaxtyping import Float, Int

from scope_lite.envs.nano.spec import History, World
from scope_lite.envs.nano.users import BeliefUsers, told_prior

Policy = Callable[[History], str]
CHUNK = 200_000  # nodes expanded at a time: about 200 MB


def optimal_value(world: World, prior: Float[np.ndarray, " Z"], gamma: float = 1.0) -> float:
    """The largest expected reward that any policy can have against these users, gamma-sharpened.

    Returns:
        A reward in [0, 1], the mean over the world's tasks (the policy is told which one it has).

    Raises:
        ValueError: for sharpened users that are told different things: what each would sharpen, the others do not know.
    """
    if gamma != 1 and len(world.prompts) > 1:
        raise ValueError(f"world {world.name}: no exact optimum against sharpened users that are told different things")
    tasks = np.arange(len(world.starts))
    return float(_values(BeliefUsers(world, prior, len(tasks), gamma, tasks), world.horizon).mean())


def _values(nodes: BeliefUsers, turns: int) -> Float[np.ndarray, " n"]:
    """Optimal value of each node with ``turns`` turns left."""
    if turns == 0:
        return nodes.outcome_probabilities() @ nodes.world.rewards
    n, acts = len(nodes.belief), len(nodes.world.spec.agent_acts)
    if n * acts > CHUNK:
        size = CHUNK // acts
        return np.concatenate([_values(nodes[i : i + size], turns) for i in range(0, n, size)])
    # the children of all acts are merged before the one recursion: most of them meet again
    chosen, parents = np.repeat(np.arange(acts), n), nodes[np.tile(np.arange(n), acts)]
    probs = parents.reply_probabilities(chosen)
    rows, replies = np.nonzero(probs > 0)
    children = parents[rows]
    children.observe(chosen[rows], replies)
    first, inverse = _unique(children)
    values = _values(children[first], turns - 1)[inverse]
    return np.bincount(rows, probs[rows, replies] * values, minlength=n * acts).reshape(acts, n).max(axis=0)


def _unique(nodes: BeliefUsers) -> tuple[Int[np.ndarray, " u"], Int[np.ndarray, " n"]]:
    """The first of each kind of node, and which of them each node is like."""
    # a type that is ruled out has no state worth telling apart
    states = np.where(nodes.belief > 0, nodes.states, -1)
    key = np.concatenate([np.rint(nodes.belief * 1e10).astype(np.int64), states], axis=1)
    # rows are sorted by one number each, not column by column: the optimum of persuasion_hard took 3.8 s, and takes 1.7
    mix = np.random.default_rng(0).integers(1, 2**62, size=key.shape[1]) | 1
    _, first, inverse = np.unique((key * mix).sum(axis=1), return_index=True, return_inverse=True)
    if not np.array_equal(key, key[first[inverse]]):
        raise ArithmeticError("two nodes of the tree share a hash: choose another seed for it")
    return first, inverse


class Users(Protocol):
    """Users whose law is known, a row a dialogue: ``BeliefUsers``, or a model in their place."""

    def __getitem__(self, rows: Any) -> Self: ...
    def reply_probabilities(self, acts: Int[np.ndarray, " b"]) -> Float[np.ndarray, "b R"]: ...
    def observe(self, acts: Int[np.ndarray, " b"], replies: Int[np.ndarray, " b"]) -> None: ...
    def outcome_probabilities(self) -> Float[np.ndarray, "b O"]: ...


def play_out(
    world: World, users: Users, policy: Policy, opening: History = (), floor: float = 0.0
) -> tuple[list[History], Float[np.ndarray, " n"], Users]:
    """Every dialogue of a deterministic scripted policy that has a probability above ``floor`` at each turn.

    Args:
        users: one row, at the start of a dialogue.

    Returns:
        The finished dialogues, the probability of each (they sum to 1 at a floor of 0), and the users at their ends.
    """
    histories, shares = [opening], np.ones(1)
    for _ in range(world.horizon):
        acts = [policy(history) for history in histories]
        chosen = np.array([world.agent_index[act] for act in acts])
        joint = shares[:, None] * users.reply_probabilities(chosen)
        rows, replies = np.nonzero(joint > floor)
        users = users[rows]
        users.observe(chosen[rows], replies)
        histories = [(*histories[i], (acts[i], world.spec.user_acts[r])) for i, r in zip(rows, replies, strict=True)]
        shares = joint[rows, replies]
    return histories, shares, users


def policy_value(world: World, prior: Float[np.ndarray, " Z"], policy: Policy, gamma: float = 1.0) -> float:
    """Expected reward of a deterministic scripted policy, by enumerating every reply.

    ``prior`` is over types; with ``gamma`` above 1 the users are the sharpened simulator. The mean over the tasks.
    """

    shares = world.knows @ prior
    total = 0.0
    for prompt in np.flatnonzero(shares):
        known = told_prior(world, prior, np.array([prompt]))
        for task in range(len(world.tasks)):
            users = BeliefUsers(world, known, 1, gamma, task)
            _, chances, ends = play_out(world, users, policy, world.opening(task))
            total += shares[prompt] * chances @ (ends.outcome_probabilities() @ world.rewards)
    return total / len(world.tasks)


def repeat(act: str) -> Policy:
    """Say the same thing every turn: the exploit of a simulator with one mode."""
    return lambda history: act


def ask_then_match(history: History) -> str:
    """Ask first, then appeal to what the user named (to the first topic if it named nothing)."""
    heard = [reply.removeprefix("reveal-") for _, reply in history if reply.startswith("reveal-")]
    if not history:
        return "ask"
    return f"appeal-{heard[-1]}" if heard else "appeal-heart"
