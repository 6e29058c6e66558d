"""Talking to a policy that speaks in text: what is shown is what is sampled, whoever answers, and what cannot go on
is told in a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.cli.chat import converse
from scope_lite.cli.conversation import (
    TRAINING,
    YOU,
    Conversation,
    Message,
    TextPolicy,
    load_policy,
)
from scope_lite.cli.conversation import policy as loaded_policy
from scope_lite.cli.conversation.widget import chat_widget
from scope_lite.envs.nano.users import draw
from scope_lite.envs.prompts import persuadee
from scope_lite.envs.tau2.prompt import GREETING
from scope_lite.method.config import load_config
from scope_lite.method.dialogue import CONTEXT
from scope_lite.method.learner import Learner
from scope_lite.method.prompted import PromptedSeat
from scope_lite.method.seats import ModelSeat
from scope_lite.method.text import TextScene, draw_personas
from scope_lite.method.train import train
from scope_lite.models.records import FAILED, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_terminal
from tests.method.test_text_training import NO, VAGUE, YES, Scripted, config_of, listed, model, panel, scripted  # noqa: F401
from tests.standins.tau2_shop import LOOK_UP
from tests.standins.tau2_shop import episode as shop


def opened(folder: Path, method: str = "base", **changes: Any) -> TextPolicy:
    """A policy off its start, with the simulators that it would train with."""
    scene = TextScene(config_of(folder, method, **changes))
    learner = Learner(scene.policy_model(), scene.config, seed=0)
    noise = torch.Generator().manual_seed(1)
    state = learner.model.adapter_state()
    learner.model.load_adapter_state({n: 0.3 * torch.randn(t.shape, generator=noise) for n, t in state.items()})
    return TextPolicy("tiny", 0, scene, learner.model, None if method == "base" else scene.partner(learner))


def play(policy: TextPolicy, partner: str = YOU, replies: Any = (), **options: Any) -> Conversation:
    talk = Conversation(policy, partner, **options)
    for reply in replies:
        talk.say(reply)
    while not talk.ending and not talk.by_hand:
        talk.say()
    return talk


def messages(talk: Conversation) -> list[Message]:
    return [m for turn in talk.turns for m in (turn.act, turn.reply) if m]


def said_by(talk: Conversation, *speakers: str) -> list[str]:
    return [m.said for m in messages(talk) if m.speaker in speakers]


# -- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float32")
def test_every_message_and_its_alternatives_are_those_of_a_slow_sampler(model):  # noqa: F811
    """Against whole forward passes, one token and one row at a time, with the random numbers of the row."""
    talk = play(opened(model), replies=["Hello", "Why?"], seed=2)
    policy, transcript = talk.policy.model, talk._policy.row.transcripts[0]
    starts = [i for i, own in enumerate(transcript.generated) if own and not transcript.generated[i - 1]]
    acts = [m for m in messages(talk) if m.speaker == "agent"]
    assert len(acts) == len(starts) == 2
    for number, (start, act) in enumerate(zip(starts, acts, strict=True)):
        slow: dict[str, float] = {}
        for row in range(3, -1, -1):  # what was said is row 0
            ids, logprobs = transcript.ids[:start], []
            for token in range(5):
                with torch.no_grad():
                    p = policy.model(torch.tensor([ids])).logits[0, -1:].double().softmax(-1).numpy()
                uniforms = talk.keys[np.array([row])].uniforms(2 * number, "policy", token)[:, 0]
                ids = [*ids, int(draw(p, uniforms)[0])]
                logprobs.append(math.log(p[0, ids[-1]]))
                if ids[-1] in policy.stop_ids:
                    break
            words = policy.tokenizer.decode(ids[start:], skip_special_tokens=True).strip()
            slow[words] = math.exp(sum(logprobs) / len(logprobs))
        assert words == act.said and act.probability is not None
        assert act.probabilities == pytest.approx(slow, rel=1e-4)
        assert len(slow) > 1 and act.label == f"{act.probability:.3f} a token"


def test_the_same_seed_and_replies_give_the_same_talk_however_much_is_shown(model):  # noqa: F811
    policy = opened(model)
    talks = [play(policy, replies=["Hello", "Why?", "$1"], seed=s, alternatives=n) for s, n in ((0, 3), (0, 0), (1, 0))]
    assert talks[0].transcript == talks[1].transcript != talks[2].transcript
    for many, one in zip(messages(talks[0]), messages(talks[1]), strict=True):
        assert len(one.probabilities) == (one.speaker == "agent") and one.probability == pytest.approx(many.probability)
    before = talks[0].transcript
    talks[0].restart()
    for reply in ("Hello", "Why?", "$1"):
        talks[0].say(reply)
    assert talks[0].transcript != before


def test_a_transcript_can_be_taken_up_by_another_seat(model):  # noqa: F811
    policy = opened(model)
    talk = play(policy, replies=["Hello"], alternatives=0)
    transcript = talk._policy.row.transcripts[0]
    copied = ModelSeat(policy.model, talk.keys, "policy", [""], max_new_tokens=5)
    copied.resume([transcript])
    copied.hear(["Why?"])
    (said,) = copied.speak(4, "")
    once, unread = copied.transcripts[0], ModelSeat(policy.model, talk.keys, "policy", [""], max_new_tokens=5)
    unread.resume([Transcript(once.ids[:-2], once.generated[:-2], once.logprobs[:-2], once.choices[:-2])])
    assert transcript.ids == once.ids[: len(transcript.ids)] and len(transcript.ids) < len(once.ids)
    talk._policy.hear("Why?")
    assert talk._policy.row.speak(4, "") == [said]
    assert talk._policy.row.transcripts[0].ids == once.ids
    assert talk._policy.row.transcripts[0].logprobs == pytest.approx(once.logprobs, abs=1e-5)


# -- who answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["sim-a", "plain", "personas"])
def test_a_talk_with_a_member_is_an_evaluation_dialogue_with_it(member, model, scripted):  # noqa: F811
    scripted(YES, NO, VAGUE)
    policy = opened(model)
    scene, keys = policy.scene, RowKeys(3, 0, np.zeros(1, dtype=int), np.zeros(1, dtype=int))
    talk = play(policy, member, seed=3)
    played = scene.member(member)

    def seat(rows: RowKeys, systems: Sequence[str]) -> PromptedSeat:
        return PromptedSeat([scene.voice(played)], systems, rows, "panel")

    (rollout,) = scene.converse(policy.model, keys, [played], seat, "test")
    assert said_by(talk, "agent") == rollout.acts and said_by(talk, member) == rollout.replies
    assert talk.ending and (talk.ending.outcome.said, talk.ending.reward) == (rollout.outcome, rollout.reward)
    assert said_by(talk, "form") == [persuadee.QUESTION] and talk.told == ""


def test_a_members_alternatives_are_other_replies_to_the_same_chat(model, scripted):  # noqa: F811
    lines = [f"line {i}" for i in range(200)]
    sampler = scripted(*lines)
    asked: list[Any] = []
    sample = sampler.sample
    sampler.sample = lambda chats, n, config: asked.append((deepcopy(chats), n)) or sample(chats, n, config)
    talk = play(opened(model), "plain", alternatives=4)
    replies = [m for m in messages(talk) if m.speaker == "plain"]
    assert [n for _, n in asked] == [5] * len(replies) and all(len(chats) == 1 for chats, _ in asked)
    assert all(len(m.probabilities) > 3 and set(m.probabilities) <= set(lines) for m in replies)
    assert all(p == pytest.approx(math.exp(-0.5)) for m in replies for p in m.probabilities.values())
    own = [m["content"] for m in asked[-1][0][0] if m["role"] == "assistant"]
    assert own == [m.said for m in replies[:-1]]  # its chat holds what it said, and not what it might have


def test_a_reply_whose_probability_nobody_tells_is_shown_without_one(model, scripted, monkeypatch, capsys):  # noqa: F811
    scripted(YES, NO, VAGUE)
    reply = Scripted.reply
    monkeypatch.setattr(Scripted, "reply", lambda *at: replace(reply(*at), logprobs=(math.nan,)))
    talk = play(opened(model), "plain")
    heard = next(m for m in messages(talk) if m.speaker == "plain")
    assert heard.probability is None and heard.label == "" and set(heard.options()) == set(heard.probabilities)
    from rich.console import Console

    with pytest.raises((EOFError, OSError)):  # after the end it waits for a command
        converse(talk, Console(width=200))
    shown = capsys.readouterr().out
    assert f"plain: {heard.said}\n" in shown and "nan" not in shown


def test_a_verbalized_simulator_shows_its_list_and_one_that_cannot_be_read_ends_the_talk(model, scripted):  # noqa: F811
    good = listed((YES, 0.5), (NO, 0.3), (VAGUE, 0.2))
    scripted(good, "nonsense")
    policy = opened(model, "verbalized", text={"retries": 30, "grammar": False}, simulator={"k": 3})
    talk = play(policy, TRAINING)
    for message in (m for m in messages(talk) if m.speaker == TRAINING):
        assert message.probabilities == pytest.approx({YES: 0.5, NO: 0.3, VAGUE: 0.2}) and message.unit == "stated"
    scripted("nonsense")
    talk = play(opened(model, "verbalized", text={"retries": 1, "grammar": False}), TRAINING)
    assert talk.ending and talk.ending.outcome.said == FAILED and "does not count" in talk.transcript
    assert len(talk.turns) == 1 and talk.turns[0].reply is None


@pytest.mark.parametrize("method", ["cotraining", "selfplay"])
def test_a_simulator_that_was_trained_speaks_as_itself(method, model, tmp_path, monkeypatch, sixteen_bits):  # noqa: F811
    from scope_lite.envs.p4g_episode import P4GEpisode

    monkeypatch.setattr(P4GEpisode, "reward", property(lambda e: sum(map(len, [*e.acts, *e.replies])) % 5 / 4))
    rate = {} if method == "selfplay" else {"simulator": {"learning_rate": 1e-2, "reward": "adversarial"}}
    folder = train(config_of(model, method, steps=1, eval_dialogues=1, final_dialogues=1, **rate), tmp_path)
    policy = load_policy(folder.name, tmp_path)
    assert isinstance(policy, TextPolicy) and policy.step == 1 and policy.partners[-1] == TRAINING
    talk = play(policy, TRAINING)
    assert policy.trained_with is not None and talk._partner is not None
    transcript, sharpness = talk._partner.row.transcripts[0], 1.0 if method == "selfplay" else 1 / 0.7
    own = [i for i, g in enumerate(transcript.generated) if g]
    with torch.no_grad():
        logits = policy.trained_with.pool.entries[0].model(torch.tensor([transcript.ids])).logits[0].float()
        log_all = (logits * sharpness).log_softmax(-1)
    found = [float(log_all[i - 1, transcript.ids[i]]) for i in own]
    assert [transcript.logprobs[i] for i in own] == pytest.approx(found, abs=0.1 if sixteen_bits else 1e-4)
    replies = [m for m in messages(talk) if m.speaker == TRAINING]
    assert len(replies) == 3 and all(len(m.probabilities) > 1 for m in replies)
    moved = [t.abs().sum() for n, t in policy.trained_with.pool.entries[0].adapter_state().items() if "lora_B" in n]
    assert any(moved) and (policy.trained_with.pool.entries[0] is policy.model) == (method == "selfplay")


# -- you --------------------------------------------------------------------------------------------------------------


def test_a_person_is_told_what_a_simulator_would_be_and_is_paid_for_by_the_form(model):  # noqa: F811
    policy = opened(model)
    talk = Conversation(policy, seed=1)
    person = draw_personas(policy.scene.task.personas["test"], talk.keys[np.array([0])])[0]
    assert person in talk.told and persuadee.SYSTEM.split("$persona")[0] in talk.told
    for reply in ("Hello", "Why?", "$1.50"):
        assert talk.ending is None
        talk.say(f" {reply} ")
    assert [t.act.speaker for t in talk.turns] == ["agent", "agent", "form"]
    assert said_by(talk, YOU) == ["Hello", "Why?", "$1.50"] and talk.ending
    assert (talk.ending.outcome.said, talk.ending.reward) == ("given", 0.75)
    assert talk.transcript.endswith("outcome (given): a donation above 0 was stated (reward 0.75)")


def test_undo_takes_back_one_reply_and_the_same_reply_gives_the_same_act(model):  # noqa: F811
    talk = Conversation(opened(model))
    acts = [talk.turns[0].act, talk.say("Hello").act]
    tokens = talk._policy.row.transcripts[0].ids
    assert talk.undo().act == acts[0] and len(talk.turns) == 1 and talk.turns[0].reply is None
    assert talk.say("No, thanks").act.said != acts[1].said
    talk.undo()
    again = talk.say("Hello").act
    assert again.said == acts[1].said and again.probabilities == pytest.approx(acts[1].probabilities, rel=1e-4)
    assert talk._policy.row.transcripts[0].ids == tokens
    talk.say("Why?")
    talk.say("nothing")
    assert talk.ending
    talk.undo()
    assert talk.ending is None and talk.turns[-1].act.speaker == "form" and said_by(talk, YOU) == ["Hello", "Why?"]
    for _ in range(2):
        talk.undo()
    with pytest.raises(ScopeError, match="nothing to take back"):
        talk.undo()


class Written:
    """A policy whose messages are written down, in the place of a ``ModelSpeaker``."""

    lines: tuple[str, ...] = ()

    def __init__(self, *_: Any):
        self.row, self.heard = self, []
        self.transcripts = [Transcript()]

    @property
    def read(self) -> int:
        return len(self.transcripts[0].ids)

    def needs(self) -> int:
        return 0

    def hear(self, words: str) -> None:
        self.heard.append(words)
        self.transcripts[0].read([0])

    def speak(self, turn: int, kind: str) -> Message:
        self.transcripts[0].write(1, 0.0, 0)
        line = self.lines[sum(self.transcripts[0].generated) - 1]
        return Message("agent", line, line, {line: 0.5}, "a token")

    def resume(self, transcripts: list[Transcript]) -> None:
        self.transcripts = transcripts


def test_tools_answer_between_two_messages_of_the_customer(model, monkeypatch):  # noqa: F811
    policy = opened(model)
    monkeypatch.setattr(policy.scene.task, "open", lambda *_: shop())
    monkeypatch.setattr(Written, "lines", (LOOK_UP, LOOK_UP, "It is pending.", "Goodbye."))
    monkeypatch.setattr(loaded_policy, "ModelSpeaker", Written)
    talk = Conversation(policy)
    assert talk.turns[0].act == Message("agent", GREETING, GREETING, {}) and "You bought a lamp." in talk.told
    talk.say("My lamp?")
    trail = ["agent", YOU, "agent", "tool", "agent", "tool", "agent"]
    assert [m.speaker for m in messages(talk)] == trail and '"pending"' in messages(talk)[3].said
    assert talk._policy.heard[0] == "My lamp?" and len(talk._policy.heard) == 3
    talk.say("Thanks")
    assert talk.undo().act.said == "It is pending." and [m.speaker for m in messages(talk)] == trail
    talk.say("Thanks ###STOP###")
    assert talk.ending and (talk.ending.outcome.said, talk.ending.reward) == ("stop", 1.0)
    for _ in range(2):
        talk.undo()
    assert len(talk.turns) == 1 and talk._policy.read == 0
    with pytest.raises(ScopeError, match="nothing to take back"):
        talk.undo()


# -- what cannot go on ------------------------------------------------------------------------------------------------


def test_a_talk_that_outgrows_the_context_ends_in_a_sentence(model):  # noqa: F811
    first = play(opened(model), replies=["Hello"], alternatives=0)._policy.read
    talk = play(opened(model, text={"context": first, "turns": 9}), replies=["Hello", "Why? " * 30])
    assert talk.ending and (talk.ending.outcome.said, talk.ending.reward) == (CONTEXT, 0)
    assert "outgrew" in talk.ending.outcome.sentence and len(talk.turns) == 2
    at_once = Conversation(opened(model, text={"context": 64, "max_new_tokens": 65}))
    assert at_once.ending and not at_once.turns


def test_mistakes_are_told_in_one_line_and_change_nothing(model):  # noqa: F811
    policy = opened(model)
    with pytest.raises(ScopeError, match="did you mean 'personas'"):
        Conversation(policy, "persona")
    with pytest.raises(ScopeError, match="unknown partner 'training'"):
        Conversation(policy, TRAINING)
    with pytest.raises(ScopeError, match="0 or more"):
        Conversation(policy, alternatives=-1)
    talk = Conversation(policy)
    with pytest.raises(ScopeError, match="say something"):
        talk.say(" ")
    assert len(talk.turns) == 1 and talk.turns[0].reply is None


# -- runs, the command, the cell --------------------------------------------------------------------------------------


@pytest.fixture
def run(model, scripted, tmp_path):  # noqa: F811
    scripted(YES, NO, VAGUE)
    return train(config_of(model, steps=1, eval_dialogues=1, final_dialogues=1), tmp_path / "runs")


def bare(text: str, line_feed: str = "\n") -> str:
    """As a terminal gets it, without spaces and line breaks."""
    return "".join(for_terminal(text, line_feed).split())


def test_replies_are_typed_and_a_bad_one_is_passed_over(run):
    lines = ["Hello", "", "UNDO", "undo", "Who are you?", "Why?", "$2", "more", "restart", "quit", "Hello"]
    root = ["--out", str(run.parent), "--seed", "5", "--alternatives", "2"]
    result = CliRunner().invoke(cli.app, ["chat", run.name, *root], input="".join(f"{x}\n" for x in lines))
    assert result.exit_code == 0, result.output
    slips = ["nothing to take back", "the talk is over; undo, or restart"]
    assert result.stderr.splitlines() == [f"scope-lite: {slip}" for slip in slips]
    policy = load_policy(run, run.parent)
    assert isinstance(policy, TextPolicy)
    talk = play(policy, replies=["Who are you?", "Why?", "$2"], seed=5, alternatives=2)
    shown = bare(result.stdout)
    for message in messages(talk):
        assert bare(f"{message.speaker}: {message.sentence}" + f" ({message.label})" * bool(message.label)) in shown
        assert all(bare(words, r"\n") in shown and f"{p:.3f}" in shown for words, p in message.probabilities.items())
    assert bare(f"you are told: {talk.told}") in shown and "trainedfor1steps" in shown
    assert "reward1.00" in shown and bare(talk.legend) in shown


def test_a_simulator_talks_to_the_end_by_itself(run):
    words = ["chat", run.name, "--out", str(run.parent), "--with", TRAINING]
    result = CliRunner().invoke(cli.app, words, input="")
    assert result.exit_code == 0 and result.stderr == "", result.output
    policy = load_policy(run, run.parent)
    assert isinstance(policy, TextPolicy)
    talk = play(policy, TRAINING)
    assert talk.ending and f"reward {talk.ending.reward:.2f}\n" in result.stdout
    assert all(f"training: {t.reply.said} (0.607 a token)\n" in result.stdout for t in talk.turns if t.reply)


def test_a_run_on_any_engine_is_talked_to_through_transformers(run):
    config = load_config(run / "config.yaml")
    config = config.model_copy(update={"text": config.text.model_copy(update={"rollout_engine": "vllm"})})
    (run / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    facts = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    (run / "provenance.json").write_text(json.dumps({**facts, "made_of": made_of(config)}), encoding="utf-8")
    policy = load_policy(run, run.parent)
    assert isinstance(policy, TextPolicy) and policy.scene.config.text.rollout_engine == "hf"


def test_the_cell_takes_text_and_its_buttons_lead_the_talk(run):
    widget = chat_widget(run.name, root=run.parent, alternatives=1)
    widget.say.click()
    assert widget.trouble.value == "say something"
    for reply in ("Hello", "<b>Why?</b>", "$2"):
        widget.reply.value = reply
        widget.say.click()
        assert widget.reply.value == "" and widget.trouble.value == ""
    assert widget.say.disabled and "&lt;b&gt;Why?" in widget.page.value and "reward 1.00" in widget.page.value
    assert "you are told" in widget.page.value and "a donation above 0 was stated" in widget.page.value
    widget.undo.click()
    assert not widget.say.disabled and widget.talk.turns[-1].reply is None
    listening = chat_widget(run.name, "plain", root=run.parent, alternatives=30)
    listening.say.click()
    heard = listening.talk.turns[0].reply
    assert heard and len(heard.probabilities) == 3
    assert all(f">{escape(words)}</td>" in listening.page.value for words in heard.probabilities)
    assert listening.reply not in listening.children[1].children
