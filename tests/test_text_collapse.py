"""Collapse measures against values computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from scope_lite import collapse
from scope_lite.engines.reply_cache import Reply
from scope_lite.errors import ScopeError
from scope_lite.figures import text as figures


def reply(text: str) -> Reply:
    return Reply(text, (1,), (0.0,), (0.0,), (1.0,), True)


def test_epsilon_is_one_minus_the_largest_probability() -> None:
    probs = np.array([[[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]], [[0.25, 0.5, 0.25], [0.0, 0.4, 0.6]]])
    np.testing.assert_allclose(collapse.epsilon(probs), [[0.3, 0.0], [0.5, 0.4]])


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("Hi! I'm  Yusuf,\n thanks.", None, "hi i'm yusuf thanks"),
        ("HI, I’m Yusuf. Thanks", None, "hi i'm yusuf thanks"),
        ("Hi there, I would like to", 3, "hi there i"),
        ("zip 19122", None, "zip 19122"),
        ("...", None, ""),
        ("ﬁne", None, "fine"),
    ],
)
def test_normalisation_keeps_words_and_drops_the_rest(text: str, words: int | None, expected: str) -> None:
    assert collapse.normalise_reply(text, words) == expected


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = collapse.normalise_reply(text)
    assert collapse.normalise_reply(once) == once


def test_shares_and_entropies_of_a_hand_computed_sample() -> None:
    labels = ["a", "a", "b", "c"]
    assert collapse.mode_share(labels) == 0.5
    assert collapse.plug_in_entropy(labels) == pytest.approx(1.5 * math.log(2))
    assert collapse.miller_madow_entropy(labels) == pytest.approx(1.5 * math.log(2) + 2 / 8)


def test_one_repeated_reply_is_fully_collapsed() -> None:
    assert collapse.mode_share(["a"] * 9) == 1.0
    assert collapse.plug_in_entropy(["a"] * 9) == collapse.miller_madow_entropy(["a"] * 9) == 0.0


def test_miller_madow_is_nearer_the_truth_than_the_plug_in() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.integers(8, size=16).tolist() for _ in range(400)]
    plug_in = np.mean([collapse.plug_in_entropy(sample) for sample in samples])
    corrected = np.mean([collapse.miller_madow_entropy(sample) for sample in samples])
    assert plug_in < corrected
    assert abs(corrected - math.log(8)) < abs(plug_in - math.log(8)) / 2


def test_distinct_n_counts_n_grams_within_replies_only() -> None:
    texts = ["a b a", "b a"]
    assert collapse.distinct_n(texts, 1) == pytest.approx(2 / 5)
    assert collapse.distinct_n(texts, 2) == pytest.approx(2 / 3)  # ab, ba | ba; no bigram across the border
    assert math.isnan(collapse.distinct_n(["...", ""], 1))


def test_the_t_interval_is_students_over_histories() -> None:
    interval = collapse.clustered_interval([0.2, 0.4, 0.6, math.nan])
    half = scipy_stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.4, 0.4 - half, 0.4 + half))
    assert interval.clusters == 3


def test_the_bootstrap_resamples_histories_and_repeats_with_its_seed() -> None:
    values = np.random.default_rng(1).random(30).tolist()
    first, again = (collapse.clustered_interval(values, method="bootstrap", seed=3) for _ in range(2))
    assert first == again
    assert first.low < np.mean(values) < first.high
    student = collapse.clustered_interval(values)
    assert first.high - first.low == pytest.approx(student.high - student.low, rel=0.25)


def test_one_history_gives_no_interval_and_agreement_a_flat_one() -> None:
    alone = collapse.clustered_interval([0.5])
    assert alone.mean == 0.5 and math.isnan(alone.low) and math.isnan(alone.high)
    flat = collapse.clustered_interval([0.5, 0.5], method="bootstrap")
    assert (flat.low, flat.high, flat.clusters) == (0.5, 0.5, 2)
    assert math.isnan(collapse.clustered_interval([math.nan]).mean)


@pytest.mark.parametrize(
    "call", [lambda: collapse.mode_share([]), lambda: collapse.clustered_interval([1, 2], method="z")]
)
def test_a_users_mistake_is_one_line(call) -> None:
    with pytest.raises(ScopeError) as caught:
        call()
    assert "\n" not in str(caught.value)


GOOD = '[{"text": "yes", "probability": 0.5}, {"text": "no", "probability": 0.5}]'


def table() -> pd.DataFrame:
    direct = [[reply("Hi there, Bob"), reply("hi there bob!"), reply("Hi there, Bob Smith"), reply("Go away")]] * 2
    outputs = [[reply(GOOD)] * 4, [reply(GOOD), reply("sorry"), reply("sorry"), reply("[{$x$")]]
    rows = collapse.direct_rows("direct", direct)
    read = collapse.verbalized_rows("VS, free", outputs, 2, seed=0)
    assert [row["failure"] for row in read] == [""] * 5 + ["no_list", "no_list", "bad_json"]
    return pd.DataFrame(rows + read)


def test_unreadable_outputs_stay_missing_and_silence_the_share_where_most_fail() -> None:
    made = table()
    assert (made["text"].isna() == (made["failure"] != "")).all()
    measures = collapse.by_history(made).set_index(["condition", "history"])
    assert measures.loc[("direct", 0), "same_reply"] == 0.5
    assert measures.loc[("direct", 0), "same_opening"] == 0.75
    assert measures.loc[("VS, free", 1), "replies"] == 1
    assert math.isnan(measures.loc[("VS, free", 1), "same_reply"])


def test_a_reply_table_survives_the_file_word_for_word(tmp_path: Path) -> None:
    made = table().assign(task="7")
    made.loc[:3, "text"] = ["None", "", 'He said "no, NaN".\n\nThen, 3.0', "naïve 🙂 \t x"]
    collapse.write_replies(made, tmp_path / "new" / "replies.csv")
    again = collapse.read_replies(tmp_path / "new" / "replies.csv")
    pd.testing.assert_frame_equal(again, made, check_dtype=False)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["replies.csv"]


def test_an_absent_or_foreign_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for name in ("none.csv", "other.csv"):
        with pytest.raises(ScopeError, match="reply table") as caught:
            collapse.read_replies(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_the_summary_reports_the_failure_rate_beside_the_shares() -> None:
    summary = collapse.summarise(collapse.by_history(table())).set_index("condition")
    assert summary.loc["direct", "failure_rate"] == 0
    assert summary.loc["VS, free", "failure_rate"] == pytest.approx(3 / 8)
    assert summary.loc["VS, free", "histories"] == 1
    assert summary.loc["direct", ["same_reply", "same_reply_low", "same_reply_high"]].tolist() == [0.5, 0.5, 0.5]


def test_the_figures_draw_every_condition_and_survive_dollar_signs_and_emoji() -> None:
    made = table()
    made.loc[0, "text"] = "It costs $5 or $6_{x} 🙂 " + "very long " * 60
    measures = collapse.by_history(made)
    side = figures.replies_side_by_side(made, 0, "a $title$ with ^ signs")
    assert [ax.get_title(loc="left") for ax in side.axes] == ["direct", "VS, free"]
    shares = figures.mode_shares(measures, collapse.summarise(measures), "t")
    assert [label.get_text() for label in shares.axes[0].get_yticklabels()] == ["direct", "VS, free"]
    outcomes = figures.parse_outcomes(made, "t")
    widths = sum(patch.get_width() for patch in outcomes.axes[0].patches)
    assert widths == pytest.approx(1.0)
    for figure in (side, shares, outcomes):
        figure.canvas.draw()
        plt.close(figure)
