"""The nano model of Verbalized Sampling: what a list states, where eta moves it, and how it is drawn from."""

import numpy as np
import pytest

from scope_lite.method.sampling import VerbalizedModel
from scope_lite.models.rng import RowKeys


def test_a_whole_exact_list_verbalizes_p_itself():
    p = np.array([[0.5, 0.3, 0.15, 0.05]])
    rule = VerbalizedModel(k=4, noise=0.0)
    np.testing.assert_allclose(rule.stated(p, np.full((1, 8), 0.5)), p, atol=1e-9)


@pytest.mark.parametrize("direction", ["mode", "wrong"])
def test_eta_moves_the_listed_distribution_by_the_stated_total_variation(direction):
    p = np.array([[0.6, 0.3, 0.1]])
    moved = VerbalizedModel(eta=0.4, direction=direction).target(p)
    on = {"mode": 0.6, "wrong": 0.1}[direction]
    assert np.abs(moved - p).sum() / 2 == pytest.approx(0.4 * (1 - on))
    assert moved.sum() == pytest.approx(1)


def test_a_uniform_draw_weighs_every_possible_reply_of_the_list_alike():
    p = np.array([[0.7, 0.2, 0.0998, 1e-4, 1e-4]] * 400)
    uniforms = np.random.default_rng(0).random((400, 10))
    whole = VerbalizedModel(k=5, vs_draw="uniform").stated(p, uniforms)
    np.testing.assert_allclose(whole, [[1 / 3, 1 / 3, 1 / 3, 0, 0]] * 400)
    pairs = VerbalizedModel(k=2, vs_draw="uniform").stated(p, uniforms)
    assert ((pairs > 0).sum(axis=1) <= 2).all() and set(np.unique(pairs)) <= {0, 0.5, 1}
    # drawn without replacement, a reply of 10 % is in more lists of two than its share
    assert pairs.mean(axis=0)[2] > 0.15 > VerbalizedModel(k=2, noise=0).stated(p, uniforms).mean(axis=0)[2]
    alone = np.array([[1 - 1e-6, 1e-6]])
    one = VerbalizedModel(k=1, vs_draw="uniform").stated(alone, np.array([[1e-9, 1 - 1e-9, 0.5, 0.5]]))
    assert one.tolist() == [[0, 1]], "a list of one is drawn, whatever is on it"


def test_a_list_holds_at_most_k_replies():
    uniforms = RowKeys.grid(0, 0, 50, 8).uniforms(0, "simulator", n=18)
    stated = VerbalizedModel(k=3).stated(np.full((400, 9), 1 / 9), uniforms)
    assert ((stated > 0).sum(axis=1) == 3).all()
