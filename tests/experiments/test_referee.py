"""The referee's tables: contrasts read as words, doses of collapse, random worlds, recovery, epsilon by sampling."""

import importlib
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.users import BeliefUsers, draw
from scope_lite.experiments import referee
from scope_lite.experiments.contrasts import COMMON, contrast_table, in_points, like_for_like, rank_correlation, verdict
from scope_lite.experiments.epsilon import MEASURED, epsilon_by_sampling
from scope_lite.measure.samples import cross_validated_mode_share, mode_share
from scope_lite.measure.stats import Interval, t_interval
from scope_lite.method.panel_file import read_panel
from scope_lite.method.sampling import VerbalizedModel
from scope_lite.store.errors import ScopeError

WORLD = get_world("persuasion")
NAN = float("nan")


# -- contrasts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.01, 0.2, "higher"),
        (-0.2, -0.01, "lower"),
        (-0.02, 0.2, "not told apart"),
        (-0.06, 0.04, "not told apart"),
        (-0.05, 0.04, "equal within the margin"),
        (0.01, 0.04, "equal within the margin"),  # surely not zero, and surely small
        (NAN, NAN, "not measured"),
    ],
)
def test_an_interval_is_read_as_one_of_four_verdicts(low, high, expected):
    assert verdict(Interval((low + high) / 2, low, high, 3)) == expected


def test_a_contrast_table_shows_points_and_pairs():
    table = contrast_table({"a − b": t_interval([0.10, 0.12, 0.14]), "one seed": t_interval([0.5])})
    assert table.loc["a − b"].tolist() == ["+12.0", "[+7.0, +17.0]", 3, "higher"]
    assert table.loc["one seed"].tolist() == ["+50.0", "–", 1, "no interval"]
    assert in_points(t_interval([0.10, 0.12, 0.14])) == "+12.0 points [+7.0, +17.0]"
    assert contrast_table({"t": t_interval([1.25, 1.25])}, unit="turns").iloc[0, 0] == "+1.25"


def test_runs_with_other_partners_are_compared_on_those_that_none_of_them_met():
    members = {"sim-a": 0.9, "sim-b": 0.1, "twin": 0.4, "outside": 0.2, "real": 0.7, "reference": 0.6, "unseen": 0.3}
    table = pd.DataFrame([{f"panel/{m}/reward": v for m, v in members.items()}])
    assert like_for_like(table, ["sim-a", "sim-b"])[COMMON].item() == pytest.approx(0.3)
    assert like_for_like(table, ["sim-a"])[COMMON].item() == pytest.approx((0.1 + 0.4 + 0.2) / 3)
    with pytest.raises(ValueError, match="no simulator"):
        like_for_like(table, ["sim-a", "sim-b", "twin", "outside"])


def test_rank_correlation_encloses_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        x = rng.normal(size=40)
        y = 0.6 * x + 0.8 * rng.normal(size=40)  # Pearson .6, so Spearman (6/π) asin(.3)
        found = rank_correlation(pd.Series(x), pd.Series(y))
        inside.append(found.low < 6 / math.pi * math.asin(0.3) < found.high)
    assert 0.92 < np.mean(inside) < 0.98
    assert found.mean == pytest.approx(spearmanr(x, y).statistic)


def test_rank_correlation_without_variation_or_with_perfect_order_claims_no_bounds():
    rising = pd.Series([1.0, 2.0, 3.0, 4.0])
    assert math.isnan(rank_correlation(rising, pd.Series([1.0] * 4)).mean)
    perfect = rank_correlation(rising, rising)
    assert perfect.mean == 1.0 and math.isnan(perfect.low)


# -- doses of collapse ----------------------------------------------------------------------------------------------


def summaries(rewards: dict[str, list[float]], epsilons: dict[str, float]) -> pd.DataFrame:
    rows = [
        {"variant": v, "seed": seed, "summary": s, referee.UNSEEN: r, referee.REAL: r / 2, "simulator/epsilon": e}
        for v, values in rewards.items()
        for seed, r in enumerate(values)
        for s, e in (("end", 9.0), ("auc", epsilons[v]))
    ]
    return pd.DataFrame(rows)


def test_a_dose_is_accumulated_error_over_training_and_a_loss_is_paired_by_seed():
    runs = summaries({"γ=1": [0.7, 0.5], "γ=8": [0.1, 0.2]}, {"γ=1": 0.2, "γ=8": 0.01})
    doses = referee.collapse_doses(runs, runs[runs["variant"] == "γ=1"], horizon=4).set_index(["variant", "seed"])
    assert doses.loc[("γ=8", 0), "unseen_loss"] == pytest.approx(0.6)
    assert doses.loc[("γ=8", 1), "unseen_loss"] == pytest.approx(0.3)
    assert doses.loc[("γ=8", 1), "real_loss"] == pytest.approx(0.15)
    assert doses.loc[("γ=1", 0), "epsilon_h"] == pytest.approx(0.8)
    assert (doses.loc["γ=1", "unseen_loss"] == 0).all()


def test_half_of_the_loss_is_found_where_it_was_put():
    rows = [(0, 1.0, 0.0), (0, 0.5, 0.2), (0, 0.1, 0.4), (1, 1.0, 0.0), (1, 0.5, 0.1), (1, 0.1, 0.4), (2, 1.0, 0.0)]
    doses = pd.DataFrame(rows, columns=["seed", "epsilon_h", "unseen_loss"])
    between = math.exp(math.log(0.5) + (math.log(0.1) - math.log(0.5)) / 3)
    found = referee.half_loss(doses)
    assert found.n == 2 and found.mean == pytest.approx((0.5 + between) / 2)
    assert math.isnan(referee.half_loss(doses[doses["seed"] == 2]).mean)
    assert referee.ranks_by_seed(doses).mean == pytest.approx(-1.0)
    assert referee.ranks_by_seed(doses[doses["seed"] == 2]).n == 0


# -- random worlds --------------------------------------------------------------------------------------------------


def test_properties_of_a_random_world_are_the_numbers_that_were_drawn(monkeypatch):
    drawn = []

    def spy(numbers, name):
        drawn.append(numbers)
        return original(numbers, name)

    module = importlib.import_module("scope_lite.envs.nano.persuasion")  # the package has a function of that name
    original = module.persuasion
    monkeypatch.setattr(module, "persuasion", spy)
    for seed in (1002, 1003):
        module.random_persuasion(seed)
    read = referee.world_properties(["persuasion_1002", "persuasion_1003"])
    for name, numbers in zip(read.index, drawn[:2], strict=True):
        row = read.loc[name]
        assert row["top share"] == max(numbers.prior) and row["turns"] == numbers.horizon
        assert row["wrong penalty"] == numbers.wrong_penalty and row["push penalty"] == numbers.push_penalty
        assert row["reveal rate"] == numbers.reveal_rate and row["dry no"] == numbers.dry_no
        assert row["polite yes"] == pytest.approx(numbers.polite_yes)
        assert row["unknown share"] == pytest.approx(numbers.unknown_share)


def test_the_exploit_is_priced_exactly_and_dependence_reads_ranks():
    gain = referee._properties(WORLD)["exploit gain"]
    assert gain == pytest.approx(0.979 - 0.750, abs=2e-3)  # the exact values in data/README.md
    properties = pd.DataFrame({"up": range(20), "noise": [3, 1, 2, 0] * 5}, index=[f"w{i}" for i in range(20)])
    ties = referee.dependence(properties, pd.Series(np.arange(20.0) ** 3, index=properties.index))
    assert ties["up"].mean == pytest.approx(1.0) and abs(ties["noise"].mean) < 0.5


# -- recovery -------------------------------------------------------------------------------------------------------


def test_a_list_moved_wholly_onto_the_mode_is_as_far_from_p_as_p_is_from_its_mode():
    rng, rows, lists = np.random.default_rng(0), 12, 20
    users, errors = BeliefUsers(WORLD, WORLD.prior, rows), []
    for _ in range(WORLD.horizon):  # the same histories, by the same random numbers
        acts = rng.integers(len(WORLD.spec.agent_acts), size=rows)
        p = users.reply_probabilities(acts)
        rng.random((rows * lists, 2 * p.shape[1]))
        errors.append(1 - p.max(axis=1))
        users.observe(acts, draw(p, rng.random(rows)))
    moved = referee.recovery_distance(WORLD, VerbalizedModel(eta=1.0), rows, lists)
    assert moved == pytest.approx(np.mean(errors))
    assert referee.recovery_distance(WORLD, VerbalizedModel(noise=0.0, k=9), rows, lists) < 1e-6


def test_collapsed_simulators_with_different_favourites_are_one_diverse_one():
    panel = {m.name: m.population for m in read_panel("persuasion")}
    one = referee.mixture_epsilon(WORLD, [panel["sim-a"]], "ask")
    five = referee.mixture_epsilon(WORLD, [panel[f"sim-{x}"] for x in "abcde"], "ask")
    assert one < 0.01 and five == pytest.approx(0.8, abs=0.01)


# -- epsilon by sampling --------------------------------------------------------------------------------------------


def by_leaving_each_out(labels: list[int]) -> float:
    hits = 0.0
    for i, label in enumerate(labels):
        others = labels[:i] + labels[i + 1 :]
        most = max(others.count(x) for x in set(others))
        modes = [x for x in set(others) if others.count(x) == most]
        hits += (label in modes) / len(modes)
    return hits / len(labels)


def test_cross_validated_mode_share_leaves_each_reply_out_once():
    rng = np.random.default_rng(0)
    for _ in range(200):
        labels = rng.integers(rng.integers(1, 6), size=rng.integers(2, 12)).tolist()
        assert cross_validated_mode_share(labels) == pytest.approx(by_leaving_each_out(labels))
    with pytest.raises(ScopeError, match="at least two"):
        cross_validated_mode_share(["alone"])


def test_the_two_estimates_enclose_the_mode_probability():
    rng = np.random.default_rng(1)
    samples = [rng.choice(3, size=16, p=[0.5, 0.3, 0.2]).tolist() for _ in range(3000)]
    plug_in, crossed = (np.mean([f(s) for s in samples]) for f in (mode_share, cross_validated_mode_share))
    assert crossed < 0.49 < 0.51 < plug_in


def test_epsilon_is_measured_at_the_asked_steps_and_sampling_agrees():
    small = dict(steps=2, groups=2, group_size=4)
    table = epsilon_by_sampling(1, every=2, dialogues=24, replies=16, workers=1, **small)
    assert table.groupby("variant")["step"].apply(list).to_dict() == {m: [0, 2] for m in MEASURED}
    assert (table["histories"] == 24 * WORLD.horizon).all()
    means = table.groupby("variant").mean()
    assert means.loc["single", "exact"] < 0.02 < 0.2 < means.loc["unsharpened", "exact"]
    assert (means["plug_in"] < means["exact"] + 0.02).all() and (means["cross_validated"] > means["exact"] - 0.02).all()
    assert (means["entropy_estimated"] - means["entropy"]).abs().max() < 0.1
