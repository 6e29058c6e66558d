"""Persuasion for Good: the loader on a made-up file in its format, the act classifier, people as the baseline.

What needs the real files is skipped, and listed at the end of the run, where they are not.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scope_lite.envs import p4g, p4g_acts
from scope_lite.envs.donation import read_pledge
from scope_lite.measure.human_baseline import UNSAID, donation_bin, human_donations
from scope_lite.measure.samples import miller_madow_entropy, mode_share
from scope_lite.measure.stats import jackknife_interval, t_interval
from scope_lite.store.errors import ScopeError

ROOT = Path(__file__).resolve().parents[2]
NEARBY = ROOT.parent / "shared" / "data" / "p4g" / "raw"


@pytest.fixture(scope="module")
def raw() -> Path:
    """The real files: the user's folder, one beside the checkout, or an earlier download; never a new download."""
    if not os.environ.get(p4g.FOLDER_VARIABLE) and NEARBY.is_dir():
        return NEARBY
    try:
        return p4g.raw_folder(download=False)
    except ScopeError as error:
        pytest.skip(str(error))


# -- a made-up folder in upstream's format ----------------------------------------------------------------------------

# dialogue, role, turn, sentence, persuader's act, persuadee's act
LINES = [
    ("d1", 0, 0, "Hello.", "greeting", ""),
    ("d1", 0, 0, "Have you heard of us?", "source-related-inquiry", ""),
    ("d1", 1, 0, "None", "", "negative-to-inquiry"),
    ("d1", 1, 1, "I'd give 50 cents.", "", "agree-donation"),  # torn apart, as some of upstream's are
    ("d1", 0, 1, "Would you donate?", "proposition-of-donation", ""),
    ("d1", 1, 1, "Is that ok?", "", "other"),
    ("d1", 0, 2, "Thanks!", "thank", ""),
    ("d2", 0, 0, "Would you donate?", "proposition-of-donation", ""),
    ("d2", 1, 0, "No.", "", "disagree-donation"),
]
PEOPLE = [
    ("d1", "user_1", 0, 0.0, 30.0, "Female", 3.0),
    ("d1", "user_2", 1, 5.0, 41.0, "Male", 4.2),
    ("d2", "user_3", 0, 1.0, "", "", ""),
    ("d2", "user_4", 1, 0.0, 3.0, "Male", 1.5),
]


def write_raw(folder: Path) -> Path:
    lines = pd.DataFrame(LINES, columns=["B2", "B4", "Turn", "Unit", "er_label_1", "ee_label_1"])
    people = pd.DataFrame(PEOPLE, columns=["B2", "B3", "B4", "B6", "age.x", "sex.x", "agreeable.x"])
    folder.mkdir(parents=True, exist_ok=True)
    lines.to_excel(folder / "300_dialog.xlsx", index=False)
    people[["B2", "B4", "B6"]].assign(B5=["", 0.5, "", ""]).to_excel(folder / "300_info.xlsx", index=False)
    whole = lines.sort_values(["B2", "Turn", "B4"], kind="stable").groupby(["B2", "Turn", "B4"], sort=False)["Unit"]
    whole.agg(" ".join).reset_index().to_csv(folder / "full_dialog.csv", index=False)
    people.to_csv(folder / "full_info.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_raw(tmp_path_factory.mktemp("p4g"))


def test_annotated_dialogues_have_sentences_acts_and_pledges(made_up: Path) -> None:
    first, second = p4g.load_dialogues(made_up, annotated=True)
    assert [turn.role for turn in first.turns] == ["persuader", "persuadee"] * 2 + ["persuader"]
    assert first.turns[0].sentences == ("Hello.", "Have you heard of us?")
    assert first.turns[1].text == "None", "a reply is not a missing value"
    assert first.turns[3] == p4g.Turn("persuadee", ("I'd give 50 cents.", "Is that ok?"), ("agree-donation", "other"))
    assert (first.persuadee.pledge, first.persuadee.donation) == (0.5, 5.0)
    assert (second.persuadee.pledge, second.persuader.pledge) == (None, None)


def test_all_dialogues_are_whole_utterances_without_acts(made_up: Path) -> None:
    first, _ = p4g.load_dialogues(made_up)
    assert first.turns[0] == p4g.Turn("persuader", ("Hello. Have you heard of us?",))


def test_a_persona_says_what_was_answered_and_nothing_else(made_up: Path) -> None:
    first, second = p4g.load_dialogues(made_up)
    assert first.persuadee.as_text() == "Age: 41\nSex: Male\nCharacter: agreeable"
    assert second.persuadee.as_text() == "Sex: Male\nCharacter: not agreeable", "an age of 3 is a typing error"
    assert second.persuader.as_text() == ""


def test_the_tables_count_last_act_and_first_answer(made_up: Path) -> None:
    pairs = p4g.act_pairs(p4g.load_dialogues(made_up, annotated=True))
    assert pairs.drop(columns="stated").values.tolist() == [
        [0, 0, "source-related-inquiry", "negative-to-inquiry"],
        [0, 1, "proposition-of-donation", "agree-donation"],
        [1, 0, "proposition-of-donation", "disagree-donation"],
    ]
    own = p4g.act_pairs(p4g.load_dialogues(made_up, annotated=True), "persuader")
    assert own[["dialogue", "turn"]].values.tolist() == [[0, 0], [0, 1]], "a last word, too, if it answers"
    assert pairs["stated"].tolist() == pytest.approx([math.nan, 0.5, math.nan], nan_ok=True)  # a bare no names none
    assert p4g.donations(p4g.load_dialogues(made_up)).values.tolist() == [[0.0, 1], [5.0, 1]]


def test_the_folder_comes_from_the_variable_and_may_look_like_upstreams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = write_raw(tmp_path / "flat")
    for name in p4g.FILES:
        place = tmp_path / "checkout" / "data" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (flat / Path(name).name).rename(place)
    monkeypatch.setenv(p4g.FOLDER_VARIABLE, str(tmp_path / "checkout"))
    assert len(p4g.load_dialogues()) == 2


def test_what_is_missing_or_wrong_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScopeError, match=r"holds no 300_dialog.xlsx: set SCOPE_LITE_P4G"):
        p4g.load_dialogues(tmp_path)
    folder = write_raw(tmp_path / "raw")
    pd.DataFrame({"a": [1]}).to_csv(folder / "full_dialog.csv")
    with pytest.raises(ScopeError, match="no column B2"):
        p4g.load_dialogues(folder)
    (folder / "300_dialog.xlsx").write_text("no spreadsheet", encoding="utf-8")
    with pytest.raises(ScopeError, match="could not read"):
        p4g.load_dialogues(folder, annotated=True)
    monkeypatch.delenv(p4g.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "empty")
    with pytest.raises(ScopeError, match="set SCOPE_LITE_P4G"):
        p4g.raw_folder(download=False)


def test_a_file_with_another_hash_than_the_pinned_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(p4g.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache")
    upstream = tmp_path / "upstream"
    for name in p4g.FILES:
        (upstream / name).parent.mkdir(parents=True, exist_ok=True)
        (upstream / name).write_text("tampered", encoding="utf-8")

    def copy(url: str, output_file: str, mirror: object) -> None:
        Path(output_file).write_bytes((upstream / url.removeprefix(p4g.UPSTREAM)).read_bytes())

    monkeypatch.setattr("pooch.core.choose_downloader", lambda url, progressbar=False: copy)
    with pytest.raises(ScopeError, match="could not download"):
        p4g.raw_folder()


# -- the act classifier -----------------------------------------------------------------------------------------------


def toy_sentences(n: int = 60) -> pd.DataFrame:
    """Sentences whose act is plain from their words, and one act that only the question before tells."""
    said = {"greeting": "hello there", "thank": "thank you", "agree-donation": "yes", "positive-to-inquiry": "yes"}
    heard = {"agree-donation": "will you donate", "positive-to-inquiry": "do you have kids"}
    acts = [list(said)[i % 4] for i in range(n)]
    return pd.DataFrame(
        {"dialogue": i // 4, "turn": 0, "first": True, "said": said[a], "heard": heard.get(a, "hi"), "act": a}
        for i, a in enumerate(acts)
    )


def test_the_classifier_learns_words_and_what_they_answer(tmp_path: Path) -> None:
    table = toy_sentences()
    assert (p4g_acts.cross_read(table, folds=3) == table["act"]).all()
    trained = p4g_acts.train(table)
    examples = [("Yes!", "Do you have kids?"), ("Yes!", "Will you donate?"), ("", "")]
    assert trained.read(examples)[:2] == ["positive-to-inquiry", "agree-donation"]
    assert trained.read([]) == []
    np.testing.assert_allclose(trained.probabilities(examples).sum(axis=1), 1.0)
    trained.save(tmp_path / "acts.npz")
    loaded = p4g_acts.load_classifier("persuadee", tmp_path)
    np.testing.assert_allclose(loaded.probabilities(examples), trained.probabilities(examples), atol=2e-3)


def test_cross_reading_keeps_a_dialogue_on_one_side() -> None:
    """Each dialogue has its own word for one act: only a classifier that saw the dialogue could know it."""
    own = pd.DataFrame({"dialogue": d, "said": f"word{d}", "heard": "", "act": ("thank", "closing")[d % 2]}
                       for d in range(12) for _ in range(4))  # fmt: skip
    assert (p4g_acts.cross_read(own, folds=3) == own["act"]).mean() < 0.75
    assert p4g_acts.train(own).read([("word3", "")]) == ["closing"]


@pytest.mark.parametrize(("role", "kinds"), [("persuadee", 23), ("persuader", 27)])
def test_every_act_of_the_shipped_data_has_one_group(role: str, kinds: int) -> None:
    grouped = [act for acts in p4g_acts.ACT_GROUPS[role].values() for act in acts]
    assert len(grouped) == len(set(grouped)) == kinds
    pairs = p4g.load_table(p4g.table_of("act_pairs", role))
    assert set(pairs["act"]) | set(pairs["read"]) <= set(grouped)
    assert set(p4g_acts.load_classifier(role).acts) == set(grouped)


@pytest.mark.parametrize(
    ("role", "said", "heard", "group"),
    [
        ("persuadee", "Hello, how are you?", "Hi!", "is polite"),
        ("persuadee", "What does the charity do?", "Have you heard of Save the Children?", "asks"),
        ("persuadee", "I will donate $1.", "How much would you like to donate?", "gives"),
        ("persuader", "How much would you like to donate?", "I will give something.", "asks to donate"),
        ("persuader", "Many children in Syria die of hunger and war.", "Tell me more.", "appeals"),
        ("persuader", "Have you heard of Save the Children?", "Hello!", "inquires"),
    ],
)
def test_the_shipped_classifiers_read_the_obvious(role: str, said: str, heard: str, group: str) -> None:
    (act,) = p4g_acts.load_classifier(role).read([(said, heard)])
    assert p4g_acts.GROUP_OF[role][act] == group


@pytest.mark.parametrize(
    ("role", "sentences", "acts", "groups"), [("persuadee", 4847, 0.520, 0.667), ("persuader", 5611, 0.551, 0.752)]
)
def test_the_shipped_confusion_gives_the_accuracy_in_the_readme(
    role: str, sentences: int, acts: float, groups: float
) -> None:
    table = p4g.load_table(p4g.table_of("act_confusion", role)).set_index("annotated")
    assert table.to_numpy().sum() == sentences
    assert np.diag(table).sum() / sentences == pytest.approx(acts, abs=5e-4)
    group_of = p4g_acts.GROUP_OF[role]
    grouped = table.rename(index=group_of, columns=group_of).groupby(level=0).sum().T.groupby(level=0).sum()
    assert np.diag(grouped).sum() / sentences == pytest.approx(groups, abs=5e-4)


def test_the_first_sentence_stands_for_a_reply() -> None:
    assert p4g_acts.first_sentence(" That is $1.50. OK? Fine") == "That is $1.50."
    assert p4g_acts.first_sentence("") == ""


def test_broken_weights_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "acts.npz").write_bytes(b"no archive")
    with pytest.raises(ScopeError, match="act classifier"):
        p4g_acts.load_classifier("persuadee", tmp_path)


# -- people as the baseline ------------------------------------------------------------------------------------------


def test_the_jackknife_of_a_mean_is_the_t_interval_of_cluster_means() -> None:
    ones = [3, 5, 0, 7, 4, 6]
    clusters = [[("a", "x")] * k + [("a", "y")] * (10 - k) for k in ones]
    share = jackknife_interval(lambda pairs: np.mean([then == "x" for _, then in pairs]), clusters)
    expected = t_interval([k / 10 for k in ones])
    assert (share.mean, share.low, share.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert share.n == 6
    assert math.isnan(jackknife_interval(lambda pairs: 0.0, clusters[:1]).low)


def test_the_shipped_answers_reproduce_the_benchmark_notes() -> None:
    """4.01 bits without the persuader's act; epsilon .72 at a proposition, where 28 % agree; at greetings 1.04 bits."""
    pairs = p4g.load_table("act_pairs")
    bits = {act: miller_madow_entropy(said.tolist()) / math.log(2) for act, said in pairs.groupby("after")["act"]}
    assert miller_madow_entropy(pairs["act"].tolist()) / math.log(2) == pytest.approx(4.01, abs=0.005)
    assert bits["greeting"] == pytest.approx(1.04, abs=0.01)
    asked = pairs.loc[pairs["after"] == "proposition-of-donation", "act"]
    assert 1 - mode_share(asked.tolist()) == pytest.approx(0.72, abs=0.005)
    assert asked.mode().tolist() == ["agree-donation"]


def test_donations_reproduce_the_benchmark_notes() -> None:
    dollars = human_donations()
    assert len(dollars) == 1017 and dollars.max() == 2.0
    assert dollars.mean() == pytest.approx(0.409, abs=5e-4)
    assert (dollars == 0).mean() == pytest.approx(0.464, abs=5e-4)


def test_donation_bins_hold_their_upper_end() -> None:
    assert [donation_bin(x) for x in (0.0, 0.5, 0.51, 2.0)] == ["0", "0 to 0.5", "0.5 to 1", "1.5 to 2"]
    assert donation_bin(None) == donation_bin(math.nan) == UNSAID


# -- with the real files ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dialogues(raw: Path) -> tuple[p4g.Dialogue, ...]:
    return p4g.load_dialogues(raw)


@pytest.fixture(scope="module")
def annotated(raw: Path) -> tuple[p4g.Dialogue, ...]:
    return p4g.load_dialogues(raw, annotated=True)


def test_what_a_model_may_learn_from_is_not_what_it_is_held_against(
    raw: Path, annotated: tuple[p4g.Dialogue, ...]
) -> None:
    free = p4g.load_unannotated(raw)
    assert len(free) == 717 and not {d.name for d in free} & {d.name for d in annotated}


def test_the_real_files_hold_what_the_notes_say(dialogues: tuple[p4g.Dialogue, ...]) -> None:
    assert len(dialogues) == 1017 and sum(len(d.turns) for d in dialogues) == 20932
    given = [d.persuadee.donation for d in dialogues]
    assert sum(x > 2 for x in given) == 35 and max(given) == 700
    assert sum(bool(d.persuadee.as_text()) for d in dialogues) >= 1000


def test_the_shipped_tables_are_remade_from_the_real_files(
    dialogues: tuple[p4g.Dialogue, ...], annotated: tuple[p4g.Dialogue, ...]
) -> None:
    for role in p4g.ROLES:
        pairs, shipped = p4g.act_pairs(annotated, role), p4g.load_table(p4g.table_of("act_pairs", role))
        pd.testing.assert_frame_equal(pairs, shipped[list(pairs)], check_dtype=False)
    remade = p4g.donations(dialogues)
    pd.testing.assert_frame_equal(remade, p4g.load_table("donations"), check_dtype=False)


@pytest.mark.parametrize("role", p4g.ROLES)
def test_the_shipped_weights_are_remade_from_the_real_files(annotated: tuple[p4g.Dialogue, ...], role: str) -> None:
    """Not bit for bit, since linear algebra differs between machines: by what they read."""
    table = p4g_acts.sentences(annotated, role)
    examples = list(zip(table["said"], table["heard"], strict=True))
    shipped, trained = (c.read(examples) for c in (p4g_acts.load_classifier(role), p4g_acts.train(table)))
    assert np.mean([a == b for a, b in zip(shipped, trained, strict=True)]) > 0.995


def test_a_pledge_read_from_a_dialogue_is_mostly_the_annotators(annotated: tuple[p4g.Dialogue, ...]) -> None:
    """243 of 300 agree; many of the rest are theirs (other payments than 2 dollars, amounts that nobody wrote)."""
    told = [min(d.persuadee.pledge or 0.0, 2.0) for d in annotated]
    read = [read_pledge(t.text for t in d.turns if t.role == "persuadee") or 0.0 for d in annotated]
    assert np.mean(np.abs(np.subtract(told, read)) < 0.006) >= 0.8
    assert sum(d.persuadee.donation == 0 < (d.persuadee.pledge or 0) for d in annotated) == 86
