"""The gate: what a simulator's reply says, whoever asks for it, and what becomes of one that says nothing usable."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import fuzz_replies
from scope_lite.cli.conversation import TRAINING
from scope_lite.measure import replies as collapse
from scope_lite.method.cotraining import open_partner
from scope_lite.method.dialogue import CONTEXT, Unsaid
from scope_lite.method.learner import Learner
from scope_lite.method.prompted import PromptedSeat, Voice
from scope_lite.method.seats import ModelSeat
from scope_lite.method.text import TextScene
from scope_lite.method.train import train
from scope_lite.models.gate import REASONS, Said, heard
from scope_lite.models.generate import TextSampler
from scope_lite.models.records import FAILED
from scope_lite.models.replies import OUTGROWN, Reply, ReplyCache, SamplingConfig
from scope_lite.store.errors import ScopeError
from tests.cli.test_chat import play as talk_with
from tests.cli.test_chat_text import ended, opened, said_by
from tests.method.test_text_cotraining import opened as played_with
from tests.method.test_text_cotraining import play
from tests.method.test_text_simulators import KEYS, speak
from tests.method.test_text_training import (  # noqa: F401  (fixtures)
    NO,
    YES,
    Scripted,
    config_of,
    listed,
    model,
    panel,
    rows_of,
    scripted,
)
from tests.models.test_text_generate import CHATS
from tests.standins.tiny_models import tiny

THOUGHT = "<think>I play a stingy barista, so I say maybe 50 cents.</think>\nMaybe another time."


@pytest.mark.parametrize(
    "text",
    [
        THOUGHT, "<thinking>Hm.</thinking>Maybe another time.", "[THINK]Hm.[/THINK] Maybe another time.",
        "◁think▷Hm.◁/think▷Maybe another time.", "The prompt opened it.</think>\n\nMaybe another time.",
        "<think>a <think>b</think> c</think>Maybe another time.", "<think>\n\n</think>\n\nMaybe another time.",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Maybe another time.",
        "analysisWe need a reply.assistantfinalMaybe another time.", "<reasoning>x</reasoning> Maybe another time.",
        "Here is my thought process: x\nHere is my response: Maybe another time.",
    ],
)  # fmt: skip
def test_a_closed_thought_is_cut_out_and_remembered(text: str) -> None:
    assert heard(text) == Said("Maybe another time.", "", True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"), (" \n", "empty"), ("\u200b", "empty"), ('""', "empty"), ("<think>Hm.</think>", "empty"),
        ("<think>I play a barista and say 50", "thought"), ("Yes <think>50 cents</think> no", "thought"),
        ("<think>a</think>b<think>c</think>d", "thought"), ("<think>a <think>b</think> c", "thought"),
        ("Thought: I would say 50 cents.", "thought"), ("＜think＞I say 50", "thought"), ("[thinking] 50?", "thought"),
        ("50 cents \ud83d", "broken"), ("\udc4d ok", "broken"),
        ("Yes.<|im_end|>", "markup"), ("<|assistant|>Yes", "markup"), ("[INST] Yes [/INST]", "markup"),
        ("<s>Yes", "markup"), ("<start_of_turn>model\nYes", "markup"), ("<｜User｜>Yes", "markup"),
        ("Yes.\nPersuader: And $2?", "role"), ("Agent: How can I help?", "role"), ("Yes.\nuser\nWhy?", "role"),
        ("assistant\nYes.", "role"), ("**System:** be kind", "role"), ("Yes. Persuader: And $2?", "role"),
        ("You: Hi!\nMe: Hello!", "role"), ("### Assistant\nYes", "role"), ('[{"role": "user"}]', "role"),
        ("yes " * 200, "too_long"),
    ],
)  # fmt: skip
def test_what_says_nothing_usable_has_a_reason(text: str, reason: str) -> None:
    assert heard(text, tokens=40) == Said("", reason, "think" in text.casefold() or reason == "thought")
    assert reason in REASONS


@pytest.mark.parametrize(
    "text",
    ["Maybe 50 ce", "I <3 that, 2 < 3", "I think so, and my reasoning: none.", "The agent: was he kind?", "Agent, hi",
     "Participant: I give $1.", "Name: Ann\nZip: 10115", "Why [exactly]? (a) no", "user fees are high", "👍🏽 ok…"],
)  # fmt: skip
def test_ordinary_words_pass_as_they_are_also_when_they_were_cut(text: str) -> None:
    assert heard(text, tokens=40) == heard(text, False, tokens=40) == Said(text)


@pytest.mark.parametrize(
    "text", ["Fine. <|im_e", "Fine. <thi", "Fine.\nPersu", "Fine.\nuse", "Ok \ufffd", "<", "Fine. [/IN"]
)
def test_what_a_cut_has_left_of_markup_a_label_or_a_character_is_not_said(text: str) -> None:
    assert heard(text, finished=False).failure in ("markup", "role", "broken")


def test_ten_thousands_of_broken_replies_say_only_what_was_meant() -> None:
    lists = Counter(fuzz_replies.check_verbalized(random.Random(f"test list {i}")) for i in range(2000))
    direct = Counter(fuzz_replies.check_direct(random.Random(f"test reply {i}")) for i in range(500))
    assert lists["said"] > 200 and {"thought", "many_lists", "bad_json", "markup", "role"} <= set(lists)
    assert direct["said"] > 50 and set(REASONS) - {"context"} <= set(direct)


# -- simulators that are asked ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", ["", "<think>I would say 50 cents", "Yes.\nuser\nWhy?", "$1 \ud83d", "</s>Yes", "a " * 999]
)
def test_a_direct_reply_that_does_not_pass_is_asked_for_again_and_then_ends_the_dialogue(bad: str) -> None:
    seat = PromptedSeat([Voice(half := Scripted(bad, "Maybe."), retries=9)] * 8, ["s"] * 8, KEYS)
    seat.hear(["Hello"] * 8)
    assert seat.speak(0, "") == ["Maybe."] * 8
    assert half.asked == 8 + seat.refused.total() > 8 and len(seat.direct) == 8
    told = seat.metrics()
    assert (
        told["simulator/refused"]
        == seat.refused.total() / half.asked
        == sum(share for name, share in told.items() if name.startswith("simulator/refused/") and share)
    )
    assert told["simulator/entropy"] == 0.5 and told["simulator/cut_off"] == 0
    assert json.dumps(seat.chats).count("Maybe.") == 8 and all(len(chat) == 3 for chat in seat.chats)
    hopeless = Scripted(bad)
    assert speak(Voice(hopeless, retries=2)) == [Unsaid(FAILED)] * 8 and hopeless.asked == 24


def test_a_thought_aloud_is_counted_and_not_spoken() -> None:
    seat = PromptedSeat([Voice(Scripted(THOUGHT))], ["s"], KEYS[np.array([0])])
    seat.hear(["Hello"])
    assert seat.speak(0, "") == ["Maybe another time."] and seat.metrics()["simulator/thought_aloud"] == 1
    assert seat.chats[0][-1]["content"] == "Maybe another time."


def test_lists_without_variety_and_the_reasons_of_the_others_are_counted() -> None:
    lines = (listed((YES, 0.5), (YES, 0.5)), listed((YES, 1.0), (NO, 0.0)), listed((YES, 0.5), (NO, 0.5)))
    seat = PromptedSeat([Voice(Scripted(*lines, listed((YES, 1), ("</s>", 0))), candidates=2)] * 8, ["s"] * 8, KEYS)
    for turn in range(9):
        seat.hear(["Hello"] * 8)
        seat.speak(turn, "")
    told, account = seat.metrics(), seat.account
    assert told["simulator/certain"] == account.certain / (account.calls - account.failed)
    assert 0.5 < told["simulator/certain"] < 0.8 and account.single < account.certain
    assert told["simulator/parse_failures/markup"] == told["simulator/parse_failures"] > 0


@pytest.mark.parametrize("candidates", [None, 2])
def test_a_chat_that_outgrew_the_model_ends_its_own_dialogue_and_is_not_asked_for_again(candidates: int | None) -> None:
    """With the request for a list it is longer."""
    sampler = TextSampler(tiny(max_position_embeddings=640))
    voice = Voice(sampler, reply_tokens=8, candidates=candidates, retries=2)
    seat = PromptedSeat([voice] * 2, ["s"] * 2, KEYS[np.array([0, 1])])
    seat.hear(["Hello", "x" * 620])
    said = seat.speak(0, "")
    assert said[1] == Unsaid(CONTEXT) and said[0] != Unsaid(CONTEXT)
    assert seat.account.calls <= 3 and len(seat.chats[1]) == 2


# -- samplers and tables ----------------------------------------------------------------------------------------------


def test_a_history_without_room_gets_a_failure_that_no_cache_keeps(tmp_path) -> None:  # type: ignore[no-untyped-def]
    sampler, config = TextSampler(tiny(), ReplyCache(tmp_path)), SamplingConfig(max_new_tokens=12)
    long = [{"role": "user", "content": "x" * 240}]
    drawn = sampler.sample([CHATS[0], long], 2, config)
    assert drawn[1] == [OUTGROWN] * 2 and drawn[0] == sampler.sample(CHATS[:1], 2, config)[0]
    assert sampler.recorded([CHATS[0], long], config) == [2, 0] and len(list(tmp_path.rglob("*.json"))) == 1
    good = drawn[0][0]
    sampler.cache.put("ab", [good, OUTGROWN, good])  # type: ignore[union-attr]
    sampler.cache.put("cd", [OUTGROWN])  # type: ignore[union-attr]
    assert sampler.cache.get("ab") == [good] and sampler.cache.get("cd") == []  # type: ignore[union-attr]


def test_a_prompt_that_opens_a_thought_makes_it_part_of_the_reply() -> None:
    loaded = tiny()
    loaded.tokenizer.chat_template = (
        loaded.tokenizer.chat_template.removesuffix("<s>assistant: ") + "<s>assistant: <think>"
    )
    replies = TextSampler(loaded).sample(CHATS[:1], 4, SamplingConfig(max_new_tokens=12))[0]
    assert all(heard(reply.text, reply.finished).failure == "thought" for reply in replies)
    loaded.tokenizer.chat_template += "\n</think>"
    assert TextSampler(loaded).opened == ""


def test_a_table_keeps_what_failed_and_measures_the_rest(tmp_path) -> None:  # type: ignore[no-untyped-def]
    said = [Reply(text, (1,), (-0.5,), (0.5,), (0.5,), True) for text in ("Yes", "", THOUGHT, "No \ud83d")]
    rows = collapse.direct_rows("direct, T = 1", [[*said, OUTGROWN]], tokens=40)
    assert [row["failure"] for row in rows] == ["", "empty", "", "broken", "context"]
    assert [row["text"] for row in rows] == ["Yes", None, "Maybe another time.", None, None]
    rows += collapse.verbalized_rows("VS, free", [[said[3], OUTGROWN]], 2, seed=0)
    table = pd.DataFrame(rows).assign(task="p4g", after="", act="", model="m")
    collapse.write_replies(table, tmp_path / "t.csv")
    read = collapse.read_replies(tmp_path / "t.csv")
    assert read["failure"].tolist() == table["failure"].tolist() and read["raw"][3] == "No \ufffd"
    tokens = collapse.token_level(read).set_index("tokens")
    assert tokens.loc[1, "mode_probability"] == 0.5


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "empty"),
        ("<think>I give 50", "thought"),
        ("No \ud83d", "broken"),
        (f"{YES}\nuser\n{NO}", "role"),
    ],
)
def test_a_run_whose_simulator_says_nothing_usable_stops_with_one_line(line, told, model, scripted, tmp_path):  # noqa: F811
    scripted(line)
    config = config_of(model, steps=1)
    with pytest.raises(ScopeError, match=r"the evaluation at step 0 counts: 4 times in a row") as caught:
        train(config, tmp_path)
    assert f"({told} 12)" in str(caught.value) and "\n" not in str(caught.value)
    scene = TextScene(config)
    learner = Learner(scene.policy_model(), config, seed=0)
    with pytest.raises(ScopeError, match=rf"step 1 counts: .* \({told} 32\)"):
        open_partner(scene, learner).play(learner.model, KEYS)


def test_a_thought_earns_nothing_and_failed_replies_are_in_no_record(model, scripted, tmp_path, float32):  # noqa: F811
    scripted("", "<think>I play a stingy barista: maybe I donate $2.</think>\nMaybe another time.", "Yes \ud83d", NO)
    folder = train(config_of(model, steps=1, text={"reply_tokens": 20, "retries": 1}), tmp_path)
    last = rows_of(folder)[-1]
    assert last["reward"] == 0 and last["outcome/given"] == 0 and 0 < last[f"outcome/{FAILED}"] < 1
    assert last["simulator/refused/empty"] > 0 < last["simulator/refused/broken"] and last["panel/refused"] > 0
    assert last["simulator/refused"] == pytest.approx(
        last["simulator/refused/empty"] + last["simulator/refused/broken"]
    )
    kept = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {reply for rollout in kept for reply in rollout["replies"]} == {"Maybe another time.", NO}


def test_a_simulator_with_a_short_context_ends_dialogues_and_not_the_run(model, scripted, tmp_path, monkeypatch):  # noqa: F811
    class Short(Scripted):
        limit = 0

        def sample(self, histories: Any, replies: int, config: Any = None, progress: Any = None) -> list[list[Reply]]:
            drawn = super().sample(histories, replies, config)
            return [[OUTGROWN] * replies if len(h) > self.limit else d for h, d in zip(histories, drawn, strict=True)]

    sampler = Short(YES, NO)
    monkeypatch.setattr(TextScene, "_sampler", lambda scene, model: sampler)
    with pytest.raises(ScopeError, match="no simulator can read its prompt"):
        train(config_of(model, steps=1), tmp_path / "none")
    sampler.limit = 2  # the first chat: a prompt and a message
    rows = rows_of(train(config_of(model, steps=1), tmp_path))
    assert rows[1]["outcome/context"] == 1 and rows[1]["panel/plain/reward"] == 0 == rows[1]["simulator/refused"]


# -- a simulator that learns ------------------------------------------------------------------------------------------


def test_a_learning_simulators_refused_message_counts_for_neither_seat(model, monkeypatch):  # noqa: F811
    scene, partner = played_with(model, kl_coef=0.1)
    speaks = ModelSeat.speak

    def spoil(seat: ModelSeat, turn: int, kind: str, rows: Any = None) -> list[str]:
        said = speaks(seat, turn, kind, rows)
        if seat.seat == "simulator" and turn == 1 and (rows is None or 0 in rows):
            ids = seat.transcripts[0].ids  # a control token that is no end of a turn
            ids[seat.transcripts[0].newest.start] = seat.model.tokenizer.bos_token_id
        return said

    monkeypatch.setattr(ModelSeat, "speak", spoil)
    rollouts = play(scene, partner)
    assert rollouts[0].outcome == FAILED and rollouts[0].replies == [] and partner.newest.failures["markup"] >= 1
    trained: list[Any] = []
    update = partner.learner.update
    monkeypatch.setattr(
        partner.learner,
        "update",
        lambda transcripts, *rest, **options: trained.append(transcripts) or update(transcripts, *rest, **options),
    )
    metrics = partner.learn(1, rollouts, KEYS)
    assert rollouts[0].simulator_transcript not in trained[0]
    assert len(trained[0]) == sum(r.counts for r in rollouts) < 8
    assert metrics["simulator/refused"] > 0 and all(np.isfinite(v) for v in metrics.values() if v is not None)
    assert all(torch.isfinite(t).all() for t in partner.learner.model.adapter_state().values())


def test_the_credit_of_a_group_is_centred_without_what_does_not_count(model):  # noqa: F811
    scene, partner = played_with(model, kl_coef=0.0, reward="curriculum_credit")
    rollouts = play(scene, partner)
    rollouts[0].outcome = FAILED
    rewards = torch.tensor([r.reward for r in rollouts[1:4]])
    paid = partner.learn(1, rollouts, KEYS)["simulator/reward"]
    others = torch.tensor([r.reward for r in rollouts[4:]])
    expected = torch.cat([(part - part.mean()) ** 2 for part in (rewards, others)]).mean().item()
    assert paid == pytest.approx(expected, abs=1e-6)


# -- talks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["", "<think>I would", "\ud83d", "Sure.\nuser\nWhy?"])
def test_a_simulator_that_says_nothing_usable_ends_the_talk_and_is_never_heard(bad, model, scripted):  # noqa: F811
    scripted(bad)
    played = talk_with(opened(model), "plain")
    assert ended(played) == (FAILED, 0) and "does not count" in played.transcript and said_by(played, "plain") == []
    scripted(bad, NO)
    assert set(said_by(talk_with(opened(model, text={"retries": 40}), "plain"), "plain")) == {NO}


def test_a_simulator_whose_model_cannot_read_more_ends_the_talk_in_a_sentence(model, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Scripted, "sample", lambda self, chats, n, config=None: [[OUTGROWN] * n for _ in chats])
    monkeypatch.setattr(TextScene, "_sampler", lambda scene, model: Scripted())
    played = talk_with(opened(model), "plain")
    assert ended(played)[0] == CONTEXT and "outgrew" in played.transcript


def test_a_learning_simulator_that_says_nothing_usable_ends_the_talk(model, monkeypatch):  # noqa: F811
    policy = opened(model, "cotraining")
    monkeypatch.setattr("scope_lite.method.seats.newest_said", lambda *_: Said("", "markup"))
    played = talk_with(policy, TRAINING)
    assert ended(played)[0] == FAILED and said_by(played, TRAINING) == []
