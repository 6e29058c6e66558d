"""The donation reader: single readings by kind of trouble, what it may never return, and its accuracy as measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_lite.envs.donation import SENTENCES, measured, read_donation, read_pledge, read_table
from scope_lite.store.errors import ScopeError


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        ("I will donate $0.50.", 0.5),
        ("I'll give 50¢", 0.5),
        ("Ok, .50 cents it is", 0.5),
        ("i can give 0,10 $", 0.1),
        ("I would like to give twenty-five cents", 0.25),
        ("I can spare a nickel", 0.05),
        ("half of my payment", 1.0),
        ("I'll donate a quarter of my payment", 0.5),
        ("I will give 10% of my earnings", 0.2),
        ("I'll donate all of my payment", 2.0),
        ("I want to donate 50 dollars", 2.0),
        ("How about 30 cents?", 0.3),
        ("I'd give $1 or $1.25", 1.0),
        ("I can't give $2, but I could do 75 cents.", 0.75),
        ("I'd donate $1. Actually, I don't want to donate.", 0.0),
        ("I'd rather keep my payment.", 0.0),
        ("I cannot spare a dollar.", 0.0),
        ("I'll donate nothing", 0.0),
        ("I'd love to help!", None),
        ("I can't give more than that, sorry", None),
        ("Does at least 90% of it go to the children?", None),
        ("I donated $20 last year", None),
        ("I will give two hours of my time", None),
        ("How much of a $1 donation reaches them?", None),
        ("", None),
        ("I'll donate one dollar and fifty cents.", 1.5),
        ("a dollar fifty", 1.5),
        ("I'll give a dollar, 50 cents", 1.5),
        ("I will give $1 and 25 cents", 1.25),
        ("A dollar and a quarter", 1.25),
        ("one and a half dollars", 1.5),
        ("I'd give $1½", 1.5),
        ("a dollar-fifty", 1.5),
        ("I could give zero dollars and 75 cents", 0.75),
        ("I'll give half a dollar", 0.5),
        ("I'm going to donate half of the $2", 1.0),
        ("I'll donate 3/4 of a dollar", 0.75),
        ("A dollar? I'd give half of that.", 0.5),
        ("I'd give 50% of a dollar", 0.5),
        ("2 quarters from me", 0.5),
        ("I could give 25-50 cents", 0.25),
        ("I'd give up to $1", 1.0),
        ("$1, no, make that $2", 2.0),
        ("I won't donate 2 dollars", 0.0),
        ("Not even 50 cents!", 0.0),
        ("I'd rather keep my two dollars", 0.0),
        ("I want to keep $1.50", 0.5),
        ("I'd rather keep $1.50 and give 50 cents", 0.5),
        ("I wouldn't hesitate to give a dollar", 1.0),
        ("I'll give 1 euro", None),
        ("I can send £2", None),
        ("I'm 100% sure", None),
        ("My wife gave them 2 dollars", None),
        ("Many children survive on 2 dollars a day", None),
        ("So you're asking me for a dollar?", None),
        ("In the third world", None),
        ("None", None),
        ("I'd give it all if I weren't broke", None),
    ],
)
def test_readings(text: str, dollars: float | None) -> None:
    assert read_donation(text) == (pytest.approx(dollars) if dollars is not None else None)


def test_shares_and_the_cap_follow_the_payment() -> None:
    assert read_donation("I'll donate half of my payment", payment=1.0) == 0.5
    assert read_donation("I'll donate $1.50", payment=1.0) == 1.0


def test_the_last_pledge_of_a_dialogue_counts_and_silence_does_not_undo_it() -> None:
    assert read_pledge(["I'll give $1", "hmm", "ok, make it $1.50", "bye"]) == 1.5
    assert read_pledge(["hello", "how much goes to the children?"]) is None
    assert read_pledge(["I'll give $1", "I won't donate, sorry"]) == 0.0


def test_a_refusal_of_more_leaves_what_was_offered_and_of_as_much_takes_it_back() -> None:
    assert read_pledge(["I'll give $1", "No, I can't give $2"]) == 1.0
    assert read_donation("I'd do 50 cents but I won't give a dollar") == 0.5
    assert read_pledge(["I'll give $1", "I won't donate $1"]) == 0.0
    assert read_pledge(["I'll give $1", "Not a penny!"]) == 0.0


def test_what_was_donated_is_the_answer_to_the_closing_question_and_else_a_gift_of_another_day() -> None:
    for text, dollars in [("I donated 2 dollars", 2.0), ("I've given half", 1.0), ("I just gave 50 cents", 0.5)]:
        assert read_donation(text) is None and read_donation(text, asked=True) == dollars
    for text in ("I donated $20 last year", "I already gave to my church"):
        assert read_donation(text, asked=True) is None
    assert read_pledge(["I donated 2 dollars", "I donated $1"], asked=True) == 1.0
    assert read_pledge(["I donated 2 dollars", "ok"], asked=True) is None


MONEY = st.sampled_from(
    "i'll donate give keep half all $ . , 5 0 % cents dollars not no n't a quarter or if ? ½ ٣ ² and it 1/0 of".split()
)


@given(st.one_of(st.text(), st.lists(MONEY).map(" ".join), st.lists(MONEY).map("".join)))
def test_any_text_reads_as_nothing_or_as_an_amount_that_can_be_paid(text: str) -> None:
    dollars = read_donation(text)
    assert dollars is None or 0 <= dollars <= 2


def test_a_number_of_any_length_is_the_payment() -> None:
    assert read_donation("I'll give " + "9" * 5000 + " dollars") == 2.0 and read_donation("$" + "9" * 400) == 2.0


def test_the_table_of_peoples_words_is_what_it_says() -> None:
    table = read_table()
    assert set(table["split"]) == {"dev", "test"} and len(table) >= 60
    assert table["label"].dropna().between(0, 2).all() and 0.2 < table["label"].isna().mean() < 0.5
    assert not table["utterance"].duplicated().any() and (table["why_hard"].str.len() > 3).all()
    halves = table.groupby("split")["dialogue"].agg(set)
    assert not halves["dev"] & halves["test"], "no dialogue on both sides"


def test_the_table_of_our_sentences_is_what_it_says() -> None:
    table = read_table(SENTENCES)
    assert len(table) == 300 and table["label"].dropna().between(0, 2).all()
    assert not table["utterance"].duplicated().any()
    assert ((table["split"] == "held_out") == (table["id"] % 3 == 0)).all(), "kept apart by number, whatever is read"


def test_readings_are_as_right_as_was_measured() -> None:
    """Dev was written on, so 62 of 65 and 198 of 200 say little; the others were measured before anything was known."""
    people, ours = measured(read_table()), measured(read_table(SENTENCES))
    assert people.loc["dev", "accuracy"] >= 62 / 65 - 1e-9 and people.loc["test", "accuracy"] >= 50 / 59 - 1e-9
    assert ours.loc["dev", "hits"] >= 140 and ours.loc["held_out", "hits"] >= 64
    assert ours.loc["held_out", "precision"] >= 64 / 71 - 1e-9 and ours.loc["held_out", "recall"] >= 64 / 73 - 1e-9


def test_precision_and_recall_by_hand(tmp_path: Path) -> None:
    rows = ["I'll give $1,1,a", "I'll give $2,0.5,a", "hello,,a", "hello,0,b"]
    (tmp_path / "table.csv").write_text("\n".join(["utterance,label,kind", *rows]) + "\n", encoding="utf-8")
    table = read_table(tmp_path / "table.csv")
    assert table["right"].tolist() == [True, False, True, False]
    told = measured(table, ["kind"])
    assert told.loc["a", ["utterances", "stated", "read", "hits"]].tolist() == [3, 2, 2, 1]
    assert told.loc["a", ["precision", "recall"]].tolist() == [0.5, 0.5] and told.loc["b", "recall"] == 0
    assert told.loc["a", "accuracy"] == pytest.approx(2 / 3) and pd.isna(told.loc["b", "precision"])


def test_a_missing_table_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScopeError, match="labelled utterances"):
        read_table(tmp_path / "gone.csv")
