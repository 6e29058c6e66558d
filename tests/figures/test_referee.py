"""Figures of the referee's questions, drawn from made-up tables."""

import numpy as np
import pandas as pd
import pytest

from scope_lite.figures import referee as figures
from scope_lite.measure.stats import t_interval

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def doses():
    rows = [
        {"gamma": g, "variant": f"γ={g}", "kind": "sharpness" if g < 8 else "other", "seed": s}
        | {
            "epsilon_h": 1.0 / g + 0.01 * s,
            "epsilon_h_start": 2.0 / g,
            "unseen_loss": g / 10 + 0.01 * s,
            "real_loss": g / 20,
        }
        for g in (1.0, 2.0, 8.0)
        for s in SEEDS
    ]
    return pd.DataFrame(rows)


def points(ax):
    """All single runs drawn on an axes, as sorted (x, y)."""
    small = [line for line in ax.lines if line.get_alpha() and line.get_linestyle() == "None"]
    return sorted((float(x), float(y)) for line in small for x, y in zip(*line.get_data(), strict=True))


def test_the_causal_plot_shows_every_run_at_its_measured_dose(doses):
    figure = figures.causal_plot(doses, t_interval([0.4, 0.5]))
    expected = sorted(zip(doses["epsilon_h"], doses["unseen_loss"], strict=True))
    np.testing.assert_allclose(points(figure.axes[0]), expected)
    np.testing.assert_allclose(points(figure.axes[2])[0][0], 0.25)
    assert len(figure.legends[0].texts) == 3
    assert len(figures.causal_plot(doses).axes[0].patches) == 0


def test_interventions_are_coloured_by_kind_and_labelled_once(doses):
    fig = figures.interventions(doses)
    assert [text.get_text() for text in fig.legends[0].texts] == ["sharpness", "other"]
    assert len(points(fig.axes[0])) == len(doses)


def test_sampled_epsilon_has_an_axes_a_simulator_and_both_estimates():
    rows = [
        {"variant": v, "seed": s, "step": t, "exact": 0.2, "plug_in": 0.18, "cross_validated": 0.23}
        for v in ("single", "unsharpened")
        for s in SEEDS
        for t in (0, 20)
    ]
    figure = figures.sampled_epsilon(pd.DataFrame(rows))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["RL (Single)", "Un-sharpened (control)"]
    assert {text.get_text() for text in figure.legends[0].texts} >= {"exact"}
    assert {0.18, 0.23} <= {round(float(line.get_ydata()[0]), 6) for line in figure.axes[0].lines}


def runs(variants, **columns):
    rows = [{"variant": v, "seed": s, "world": "persuasion", **columns} for v in variants for s in SEEDS]
    return pd.DataFrame(rows)


def test_variant_dots_name_each_variant_once_and_skip_what_is_not_measured():
    end = runs(["single", "mine"], a=0.5, b=0.2)
    end.loc[end["variant"] == "mine", "b"] = np.nan
    figure = figures.variant_dots(end, {"a": "first", "b": "second"})
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["RL (Single)", "mine"]
    assert len(points(figure.axes[0])) == 6 and len(points(figure.axes[1])) == 3


def test_conventions_show_best_area_and_end_of_the_same_runs():
    kinds = {"best": 0.6, "auc": 0.4, "end": 0.2}
    table = pd.concat(
        [runs(["single", "base"], **{"panel/real/reward": v}).assign(summary=k) for k, v in kinds.items()]
    )
    figure = figures.conventions(table, ["panel/real/reward"])
    assert [t.get_text() for t in figure.legends[0].texts] == ["best", "auc", "end"]
    assert sorted({x for x, _ in points(figure.axes[0])}) == [0.2, 0.4, 0.6]


def test_recovery_draws_a_line_a_direction():
    table = pd.concat(
        [runs(["x"], r=0.6 - d).assign(direction=way, distance=d) for way in ("mode", "unlikely") for d in (0.0, 0.3)]
    )
    figure = figures.recovery(table, ["r"])
    assert [t.get_text() for t in figure.legends[0].texts] == ["mode", "unlikely"]
    assert len(points(figure.axes[0])) == 12


def test_random_worlds_are_averaged_by_value_or_in_fifths():
    n = 20
    worlds = pd.DataFrame({"penalty": [0.0, 1.0] * (n // 2), "rate": np.linspace(0.5, 1, n), "loss": np.arange(n) / n})
    figure = figures.random_worlds(worlds, ["penalty", "rate"], "loss", "loss")
    means = [[float(c.lines[0].get_xdata()[0]) for c in ax.containers] for ax in figure.axes]
    assert means[0] == [0.0, 1.0]
    np.testing.assert_allclose(means[1], np.linspace(0.5, 1, n).reshape(5, 4).mean(axis=1))
