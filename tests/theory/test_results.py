"""Every inequality on 10,000 random instances an example, on adversarial ones, at its tight instance, and mutated."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_lite.theory import instances
from scope_lite.theory.gradients import bound, bound_accumulated, bound_paper, gradient_gap
from scope_lite.theory.inequality import (
    adversarial_instances,
    largest_ratio,
    mutation_ratio,
    paper_ratio,
    random_instances,
    ratio,
    scaled,
)
from scope_lite.theory.process import mode_replies
from scope_lite.theory.quantities import accumulate, capped_bernoulli_variance, collapse_errors, variance_given_actions
from scope_lite.theory.results import RESULTS
from scope_lite.theory.variance import deviation_probability, simulator_variance, variance_bound

torch.set_num_threads(1)
HOLDS = 1 + 1e-9
BY_KEY = pytest.mark.parametrize("result", RESULTS, ids=lambda r: r.key)


@BY_KEY
@settings(max_examples=3)
@given(seed=st.integers(0, 10**6))
def test_sharp_form_holds_on_ten_thousand_random_instances(result, seed):
    assert largest_ratio(result, random_instances(result, 10_000, seed)) <= HOLDS


@BY_KEY
@settings(max_examples=2)
@given(seed=st.integers(0, 10**6))
def test_papers_form_holds_on_random_instances_wherever_it_needs_no_condition(result, seed):
    worst = paper_ratio(result, random_instances(result, 10_000, seed))
    assert (worst <= HOLDS) == result.paper_holds


@BY_KEY
def test_gradient_ascent_comes_close_to_the_sharp_form_and_never_passes_it(result):
    found = adversarial_instances(result, 64, seed=1)
    worst = largest_ratio(result, found)
    assert worst <= HOLDS
    assert worst >= largest_ratio(result, random_instances(result, 64, 1)) - 1e-6
    assert worst > 0.9


@BY_KEY
def test_constructed_instance_reaches_the_sharp_form(result):
    assert largest_ratio(result, result.tight()) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("result", "mutation"),
    [(r, m) for r in RESULTS for m in r.mutations],
    ids=lambda x: getattr(x, "key", None) or x.name,
)
def test_mutated_statement_fails_on_its_counterexample(result, mutation):
    assert mutation_ratio(result, mutation) > 1 + 1e-6


@BY_KEY
def test_counterexamples_do_not_break_the_true_statement(result):
    for mutation in result.mutations:
        if mutation.name != "γ < 1":  # outside the proposition's assumption on purpose
            assert largest_ratio(result, mutation.counterexample()) <= HOLDS


@settings(max_examples=4)
@given(st.integers(0, 10**6), st.sampled_from([(1, 2, 3, 2), (2, 3, 2, 4), (2, 2, 2, None), (3, 2, 2, 3)]))
def test_gradient_bounds_are_ordered_for_every_tree_shape(seed, shape):
    raw = instances.sample_raw(torch.Generator().manual_seed(seed), 2500, *shape)
    process, pair = instances.build_process(raw), instances.build_pair(raw)
    for both in ((process, mode_replies(process.replies)), pair):
        chain = [side(*both) for side in (gradient_gap, bound, bound_accumulated, bound_paper)]
        for smaller, larger in itertools.pairwise(chain):
            assert ratio(smaller, larger).max() <= HOLDS


@settings(max_examples=4)
@given(st.integers(0, 10**6), st.sampled_from([(1, 2, 3, 2), (2, 3, 2, 4), (2, 2, 2, None), (3, 2, 2, 3)]))
def test_the_variance_bound_holds_for_every_tree_shape_given_coins_and_given_acts(seed, shape):
    process = instances.build_process(instances.sample_raw(torch.Generator().manual_seed(seed), 2500, *shape))
    accumulated = capped_bernoulli_variance(accumulate(process, collapse_errors(process.replies)))
    for part in (simulator_variance(process), variance_given_actions(process)):
        assert ratio(part, variance_bound(process)).max() <= HOLDS
        assert ratio(part, process.reward_max**2 * accumulated).max() <= HOLDS


def test_deviation_probability_is_at_most_the_accumulated_error_under_either_rollout():
    process = instances.build_process(instances.sample_raw(torch.Generator().manual_seed(2), 10_000))
    errors, deviation = collapse_errors(process.replies), deviation_probability(process)
    assert (deviation <= accumulate(process, errors) + 1e-12).all()
    assert (deviation <= accumulate(process, errors, mode_replies(process.replies)) + 1e-12).all()


def test_root_mean_square_counterexample_grows_as_the_collapse_error_falls():
    from scope_lite.theory.tables import rare_act_table

    table = rare_act_table().sort_values("epsilon")
    assert table.rms.is_monotonic_decreasing and table.rms.iloc[0] > 100
    assert (table["sup"] <= HOLDS).all()


def test_a_bound_with_too_small_a_constant_is_caught_by_gradient_ascent_alone():
    for result in RESULTS[:3]:
        found = adversarial_instances(result, 64, seed=3)
        assert largest_ratio(result, found, scaled(0.95, result.sharp)) > 1
