"""The Verbalized Sampling parser: hand-written cases, and ten thousand fuzzed outputs that must not surprise it."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scope_lite.models.verbalized import REASONS, VerbalizedParseError, grammar, parse, read_outputs


def listing(*pairs: tuple[object, object]) -> str:
    return json.dumps([{"text": text, "probability": probability} for text, probability in pairs])


FIVE = listing(("a", 0.4), ("b", 0.3), ("c", 0.1), ("d", 0.1), ("e", 0.1))
TWO = '{"text": "a", "probability": 0.5}, {"text": "b", "probability": 0.5}'


def test_an_output_exactly_as_asked_is_read_without_repairs() -> None:
    read = parse(FIVE, 5)
    assert read.texts == ("a", "b", "c", "d", "e")
    assert read.probabilities == pytest.approx((0.4, 0.3, 0.1, 0.1, 0.1))
    assert read.repairs == () and read.duplicates == 0


@pytest.mark.parametrize(
    ("output", "probabilities", "repairs"),
    [
        (f"Sure! Here they are:\n```json\n[{TWO}]\n```", (0.5, 0.5), ("surroundings",)),
        (f'{{"responses": [{TWO}]}}', (0.5, 0.5), ("wrapped",)),
        ('[{"response": "a", "prob": 0.5}, {"reply": "b", "p": 0.5}]', (0.5, 0.5), ("keys",)),
        ('[{"text": "a", "probability": "30%"}, {"text": "b", "probability": "0.7"}]', (0.3, 0.7),
         ("percent", "quoted number")),
        (f'see [1] and [2]: [{TWO}]', (0.5, 0.5), ("surroundings",)),
        ('[{"text": "a", "probability": 0.5, "note": 1}, {"text": "b", "probability": 0.5}]', (0.5, 0.5), ("keys",)),
    ],
)  # fmt: skip
def test_a_forgivable_output_is_read_with_its_repair_named(
    output: str, probabilities: tuple[float, ...], repairs: tuple[str, ...]
) -> None:
    read = parse(output, 2)
    assert read.texts == ("a", "b")
    assert read.probabilities == pytest.approx(probabilities)
    assert read.repairs == repairs


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "no_list"),
        ("I'm sorry, I can't do that.", "no_list"),
        ("null", "no_list"),
        ('{"a": [], "b": []}', "no_list"),
        (f"[{TWO}"[:-3], "bad_json"),  # cut by the token limit
        ('[{"text": "a", "probability": 0.5}, {"text": "b", ...}]', "bad_json"),
        ('[{"text": "a", "probability": 0.1, "probability": 0.9}, {"text": "b", "probability": 0.1}]', "bad_json"),
        ("[" * 100_000, "no_list"),
        ("[{" * 50_000, "bad_json"),
        ("[]", "wrong_count"),
        (listing(("a", 1.0)), "wrong_count"),  # never one candidate with probability 1
        ("[1, 2]", "bad_item"),
        ('[{"text": "a"}, {"text": "b"}]', "bad_item"),
        ('[{"text": "a", "reply": "b", "p": 1}, {"text": "b", "p": 0}]', "bad_item"),
        (listing(("", 0.5), ("b", 0.5)), "bad_text"),
        (listing((" \n", 0.5), ("b", 0.5)), "bad_text"),
        (listing((7, 0.5), ("b", 0.5)), "bad_text"),
        (r'[{"text": "\ud83d", "probability": 1}, {"text": "b", "probability": 0}]', "bad_text"),
        (listing(("a", -0.1), ("b", 1.0)), "bad_probability"),
        (listing(("a", math.nan), ("b", 1.0)), "bad_probability"),
        (listing(("a", math.inf), ("b", 1.0)), "bad_probability"),
        (listing(("a", 1.0000001), ("b", 0.1)), "bad_probability"),
        (listing(("a", 10**400), ("b", 0.1)), "bad_probability"),
        (listing(("a", True), ("b", 0.0)), "bad_probability"),
        (listing(("a", None), ("b", 1.0)), "bad_probability"),
        (listing(("a", "likely"), ("b", 1.0)), "bad_probability"),
        (listing(("a", "130%"), ("b", 1.0)), "bad_probability"),
        ('[{"text": "a", "probability": 1e999}, {"text": "b", "probability": 0.1}]', "bad_probability"),
        (f'[{{"text": "a", "probability": {"9" * 5000}}}, {{"text": "b", "probability": 0.1}}]', "bad_json"),
        (listing(("a", 0), ("b", 0.0)), "zero_mass"),
    ],
)
def test_an_unreadable_output_raises_with_its_reason(output: str, reason: str) -> None:
    with pytest.raises(VerbalizedParseError) as caught:
        parse(output, 2)
    assert caught.value.reason == reason


DRAFT = listing(("first idea", 0.9), ("second idea", 0.1))


@pytest.mark.parametrize(
    "output",
    [
        f"<think>Maybe {DRAFT}? No, five.</think>\n{FIVE}",
        f"Maybe {DRAFT}?</think>{FIVE}",
        f"<think>x</think>\n```\n{FIVE}\n```",
    ],
)
def test_the_list_is_taken_from_after_the_thought(output: str) -> None:
    read = parse(output, 5)
    assert read.texts == ("a", "b", "c", "d", "e") and "thought" in read.repairs and "count" not in read.repairs


@pytest.mark.parametrize(
    ("output", "finished", "reason"),
    [
        (f"<think>Maybe {DRAFT}", True, "thought"),
        (f"<think>Maybe {DRAFT}? No", False, "thought"),
        (f"Maybe {DRAFT}. Better:\n```json\n{FIVE}\n```", True, "many_lists"),
        (f"{FIVE}\nI did not say {DRAFT}.", True, "many_lists"),
        (f'Here: {{"draft": {DRAFT}, "final": {FIVE}}}', True, "many_lists"),
        (f"Maybe {DRAFT}. Better: {FIVE[:40]}", True, "bad_json"),
        (f"Maybe {DRAFT}. Bet", False, "bad_json"),
        (f"Maybe {DRAFT}", False, "bad_json"),
        (listing(("a", 0.5), ("Yes.\nAgent: Hi", 0.5)), True, "role"),
        (listing(("a", 0.5), ("<|im_start|>b", 0.5)), True, "markup"),
        (listing(("a", 0.5), ("<think>hm</think>b", 0.5)), True, "thought"),
        (listing(("a", 0.5), ("<think>hm</think>b", 0.5)).replace("<", "\\u003c"), True, "thought"),
        (listing(("a", 0.5), ("b " * 999, 0.5)), True, "too_long"),
    ],
)
def test_a_draft_or_a_text_that_does_not_pass_the_gate_is_never_answered_with(
    output: str, finished: bool, reason: str
) -> None:
    with pytest.raises(VerbalizedParseError) as caught:
        parse(output, 5 if reason not in ("role", "markup", "too_long") else 2, tokens=40, finished=finished)
    assert caught.value.reason == reason


def test_a_list_that_stands_there_twice_or_was_cut_after_its_end_is_itself() -> None:
    assert parse(f"{FIVE}\nAgain: {FIVE}", 5).texts == parse(FIVE, 5, finished=False).texts == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize("count", [4, 6])
def test_another_number_of_candidates_is_named(count: int) -> None:
    assert parse(FIVE, count).repairs == ("count",)


def test_probabilities_that_do_not_sum_to_one_are_renormalised_and_remembered() -> None:
    read = parse(listing(("a", 0.9), ("b", 0.3)), 2)
    assert read.probabilities == pytest.approx((0.75, 0.25))
    assert read.stated_sum == pytest.approx(1.2)


def test_repeated_candidates_are_merged_and_counted() -> None:
    read = parse(listing(("a", 0.2), ("b", 0.5), (" a ", 0.3)), 3)
    assert read.texts == ("a", "b")
    assert read.probabilities == pytest.approx((0.5, 0.5))
    assert read.duplicates == 1


def test_draws_follow_the_probabilities() -> None:
    read = parse(listing(("a", 0.25), ("b", 0.75)), 2)
    assert [read.draw(u) for u in (0.0, 0.2499, 0.25, 0.99, 1.0)] == ["a", "a", "b", "b", "b"]


def test_the_account_counts_every_output_once_and_replaces_none() -> None:
    outputs = [FIVE, "no", f"here: {FIVE}", listing(*[("a", 0.2)] * 5), listing(*[("a", 0.0)] * 5)]
    outcomes, account = read_outputs(outputs, 5)
    assert len(outcomes) == account.calls == 5
    assert account.repaired == 1
    assert account.failures == Counter(no_list=1, zero_mass=1)
    assert account.failure_rate == pytest.approx(0.4)
    assert account.single == account.with_duplicates == account.certain == 1
    assert [isinstance(outcome, VerbalizedParseError) for outcome in outcomes] == [False, True, False, False, True]


def test_every_reason_has_words() -> None:
    assert all(str(VerbalizedParseError(reason)) == words for reason, words in REASONS.items())


def test_the_grammar_bounds_every_repetition() -> None:
    text = grammar(5, 70)
    assert "{4}" in text and "{1,70}" in text and "$more" not in text and "$characters" not in text
    assert "*" not in text and "+" not in text, "an unbounded repetition can run on for ever"


# -- fuzzing: 200 examples x 50 outputs -----------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.sampled_from(["30%", "0.5", "1e400"])
)
candidate = st.fixed_dictionaries(
    {"text": st.one_of(st.text(max_size=8), scalars), "probability": st.one_of(st.floats(0, 1), scalars)},
    optional={"note": scalars, "p": scalars},
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
BITS = '[ ] { } "text" "probability" : , 0.5 -1 NaN 1e999 " \\ \\ud800 ```json a [{ }] \x00 …'.split()
fragments = st.lists(st.sampled_from(BITS), max_size=16).map("".join)
good = st.lists(
    st.fixed_dictionaries({"text": st.sampled_from("abc"), "probability": st.floats(0, 1) | st.just(5e-324)}),
    min_size=1,
    max_size=6,
)


@st.composite
def output(draw: st.DrawFn) -> str:
    """Valid lists, near misses and debris, whole or cut, bare or in running text."""
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return draw(st.text(max_size=40))
    if kind == 1:
        return draw(fragments)
    made = json.dumps(draw(good if kind == 2 else st.lists(candidate, max_size=6) if kind == 3 else anything))
    shape = draw(st.integers(0, 3))
    if shape == 1:
        return made[: draw(st.integers(0, len(made)))]
    return f"Here: {made} Bye." if shape == 2 else f'{{"replies": {made}}}' if shape == 3 else made


FUZZED: Counter[str] = Counter()


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.lists(output(), min_size=50, max_size=50), st.booleans(), st.integers(2, 6))
def test_fuzzed_outputs_give_a_distribution_or_the_documented_error(
    outputs: list[str], finished: bool, candidates: int
) -> None:
    for text in outputs:
        FUZZED["all"] += 1
        try:
            read = parse(text, candidates, finished=finished)
        except VerbalizedParseError as error:
            FUZZED[error.reason] += 1
            continue
        FUZZED["read"] += 1
        assert abs(math.fsum(read.probabilities) - 1) < 1e-9
        assert all(0 <= p <= 1 for p in read.probabilities)
        assert len(read.texts) == len(read.probabilities) == len(set(read.texts)) >= 1
        assert read.draw(0.5) in read.texts
        assert len(read.texts) + read.duplicates >= 2, "a single candidate is a failure, not a distribution"


def test_the_fuzzing_reached_both_outcomes_often_enough_to_mean_something() -> None:
    if not FUZZED:
        test_fuzzed_outputs_give_a_distribution_or_the_documented_error()
    assert FUZZED["all"] >= 10_000
    assert FUZZED["read"] >= 200
    assert {"no_list", "bad_json", "wrong_count", "bad_probability", "bad_text"} <= set(FUZZED)
