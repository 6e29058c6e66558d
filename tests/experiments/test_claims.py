"""The verdicts on the paper's claims, on made-up tables whose answers are known."""

import numpy as np
import pandas as pd
import pytest

from scope_lite.experiments import claims, runs_of
from scope_lite.experiments.claims import BEGIN, END, HELD_OUT, LACKED_MINUS_OWN, holds_once, with_member_groups
from scope_lite.experiments.contrasts import MARGIN
from scope_lite.figures.notebook import run_summaries
from scope_lite.measure.stats import Interval
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import HOME

SIMULATORS = ("sim-a", "sim-b", "sim-c", "sim-d", "sim-e", "twin", "half", "broad", "outside")
SEEN = {"ensemble": SIMULATORS[:3], "base": (), "selfplay": (), "selfplay_population": ()}


def made_up(rewards, experiment="methods", world="persuasion", seeds=3, peak=0.6, entropy=0.01):
    """A table in which a variant ends at ``rewards[variant]`` with every member, plus a wobble that seeds share."""
    rows = []
    for variant, end in rewards.items():
        for seed in range(seeds):
            wobble = 0.01 * (seed - 1)
            for step, level in ((0, 0.2), (5, max(peak, end)), (10, end)) if variant != "base" else ((0, end),):
                values = {m: np.clip(level + wobble, 0, 1) for m in (*SIMULATORS, "reference", "real")}
                seen = SEEN.get(variant, ("sim-a",))
                row = {f"panel/{m}/reward": value for m, value in values.items()}
                row["panel/seen/reward"] = np.mean([values[m] for m in seen]) if seen else np.nan
                row["panel/unseen/reward"] = np.mean([values[m] for m in SIMULATORS if m not in seen])
                about = {"experiment": experiment, "variant": variant, "method": variant, "world": world, "seed": seed}
                extra = {"step": step, "reward": level, "entropy": entropy, "simulator/epsilon": 0.1, "run": "r"}
                rows.append({**about, **extra, **row})
    return pd.DataFrame(rows)


WELL = {
    "base": 0.25,
    "single": 0.2,
    "persona": 0.2,
    "verbalized": 0.7,
    "ensemble": 0.5,
    "cotraining": 0.72,
    "population": 0.6,
    "unsharpened": 0.7,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    made_up(WELL).to_csv(folder / "methods.csv", index=False)
    pools = {"K=1": 0.5, "K=3": 0.55, "K=5": 0.6, "K=10": 0.6}
    made_up(pools, "pool_sizes").to_csv(folder / "pool_sizes.csv", index=False)
    worlds = made_up({v: WELL[v] for v in ("base", "single", "verbalized", "cotraining", "unsharpened")}, seeds=12)
    # in three worlds nothing collapses, and nothing is above anything
    flat = worlds["seed"] < 3
    worlds.loc[flat, [c for c in worlds if c.startswith("panel/")]] = 0.5
    worlds.to_csv(folder / "multiverse.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def found(results):
    return claims.evaluate(results)


def one(found, claim, contrast, column="unseen", experiment="methods"):
    rows = found[(found["claim"] == claim) & (found["experiment"] == experiment)]
    rows = rows[rows["contrast"].str.contains(contrast, regex=False) & (rows["column"] == column)]
    assert len(rows) == 1
    return rows.iloc[0]


@pytest.mark.parametrize(
    ("low", "high", "rule", "expected"),
    [
        (0.01, 0.2, "above", "holds"),
        (-0.2, -0.01, "above", "fails"),
        (-0.04, 0.04, "above", "no difference"),
        (-0.04, 0.06, "above", "undecided"),
        (-0.2, -0.01, "below", "holds"),
        (0.01, 0.2, "below", "fails"),
        (-0.04, 0.3, "at or above", "holds"),
        (-0.3, -0.06, "at or above", "fails"),
        (-0.3, 0.3, "at or above", "undecided"),
        (-0.3, 0.04, "at or below", "holds"),
        (0.06, 0.3, "at or below", "fails"),
        (-0.04, 0.04, "same", "holds"),
        (0.06, 0.3, "same", "fails"),
        (-0.3, -0.06, "same", "fails"),
        (-0.04, 0.06, "same", "undecided"),
        (np.nan, np.nan, "above", "undecided"),
    ],
)
def test_a_verdict_follows_from_where_the_interval_lies(low, high, rule, expected):
    assert claims.verdict(Interval((low + high) / 2, low, high, 3), rule) == expected


def test_mirrored_rules_mirror_the_verdicts():
    rng = np.random.default_rng(0)
    for low, high in np.sort(rng.uniform(-0.15, 0.15, (200, 2)), axis=1):
        here, there = Interval(0, low, high, 3), Interval(0, -high, -low, 3)
        for rule, mirrored in (("above", "below"), ("at or above", "at or below"), ("same", "same")):
            assert claims.verdict(here, rule) == claims.verdict(there, mirrored)


def test_one_run_holds_beyond_the_margin_only():
    values = pd.Series([-0.2, -0.01, 0.01, 0.2])
    assert holds_once(values, "above").tolist() == [False, False, False, True]
    assert holds_once(values, "at or above").tolist() == [False, True, True, True]
    assert holds_once(values, "below").tolist() == [True, False, False, False]
    assert holds_once(values, "at or below").tolist() == [True, True, True, False]
    assert holds_once(values, "same").tolist() == [False, True, True, False]
    assert MARGIN == 0.05


def test_estimates_are_differences_paired_by_seed(found):
    fall = one(found, "C1", "end − own best")
    assert fall["estimate"] == pytest.approx(0.2 - 0.6) and fall["verdict"] == "holds" and fall["n_seeds"] == 3
    # the wobble is shared by the seeds, so that paired differences do not vary
    gain = one(found, "C2", "Verbalized − RL (Single)", "real users")
    assert (gain["low"], gain["high"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert one(found, "C3", "Co-Training − Verbalized")["verdict"] == "holds"
    assert one(found, "C4", "Population − Co-Training")["verdict"] == "fails"
    assert one(found, "C5", "K = 5 − K = 10", experiment="pool_sizes")["verdict"] == "no difference"


def test_a_missing_table_or_variant_is_not_measured(found, tmp_path):
    assert one(found, "C4", "Population − Co-Training", experiment="methods_hard")["verdict"] == "not measured"
    nothing = claims.evaluate(tmp_path)
    assert set(nothing["verdict"]) == {"not measured"} and set(nothing["n_seeds"]) == {0}
    assert set(nothing["claim"]) == {f"C{i}" for i in range(1, 9)}
    old = made_up({v: r for v, r in WELL.items() if v != "population"})
    old.to_csv(tmp_path / "methods.csv", index=False)
    again = claims.evaluate(tmp_path)
    assert one(again, "C4", "Population − Co-Training")["verdict"] == "not measured"
    assert one(again, "C2", "Verbalized − RL (Single)")["verdict"] == "holds"


def test_one_seed_decides_nothing(tmp_path):
    made_up(WELL, seeds=1).to_csv(tmp_path / "methods.csv", index=False)
    row = one(claims.evaluate(tmp_path), "C2", "Verbalized − RL (Single)")
    assert row["verdict"] == "undecided" and np.isnan(row["low"]) and row["estimate"] == pytest.approx(0.5)


def test_the_multiverse_counts_worlds(found):
    row = one(found, "C2", "all of these in one world", "share of worlds", "multiverse")
    assert row["estimate"] == 9 / 12 and row["n_seeds"] == 12
    assert row["low"] == pytest.approx(0.4281, abs=1e-4) and row["high"] == pytest.approx(0.9451, abs=1e-4)
    assert row["verdict"] == "undecided"
    given = one(found, "C2", "where C1 holds", "share of worlds", "multiverse")
    assert given["estimate"] == 1 and given["n_seeds"] == 9
    # nothing lost where nothing differs: at or above holds everywhere
    assert one(found, "C3", "all of these in one world", "share of worlds", "multiverse")["estimate"] == 1


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


def test_a_claim_fails_if_one_of_its_contrasts_does_and_context_does_not_count(found):
    claim = claims.overall(found).set_index(["claim", "experiment"])
    assert claim.loc[("C4", "methods"), "verdict"] == "fails"
    assert claim.loc[("C4", "methods"), "contrast"] == "Population − Co-Training"
    # the context contrast of C1, RL (Single) - un-sharpened in entropy, is no difference here
    assert one(found, "C1", "un-sharpened, entropy", "entropy")["verdict"] == "no difference"
    assert claim.loc[("C1", "methods"), "verdict"] == "holds"
    assert claim.loc[("C1", "methods_hard"), "verdict"] == "not measured"


def test_every_claim_is_about_experiments_and_variants_that_exist():
    for claim in claims.CLAIMS:
        for contrast in claim.contrasts:
            for experiment in contrast.where or claim.experiments:
                runs = runs_of(experiment, 1)
                assert {contrast.a, contrast.b or contrast.a} <= {label for label, _ in runs}, experiment
                world, model = claims.SETTINGS[experiment]
                assert {config.model for _, config in runs} == {model}
                assert experiment == "multiverse" or {config.world for _, config in runs} == {world}


def test_written_verdicts_read_back_and_give_the_same_page(found, tmp_path):
    path = claims.write_claims(found, tmp_path / "claims.csv")
    assert claims.sentences(claims.read_claims(path)) == claims.sentences(found)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ScopeError, match="freeze=True"):
        claims.read_claims(tmp_path / "none.csv")


def test_the_page_is_filled_between_its_markers_only(found):
    text = claims.fill_page(f"before\n{BEGIN}\nstale\n{END}\nafter\n", found)
    assert text.startswith("before\n") and text.endswith(f"{END}\nafter\n") and "stale" not in text
    assert claims.fill_page(text, found) == text
    assert all(f"**C{i}: " in text for i in range(1, 9))
    for broken in ("no markers", BEGIN, END + BEGIN, f"{BEGIN}{END}{BEGIN}{END}"):
        with pytest.raises(ScopeError, match="around its verdicts"):
            claims.fill_page(broken, found)


def test_sentences_name_every_claim_and_what_decides_it(found):
    text = claims.sentences(found)
    assert "- persuasion: **fails** (0 of 2 hold): Population − Co-Training, unseen -0.12 [-0.12, -0.12]" in text
    assert "- multiverse: 0.75 [0.43, 0.95] of 12 worlds" in text
    assert "- persuasion_hard: not measured yet" in text


def test_the_shipped_page_agrees_with_the_shipped_verdicts():
    page = (HOME / "docs" / "results.md").read_text(encoding="utf-8")
    assert claims.fill_page(page, claims.read_claims()) == page


def test_the_shipped_verdicts_are_those_of_the_shipped_tables():
    shipped, now = claims.read_claims(), claims.evaluate()
    assert shipped["verdict"].tolist() == now["verdict"].tolist(), "run notebook 06 with freeze=True"
    np.testing.assert_allclose(shipped["estimate"], now["estimate"], rtol=1e-4, atol=1e-9)
