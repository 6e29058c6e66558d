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

from scope_lite.figures import text as figures
from scope_lite.figures.style import use_style
from scope_lite.measure import replies as collapse
from scope_lite.measure import samples, stats
from scope_lite.models.replies import Reply
from scope_lite.store.errors import ScopeError


def reply(text: str, tokens: int = 1) -> Reply:
    return Reply(text, (1,) * tokens, (-0.5,) * tokens, (0.25,) * tokens, (0.75,) * tokens, True)


def test_epsilon_is_one_minus_the_largest_probability() -> None:
    probs = np.array([[[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]], [[0.25, 0.5, 0.25], [0.0, 0.4, 0.6]]])
    np.testing.assert_allclose(samples.epsilon(probs), [[0.3, 0.0], [0.5, 0.4]])


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
    assert samples.normalise_reply(text, words) == expected


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = samples.normalise_reply(text)
    assert samples.normalise_reply(once) == once


def test_shares_and_entropies_of_a_hand_computed_sample() -> None:
    labels = ["a", "a", "b", "c"]
    assert samples.mode_share(labels) == 0.5
    assert samples.plug_in_entropy(labels) == pytest.approx(1.5 * math.log(2))
    assert samples.miller_madow_entropy(labels) == pytest.approx(1.5 * math.log(2) + 2 / 8)


def test_one_repeated_reply_is_fully_collapsed() -> None:
    assert samples.mode_share(["a"] * 9) == 1.0
    assert samples.plug_in_entropy(["a"] * 9) == samples.miller_madow_entropy(["a"] * 9) == 0.0


def test_miller_madow_is_nearer_the_truth_than_the_plug_in() -> None:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(8, size=16).tolist() for _ in range(400)]
    plug_in = np.mean([samples.plug_in_entropy(sample) for sample in drawn])
    corrected = np.mean([samples.miller_madow_entropy(sample) for sample in drawn])
    assert plug_in < corrected
    assert abs(corrected - math.log(8)) < abs(plug_in - math.log(8)) / 2


def test_the_t_interval_is_students_over_histories() -> None:
    interval = stats.clustered_interval([0.2, 0.4, 0.6, math.nan])
    half = scipy_stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.4, 0.4 - half, 0.4 + half))
    assert interval.n == 3


def test_one_history_gives_no_interval_and_agreement_a_flat_one() -> None:
    alone = stats.clustered_interval([0.5])
    assert alone.mean == 0.5 and math.isnan(alone.low) and math.isnan(alone.high)
    flat = stats.clustered_interval([0.3, 0.3, 0.3])
    assert (flat.low, flat.high, flat.n) == (0.3, 0.3, 3)
    assert math.isnan(stats.clustered_interval([math.nan]).mean)


def test_a_users_mistake_is_one_line() -> None:
    with pytest.raises(ScopeError) as caught:
        samples.mode_share([])
    assert "\n" not in str(caught.value)


GOOD = '[{"text": "yes", "probability": 0.5}, {"text": "no", "probability": 0.5}]'
ACTS = {"yes": "agree", "no": "disagree", "Go away": "disagree"}


def table() -> pd.DataFrame:
    direct = [[reply("Hi there, Bob"), reply("hi there bob!"), reply("Hi there, Bob Smith"), reply("Go away")]] * 2
    outputs = [[reply(GOOD)] * 4, [reply(GOOD), reply("sorry"), reply("sorry"), reply("[{$x$")]]
    rows = collapse.direct_rows("direct, T = 1", direct)
    read = collapse.verbalized_rows("VS, free", outputs, 2, seed=0)
    assert [row["failure"] for row in read] == [""] * 5 + ["no_list", "no_list", "bad_json"]
    made = pd.DataFrame(rows + read)
    acts = [ACTS.get(text, "greeting") if isinstance(text, str) else "" for text in made["text"]]
    return made.assign(task="p4g", after="greeting", act=acts, history=made["history"].astype(str))


def row_of(measures: pd.DataFrame, condition: str, history: str, level: str) -> pd.Series:
    return measures.set_index(["condition", "history", "level"]).loc[(condition, history, level)]


def test_a_coarser_same_joins_more_replies_and_each_level_counts_its_own() -> None:
    measures = collapse.by_history(table())
    shares = [row_of(measures, "direct, T = 1", "0", level)["mode_share"] for level in collapse.LEVELS]
    assert shares == [0.5, 0.75, 0.75]
    entropy = row_of(measures, "direct, T = 1", "0", "act")["entropy"]
    assert entropy == samples.chao_shen_entropy(["greeting"] * 3 + ["disagree"])


def test_unreadable_outputs_stay_missing_and_silence_the_measures_where_most_fail() -> None:
    made = table()
    assert (made["text"].isna() == (made["failure"] != "")).all()
    measures = collapse.by_history(made)
    for level in collapse.LEVELS:
        lost = row_of(measures, "VS, free", "1", level)
        assert lost["replies"] == 1 and math.isnan(lost["mode_share"]) and math.isnan(lost["entropy"])
        assert row_of(measures, "VS, free", "0", level)["replies"] == 4


def test_replies_without_acts_have_no_act_level() -> None:
    measures = collapse.by_history(table().assign(act=""))
    assert measures.loc[measures["level"] == "act", "mode_share"].isna().all()
    assert measures.loc[measures["level"] == "string", "mode_share"].notna().any()


def test_a_reply_table_survives_the_file_word_for_word(tmp_path: Path) -> None:
    made = table()
    made.loc[:3, "text"] = ["None", "", 'He said "no, NaN".\n\nThen, 3.0', "naïve 🙂 \t x"]
    collapse.write_replies(made, tmp_path / "new" / "replies.csv")
    again = collapse.read_replies(tmp_path / "new" / "replies.csv")
    pd.testing.assert_frame_equal(again, made, check_dtype=False)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["replies.csv"]


def test_an_absent_or_foreign_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    for name in ("none.csv", "other.csv"):
        with pytest.raises(ScopeError, match="reply table") as caught:
            collapse.read_replies(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_the_summary_averages_histories_and_reports_the_failure_rate() -> None:
    summary = collapse.summarise(collapse.by_history(table())).set_index(["condition", "level"])
    assert summary.loc[("direct, T = 1", "string"), "failure_rate"] == 0
    assert summary.loc[("VS, free", "string"), "failure_rate"] == pytest.approx(3 / 8)
    assert summary.loc[("VS, free", "string"), "histories"] == 1
    mine = summary.loc[("direct, T = 1", "string"), ["mode_share", "mode_share_low", "mode_share_high"]]
    assert mine.tolist() == [0.5, 0.5, 0.5]


# -- estimates from few samples --------------------------------------------------------------------------------------


def slow_chao_shen(labels: list[str]) -> float:
    """The formula of the 2003 paper, written out."""
    n = len(labels)
    singles = sum(labels.count(label) == 1 for label in set(labels))
    coverage = 1 - min(singles, n - 1) / n
    total = 0.0
    for label in set(labels):
        p = coverage * labels.count(label) / n
        total -= p * math.log(p) / (1 - (1 - p) ** n)
    return total


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40))
def test_chao_shen_is_its_formula_and_never_below_zero(labels: list[str]) -> None:
    assert samples.chao_shen_entropy(labels) == pytest.approx(slow_chao_shen(labels), abs=1e-12)
    assert samples.chao_shen_entropy(labels) >= 0


def test_chao_shen_is_nearer_the_truth_than_miller_madow_where_much_is_unseen() -> None:
    rng = np.random.default_rng(0)
    law = 1 / np.arange(1, 31)
    law /= law.sum()
    truth = -(law * np.log(law)).sum()
    drawn = [rng.choice(30, size=16, p=law).tolist() for _ in range(400)]
    misses = [abs(np.mean([estimate(s) for s in drawn]) - truth) for estimate in collapse.ESTIMATORS.values()]
    assert misses[2] < misses[1] < misses[0]


def test_smaller_sizes_are_means_over_disjoint_blocks() -> None:
    values = samples.at_smaller_sizes(list("aabcd"), [2, 5, 6], samples.mode_share)
    assert values[:2] == [(1.0 + 0.5) / 2, 0.4]
    assert math.isnan(values[2])


def test_the_size_curve_ends_at_the_full_sample() -> None:
    curve = collapse.size_curve(table(), "string", [2, 4]).set_index(["condition", "measure", "replies"])["mean"]
    measures = collapse.by_history(table())
    for name, column in (("Chao-Shen", "entropy"), ("mode share", "mode_share")):
        expected = row_of(measures, "direct, T = 1", "0", "string")[column]
        assert curve["direct, T = 1", name, 4] == pytest.approx(expected)


# -- alike in wording ------------------------------------------------------------------------------------------------


def slow_clusters(texts: list[str], threshold: float) -> set[frozenset[int]]:
    """Merge the two groups with the highest mean cosine while it is at least the threshold."""
    alike = samples.likeness(texts)
    groups = [frozenset([i]) for i in range(len(texts))]
    while len(groups) > 1:
        pairs = [(np.mean([alike[i, j] for i in a for j in b]), a, b) for a in groups for b in groups if a != b]
        best, a, b = max(pairs, key=lambda pair: pair[0])
        if best < threshold:
            break
        groups = [group for group in groups if group not in (a, b)] + [a | b]
    return set(groups)


SAID = ["I would like to donate", "I'd like to donate a dollar", "hi", "Hi!", "No, thank you.", "no thanks to you",
        "", "...", "How much of it reaches the children?", "how much reaches the children"]  # fmt: skip


def test_clusters_are_those_of_the_slow_average_linkage() -> None:
    labels = samples.cluster_labels(SAID)
    found = {frozenset(i for i, label in enumerate(labels) if label == one) for one in set(labels)}
    assert found == slow_clusters(SAID, 0.5)
    assert labels[0] == labels[1] and labels[2] == labels[3] and labels[6] == labels[7]
    assert len(set(labels)) == 5


@given(st.lists(st.sampled_from(SAID), min_size=2, max_size=12))
def test_equal_strings_always_share_a_cluster(texts: list[str]) -> None:
    labels = samples.cluster_labels(texts)
    by_string: dict[str, int] = {}
    for text, label in zip(texts, labels, strict=True):
        assert by_string.setdefault(samples.normalise_reply(text), label) == label


def test_likeness_of_two_replies_depends_on_no_third() -> None:
    both, more = samples.likeness(SAID[:2]), samples.likeness(SAID)
    assert both[0, 1] == pytest.approx(more[0, 1])
    assert np.allclose(np.diag(more), 1) and np.allclose(more, more.T)


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_token_level_quantities_are_sums_of_the_replys_own_numbers() -> None:
    rows = collapse.direct_rows("direct, T = 1", [[reply("long", 5), reply("short", 1)], [reply("x", 8)] * 2])
    tokens = collapse.token_level(pd.DataFrame(rows).assign(task="p4g")).set_index("tokens")
    assert tokens.loc[1, "mode_probability"] == pytest.approx(0.75)
    # the likeliest drawn opening of four tokens: the reply that ended after one, and e^-2
    assert tokens.loc[4, "mode_probability"] == pytest.approx((math.exp(-0.5) + math.exp(-2)) / 2)
    assert tokens.loc[8, "entropy"] == pytest.approx(((5 + 1) / 2 * 0.25 + 8 * 0.25) / 2)


def test_the_figures_survive_dollar_signs_and_emoji_and_show_every_outcome() -> None:
    use_style()
    made = table()
    made.loc[0, "text"] = "It costs $5 or $6_{x} 🙂 " + "very long " * 60
    side = figures.replies_side_by_side(made, "0", "a $title$ with ^ signs")
    assert [ax.get_title(loc="left") for ax in side.axes] == ["direct, T = 1", "VS, free"]
    outcomes = figures.parse_outcomes(made, "t")
    assert sum(patch.get_width() for patch in outcomes.axes[0].patches) == pytest.approx(1.0)
    for figure in (side, outcomes):
        figure.canvas.draw()
        plt.close(figure)
