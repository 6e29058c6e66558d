"""Exact values in a nano world: the optimum by dynamic programming over beliefs, and any scripted policy's value.

A history matters only through the belief over types and the state each type would be
in, so histories that agree on both are one node: that keeps the tree small enough to
enumerate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from scope_lite.envs.nano.spec import History, World
from scope_lite.envs.nano.users import BeliefUsers, told_prior

Policy = Callable[[History], str]
CHUNK = 200_000  # nodes expanded at a time: about 200 MB


@dataclass
class _Level:
    belief: Float[np.ndarray, "n Z"]
    states: Int[np.ndarray, "n Z"]


def optimal_value(world: World, prior: Float[np.ndarray, " Z"], gamma: float = 1.0) -> float:
    """The largest expected reward that any policy can have against these users, gamma-sharpened.

    Returns:
        A reward in [0, 1], the mean over the world's tasks (the policy is told which one it has).

    Raises:
        ValueError: for sharpened users that are told different things: what each would sharpen, the others do not know.
    """
    if gamma != 1 and len(world.prompts) > 1:
        raise ValueError(f"world {world.name}: no exact optimum against sharpened users that are told different things")
    tasks = len(world.starts)
    level = _Level(np.tile(prior, (tasks, 1)), np.tile(world.starts[:, None], len(prior)))
    return float(_value(world, level, world.horizon, gamma).mean())


def _value(world: World, level: _Level, turns: int, gamma: float) -> Float[np.ndarray, " n"]:
    """Optimal value of each node of a level with ``turns`` turns left."""
    users = BeliefUsers(world, np.ones(1), 0, gamma)
    users.belief, users.states = level.belief, level.states
    if turns == 0:
        return users.outcome_probabilities() @ world.rewards
    n, acts = len(level.belief), len(world.spec.agent_acts)
    if n * acts > CHUNK:
        parts = range(0, n, CHUNK // acts)
        size = CHUNK // acts
        slices = [_Level(level.belief[i : i + size], level.states[i : i + size]) for i in parts]
        return np.concatenate([_value(world, part, turns, gamma) for part in slices])
    # the children of all acts are merged before the one recursion: most of them meet again
    chosen = np.repeat(np.arange(acts), n)
    users.belief, users.states = np.tile(level.belief, (acts, 1)), np.tile(level.states, (acts, 1))
    probs = users.reply_probabilities(chosen)
    rows, replies = np.nonzero(probs > 0)
    child = BeliefUsers(world, np.ones(1), 0, gamma)
    child.belief, child.states = users.belief[rows], users.states[rows]
    child.observe(chosen[rows], replies)
    nodes, inverse = _unique(child.belief, child.states)
    values = _value(world, nodes, turns - 1, gamma)[inverse]
    return np.bincount(rows, probs[rows, replies] * values, minlength=n * acts).reshape(acts, n).max(axis=0)


def _unique(belief: Float[np.ndarray, "n Z"], states: Int[np.ndarray, "n Z"]) -> tuple[_Level, Int[np.ndarray, " n"]]:
    # a type that is ruled out has no state worth telling apart
    key = np.concatenate([np.rint(belief * 1e10).astype(np.int64), np.where(belief > 0, states, -1)], axis=1)
    # rows are sorted by one number each, not column by column: the optimum of persuasion_hard took 3.8 s, and takes 1.7
    mix = np.random.default_rng(0).integers(1, 2**62, size=key.shape[1]) | 1
    _, first, inverse = np.unique((key * mix).sum(axis=1), return_index=True, return_inverse=True)
    if not np.array_equal(key, key[first[inverse]]):
        raise ArithmeticError("two nodes of the tree share a hash: choose another seed for it")
    return _Level(belief[first], states[first]), inverse


def policy_value(world: World, prior: Float[np.ndarray, " Z"], policy: Policy, gamma: float = 1.0) -> float:
    """Expected reward of a deterministic scripted policy, by enumerating every reply.

    ``prior`` is over types; with ``gamma`` above 1 the users are the sharpened simulator. The mean over the tasks.
    """

    def value(history: History, users: BeliefUsers, turns: int) -> float:
        if turns == 0:
            return float(users.outcome_probabilities()[0] @ world.rewards)
        act = policy(history)
        chosen = np.array([world.agent_index[act]])
        probs = users.reply_probabilities(chosen)[0]
        total = 0.0
        for r in np.flatnonzero(probs > 0):
            child = BeliefUsers(world, prior, 1, gamma)
            child.belief, child.states = users.belief.copy(), users.states.copy()
            child.observe(chosen, np.array([r]))
            total += probs[r] * value((*history, (act, world.spec.user_acts[r])), child, turns - 1)
        return total

    shares = world.knows @ prior
    total = 0.0
    for prompt in np.flatnonzero(shares):
        known = told_prior(world, prior, np.array([prompt]))
        for task in range(len(world.tasks)):
            users = BeliefUsers(world, known, 1, gamma, task)
            total += shares[prompt] * value(world.opening(task), users, world.horizon)
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
