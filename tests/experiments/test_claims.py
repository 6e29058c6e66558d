"""The verdicts on the paper's claims, on hand-made tables: each rule, and the least change that turns its verdict."""

import numpy as np
import pandas as pd
import pytest

from scope_lite.experiments import claims, runs_of
from scope_lite.experiments.claims import (
    CLAIMS,
    HELD_OUT,
    HOLDS,
    LACKED_MINUS_OWN,
    LATER,
    NOT,
    OPEN,
    VACUOUS,
    Contrast,
    Levels,
    by_interval,
    holds_once,
    judge,
    with_member_groups,
)
from scope_lite.experiments.contrasts import MARGIN, UNSEEN
from scope_lite.experiments.summaries import run_summaries
from scope_lite.measure.stats import Interval, paired_test
from scope_lite.store.errors import ScopeError

SIMULATORS = ("sim-a", "sim-b", "sim-c", "sim-d", "sim-e", "twin", "half", "broad", "outside")
LEVELS = Levels(halfway=0.4, floor=0.2)
WELL = {"base": 0.25, "single": 0.2, "persona": 0.2, "verbalized": 0.7, "ensemble": 0.5, "cotraining": 0.72,
        "population": 0.6, "unsharpened": 0.7}  # fmt: skip


def made_up(rewards, experiment="methods", world="persuasion", seeds=10, peak=0.0, entropy=0.01):
    """A table in which a variant ends at ``rewards[variant]`` with every member, plus a wobble that seeds share.

    A reward may be one for all seeds, or a sequence with one for each.
    """
    rows = []
    for variant, told in rewards.items():
        for seed in range(seeds):
            end = told if np.isscalar(told) else told[seed]
            wobble = 0.01 * (seed % 3 - 1) if np.isscalar(told) else 0.0
            for step, level in ((0, 0.2), (5, max(peak, end)), (10, end)):
                values = {m: np.clip(level + wobble, 0, 1) for m in (*SIMULATORS, "reference", "real")}
                row = {f"panel/{m}/reward": value for m, value in values.items()}
                row["panel/seen/reward"] = values["sim-a"]
                row[UNSEEN] = np.mean([values[m] for m in SIMULATORS[1:]])
                about = {"experiment": experiment, "variant": variant, "method": variant, "world": world, "seed": seed}
                extra = {"step": step, "reward": level, "entropy": entropy, "simulator/epsilon": 0.1, "run": "r"}
                rows.append({**about, **extra, **row})
    return pd.DataFrame(rows)


def arms(a, b):
    return pd.DataFrame({"a": a, "b": b}, dtype=float)


def contrast(rule="above", measure="end"):
    return Contrast("a − b", rule, ("a",), ("b",), ("methods",), measure=measure)


def verdict(a, b, rule="above", levels=LEVELS):
    return judge(arms(a, b), contrast(rule), levels)["verdict"]


def deciding(found, claim, world="persuasion"):
    rows = found[(found["claim"] == claim) & (found["world"] == world) & (found["kind"] != "context")]
    assert len(rows) == 1
    return rows.iloc[0]


# -- from 8 seeds on: the interval ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "rule", "expected"),
    [
        (0.001, 0.2, "above", HOLDS),
        (-0.001, 0.2, "above", OPEN),
        (-0.2, -0.001, "above", NOT),
        (-0.2, 0.001, "above", OPEN),
        (-0.04, 0.04, "above", NOT),  # no difference is none
        (-0.04, 0.06, "above", OPEN),
        (-0.04, 0.3, "at or above", HOLDS),
        (-0.06, 0.3, "at or above", OPEN),
        (-0.06, -0.001, "at or above", NOT),  # an interval wholly below 0 is never open
        (-0.3, -0.06, "at or above", NOT),
        (-0.04, -0.01, "at or above", HOLDS),
        (-0.2, -0.001, "below", HOLDS),
        (0.001, 0.2, "below", NOT),
        (-0.3, 0.04, "at or below", HOLDS),
        (0.001, 0.3, "at or below", NOT),
        (-0.04, 0.04, "same", HOLDS),
        (0.01, 0.06, "same", NOT),
        (-0.06, -0.01, "same", NOT),
        (-0.04, 0.06, "same", OPEN),
    ],
)
def test_a_verdict_follows_from_where_the_interval_lies(low, high, rule, expected):
    assert by_interval(Interval((low + high) / 2, low, high, 8), rule) == expected
    assert MARGIN == 0.05


def test_mirrored_rules_mirror_the_verdicts():
    rng = np.random.default_rng(0)
    for low, high in np.sort(rng.uniform(-0.15, 0.15, (200, 2)), axis=1):
        here, there = Interval(0, low, high, 8), Interval(0, -high, -low, 8)
        for rule, mirrored in (("above", "below"), ("at or above", "at or below"), ("same", "same")):
            assert by_interval(here, rule) == by_interval(there, mirrored)
            if rule != "same" and (high < 0 or low > 0):
                assert OPEN not in (by_interval(here, rule), by_interval(here, mirrored))


# -- below 8 seeds: counts --------------------------------------------------------------------------------------------


def test_seven_seeds_are_judged_by_counts_and_eight_by_the_interval():
    a, b = np.full(8, 0.6), np.full(8, 0.5)  # all rescued, and surely a difference
    eight, seven = judge(arms(a, b), contrast(), LEVELS), judge(arms(a[:7], b[:7]), contrast(), LEVELS)
    assert eight["verdict"] == HOLDS and eight["low"] == pytest.approx(0.1)
    assert seven["verdict"] == OPEN and np.isnan(seven["low"]) and seven["estimate"] == pytest.approx(0.1)
    assert seven["why"] == "+0.10; rescued 7 of 7 against 7 of 7 (p = 1)"


def test_counts_decide_by_an_exact_test_and_either_way():
    up, down = np.full(6, 0.6), np.full(6, 0.3)
    assert verdict(up, down) == verdict(up, down, "at or above") == HOLDS
    assert verdict(down, up) == verdict(down, up, "at or above") == NOT
    assert verdict(down, up, "below") == verdict(down, up, "at or below") == HOLDS
    assert verdict(up, down, "same") == verdict(down, up, "same") == NOT
    # one seed less that differs is not told by McNemar's test any more
    assert verdict(np.append(up[:5], 0.3), down) == OPEN


def test_paired_seeds_are_told_by_mcnemar_and_few_by_fisher():
    yes, no = [True], [False]
    assert paired_test(pd.Series(yes * 6), pd.Series(no * 6)) == pytest.approx(2 / 2**6)
    # seeds in which both are rescued say nothing
    assert paired_test(pd.Series(yes * 9), pd.Series(no * 6 + yes * 3)) == pytest.approx(2 / 2**6)
    assert paired_test(pd.Series(yes * 5), pd.Series(no * 5)) == pytest.approx(2 / 252)  # of C(10, 5) ways
    assert paired_test(pd.Series(yes * 3), pd.Series(no * 3)) == pytest.approx(2 / 20)
    assert paired_test(pd.Series(yes * 7), pd.Series(yes * 7)) == 1
    assert verdict(np.full(5, 0.6), np.full(5, 0.3)) == HOLDS and verdict(np.full(3, 0.6), np.full(3, 0.3)) == OPEN


def test_rescued_is_above_halfway_between_single_and_the_control():
    table = made_up({"single": 0.2, "unsharpened": 0.6, "base": 0.1}, seeds=3)
    tables = {"methods": with_member_groups(run_summaries(table))}
    levels = claims.levels_of(tables, "methods", "persuasion", UNSEEN, "end")
    assert levels.halfway == pytest.approx(0.4) and levels.floor == pytest.approx(0.2)
    found = judge(arms([0.41, 0.39, 0.6], [0.3, 0.3, 0.41]), contrast(), levels)
    assert (found["count_a"], found["count_b"]) == (2, 1)
    # another table without the three has those of its world; where nothing is lost there is no halfway
    assert claims.levels_of(tables, "paper_pool", "persuasion", UNSEEN, "end") == levels
    assert claims.levels_of(tables, "paper_pool", "retail", UNSEEN, "end") is None
    level = made_up({"single": 0.56, "unsharpened": 0.6}, seeds=3)
    tables = {"no_exploit": with_member_groups(run_summaries(level))}
    assert claims.levels_of(tables, "no_exploit", "persuasion_plain", UNSEEN, "end") is None


def test_without_levels_seeds_above_0_are_counted():
    gap = [0.1, 0.2, 0.3, 0.1, 0.1, 0.1]
    found = judge(arms(gap, [0] * 6), contrast(), None)
    assert found["verdict"] == HOLDS and found["why"] == "+0.15; above 0 in 6 of 6 (p = 0.031)"
    assert judge(arms([-0.1, *gap[1:]], [0] * 6), contrast(), None)["verdict"] == OPEN


# -- ties at the floor, falls, shares ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("rule", ["above", "at or above", "below", "same"])
def test_a_tie_at_the_floor_is_vacuous(rule, n):
    floor = judge(arms([0.19] * n, [0.18] * n), contrast(rule), LEVELS)
    assert floor["verdict"] == VACUOUS and floor["why"] == "both at the floor of 0.20: 0.19 and 0.18"
    for a, b in ((0.21, 0.18), (0.18, 0.21)):  # one of them has left it
        assert verdict([a] * n, [b] * n, rule) != VACUOUS
    assert judge(arms([0.19] * n, [0.18] * n), contrast(rule), None)["verdict"] != VACUOUS


def test_the_floor_is_the_untrained_policy_or_single_if_that_is_more(tmp_path):
    for base, single in ((0.25, 0.2), (0.1, 0.25)):
        table = made_up({**WELL, "base": base, "single": single})
        tables = {"methods": with_member_groups(run_summaries(table))}
        floor = claims.levels_of(tables, "methods", "persuasion", UNSEEN, "end").floor
        assert floor == pytest.approx(0.25, abs=0.002)


def test_a_fall_is_the_difference_of_falls_and_entropy_a_share():
    table = pd.concat([made_up({"a": 0.2}, peak=0.7, entropy=0.06), made_up({"b": 0.5}, peak=0.6, entropy=0.24)])
    groups = with_member_groups(run_summaries(table))
    falls = claims.gap_of(claims.values_of(groups, contrast("below", "fall"), UNSEEN), contrast("below", "fall"))
    np.testing.assert_allclose(falls, (0.2 - 0.7) - (0.5 - 0.6))
    shares = contrast("below", "relative")
    np.testing.assert_allclose(claims.gap_of(claims.values_of(groups, shares, "entropy"), shares), 0.06 / 0.24 - 1)
    # the control that falls as far takes the verdict away
    assert (
        judge(claims.values_of(groups, contrast("below", "fall"), UNSEEN), contrast("below", "fall"), None)["verdict"]
        == HOLDS
    )
    as_far = pd.concat([made_up({"a": 0.2, "b": 0.2}, peak=0.6)])
    values = claims.values_of(with_member_groups(run_summaries(as_far)), contrast("below", "fall"), UNSEEN)
    assert judge(values, contrast("below", "fall"), None)["verdict"] == NOT


def test_several_variants_stand_for_their_mean_and_all_have_to_be_there():
    groups = with_member_groups(run_summaries(made_up({"x": 0.4, "y": 0.6, "z": 0.1})))
    pooled = Contrast("", "above", ("x", "y"), ("z",), ("methods",))
    np.testing.assert_allclose(claims.gap_of(claims.values_of(groups, pooled, UNSEEN), pooled), 0.4)
    lacking = groups[(groups["variant"] != "y") | (groups["seed"] != 3)]
    assert 3 not in claims.values_of(lacking, pooled, UNSEEN).index
    assert claims.values_of(groups[groups["variant"] != "y"], pooled, UNSEEN).empty
    assert claims.values_of(groups, pooled, "no such column").empty


def test_seeds_that_were_seen_before_the_rule_are_left_out():
    groups = with_member_groups(run_summaries(made_up(WELL)))
    from_five = Contrast("", "below", ("single",), ("unsharpened",), ("methods",), first_seed=5)
    assert list(claims.values_of(groups, from_five, UNSEEN).index) == [5, 6, 7, 8, 9]


def test_one_run_in_a_random_world_holds_beyond_the_margin_only():
    values = pd.Series([-0.2, -0.01, 0.01, 0.2])
    assert holds_once(values, "above").tolist() == [False, False, False, True]
    assert holds_once(values, "at or above").tolist() == [False, True, True, True]
    assert holds_once(values, "below").tolist() == [True, False, False, False]
    assert holds_once(values, "at or below").tolist() == [True, True, True, False]
    assert holds_once(values, "same").tolist() == [False, True, True, False]


@pytest.mark.parametrize(("collapsed", "expected"), [(9, OPEN), (11, HOLDS), (5, OPEN), (1, NOT)])
def test_of_random_worlds_the_share_is_judged(collapsed, expected):
    values = arms([0.2] * 12, [0.7] * collapsed + [0.2] * (12 - collapsed))
    found = claims.judge_worlds(values, contrast("below"))
    assert found["estimate"] == collapsed / 12 and found["verdict"] == expected


# -- the matrix -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    made_up(WELL).to_csv(folder / "methods.csv", index=False)
    retail = {**WELL, "unsharpened": 0.1}
    made_up(retail, "methods_retail", "retail").to_csv(folder / "methods_retail.csv", index=False)
    pools = {f"persuasion, {k}, {'cotraining' if k == 1 else 'population'}": 0.5 + 0.01 * k for k in (1, 3, 5, 10)}
    made_up(pools, "paper_pool").to_csv(folder / "paper_pool.csv", index=False)
    trained = {
        f"{kind}, {gamma}": level for kind, level in (("Co-Training", 0.7), ("Population", 0.6)) for gamma in (4, 8)
    }
    made_up({"verbalized, 0": 0.6, **trained}).to_csv(folder / "paper_persuasion.csv", index=False)
    many = made_up({v: WELL[v] for v in ("single", "verbalized", "cotraining", "unsharpened")}, seeds=12)
    many.to_csv(folder / "multiverse.csv", index=False)
    return claims.evaluate(folder)


def test_each_claim_has_one_row_that_decides_in_each_world(found):
    decides = found[found["kind"] != "context"]
    assert decides.groupby("claim")["world"].apply(list).to_dict() == {c.id: list(claims.WORLDS) for c in CLAIMS}
    keys = ["claim", "world", "experiment", "contrast", "column"]
    assert not found[found["kind"] == "context"].duplicated(keys).any()


def test_the_matrix_says_what_the_tables_say(found):
    assert deciding(found, "C1")["verdict"] == HOLDS and deciding(found, "C1")["n_seeds"] == 5
    assert deciding(found, "C1", "retail")["verdict"] == NOT  # made up: above its control
    assert deciding(found, "C2")["verdict"] == HOLDS
    # against Base the floor is what is asked about
    assert found.loc[found["contrast"] == "RL (Single) − Base", "verdict"].isin([HOLDS, LATER]).all()
    assert deciding(found, "C3")["verdict"] == NOT  # on P4G the paper has Co-Training below
    assert deciding(found, "C3")["kind"] == "exploratory" and deciding(found, "C3", "retail")["kind"] == "primary"
    assert deciding(found, "C4")["verdict"] == NOT and deciding(found, "C4")["estimate"] == pytest.approx(-0.1)
    assert deciding(found, "C5")["estimate"] == pytest.approx((0.55 + 0.6 - 0.51 - 0.53) / 2)


def test_what_is_not_there_not_claimed_or_not_testable_says_so(found, tmp_path):
    assert deciding(found, "C4", "retail")["verdict"] == LATER and deciding(found, "C4", "retail")["n_seeds"] == 0
    assert deciding(found, "C6")["verdict"] == claims.ELSEWHERE
    assert deciding(found, "C11")["verdict"] == claims.UNTESTABLE and deciding(found, "C11")["why"]
    nothing = claims.evaluate(tmp_path)
    assert set(nothing["verdict"]) == {LATER, claims.ELSEWHERE, claims.UNTESTABLE}
    assert nothing["estimate"].isna().all()


def test_random_worlds_and_real_users_are_context(found):
    worlds = found[found["world"] == "multiverse"]
    assert set(worlds["kind"]) == {"context"} and set(worlds["claim"]) == {"C1", "C2", "C3"}
    assert (worlds.loc[worlds["claim"] == "C1", "estimate"] == 1).all()
    assert set(found.loc[found["column"] == "real users", "kind"]) == {"context"}


def test_other_summaries_leave_falls_out(tmp_path):
    made_up(WELL, peak=0.6).to_csv(tmp_path / "methods.csv", index=False)
    end, best = claims.evaluate(tmp_path), claims.evaluate(tmp_path, "best")
    assert end["contrast"].str.contains("fall from its own best").any()
    assert not best["contrast"].str.contains("fall from its own best").any()
    # chosen at its best, RL (Single) is no longer surely below the control, but for Verbalized Sampling
    row = best[(best["claim"] == "C1") & (best["kind"] == "primary") & (best["world"] == "persuasion")].iloc[0]
    assert row["estimate"] == pytest.approx(0.6 - 0.7)


def test_sets_of_members_are_the_same_for_every_variant():
    table = made_up(WELL, seeds=1)
    end = (table["variant"] == "ensemble") & (table["step"] == 10)
    table.loc[end, ["panel/sim-d/reward", "panel/sim-e/reward"]] = [0.1, 0.3]
    table.loc[end, ["panel/sim-b/reward", "panel/sim-c/reward"]] = [0.8, 0.6]
    groups = with_member_groups(run_summaries(table))
    row = groups[(groups["variant"] == "ensemble") & (groups["summary"] == "end")].iloc[0]
    assert row[LACKED_MINUS_OWN] == pytest.approx(0.2 - 0.7)
    others = [row[f"panel/{m}/reward"] for m in ("sim-d", "sim-e", "twin", "half", "broad", "outside")]
    assert row[HELD_OUT] == pytest.approx(np.mean(others))


def test_every_claim_is_about_experiments_and_variants_that_exist():
    for claim in CLAIMS:
        cells = {world: c for world, c in claim.cells.items() if c}
        assert cells.keys() <= claims.WORLDS.keys() and bool(cells) != bool(claim.untestable)
        for contrast in (*cells.values(), *claim.context):
            for experiment in contrast.where:
                configs = dict(runs_of(experiment, 1))
                assert {*contrast.a, *contrast.b} <= configs.keys(), (claim.id, contrast.text, experiment)
                places = {claims.place_of(experiment, variant) for variant in (*contrast.a, *contrast.b)}
                assert len(places) == 1
        assert all(claims.place_of(c.where[0], c.a[0]) == world for world, c in cells.items())


def test_the_primary_cells_are_those_stated_in_advance():
    stated = {
        (claim.id, world)
        for claim in CLAIMS
        for world, contrast in claim.cells.items()
        if claim.id in ("C3", "C4", "C5", "C6") and contrast and not contrast.exploratory
    }
    assert stated == {
        ("C3", "retail"), ("C4", "persuasion"), ("C5", "persuasion"), ("C5", "retail"), ("C6", "retail")
    }  # fmt: skip
    adversarial = [c for claim in CLAIMS[2:4] for c in [claim.cells["persuasion"]]]
    for contrast in adversarial:
        configs = dict(runs_of("paper_persuasion", 1))
        trained = [configs[v].simulator.reward for v in (*contrast.a, *contrast.b) if not v.startswith("verb")]
        assert set(trained) == {"adversarial"}


def test_written_verdicts_read_back(found, tmp_path):
    path = claims.write_claims(found, tmp_path / "claims.csv")
    again = claims.read_claims(path)
    assert again["verdict"].tolist() == found["verdict"].tolist() and list(again) == claims.COLUMNS
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ScopeError, match="results claims"):
        claims.read_claims(tmp_path / "none.csv")


def test_the_shipped_verdicts_are_those_of_the_shipped_tables():
    shipped, now = claims.read_claims(), claims.evaluate()
    assert shipped["why"].fillna("").tolist() == now["why"].fillna("").tolist(), "run 'scope-lite results claims'"
    assert shipped["verdict"].tolist() == now["verdict"].tolist()
    np.testing.assert_allclose(shipped["estimate"], now["estimate"], rtol=1e-4, atol=1e-9)
