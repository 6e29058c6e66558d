"""The enumerated process against independent routes to the same numbers: autograd, Monte Carlo, hand-made dialogues."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scope_lite.store.errors import ScopeError
from scope_lite.theory import instances
from scope_lite.theory.process import (
    Process,
    expected_return,
    histories,
    mode_replies,
    optimal_return,
    policy,
    process_from_callables,
    reach_probs,
    return_gradient,
    sample_dialogues,
    trajectory_probs,
    trajectory_scores,
)
from scope_lite.theory.quantities import (
    accumulate,
    coin_split,
    collapse_errors,
    reward_variance,
    score_sup,
    turn_score_sup,
    variance_given_actions,
)
from scope_lite.theory.tables import monte_carlo_agreement

torch.set_num_threads(1)
SHAPES = st.sampled_from([(1, 2, 3, 2), (2, 2, 2, None), (2, 3, 2, 4), (3, 2, 2, 3)])


def processes(n: int, seed: int, shape: tuple[int, int, int, int | None]) -> Process:
    generator = torch.Generator().manual_seed(seed)
    return instances.build_process(instances.sample_raw(generator, n, *shape))


@settings(max_examples=8)
@given(st.integers(0, 10**6), SHAPES)
def test_enumerated_gradient_equals_autograd_to_1e_10(seed, shape):
    process = processes(200, seed, shape)
    theta = process.theta.clone().requires_grad_()
    total = expected_return(Process(theta, process.features, process.replies, process.reward)).sum()
    (by_autograd,) = torch.autograd.grad(total, theta)
    assert torch.allclose(by_autograd, return_gradient(process), atol=1e-10, rtol=0)


@settings(max_examples=8)
@given(st.integers(0, 10**6), SHAPES)
def test_probabilities_sum_to_one_and_scores_have_mean_zero(seed, shape):
    process = processes(500, seed, shape)
    for replies in (process.replies, mode_replies(process.replies)):
        probs = trajectory_probs(process, replies)
        assert torch.allclose(probs.sum(-1), torch.ones(500, dtype=torch.float64), atol=1e-12)
        mean = (probs[:, None, :] @ trajectory_scores(process)).abs().max()
        assert mean < 1e-11


def split_by_plans(process: Process, coins: str) -> tuple[Tensor, Tensor]:
    """Eq. 6 the slow way, for two turns of two acts: every plan that the policy's coins can write down, one by one.

    ``coins``: "history" (independent ones), or "turn" (one uniform number a turn, shared by all its histories).
    """
    first, second = policy(process)
    replies_of, n = process.replies[0].shape[-1], len(process.theta)
    mean = square = torch.zeros(n, dtype=torch.float64)
    for opening in range(2):
        answers = range(replies_of)
        # the second act at each history that this opening can lead to
        at = [opening * replies_of + u for u in answers]
        if coins == "history":
            plans = [
                (plan, torch.stack([second[:, h, a] for h, a in zip(at, plan, strict=True)]).prod(0))
                for plan in itertools.product(range(2), repeat=replies_of)
            ]
        else:  # act 0 where the number is below its probability: as many plans as there are distinct thresholds
            cuts = torch.cat([torch.zeros(1), second[0, at, 0].sort().values, torch.ones(1)])
            middles, widths = (cuts[1:] + cuts[:-1]) / 2, cuts.diff()
            plans = [([int(m > second[0, h, 0]) for h in at], w) for m, w in zip(middles, widths, strict=True)]
        reward = process.reward.reshape(n, 2, replies_of, 2, replies_of)[:, opening]
        for plan, chance in plans:
            paid = torch.stack([reward[:, u, plan[u]] for u in answers], 1)
            law = process.replies[0][:, 0, opening, :, None] * torch.stack(
                [process.replies[1][:, at[u], plan[u]] for u in answers], 1
            )
            expected = (law * paid).sum((1, 2))
            mean = mean + first[:, 0, opening] * chance * expected
            square = square + first[:, 0, opening] * chance * expected**2
    by_policy = square - mean**2
    return by_policy, reward_variance(process) - by_policy


@settings(max_examples=4)
@given(st.integers(0, 10**6), st.sampled_from([(2, 2, 2, None), (2, 2, 3, 3)]))
def test_the_split_by_coins_is_that_of_all_plans_written_down(seed, shape):
    process = processes(200, seed, shape)
    for fast, slow in zip(coin_split(process), split_by_plans(process, "history"), strict=True):
        assert torch.allclose(fast, slow, atol=1e-12)
    assert (variance_given_actions(process) <= reward_variance(process) + 1e-12).all()


def test_coins_shared_by_histories_split_the_same_game_otherwise():
    """A fair bit is told, the policy flips a coin, R = 1 iff they agree: who made the variance?"""
    fair = instances.fair_bits()
    leaf = torch.arange(16)
    agree = Process(fair.theta, fair.features, fair.replies, ((leaf // 4) % 2 == (leaf // 2) % 2).double()[None])
    assert [float(part) for part in coin_split(agree)] == pytest.approx([0.125, 0.125])
    assert [float(part) for part in split_by_plans(agree, "turn")] == pytest.approx([0, 0.25])


@settings(max_examples=8)
@given(st.integers(0, 10**6), SHAPES)
def test_sup_of_the_whole_score_is_at_most_turns_times_the_turn_sup(seed, shape):
    process = processes(500, seed, shape)
    assert (score_sup(process) <= process.horizon * turn_score_sup(process) + 1e-12).all()


def test_enumeration_agrees_with_monte_carlo_within_its_error():
    process = processes(1, 3, (2, 3, 2, 4))
    leaves = sample_dialogues(process, 200_000, torch.Generator().manual_seed(0))
    exact, sampled, error = monte_carlo_agreement(process, leaves)
    assert error > 0 and abs(exact - sampled) < 4.5 * error
    pulls = process.reward[0][leaves][:, None] * trajectory_scores(process)[0][leaves]
    errors = pulls.std(0) / len(leaves) ** 0.5
    assert ((pulls.mean(0) - return_gradient(process)[0]).abs() < 4.5 * errors + 1e-12).all()


def test_monte_carlo_counts_deviations_as_the_accumulated_error_says():
    process = processes(1, 5, (2, 2, 3, None))
    leaves = sample_dialogues(process, 200_000, torch.Generator().manual_seed(1))
    modes = mode_replies(process.replies)
    first, second = leaves // 6, leaves
    deviations = 0.0
    for node, table in ((first, modes[0]), (second, modes[1])):
        reply, act, history = node % 3, (node // 3) % 2, node // 6
        deviations = deviations + (1.0 - table[0][history, act, reply])
    exact = float(accumulate(process, collapse_errors(process.replies)))
    error = float(deviations.std()) / len(leaves) ** 0.5
    assert abs(exact - float(deviations.mean())) < 4.5 * error


def test_mode_ties_go_to_the_first_reply():
    replies = (torch.full((1, 1, 2, 3), 1 / 3, dtype=torch.float64),)
    assert mode_replies(replies)[0][0, 0].argmax(-1).tolist() == [0, 0]


def test_dynamic_programming_finds_ask_then_match():
    process = instances.ask_then("match")
    assert float(optimal_return(process)) == pytest.approx(1.0)
    assert (optimal_return(process) >= expected_return(process) - 1e-12).all()


@settings(max_examples=5)
@given(st.integers(0, 10**6), SHAPES)
def test_no_policy_earns_more_than_the_dynamic_programme(seed, shape):
    process = processes(300, seed, shape)
    assert (expected_return(process) <= optimal_return(process) + 1e-12).all()


def test_callables_are_read_in_the_order_of_the_tree():
    rng = np.random.default_rng(0)
    rows = {(h, a): rng.dirichlet(np.ones(2)) for t in range(2) for h in histories(t, 3, 2) for a in range(3)}
    pay = {h: rng.random() for h in histories(2, 3, 2)}
    process = process_from_callables(2, 3, 2, lambda h, a: rows[h, a], pay.__getitem__)
    by_hand = sum(
        rows[(), a][o] * rows[((a, o),), b][u] * pay[(a, o), (b, u)] / 9
        for a in range(3) for o in range(2) for b in range(3) for u in range(2)
    )  # fmt: skip
    assert float(expected_return(process)) == pytest.approx(by_hand, abs=1e-14)


def test_reach_probabilities_of_every_level_sum_to_one():
    process = processes(50, 0, (3, 2, 2, 3))
    for level in reach_probs(policy(process), process.replies):
        assert torch.allclose(level.sum(-1), torch.ones(50, dtype=torch.float64), atol=1e-12)


def test_wrong_inputs_are_told_in_one_line():
    with pytest.raises(ScopeError, match="sum to one"):
        process_from_callables(1, 2, 2, lambda h, a: [0.5, 0.4], lambda h: 0.0)
    with pytest.raises(ScopeError, match="rewards must lie"):
        process_from_callables(1, 2, 2, lambda h, a: [0.5, 0.5], lambda h: 2.0)
