"""Who plays the partner in text: simulators that are asked, one message or one list at a time; P4G's dialogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from scope_lite.envs.p4g_episode import P4GEpisode, says_goodbye
from scope_lite.method.config import method_config
from scope_lite.method.dialogue import Unsaid, WrittenSeat, run_dialogues
from scope_lite.method.prompted import PromptedSeat, Voice
from scope_lite.method.text_tasks import open_task
from scope_lite.models.generate import TextSampler
from scope_lite.models.pretrained import load_model
from scope_lite.models.records import FAILED
from scope_lite.models.rng import RowKeys
from tests.method.test_text_training import Scripted, listed, model  # noqa: F401  (model is a fixture)

# -- a dialogue of Persuasion for Good --------------------------------------------------------------------------------


def p4g(acts: list[str], replies: list[str], turns: int = 3, question: str | None = None) -> Any:
    episode = P4GEpisode("p4g", {"policy": "", "simulator": ""}, turns, question)
    keys = RowKeys.grid(0, 1, 1, 1)
    return run_dialogues([episode], WrittenSeat([acts]), WrittenSeat([replies]), keys, ["sim-a"])[0]


@pytest.mark.parametrize(
    ("acts", "replies", "question", "reward", "outcome", "turns"),
    [
        (["Hi", "Please", "Well?"], ["Hello", "Maybe", "I'll give 50 cents."], None, 0.25, "given", 3),
        (["Hi", "Please", "Well?"], ["I'd give $2", "Hm", "No, I won't donate anything."], None, 0.0, "nothing", 3),
        (["Hi", "Please", "Well?"], ["Hello", "Tell me more", "I see"], None, 0.0, "unread", 3),
        (["Hi", "Please", "Well?"], ["Hello", "I will donate $40", "Bye"], None, 1.0, "given", 3),
        (["Hi", "Have a nice day!"], ["Hello", "OK, I will donate $1."], None, 0.5, "given", 2),
        (["Hi", "More?"], ["I will donate $1.", "Goodbye!"], None, 0.5, "given", 2),
        (["Bye"], ["Hm", "$0.50"], "How much?", 0.25, "given", 1),
        (["Bye"], ["Hm", "I donated 2 dollars"], "How much?", 1.0, "given", 1),
        (["Bye"], ["I donated 2 dollars to a school", "No."], "How much?", 0.0, "unread", 1),
        (["Have a great day! A question:", "Say bye to it", "So?"], ["Bye? Why?", "Hm", "$1"], None, 0.5, "given", 3),
        (["Hi", "Please", "Well?"], ["Yes", "I'll give $2", "Fine", "I donate $1."], "How much?", 0.5, "given", 3),
    ],
)
def test_a_scripted_persuadees_donation_is_the_reward(acts, replies, question, reward, outcome, turns):
    rollout = p4g(acts, replies, question=question)
    assert (rollout.reward, rollout.outcome, rollout.turns) == (pytest.approx(reward), outcome, turns)
    assert rollout.acts == acts and rollout.replies == replies


@pytest.mark.parametrize(
    "said",
    ["Thanks, have a great day!", "BYE!!! 👋", "Goodbye and take care.", '"Goodbye!"', "Farewell\n", "ｂｙｅ",
     "**Good-bye**, and thank you for it", "Ok bye-bye :)", "It was nice. I hope you have a great rest of your day!"],
)  # fmt: skip
def test_a_farewell_at_the_end_of_a_message_ends_the_talk(said):
    assert says_goodbye(said)


@pytest.mark.parametrize(
    "said",
    ["Your dollar can help a child say goodbye to hunger.", "I hope you have a great day so far. May I ask something?",
     "Did you have a good time on your holiday?", "Don't say goodbye yet", "Bye?", 'She said: "Goodbye."',
     'This is what he wrote. "Goodbye."', "Have a great day! But first, would you give $1?", "Say goodbye, hunger!",
     "Goodbye! Thanks for asking, will you give?", "Kids here have a good time", "", "!!!", "and"],
)  # fmt: skip
def test_a_farewell_inside_a_message_or_in_another_mouth_ends_nothing(said):
    assert not says_goodbye(said)


def test_an_episode_that_was_stopped_earns_nothing_and_nobody_speaks_after_the_end():
    episode = P4GEpisode("p4g", {}, turns=2)
    with pytest.raises(RuntimeError, match="not over"):
        _ = episode.reward
    for message in ("Hi", "I will donate $1."):
        episode.take(message)
    episode.stop(FAILED)
    assert episode.reward == 0
    with pytest.raises(RuntimeError, match="is over"):
        episode.take("more")


# -- simulators that are asked ----------------------------------------------------------------------------------------

KEYS = RowKeys.grid(3, 1, 2, 4)


def speak(voice: Voice, keys: RowKeys = KEYS, turn: int = 1) -> list[str | None]:
    seat = PromptedSeat([voice] * len(keys), ["You are asked."] * len(keys), keys)
    seat.hear(["Hello"] * len(keys))
    return seat.speak(turn, "")


def test_rows_with_one_history_get_different_replies_whatever_their_order():
    voice = Voice(Scripted(*(f"reply {i}" for i in range(200))))
    said = speak(voice)
    assert len(set(said)) > 5
    order = np.array([5, 0, 7, 2, 1, 6, 4, 3])
    assert speak(voice, KEYS[order]) == [said[i] for i in order]
    assert speak(voice) == said and speak(voice, turn=2) != said
    assert speak(voice, RowKeys.grid(3, 2, 2, 4)) != said and speak(voice, RowKeys.grid(4, 1, 2, 4)) != said


def test_a_seat_keeps_both_sides_in_swapped_roles_and_silent_rows_as_they_are():
    seat = PromptedSeat([Voice(Scripted("Hm"))] * 2, ["A", "B"], RowKeys.grid(0, 1, 1, 2))
    seat.hear(["Hello", None])
    assert seat.speak(0, "", np.array([0])) == ["Hm"]
    seat.hear(["More", "Hi"])
    assert [m["role"] for m in seat.chats[0]] == ["system", "user", "assistant", "user"]
    assert seat.chats[1] == [{"role": "system", "content": "B"}, {"role": "user", "content": "Hi"}]


def test_one_of_the_listed_replies_is_drawn_with_its_stated_probability():
    keys = RowKeys.grid(0, 1, 100, 8)
    said = speak(Voice(Scripted(listed(("yes", 0.6), ("no", 0.3), ("who?", 0.3))), candidates=3), keys)
    counts = [said.count(text) for text in ("yes", "no", "who?")]
    assert sum(counts) == 800 and chisquare(counts, [400, 200, 200]).pvalue > 1e-3


def test_a_list_that_cannot_be_read_is_asked_for_again_and_never_becomes_a_reply():
    half = Scripted(listed(("yes", 0.5), ("no", 0.5)), "I would say yes.")
    voice = Voice(half, candidates=2, retries=6)
    seat = PromptedSeat([voice] * 8, ["s"] * 8, KEYS)
    seat.hear(["Hello"] * 8)
    assert set(seat.speak(0, "")) == {"yes", "no"}
    assert seat.account.calls == half.asked and seat.account.calls == 8 + seat.account.failed
    assert seat.metrics()["simulator/parse_failures"] == seat.account.failed / half.asked > 0
    hopeless = Scripted("I would say yes.")
    assert speak(Voice(hopeless, candidates=2, retries=2)) == [Unsaid(FAILED)] * 8
    assert hopeless.asked == 3 * 8


def test_a_turn_reads_what_is_new_and_the_simulators_say_what_they_would_if_they_read_all(model):  # noqa: F811
    sampler, slow = (TextSampler(load_model(model, "cpu")) for _ in range(2))
    slow.readings.most = 0
    heard = ["Hello!", "Will you help the children?", "A dollar is enough."]
    texts, numbers, read = [], [], []
    for asked in (sampler, slow):
        counted: list[torch.Size] = []
        asked.loaded.model.get_decoder().register_forward_pre_hook(
            lambda _, ids, options, counted=counted: counted.append(options["input_ids"].shape), with_kwargs=True
        )
        # as good as greedy in the first four rows, and as it is in the others
        seat = PromptedSeat(
            [Voice(asked, t, reply_tokens=6) for t in (1e-2,) * 4 + (1.0,) * 4], ["You are asked."] * 8, KEYS
        )
        for turn, message in enumerate(heard):
            seat.hear([message] * 8)
            seat.speak(turn, "")
        texts.append(seat.chats)
        numbers.append([x for reply in seat.direct for x in (*reply.logprobs, *reply.entropies)])
        read.append(sum(rows * columns for rows, columns in counted if columns > 1))
    assert texts[0] == texts[1]
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-3)
    assert read[0] < read[1] / 2


def test_tau2s_tasks_open_as_episodes_of_the_same_loop():
    pytest.importorskip("tau2", reason="tau2-bench is not installed")
    task = open_task("tau2-retail", method_config("single", world="tau2-retail").text)
    assert task.count("train") > task.count("test") > 30  # without the quarantined ones
    episode = task.open(3, "test", "Character: in a hurry")
    assert episode.next_seat == "simulator" and episode.systems["simulator"].count("Character: in a hurry") == 1
    assert "get_order_details(" in episode.systems["policy"]
    episode.take("Never mind. ###STOP###")
    assert episode.outcome in task.outcomes and episode.reward in (0, 1)
