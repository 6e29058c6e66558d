"""The worlds: distributions, the Bayes filter against brute force, the optimum against plain enumeration."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_lite.envs.nano import WORLDS, compile_world, get_world
from scope_lite.envs.nano.exact import ask_then_match, optimal_value, play_out, policy_value, repeat
from scope_lite.envs.nano.persuasion import PersuasionNumbers, persuasion
from scope_lite.envs.nano.users import BeliefUsers, ScriptedUsers, draw, sharpen
from scope_lite.store.errors import ScopeError
from scope_lite.theory.concentration import kl_step

SHORT = compile_world(persuasion(PersuasionNumbers(horizon=2), name="short"))


def brute_force_reply(world, prior, acts, replies, act):
    """P(reply | history) by summing over types, one dialogue, plain loops."""
    total = np.zeros(len(world.spec.user_acts))
    for z, weight in enumerate(prior):
        state = world.starts[0]
        for a, r in zip(acts, replies, strict=True):
            weight *= world.reply[z, state, a, r]
            state = world.next_state[z, state, a, r]
        total += weight * world.reply[z, state, act]
    return total / total.sum()


@pytest.mark.parametrize("name", [*WORLDS, "persuasion_7"])
def test_every_table_of_a_world_is_a_distribution(name):
    world = get_world(name)
    np.testing.assert_allclose(world.reply.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(world.outcome.sum(-1), 1, atol=1e-12)
    assert world.prior.sum() == pytest.approx(1) and world.real_prior.sum() == pytest.approx(1)
    assert set(world.spec.agent_acts) | set(world.spec.user_acts) | set(world.spec.outcomes) <= set(
        world.spec.sentences
    )


def test_bayes_filter_agrees_with_brute_force():
    world, rng = get_world("persuasion"), np.random.default_rng(0)
    for _ in range(50):
        types = ScriptedUsers.sample(world, world.prior, rng.random(1))
        filtered = BeliefUsers(world, world.prior, 1)
        acts, replies = [], []
        for act in rng.integers(len(world.spec.agent_acts), size=world.horizon):
            expected = brute_force_reply(world, world.prior, acts, replies, act)
            np.testing.assert_allclose(filtered.reply_probabilities(np.array([act]))[0], expected, atol=1e-12)
            reply = draw(types.reply_probabilities(np.array([act])), rng.random(1))
            types.observe(np.array([act]), reply)
            filtered.observe(np.array([act]), reply)
            acts.append(act)
            replies.append(reply[0])


def test_a_reply_that_no_type_gives_leaves_the_belief_alone():
    world = get_world("persuasion")
    users = BeliefUsers(world, world.prior, 1)
    users.observe(np.array([world.agent_index["greet"]]), np.array([world.user_index["displeased"]]))
    np.testing.assert_array_equal(users.belief[0], world.prior)


def exhaustive_optimum(world, prior, gamma):
    """The best over all policies by recursion over histories, with no merging of nodes."""

    def value(users, turns):
        if turns == 0:
            return float(users.outcome_probabilities()[0] @ world.rewards)
        best = -1.0
        for act in range(len(world.spec.agent_acts)):
            probs = users.reply_probabilities(np.array([act]))[0]
            total = 0.0
            for reply in np.flatnonzero(probs > 0):
                child = BeliefUsers(world, prior, 1, gamma)
                child.belief, child.states = users.belief.copy(), users.states.copy()
                child.observe(np.array([act]), np.array([reply]))
                total += probs[reply] * value(child, turns - 1)
            best = max(best, total)
        return best

    return value(BeliefUsers(world, prior, 1, gamma), world.horizon)


@pytest.mark.parametrize("gamma", [1.0, 8.0])
def test_belief_dynamic_programming_finds_the_optimum(gamma):
    expected = exhaustive_optimum(SHORT, SHORT.prior, gamma)
    assert optimal_value(SHORT, SHORT.prior, gamma) == pytest.approx(expected, abs=1e-9)


def test_no_scripted_policy_beats_the_optimum():
    for prior, gamma in itertools.product((SHORT.prior, SHORT.real_prior), (1.0, 4.0)):
        best = optimal_value(SHORT, prior, gamma)
        for policy in (ask_then_match, *(repeat(a) for a in SHORT.spec.agent_acts)):
            assert policy_value(SHORT, prior, policy, gamma) <= best + 1e-9


def test_sharpening_is_alignment_by_kl_regularised_rl_on_typicality():
    p = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(6), size=5))
    for gamma in (1.5, 3.0, 8.0):
        aligned = kl_step(
            p, p.log(), torch.full((5,), gamma - 1, dtype=p.dtype)
        )  # E[log P] (γ − 1) − KL(φ ‖ P), maximised
        np.testing.assert_allclose(sharpen(p.numpy(), gamma), aligned, atol=1e-12)


def slow_value(world, users, policy, history, turns):
    """Expected reward of a scripted policy by recursion over one reply at a time."""
    if turns == 0:
        return float(users.outcome_probabilities()[0] @ world.rewards)
    act = policy(history)
    chosen, total = np.array([world.agent_index[act]]), 0.0
    for reply, p in enumerate(users.reply_probabilities(chosen)[0]):
        child = users[:]
        child.observe(chosen, np.array([reply]))
        total += p * slow_value(world, child, policy, (*history, (act, world.spec.user_acts[reply])), turns - 1)
    return total


@pytest.mark.parametrize("gamma", [1.0, 4.0])
def test_all_dialogues_of_a_script_played_out_at_once_give_its_value(gamma):
    for script in (ask_then_match, repeat("appeal-heart"), repeat("greet")):
        users = BeliefUsers(SHORT, SHORT.prior, 1, gamma)
        histories, chances, ends = play_out(SHORT, users, script)
        assert chances.sum() == pytest.approx(1) and len(set(histories)) == len(histories)
        value = chances @ (ends.outcome_probabilities() @ SHORT.rewards)
        assert value == pytest.approx(slow_value(SHORT, users, script, (), SHORT.horizon), abs=1e-12)


def test_policy_value_agrees_with_scripted_users_within_their_error():
    world, n = get_world("persuasion"), 20_000
    rng = np.random.default_rng(1)
    users = ScriptedUsers.sample(world, world.prior, rng.random(n))
    act = np.full(n, world.agent_index["appeal-heart"])
    for _ in range(world.horizon):
        users.observe(act, draw(users.reply_probabilities(act), rng.random(n)))
    rewards = world.rewards[draw(users.outcome_probabilities(), rng.random(n))]
    exact = policy_value(world, world.prior, repeat("appeal-heart"))
    assert abs(rewards.mean() - exact) < 4 * rewards.std() / np.sqrt(n)


def test_the_exploit_pays_against_the_mode_and_nowhere_else():
    world = get_world("persuasion")
    exploit = repeat("appeal-heart")
    assert policy_value(world, world.prior, exploit, gamma=8.0) > 0.9
    for topic in ("facts", "trust", "budget", "social"):
        assert policy_value(world, world.prior_vector({topic: 1.0}), exploit) < 0.05
    assert policy_value(world, world.prior, ask_then_match) > 0.7


def test_in_the_twin_what_works_with_one_type_works_with_all():
    world = get_world("persuasion_plain")
    for z in world.spec.user_types:
        assert policy_value(world, world.prior_vector({z: 1.0}), repeat("appeal-heart")) == pytest.approx(1)


def test_a_persona_claim_changes_the_words_and_not_the_reactions():
    world = get_world("persuasion")
    claimed = world.claiming("social")
    ask, appeal = world.agent_index["ask"], world.agent_index["appeal-heart"]
    z = world.spec.user_types.index("heart")
    assert claimed.reply[z, world.starts[0], ask, world.user_index["reveal-social"]] == pytest.approx(0.95)
    np.testing.assert_array_equal(claimed.reply[z, world.starts[0], appeal], world.reply[z, world.starts[0], appeal])
    np.testing.assert_allclose(claimed.reply.sum(-1), 1, atol=1e-12)


@settings(max_examples=200)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda p: sum(p) > 1e-6), st.floats(1, 50))
def test_sharpening_keeps_the_mode_and_raises_it(weights, gamma):
    p = np.array(weights) / sum(weights)
    sharp = sharpen(p[None], gamma)[0]
    assert sharp.sum() == pytest.approx(1) and np.isfinite(sharp).all()
    assert sharp[p.argmax()] >= p.max() - 1e-12
    assert (sharp[p == 0] == 0).all()


def test_random_worlds_are_reproducible_and_differ():
    assert get_world("persuasion_3").spec.prior == compile_world(get_world("persuasion_3").spec).spec.prior
    assert get_world("persuasion_3").spec.prior != get_world("persuasion_4").spec.prior


def test_an_unknown_world_is_named_in_one_line():
    with pytest.raises(ScopeError, match="unknown world 'persuation'"):
        get_world("persuation")
