"""Keyed random numbers: reference values, uniformity, and independence of batch order."""

import numpy as np
from scipy.stats import kstest

from scope_lite.models.rng import RowKeys, mix


def test_mix_gives_splitmix64s_published_outputs():
    # the generator seeded with 1234567: its k-th output is mix(seed + k * golden gamma)
    seeds = np.array([1234567], dtype=np.uint64) + np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mix(seeds).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniforms_are_uniform():
    draws = RowKeys.grid(0, 1, 200, 8).uniforms(2, "policy", n=50)
    assert kstest(draws.ravel(), "uniform").pvalue > 1e-3
    assert draws.min() >= 0 and draws.max() < 1


def test_every_part_of_the_key_changes_the_draw():
    base = RowKeys.grid(0, 1, 4, 8).uniforms(2, "policy", token=0)
    others = [
        RowKeys.grid(1, 1, 4, 8).uniforms(2, "policy"),
        RowKeys.grid(0, 2, 4, 8).uniforms(2, "policy"),
        RowKeys.grid(0, 1, 4, 8).uniforms(3, "policy"),
        RowKeys.grid(0, 1, 4, 8).uniforms(2, "simulator"),
        RowKeys.grid(0, 1, 4, 8).uniforms(2, "policy", token=1),
    ]
    assert len(np.unique(base)) == 32  # the members of a group differ (P20)
    assert all((other != base).all() for other in others)


def test_a_row_draws_the_same_alone_and_in_a_batch():
    keys = RowKeys.grid(3, 5, 4, 8)
    whole = keys.uniforms(1, "simulator", n=3)
    for row in range(len(keys)):
        np.testing.assert_array_equal(keys[np.array([row])].uniforms(1, "simulator", n=3)[0], whole[row])
