"""The production of reply tables: which histories, which requests, and that a killed run goes on where it stopped."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from scope_lite.cli.simulators import table_name
from scope_lite.envs import p4g, p4g_acts
from scope_lite.envs.prompts import persuadee, persuader, persuader_chat
from scope_lite.measure import production
from scope_lite.measure.production import CONDITIONS, History, Setting
from scope_lite.measure.replies import read_replies, write_replies
from scope_lite.models.generate import TextSampler
from scope_lite.models.replies import Reply, ReplyCache, SamplingConfig
from scope_lite.store.errors import ScopeError

WORDS = ("I would like to donate.", "How much reaches the children?", "No.", "")
LIST = '[{"text": "Yes.", "probability": 0.9}, {"text": "No.", "probability": 0.1}]'


class Canned(TextSampler):
    """Says one of a few sentences, or a verbalized list now and then; may be killed after some batches."""

    def __init__(self, cache: ReplyCache | None = None, lives: int = 10**6) -> None:
        self.loaded = SimpleNamespace(fingerprint="canned")
        self.cache, self.rows, self.name, self.stop_ids, self.lives = cache, 16, "canned", frozenset({0}), lives
        self.decoded, self.context, self.opened = 0, None, ""

    def prompt_ids(self, history):  # type: ignore[no-untyped-def]
        return list(" ".join(message["content"] for message in history).encode())

    def _rows(self, config):  # type: ignore[no-untyped-def]
        return self.rows  # there is no model whose keys and values would need room

    def _decode(self, prompts, start, stop, config):  # type: ignore[no-untyped-def]
        if not self.lives:
            raise KeyboardInterrupt
        self.lives -= 1
        self.decoded += len(prompts) * (stop - start)
        return [[self._say(bytes(prompt).decode(), i, config) for i in range(start, stop)] for prompt in prompts]

    def _say(self, prompt: str, number: int, config: SamplingConfig) -> Reply:
        rng = random.Random(f"{prompt} {number} {config}")
        listing = "JSON" in prompt and (config.grammar or rng.random() < 0.3)
        text = LIST if listing else rng.choice(WORDS)
        return Reply(text, (1, 0), (-0.5, -0.1), (0.7, 0.2), (0.6, 0.9), True)


def dialogue(number: int, acts: list[str], answer: str = "other") -> p4g.Dialogue:
    turns = []
    for act in acts:
        turns.append(p4g.Turn("persuader", ("Well.", f"Act {act}, says {number}?"), ("other", act)))
        turns.append(p4g.Turn("persuadee", ("Hm.",), (answer,)))
    nobody = p4g.Person("", 0.0)
    return p4g.Dialogue(str(number), tuple(turns), nobody, nobody)


DIALOGUES = [dialogue(d, ["greeting", "other", "a", "b", "c", "d", "e"][: 3 + d % 5]) for d in range(40)]


@pytest.fixture
def histories() -> list[History]:
    shop = [History("retail", "task 7", ("Hi!",), scenario="You want $5 back.")]
    return production.p4g_histories(DIALOGUES, 6) + shop


def test_histories_end_with_the_common_acts_in_turn_and_use_a_dialogue_once() -> None:
    found = production.p4g_histories(DIALOGUES, 12)
    counts = pd.Series([history.after for history in found]).value_counts()
    assert set(counts.index) == {"greeting", "a", "b", "c", "d"} and set(counts) == {2, 3}
    assert len({history.name.split("/")[0] for history in found}) == 12
    for history in found:
        number, turn = map(int, history.name.split("/"))
        said = DIALOGUES[number].turns[: 2 * turn + 1]
        assert history.turns == tuple(t.text for t in said)
        assert said[-1].acts[-1] == history.after and history.heard == said[-1].sentences[-1]
        assert history.chat()[-1] == {"role": "user", "content": said[-1].text}


def test_a_persuader_is_asked_after_the_other_has_spoken_and_has_no_personas() -> None:
    talks = [dialogue(d, ["greeting", *"ab"], "thank") for d in range(4)]
    found = production.p4g_histories(talks, 2, "persuader")
    for history in found:
        number, turn = map(int, history.name.split("/"))
        said = talks[number].turns[: 2 * turn + 2]
        assert history.turns == tuple(t.text for t in said) and said[-1].role == "persuadee"
        chat = history.chat()
        assert chat[0]["content"] == persuader.SYSTEM
        assert [m["role"] for m in chat[1:]] == ["assistant", "user"] * (turn + 1)
    made = production.produce(Canned(), found, Setting(replies=12, only=("direct", "personas")))
    assert set(made["condition"]) == {c.name for c in CONDITIONS if c.kind == "direct"}
    assert set(made.loc[made["failure"] == "", "act"]) <= set(p4g_acts.load_classifier("persuader").acts)
    with pytest.raises(ScopeError, match="even number"):
        persuader_chat(["Hello."])


def test_more_histories_than_dialogues_is_one_line() -> None:
    with pytest.raises(ScopeError, match="asked for 50") as caught:
        production.p4g_histories(DIALOGUES, 50)
    assert "\n" not in str(caught.value)


def test_each_persona_answers_every_history_and_the_request_names_the_speaker(histories: list[History]) -> None:
    by_name = {condition.name: condition for condition in CONDITIONS}
    asked = production.piece([by_name["personas, T = 1"]], histories[:2], Setting(replies=12))
    assert len(asked.chats) == 2 * len(persuadee.PERSONAS) and asked.replies == 2
    assert all(p in c[0]["content"] for c, p in zip(asked.chats, persuadee.PERSONAS * 2, strict=True))
    lists = production.piece([by_name["VS, grammar"]], histories[-2:], Setting())
    assert lists.config.grammar
    assert "a real participant" in lists.chats[0][-1]["content"]
    assert "a real customer" in lists.chats[1][-1]["content"]


def test_the_table_has_every_reply_of_every_condition_and_no_persona_in_a_shop(histories: list[History]) -> None:
    made = production.produce(Canned(), histories, Setting(replies=12))
    sizes = made.groupby(["task", "condition", "history"]).size()
    assert set(sizes) == {12}
    assert sizes["p4g"].index.get_level_values("condition").nunique() == len(CONDITIONS)
    assert ("retail", "personas, T = 1", "task 7") not in sizes.index
    read = made[(made["task"] == "p4g") & (made["failure"] == "")]
    assert (read["act"] != "").all() and (read["text"] != "").all()
    assert (made.loc[made["failure"] != "", "act"] == "").all(), "the classifier reads nothing that nobody said"
    assert 0.1 < (made.loc[made["condition"].str.startswith("direct"), "failure"] == "empty").mean() < 0.4
    shop = made[made["task"] == "retail"]
    assert (shop["act"] == "").all() and (shop["after"] == "").all()
    assert made.loc[made["condition"] == "VS, free", "failure"].ne("").mean() == pytest.approx(0.7, abs=0.15)


def test_a_killed_run_goes_on_where_it_stopped_and_gives_the_same_table(
    histories: list[History], tmp_path: Path
) -> None:
    setting = Setting(replies=12)
    whole = Canned()
    expected = production.produce(whole, histories, setting)
    killed = Canned(ReplyCache(tmp_path), lives=9)
    work = production.pieces(killed, histories, setting)
    before = production.missing(killed, work)
    with pytest.raises(KeyboardInterrupt):
        production.produce(killed, histories, setting)
    after = production.missing(killed, work)
    assert 0 < after[0] < before[0] and 0 < after[1] < before[1]
    again = Canned(ReplyCache(tmp_path))
    finished = []
    table = production.produce(again, histories, setting, lambda name, done, of: finished.append((name, done == of)))
    pd.testing.assert_frame_equal(table, expected)
    assert killed.decoded > 0 and killed.decoded + again.decoded == whole.decoded
    assert len({name for name, done in finished if done}) == len(work)
    assert production.missing(again, work) == (0, 0)


def test_the_table_survives_its_file(histories: list[History], tmp_path: Path) -> None:
    made = production.produce(Canned(), histories, Setting(replies=4))
    write_replies(made, tmp_path / "t.csv")
    pd.testing.assert_frame_equal(read_replies(tmp_path / "t.csv"), made, check_dtype=False)


def test_nothing_to_do_takes_no_time_and_asks_no_model(histories: list[History], tmp_path: Path) -> None:
    sampler = Canned(ReplyCache(tmp_path))
    setting = Setting(replies=4)
    production.produce(sampler, histories, setting)
    assert production.expected_hours(sampler, production.pieces(sampler, histories, setting)) == 0.0


def test_both_draws_of_a_list_read_the_same_outputs_and_only_the_weights_differ(histories: list[History]) -> None:
    sampler, setting = Canned(), Setting(replies=400, only=("VS, free",))
    alone = production.produce(sampler, histories[:1], setting)
    asked = sampler.decoded
    both = production.produce(sampler, histories[:1], replace(setting, only=("VS, free", "VS, free, uniform")))
    assert sampler.decoded == 2 * asked, "one list serves both"
    stated, uniform = (part.reset_index(drop=True) for _, part in both.groupby("condition", sort=False))
    pd.testing.assert_frame_equal(stated, alone)
    same = ["history", "reply", "finished", "failure"]
    assert stated[same].equals(uniform[same])
    assert (uniform["raw"] == "").all() and (stated.loc[stated["failure"] == "", "raw"] == LIST).all()
    shares = [part.loc[part["failure"] == "", "text"].eq("Yes.").mean() for part in (stated, uniform)]
    assert shares == pytest.approx([0.9, 0.5], abs=0.15)


def test_a_list_with_room_gives_a_candidate_by_grammar_room_too(histories: list[History]) -> None:
    lists = [condition for condition in CONDITIONS if condition.with_grammar]
    settings = (Setting(), Setting(list_tokens=360))
    short, roomy = (production.piece(lists, histories, setting).config for setting in settings)
    assert (short.max_new_tokens, roomy.max_new_tokens) == (180, 360)
    assert "{1,60}" in str(short.grammar) and "{1,120}" in str(roomy.grammar)


def test_a_part_of_the_conditions_can_be_drawn_and_an_unknown_one_is_one_line(histories: list[History]) -> None:
    made = production.produce(Canned(), histories, Setting(replies=2, only=("VS", "direct, T = 1")))
    lists = {condition.name for condition in CONDITIONS if condition.kind == "VS"}
    assert set(made["condition"]) == lists | {"direct, T = 1"}, "a whole name means itself"
    with pytest.raises(ScopeError, match="no condition begins with 'vs'") as caught:
        production.produce(Canned(), histories, Setting(only=("vs",)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "02_replies"),
        ("data/models/small/persuadee", "02_replies_persuadee"),
        ("smollm2+persuadee", "02_replies_persuadee"),
        ("smollm2+/home/me/typicality/", "02_replies_typicality"),
        ("openai:gpt-x", "02_replies_gpt-x"),
        ("openai:org/Large 4B@http://localhost:8000/v1", "02_replies_Large-4B"),
    ],
)
def test_every_model_has_a_table_of_its_own(model: str, name: str) -> None:
    assert table_name(model, "persuadee") == name
    assert table_name(model, "persuader") == name.replace("02_replies", "02_replies_as_persuader")
