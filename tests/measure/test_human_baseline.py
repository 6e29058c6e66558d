"""A simulator beside people: values by hand, known distributions recovered, distances against brute force."""

from __future__ import annotations

import math
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from scope_lite.figures import text as figures
from scope_lite.figures.style import use_style
from scope_lite.measure import human_baseline as baseline
from scope_lite.measure import replies as collapse
from scope_lite.measure.samples import chao_shen_entropy, mode_share
from scope_lite.measure.stats import UNDECIDED, UNMEASURED, Interval

ASKS = ("greeting", "proposition")
ACTS = ("agree", "refuse", "ask", "thank")
LAW = np.array([0.4, 0.3, 0.2, 0.1])


def people(dialogues: int = 200, law: np.ndarray = LAW, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"dialogue": d, "turn": t, "after": ask, "act": "other", "read": rng.choice(ACTS, p=law)}
        for d in range(dialogues)
        for t, ask in enumerate(ASKS)
    )


def replies(law: np.ndarray, condition: str = "direct, T = 1", histories: int = 8, n: int = 40, seed: int = 1,
            fails: float = 0.0) -> pd.DataFrame:  # fmt: skip
    rng = np.random.default_rng(seed)
    failed = rng.random((histories, n)) < fails
    drawn = rng.choice(ACTS, size=(histories, n), p=law)
    return pd.DataFrame(
        {"task": "p4g", "history": f"{h}/0", "after": ASKS[h % 2], "condition": condition, "reply": i,
         "text": None if failed[h, i] else drawn[h, i], "act": "" if failed[h, i] else drawn[h, i],
         "failure": "no_list" if failed[h, i] else ""}
        for h in range(histories)
        for i in range(n)
    )  # fmt: skip


def test_every_act_of_the_persuader_counts_the_same() -> None:
    answers = [("a", "x")] * 6 + [("b", "x"), ("b", "y")]
    assert baseline.over_acts(answers, mode_share) == pytest.approx((1 + 0.5) / 2)
    assert math.isnan(baseline.over_acts([], mode_share))


def test_people_and_a_simulator_of_one_law_get_the_same_entropy_and_a_sharpened_one_less() -> None:
    sharp = LAW**4 / (LAW**4).sum()
    table = pd.concat([replies(LAW), replies(sharp, "direct, T = 0.4")])
    found = baseline.acts_beside_people(table, people()).set_index(["condition", "view"])
    truth = -(LAW * np.log(LAW)).sum()
    for condition in ("people", "direct, T = 1"):
        row = found.loc[condition, baseline.POOLED]
        assert row["entropy"] == pytest.approx(truth, abs=0.06)
        assert row["mode_share"] == pytest.approx(LAW.max(), abs=0.06)
    assert found.loc[("people", baseline.POOLED), ["units", "replies"]].tolist() == [200, 400]
    cold = found.loc["direct, T = 0.4", baseline.POOLED]
    assert cold["entropy_high"] < truth and cold["mode_share_low"] > LAW.max()


def test_the_reading_follows_from_where_the_interval_lies() -> None:
    sharp = LAW**4 / (LAW**4).sum()
    table = pd.concat([replies(LAW), replies(sharp, "direct, T = 0.4"), replies(np.full(4, 0.25), "direct, T = 1.3")])
    table = pd.concat([table, replies(LAW, "VS, free", fails=0.9)])
    gaps = baseline.against_people(baseline.acts_beside_people(table, people(law=LAW))).set_index("condition")
    assert gaps.loc["direct, T = 0.4", "reading"] == "less varied"
    assert gaps.loc["direct, T = 1.3", "reading"] == "more varied"
    assert gaps.loc["VS, free", "reading"] == UNMEASURED
    assert Interval(0.0, -1.0, 1.0, 3).reading() == UNDECIDED
    assert Interval(1.0, 0.5, 1.5, 3).reading("below", "above") == "above"
    assert Interval(0.5, math.nan, math.nan, 1).reading() == "no interval"


def test_acts_that_no_history_ends_with_do_not_enter_peoples_numbers() -> None:
    only_greetings = replies(LAW)[lambda t: t["after"] == "greeting"]
    found = baseline.acts_beside_people(only_greetings, people())
    assert found.loc[0, "replies"] == 200


def test_a_condition_that_mostly_fails_has_no_numbers() -> None:
    table = pd.concat([replies(LAW), replies(LAW, "VS, free", fails=0.8)])
    measured = baseline.acts_beside_people(table, people()).set_index("condition").loc["VS, free"]
    assert measured[["entropy", "mode_share"]].isna().all(axis=None)
    distances = baseline.reference_recovery(table, people()).set_index("condition").loc["VS, free"]
    assert distances[["distance", "change"]].isna().all(axis=None)


def test_the_expected_distance_is_the_mean_over_all_subsamples() -> None:
    answers, reference = list("aabbbc"), {"a": 0.5, "b": 0.1, "d": 0.4}

    def plain(sample: tuple[str, ...]) -> float:
        labels = set(sample) | set(reference)
        return 0.5 * sum(abs(sample.count(x) / len(sample) - reference.get(x, 0)) for x in labels)

    for size in (1, 3, 6):
        slow = np.mean([plain(sample) for sample in combinations(answers, size)])
        assert baseline.expected_distance(answers, reference, size) == pytest.approx(slow)
    for size in (0, 7):
        with pytest.raises(ValueError, match="cannot take"):
            baseline.expected_distance(answers, reference, size)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.5])
def test_the_effective_gamma_is_the_exponent_that_the_replies_were_sharpened_with(gamma: float) -> None:
    sharp = LAW**gamma / (LAW**gamma).sum()
    table = pd.concat([replies(sharp, n=400), replies(LAW, "VS, free", fails=0.9)])
    found = baseline.effective_gammas(table, people(4000)).set_index("condition")
    row = found.loc["direct, T = 1"]
    assert row["gamma"] == pytest.approx(gamma, rel=0.12) and row["gamma_low"] < gamma < row["gamma_high"]
    assert found.loc["VS, free"].isna().all()


def test_the_effective_gamma_is_that_of_a_search_over_a_grid_and_stays_within_its_bounds() -> None:
    table, asked = replies(LAW**2 / (LAW**2).sum()), people()
    wanted = np.mean([chao_shen_entropy(list(part["act"])) for _, part in table.groupby("after")])
    shares = [part["read"].value_counts(normalize=True).to_numpy() for _, part in asked.groupby("after")]
    grid = np.linspace(0.1, 8, 7901)
    sharpened = [[p**g / (p**g).sum() for p in shares] for g in grid]
    slow = grid[np.argmin([abs(np.mean([-(q * np.log(q)).sum() for q in each]) - wanted) for each in sharpened])]
    [fast] = baseline.effective_gammas(table, asked)["gamma"]
    assert fast == pytest.approx(slow, abs=0.002)
    ends = [baseline.effective_gammas(replies(law), asked)["gamma"].item() for law in (np.eye(4)[0], np.full(4, 0.25))]
    assert ends[0] == baseline.GAMMAS[1] and baseline.GAMMAS[0] <= ends[1] < 0.5


def test_distances_stand_at_the_floor_for_the_same_law_and_above_it_for_another() -> None:
    reverse = LAW[::-1].copy()
    table = pd.concat([replies(LAW), replies(LAW, "personas, T = 1", seed=5), replies(reverse, "VS, grammar", seed=6)])
    found = baseline.reference_recovery(table, people()).set_index(["reference", "condition"])
    truth = 0.5 * np.abs(LAW - reverse).sum()
    for reference in (baseline.PEOPLE, baseline.OWN):
        own = found.loc[reference]
        assert own.loc["personas, T = 1", "change_low"] < 0.05 and own.loc["personas, T = 1", "change_high"] > -0.05
        assert own.loc["VS, grammar", "change_low"] > 0
        assert own.loc["VS, grammar", "distance"] == pytest.approx(truth, abs=0.08)
    floor = found.loc[(baseline.PEOPLE, "people"), "distance"]
    assert found.loc[(baseline.PEOPLE, "direct, T = 1"), "distance"] == pytest.approx(floor, abs=0.06)


def test_a_condition_with_more_replies_is_not_nearer_for_that_alone() -> None:
    """The plug-in distance falls with n; compared at equal size it must not."""
    table = pd.concat([replies(LAW, n=12), replies(LAW, "personas, T = 1", n=400, seed=3)])
    found = baseline.reference_recovery(table, people()).set_index(["reference", "condition"])["distance"]
    many, few = (found[baseline.PEOPLE, c] for c in ("personas, T = 1", "direct, T = 1"))
    answers = table[table["condition"] == "personas, T = 1"]
    naive = np.mean([
        0.5 * np.abs(answers[answers["after"] == ask]["act"].value_counts(normalize=True).reindex(ACTS) - LAW).sum()
        for ask in ASKS
    ])  # fmt: skip
    assert naive < 0.6 * many
    assert many == pytest.approx(few, abs=0.05)


def test_the_difference_of_independent_estimates_adds_their_squares() -> None:
    gap = Interval(2.0, 1.7, 2.3, 10).minus(Interval(1.0, 0.6, 1.4, 5))
    assert (gap.mean, gap.low, gap.high, gap.n) == pytest.approx((1.0, 0.5, 1.5, 5))


def test_the_figures_draw_every_condition_and_say_where_too_little_could_be_read() -> None:
    table = pd.concat([replies(LAW, n=8), replies(LAW, "direct, T = 0.4", n=8, seed=2),
                       replies(LAW, "VS, free", n=8, fails=0.9)])  # fmt: skip
    use_style()
    varied = figures.acts_beside_people(baseline.acts_beside_people(table, people()), "a note")
    labels = ["people", "direct, T = 1", "direct, T = 0.4", "VS, free"]
    assert [label.get_text() for label in varied.axes[0].get_yticklabels()] == labels
    assert [text.get_text() for text in varied.axes[0].texts] == [figures.UNREAD]
    far = figures.recovery(baseline.reference_recovery(table, people()), "a note")
    titles = [ax.get_title(loc="left").replace("\n", " ") for ax in far.axes]
    assert titles == ["from people", f"from {baseline.OWN}"]
    measures = collapse.by_history(table)
    shares = figures.mode_shares(measures, collapse.summarise(measures), "a $title$")
    assert len(shares.axes) == 3
    curve = collapse.size_curve(table, "act", [2, 4])
    sizes = figures.size_curves(curve, curve, "direct, T = 1", "a note")
    for figure in (varied, far, shares, sizes):
        figure.canvas.draw()
        plt.close(figure)


def test_colder_sampling_is_darker() -> None:
    hot, cold = (sum(figures.colour_of(f"direct, T = {t}")) for t in (1.3, 0.4))
    assert cold < hot
    assert figures.colour_of("VS, free") == figures.colour_of("VS, grammar") != figures.colour_of("people")


def test_simulators_stand_side_by_side_at_the_histories_that_all_have() -> None:
    base = pd.concat([replies(LAW, name, histories=8) for name in ("direct, T = 1", "direct, T = 0.4", "VS, free")])
    sharp = LAW**4 / (LAW**4).sum(-1, keepdims=True)
    tuned = pd.concat(
        [replies(law, name, histories=6) for law, name in ((LAW, "direct, T = 1"), (sharp, "direct, T = 0.4"))]
    )
    joined = baseline.side_by_side(base, {"fine-tuned": tuned, "aligned": tuned[tuned["condition"] == "direct, T = 1"]})
    names = ["direct, T = 1", "fine-tuned", "fine-tuned, T = 0.4", "aligned"]
    assert joined["condition"].unique().tolist() == names
    assert (joined.groupby("condition")["history"].nunique() == 6).all()
    found = baseline.acts_beside_people(joined, people()).query("view == 'given the act'").set_index("condition")
    assert found.loc[names[2], "entropy"] < found.loc["fine-tuned", "entropy"]
    distances = baseline.reference_recovery(joined, people())
    assert set(distances.query("reference == 'people'")["condition"]) == {"people", *names}


def proposals(table: pd.DataFrame, texts: list[str]) -> pd.DataFrame:
    """Every reply answers a proposal, and says these things in turn."""
    said = [texts[i % len(texts)] for i in range(len(table))]
    return table.assign(
        after=baseline.PROPOSAL, text=[t if f == "" else None for t, f in zip(said, table["failure"], strict=True)]
    )


def test_what_is_stated_after_a_proposal_stands_beside_what_people_state() -> None:
    asked = people().assign(after=baseline.PROPOSAL)
    dollars = [math.nan, math.nan, 0.0, 0.5]
    asked["stated"] = [dollars[i // 4 % 4] for i in range(len(asked))]  # alike in even and in odd dialogues
    texts = ["Who are you?", "Yes.", "I'd rather not give anything.", "I will give 50 cents."]
    table = pd.concat([
        proposals(replies(LAW), texts),
        proposals(replies(LAW, "direct, T = 0.4"), ["I will give $2."]),
        proposals(replies(LAW, "VS, free", fails=0.9), texts),
        replies(LAW, "personas, T = 1"),  # never asked
    ])  # fmt: skip
    shares = baseline.stated_donations(table, asked).pivot(index="condition", columns="donation", values="share")
    for name in ("people", "direct, T = 1"):
        assert shares.loc[name, ["no amount", "0", "0 to 0.5"]].tolist() == [0.5, 0.25, 0.25]
    assert shares.loc["direct, T = 0.4", "1.5 to 2"] == 1
    assert shares.loc["VS, free"].isna().all() and "personas, T = 1" not in shares.index
    found = baseline.reference_recovery(*baseline.answers_to_proposals(table, asked))
    far = found[found["reference"] == baseline.PEOPLE].set_index("condition")["distance"]
    assert far["direct, T = 1"] == pytest.approx(far["people"], abs=0.03) and far["direct, T = 0.4"] == 1
    figure = figures.stated_donations(baseline.stated_donations(table, asked), "a note")
    assert [text.get_text() for text in figure.axes[0].texts].count(figures.UNREAD) == 1
    figure.canvas.draw()
    plt.close(figure)
    assert baseline.stated_donations(replies(LAW), asked).empty, "no history ends with a proposal"
