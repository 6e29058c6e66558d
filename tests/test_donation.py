"""The donation reader: single readings by kind of trouble, what it may never return, and its accuracy as measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_lite.errors import ScopeError
from scope_lite.tasks.donation import (
    accuracy,
    load_utterances,
    read_donation,
    read_pledge,
    read_table,
    wrong_readings,
)


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


MONEY = st.sampled_from(
    "i'll donate give keep half all $ . , 5 0 % cents dollars not no n't a quarter or if ? ½ ٣ ²".split()
)


@given(st.one_of(st.text(), st.lists(MONEY).map(" ".join), st.lists(MONEY).map("".join)))
def test_any_text_reads_as_nothing_or_as_an_amount_that_can_be_paid(text: str) -> None:
    dollars = read_donation(text)
    assert dollars is None or 0 <= dollars <= 2


def test_the_labelled_table_is_what_it_says() -> None:
    table = load_utterances()
    assert set(table["split"]) == {"dev", "test"} and len(table) >= 60
    assert table["label"].dropna().between(0, 2).all() and 0.2 < table["label"].isna().mean() < 0.5
    assert not table["utterance"].duplicated().any() and (table["why_hard"].str.len() > 3).all()
    halves = table.groupby("split")["dialogue"].agg(set)
    assert not halves["dev"] & halves["test"], "no dialogue on both sides"


def test_accuracy_is_what_was_measured() -> None:
    """Dev was written on, so 62 of 65 says little; test is the honest number: 47 of 59 hard utterances."""
    measured = accuracy(load_utterances())
    assert measured.loc["dev", "accuracy"] >= 62 / 65 - 1e-9
    assert measured.loc["test", "accuracy"] >= 47 / 59 - 1e-9


def test_wrong_readings_lists_those_and_only_those() -> None:
    table = pd.DataFrame(
        {
            "utterance": ["I'll give $1", "I'll give $1", "hello", "hello"],
            "label": [1.0, 0.5, float("nan"), 0.0],
            "split": "dev",
            "why_hard": "made up",
        }
    )
    assert read_table(table)["right"].tolist() == [True, False, True, False]
    assert wrong_readings(table)["label"].tolist() == [0.5, 0.0]


def test_a_missing_table_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScopeError, match="labelled utterances"):
        load_utterances(tmp_path / "gone.csv")
