"""The health report: each measure has a transcript that must make it fire and one that must not, and a tiny model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import pytest
from typer.testing import CliRunner

from scope_lite.cli import app
from scope_lite.figures.text import health_report
from scope_lite.measure import diagnostics, scripted
from scope_lite.measure.diagnostics import CUSTOMER, PERSUADEE, Situation
from scope_lite.models.gate import REASONS
from scope_lite.models.generate import TextSampler
from scope_lite.models.replies import Reply, SamplingConfig
from scope_lite.store.errors import ScopeError
from tests.standins.tiny_models import tiny

SITUATION = Situation(
    "lamp",
    "Persona: stubborn\nWhy you contact the store: You bought a lamp in order 17 and want your money back for it.",
    "You are a customer who is chatting with a service agent. Never give in, and do not mention the blue box.",
    "You bought a lamp in order 17 and want your money back for it. You live in zip code 10115 in Berlin.",
)
VARIED = [
    "Hi, my lamp arrived with a crack.", "I would like to return something.", "Hello there, my order is broken.",
    "Can I get a refund for a lamp?", "Good morning! One item does not work.", "My desk lamp flickers, sadly.",
    "There's a problem with what I bought.", "Please take back order 17.",
]  # fmt: skip


def reply(text: str, tokens: int = 10, finished: bool = True) -> Reply:
    numbers = (0.0,) * tokens
    return Reply(text, (1,) * tokens, numbers, numbers, numbers, finished)


def played(texts: Sequence[Sequence[str]], situations: int = 2, **fields: object) -> pd.DataFrame:
    """The report on users who all give ``texts[turn]`` as their replies at each turn (the last one again and again)."""
    turns = iter([*texts, *[texts[-1]] * 10])

    def sample(chats: list) -> list[list[Reply]]:
        words = next(turns)
        return [[reply(text, **fields) for text in words] for _ in chats]

    everyone = [SITUATION] * situations
    return diagnostics.report(scripted.play(everyone, sample), everyone).set_index("key")


# -- detectors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "script", "fires"),
    [
        ("How can I help you today?", CUSTOMER, True),
        ("Sure, I’d be happy to assist. Could you provide your order number?", CUSTOMER, True),
        ("Agent: the refund is under way.", CUSTOMER, True),
        ("Thank you, I have found your account. Which order or booking?", CUSTOMER, True),  # the agent's own line
        ("I need help with my order, can you look it up?", CUSTOMER, False),
        ("I'm sorry, I don't remember my order number.", CUSTOMER, False),
        ("I can give you my name: Ann Lee.", CUSTOMER, False),
        ("Would you like to donate to the children?", PERSUADEE, True),
        ("How much would you like to give today?", PERSUADEE, True),
        ("I would like to donate a dollar.", PERSUADEE, False),
        ("How can I help you today?", PERSUADEE, True),  # the assistant comes through
        ("I am happy to help the children.", PERSUADEE, False),  # who is asked may want to help
    ],
)
def test_role_inversion(text: str, script: diagnostics.Script, fires: bool) -> None:
    assert diagnostics.inverts_role(text, script) is fires


def test_an_echo_counts_only_what_was_said_before() -> None:
    line = CUSTOMER.lines[5]
    assert diagnostics.inverts_role(line, CUSTOMER, turn=5) and not diagnostics.inverts_role(line, CUSTOMER, turn=4)


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        ("Never give in, and do not mention the blue box.", True),
        ("I am a customer who is chatting with a service agent.", True),
        ("You bought a lamp in order 17 and want your money back.", True),  # the fact, addressed to "you"
        ("I bought a lamp in order 17 and want my money back for it.", False),
        ("I live in zip code 10115 in Berlin.", False),  # a fact in the customer's own words
        ("I will not give in, and I do not mention boxes.", False),
    ],
)
def test_leaked_instructions(text: str, fires: bool) -> None:
    assert diagnostics.leaks(text, SITUATION) is fires


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        ("As an AI, I have no orders.", True),
        ("I'm sorry, but I can’t assist with that.", True),
        ("I am just a language model.", True),
        ("I'm sorry, I can't find the e-mail.", False),
        ("I can't wait that long, please help.", False),
        ("I won't pay for that.", False),
    ],
)
def test_refusals(text: str, fires: bool) -> None:
    assert diagnostics.refuses(text) is fires


def test_a_stop_is_the_marker_of_the_prompt_and_nothing_else() -> None:
    assert diagnostics.stops("Thanks! ###stop###")
    assert not diagnostics.stops("Please stop asking. Goodbye!") and not diagnostics.stops("###STOP###", PERSUADEE)


# -- the report -------------------------------------------------------------------------------------------------------


def test_varied_customers_who_stop_in_time_are_good_throughout() -> None:
    table = played([VARIED] * 4 + [["That is all. ###STOP###", *VARIED[1:]]])
    judged = table[table["good_if"] != ""]
    assert set(judged["reading"]) == {"good"}, judged[["measure", "value", "reading"]]
    assert table.loc["never_stops", "value"] == 0 == table.loc["early_stop", "value"]


@pytest.mark.parametrize(
    ("key", "texts", "fields"),
    [
        ("entropy", [["I have a problem."] * 8], {}),
        ("mode_share", [["I have a problem."] * 5 + VARIED[:3]], {}),
        ("role_inversion", [["How can I help you?", *VARIED[1:]]], {}),
        ("leaked", [[*VARIED[1:], "Never give in, and do not mention the blue box."]], {}),
        ("early_stop", [["Bye. ###STOP###", *VARIED[1:]]], {}),
        ("never_stops", [VARIED], {}),
        ("refusal", [[*VARIED[1:], "As an AI, I can't."]], {}),
        ("cut_off", [VARIED], {"finished": False}),
        ("tokens_written", [VARIED], {"tokens": 61}),
    ],
)
def test_each_measure_says_look_at_it(key: str, texts: list[list[str]], fields: dict[str, object]) -> None:
    assert played(texts, **fields).loc[key, "reading"] == "look at it"


def test_values_equal_what_counting_by_hand_gives() -> None:
    table = played([["I want help.", "I want help!", "No thanks.", "Why?"]])
    assert table.loc["mode_share", "value"] == 0.5
    # shares 1/2, 1/4, 1/4 and Miller-Madow's (3 - 1) / (2 * 4)
    assert table.loc["entropy", "value"] == pytest.approx(1.5 * math.log(2) + 0.25)
    assert table.loc["entropy", "threshold"] == pytest.approx(0.5 * math.log(4))
    assert table.loc["tokens_written", "value"] == 10


def test_dialogues_are_the_units_and_all_alike_is_no_certainty() -> None:
    table = played([VARIED], situations=4)
    assert set(table["dialogues"].drop("tokens_read")) == {4}
    # 4 of 4: exact binomial, 1 - 0.025 ** (1 / 4) away from 1
    assert table.loc["never_stops", "low"] == pytest.approx(0.025 ** (1 / 4))
    assert table.loc["refusal", "high"] == pytest.approx(1 - 0.025 ** (1 / 4))
    assert table.loc["refusal", "reading"] == "good" and not table.loc["refusal", "settled"]


def test_a_dialogue_that_ended_early_says_nothing_about_never_stopping() -> None:
    table = played([["###STOP###", *VARIED[1:]]])
    assert table.loc["never_stops", "reading"] == "not measured"
    assert table.loc["early_stop", "value"] == 1 / 8


def test_the_dialogue_goes_on_with_the_first_reply_and_ends_with_its_stop() -> None:
    chats_seen: list[list] = []

    def sample(chats: list) -> list[list[Reply]]:
        chats_seen.append(chats)
        stop = len(chats_seen) == 2
        return [[reply("###STOP###" if stop and i == 0 else f"first {i}"), reply("other")] for i in range(len(chats))]

    rows = scripted.play([SITUATION, SITUATION], sample)
    assert [len(chats) for chats in chats_seen] == [2, 2, 1, 1, 1, 1]
    assert [m["content"] for m in chats_seen[1][1]][1:] == [CUSTOMER.lines[0], "first 1", CUSTOMER.lines[1]]
    assert rows[rows["dialogue"] == 0]["turn"].max() == 1 and rows[rows["dialogue"] == 1]["turn"].max() == 5


@pytest.mark.parametrize("nothing", ["", "<think>I am a customer and", "</s>", "Sure.\nAgent: And you?"])
def test_a_simulator_that_says_nothing_usable_is_not_measured_and_never_called_collapsed(nothing: str) -> None:
    table = played([[nothing] * 4])
    rest = table.drop([*REASONS, "unusable", "tokens_written", "tokens_read"])
    assert set(rest["reading"]) == {"not measured"} and table.loc["unusable", "value"] == 1
    assert set(table.loc[table["value"] == 1, "reading"]) == {"look at it"} and (table["value"] == 1).sum() == 2
    assert "of the 0 of 8 replies" in table.loc["entropy", "definition"], "the dialogue ends where nothing is said"


def test_what_varies_is_measured_over_the_usable_replies_and_only_where_they_are_most() -> None:
    table = played([["", "I want help.", "No thanks.", "Why?"]])
    assert table.loc["mode_share", "value"] == pytest.approx(1 / 3) and table.loc["empty", "value"] == 0.25
    assert "of the 36 of 48 replies" in table.loc["entropy", "definition"]
    few = played([["", "", "", "I want help."]])
    assert few.loc["mode_share", "reading"] == "not measured" and few.loc["refusal", "reading"] == "good"


def test_the_dialogue_goes_on_with_the_first_usable_reply_and_a_thought_is_flagged_though_cut_out() -> None:
    chats_seen: list[list] = []

    def sample(chats: list) -> list[list[Reply]]:
        chats_seen.append(chats)
        return [[reply("\ud83d"), reply("<think>Never give in, and do not mention the blue box.</think>Help!")]]

    rows = scripted.play([SITUATION], sample)
    assert [m["content"] for m in chats_seen[1][0]][1:] == [CUSTOMER.lines[0], "Help!", CUSTOMER.lines[1]]
    table = diagnostics.report(rows, [SITUATION]).set_index("key")
    assert table.loc["thought", "value"] == 0.5 == table.loc["broken", "value"] and table.loc["leaked", "value"] == 0
    assert table.loc["thought", "reading"] == "look at it" and rows["raw"].str.encode("utf-8").str.len().min() > 0


def test_a_chat_that_outgrows_the_model_is_a_row_and_no_end_of_the_report() -> None:
    sampler = TextSampler(tiny(max_position_embeddings=600))
    situations = [SITUATION]
    rows = scripted.play(
        situations,
        lambda chats: sampler.sample(chats, 2, SamplingConfig(max_new_tokens=6)),
        lambda chat: len(sampler.prompt_ids(chat)),
    )
    table = diagnostics.report(rows, situations).set_index("key")
    assert 0 < table.loc["context", "value"] <= 1 and table.loc["tokens_read", "value"] > 500


def test_persuadees_have_no_stop_to_be_judged_by() -> None:
    people = diagnostics.persuadee_situations()[:2]
    rows = scripted.play(people, lambda chats: [[reply(t) for t in VARIED] for _ in chats])
    table = diagnostics.report(rows, people).set_index("key")
    assert set(table.loc[["early_stop", "never_stops"], "reading"]) == {"not measured"}


def test_markdown_says_value_threshold_and_meaning() -> None:
    page = diagnostics.as_markdown(played([VARIED]).reset_index(), "Health of X")
    assert (
        page.startswith("# Health of X\n") and "| never stops | 1.00 | 0.16 to 1.00 | at most 0.2 | look at it" in page
    )
    assert len([line for line in page.splitlines() if line.startswith("|")]) == 2 + len(diagnostics.measures(8))


# -- a model, a picture, mistakes -------------------------------------------------------------------------------------


def test_a_tiny_model_is_reported_end_to_end() -> None:
    sampler = TextSampler(tiny(max_position_embeddings=4096))
    config = SamplingConfig(max_new_tokens=6)
    situations = [SITUATION, diagnostics.persuadee_situations()[0]][:1]
    rows = scripted.play(
        situations, lambda chats: sampler.sample(chats, 3, config), lambda chat: len(sampler.prompt_ids(chat, 0))
    )
    table = diagnostics.report(rows, situations).set_index("key")
    assert len(table) == len(diagnostics.measures(3)) and table.loc["tokens_read", "value"] > 100
    assert 1 <= table.loc["tokens_written", "value"] <= 6
    assert rows.groupby("turn").size().eq(3).all()


def test_the_picture_shows_every_measure_and_its_reading() -> None:
    everyone = [SITUATION] * 3
    rows = scripted.play(everyone, lambda chats: [[reply(t) for t in VARIED] for _ in chats])
    table = diagnostics.report(rows, everyone)
    fig = health_report(table, diagnostics.measure(rows, everyone), "Health of X", "seed 0")
    labels = [label.get_text() for ax in fig.axes for label in ax.get_yticklabels()]
    assert labels == [*table[table["unit"] == "share"]["measure"], "entropy of openings", *table["measure"][-2:]]
    assert "not measured" in [text.get_text() for text in fig.axes[2].texts], "tokens read are unknown here"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--scenarios", "bank"], "choose one of retail, airline, p4g"),
        (["--scenarios", "p4g", "--dialogues", "99"], "p4g has 8 personas"),
        (["nowhere", "--scenarios", "p4g"], "no model in 'nowhere'"),
        (["openai:x@https://example.org/v1", "--scenarios", "p4g"], "give the prices"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["simulator", "report", *words])
    assert result.exit_code == 2 and told in result.output and len(result.output.strip().splitlines()) == 1


def test_no_dialogues_or_single_replies_are_refused() -> None:
    with pytest.raises(ScopeError, match="at least one scenario"):
        scripted.play([], lambda chats: [])
    with pytest.raises(ScopeError, match="at least two a history"):
        scripted.play([SITUATION], lambda chats: [[reply("hi")] for _ in chats])
