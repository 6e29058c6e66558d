"""Talking to a policy that speaks in text: what is shown is what is sampled, whoever answers, and what cannot go on
is told in a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.cli.chat import converse
from scope_lite.cli.conversation import TRAINING, YOU, Again, LoadedPolicy, Message, Talk, load_policy
from scope_lite.envs.nano.users import draw
from scope_lite.envs.prompts import persuadee
from scope_lite.envs.tau2.prompt import GREETING
from scope_lite.method.config import load_config
from scope_lite.method.cotraining import open_partner
from scope_lite.method.dialogue import CONTEXT, WrittenSeat
from scope_lite.method.learner import Learner
from scope_lite.method.made_of import made_of
from scope_lite.method.prompted import PromptedSeat
from scope_lite.method.seats import ModelSeat
from scope_lite.method.text import TextScene, draw_personas
from scope_lite.method.train import train
from scope_lite.models.records import FAILED, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_terminal
from tests.cli.test_chat import Played, play
from tests.method.test_text_training import NO, VAGUE, YES, Scripted, config_of, listed, model, panel, scripted  # noqa: F401
from tests.standins.tau2_shop import LOOK_UP
from tests.standins.tau2_shop import episode as shop

ROW = RowKeys.grid(0, 0, 1, 1)


def opened(folder: Path, method: str = "base", **changes: Any) -> LoadedPolicy:
    """A policy off its start, with the simulators that it would train with."""
    scene = TextScene(config_of(folder, method, **changes))
    learner = Learner(scene.policy_model(), scene.config, seed=0)
    noise = torch.Generator().manual_seed(1)
    state = learner.model.adapter_state()
    learner.model.load_adapter_state({n: 0.3 * torch.randn(t.shape, generator=noise) for n, t in state.items()})
    return LoadedPolicy("tiny", 0, scene, learner.model, None if method == "base" else open_partner(scene, learner))


def said_by(played: Played, *speakers: str) -> list[str]:
    return [m.said for m in played.by(*speakers)]


def ended(played: Played) -> tuple[str, float]:
    """How it ended, as shown and as played."""
    assert played.rollout and played.shown[-1].speaker == "outcome"
    assert played.shown[-1].said == played.rollout.outcome
    return played.rollout.outcome, played.rollout.reward


# -- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float32")
def test_every_message_is_that_of_a_slow_sampler(model):  # noqa: F811
    """Against whole forward passes, one token at a time, with the random numbers of the row."""
    played = play(opened(model), replies=["Hello", "Why?", "$1"], seed=2)
    policy, transcript = played.talk.policy.model, played.rollout.policy
    starts = [i for i, own in enumerate(transcript.generated) if own and not transcript.generated[i - 1]]
    acts = played.by("agent")
    assert len(acts) == len(starts) == 2
    for number, (start, act) in enumerate(zip(starts, acts, strict=True)):
        ids, logprobs = transcript.ids[:start], []
        for token in range(5):
            with torch.no_grad():
                p = policy.model(torch.tensor([ids])).logits[0, -1:].double().softmax(-1).numpy()
            uniforms = RowKeys.grid(2, 0, 1, 1).uniforms(2 * number, "policy", token)[:, 0]
            ids = [*ids, int(draw(p, uniforms)[0])]
            logprobs.append(math.log(p[0, ids[-1]]))
            if ids[-1] in policy.stop_ids:
                break
        assert act.said == policy.tokenizer.decode(ids[start:], skip_special_tokens=True).strip()
        assert act.probability == pytest.approx(math.exp(sum(logprobs) / len(logprobs)), rel=1e-4)
        assert act.line == f"agent: {act.said} ({act.probability:.3f} a token)"


def test_the_same_seed_and_replies_give_the_same_talk(model):  # noqa: F811
    policy = opened(model)
    talks = [play(policy, replies=["Hello", "Why?", "$1"], seed=seed) for seed in (0, 0, 1)]
    assert talks[0].shown == talks[1].shown != talks[2].shown
    with pytest.raises(Again):
        talks[0].talk.restart()
    assert Played(talks[0].talk).go_on("Hello", "Why?", "$1").shown != talks[1].shown


def test_a_transcript_can_be_taken_up_by_another_seat(model):  # noqa: F811
    policy = opened(model)

    def seat() -> ModelSeat:
        return ModelSeat(policy.model, ROW, "policy", [""], max_new_tokens=5)

    whole, taken_up, unread = seat(), seat(), seat()
    whole.hear(["Hello"])
    whole.speak(0, "")
    taken_up.resume(whole.transcripts)
    for one in (whole, taken_up):
        one.hear(["Why?"])
    assert whole.speak(2, "") == taken_up.speak(2, "")
    once, again = whole.transcripts[0], taken_up.transcripts[0]
    assert once.ids == again.ids and once.logprobs == pytest.approx(again.logprobs, abs=1e-5)
    unread.resume([Transcript(once.ids[:-2], once.generated[:-2], once.logprobs[:-2], once.choices[:-2])])
    unread.hear(["More?"])
    assert len(unread.transcripts[0].ids) > len(once.ids) - 2 and once.ids == again.ids


# -- who answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["sim-a", "plain", "personas"])
def test_a_talk_with_a_member_is_an_evaluation_dialogue_with_it(member, model, scripted):  # noqa: F811
    scripted(YES, NO, VAGUE)
    policy = opened(model)
    scene, keys = policy.scene, RowKeys.grid(3, 0, 1, 1)
    played = play(policy, member, seed=3)
    member_ = scene.member(member)

    def seat(rows: RowKeys, systems: Sequence[str]) -> PromptedSeat:
        return PromptedSeat([scene.voice(member_)], systems, rows, "panel")

    (rollout,) = scene.converse(policy.model, keys, [member_], seat, "test")
    assert said_by(played, "agent") == rollout.acts and said_by(played, member) == rollout.replies
    assert ended(played) == (rollout.outcome, rollout.reward)
    assert said_by(played, "form") == [persuadee.QUESTION] and not played.by("you are told")


def test_a_reply_whose_probability_nobody_tells_is_shown_without_one(model, scripted, monkeypatch, capsys):  # noqa: F811
    scripted(YES, NO, VAGUE)
    reply = Scripted.reply
    monkeypatch.setattr(Scripted, "reply", lambda *at: replace(reply(*at), logprobs=(math.nan,)))
    played = play(opened(model), "plain")
    heard = played.by("plain")[0]
    assert heard.probability is None and heard.line == f"plain: {heard.said}"
    with pytest.raises((EOFError, OSError)):  # after the end it waits for a command
        converse(played.talk, Console(width=200))
    shown = capsys.readouterr().out
    assert f"plain: {heard.said}\n" in shown and "nan" not in shown


def test_a_verbalized_simulator_says_one_of_its_list_and_one_that_cannot_be_read_ends_the_talk(model, scripted):  # noqa: F811
    scripted(listed((YES, 0.5), (NO, 0.3), (VAGUE, 0.2)), "nonsense")
    policy = opened(model, "verbalized", text={"retries": 30, "grammar": False}, simulator={"k": 3})
    said = play(policy, TRAINING).by(TRAINING)
    assert said and all(m.said in (YES, NO, VAGUE) and m.probability is None for m in said)
    scripted("nonsense")
    played = play(opened(model, "verbalized", text={"retries": 1, "grammar": False}), TRAINING)
    assert ended(played)[0] == FAILED and "does not count" in played.transcript
    assert [m.speaker for m in played.shown] == ["agent", "outcome"]


@pytest.mark.parametrize("method", ["cotraining", "selfplay"])
def test_a_simulator_that_was_trained_speaks_as_itself(method, model, tmp_path, monkeypatch, sixteen_bits):  # noqa: F811
    from scope_lite.envs.p4g_episode import P4GEpisode

    monkeypatch.setattr(P4GEpisode, "reward", property(lambda e: sum(map(len, [*e.acts, *e.replies])) % 5 / 4))
    rate = {} if method == "selfplay" else {"simulator": {"learning_rate": 1e-2, "reward": "adversarial"}}
    folder = train(config_of(model, method, steps=1, eval_dialogues=1, final_dialogues=1, **rate), tmp_path)
    policy = load_policy(folder.name, tmp_path)
    assert policy.step == 1 and policy.partners[-1] == TRAINING
    played = play(policy, TRAINING)
    transcript, sharpness = played.rollout.simulator_transcript, 1.0 if method == "selfplay" else 1 / 0.7
    own = [i for i, g in enumerate(transcript.generated) if g]
    with torch.no_grad():
        logits = policy.trained_with.pool.entries[0].model(torch.tensor([transcript.ids])).logits[0].float()
        log_all = (logits * sharpness).log_softmax(-1)
    found = [float(log_all[i - 1, transcript.ids[i]]) for i in own]
    assert [transcript.logprobs[i] for i in own] == pytest.approx(found, abs=0.1 if sixteen_bits else 1e-4)
    assert len(played.by(TRAINING)) == 3 and all(m.probability for m in played.by(TRAINING))
    moved = [t.abs().sum() for n, t in policy.trained_with.pool.entries[0].adapter_state().items() if "lora_B" in n]
    assert any(moved) and (policy.trained_with.pool.entries[0] is policy.model) == (method == "selfplay")


# -- you --------------------------------------------------------------------------------------------------------------


def test_a_person_is_told_what_a_simulator_would_be_and_is_paid_for_by_the_form(model):  # noqa: F811
    policy = opened(model)
    played = play(policy, replies=["Hello", "Why?", "$1.50"], seed=1)
    person = draw_personas(policy.scene.task.personas["test"], RowKeys.grid(1, 0, 1, 1))[0]
    (told,) = said_by(played, "you are told")
    assert person in told and persuadee.SYSTEM.split("$persona")[0] in told
    speakers = ["you are told", "agent", YOU, "agent", YOU, "form", YOU, "outcome"]
    assert [m.speaker for m in played.shown] == speakers
    assert said_by(played, YOU) == ["Hello", "Why?", "$1.50"] and ended(played) == ("given", 0.75)
    assert played.transcript.endswith("outcome: a donation above 0 was stated (given)")


def test_undo_takes_back_one_reply_and_the_same_reply_gives_the_same_act(model):  # noqa: F811
    played = play(opened(model), replies=["Hello", "undo", "No, thanks", "undo", "Hello", "Why?", "nothing"])
    first, second, again, other, back, same = played.by("agent")
    assert first == again == back and other.said != second.said
    assert same.said == second.said and same.probability == pytest.approx(second.probability, rel=1e-4)
    plain = play(played.talk.policy, replies=["Hello", "Why?", "nothing"])
    assert played.rollout.policy.ids == plain.rollout.policy.ids and ended(played) == ended(plain)
    with pytest.raises(Again):
        played.talk.undo()
    open_again = Played(played.talk).go_on()
    assert [m.speaker for m in open_again.shown] == [YOU, "form"]
    for left in ("Hello", None):
        with pytest.raises(Again):
            played.talk.undo()
        assert said_by(Played(played.talk).go_on(), "agent")[-1:] and played.talk.record[-1].speaker == "agent"
        assert [m.said for m in played.talk.record if m.speaker == YOU] == [left] * bool(left)
    with pytest.raises(ScopeError, match="nothing to take back"):
        played.talk.undo()


def test_tools_answer_between_two_messages_of_the_customer(model, monkeypatch):  # noqa: F811
    policy = opened(model)
    lines = [LOOK_UP, LOOK_UP, "It is pending.", "Goodbye."]
    monkeypatch.setattr(policy.scene.task, "open", lambda *_: shop())
    monkeypatch.setattr(policy.scene, "seat_model", lambda *_: WrittenSeat([lines]))
    played = play(policy, replies=["My lamp?"])
    told, greeting, *rest = played.shown
    assert greeting == Message("agent", GREETING, GREETING) and "You bought a lamp." in told.said
    assert [m.speaker for m in rest] == [YOU, "agent", "tool", "agent", "tool", "agent"]
    assert '"pending"' in rest[2].said
    back = Played(played.talk).go_on("My lamp?", "Thanks", "undo", "Thanks ###STOP###")
    assert said_by(back, "agent")[-2:] == ["Goodbye.", "It is pending."] and ended(back) == ("stop", 1.0)


# -- what cannot go on ------------------------------------------------------------------------------------------------


def test_a_talk_that_outgrows_the_context_ends_in_a_sentence(model):  # noqa: F811
    first = len(play(opened(model), replies=["Hello"]).talk.record[-1].transcript.ids)
    played = play(opened(model, text={"context": first, "turns": 9}), replies=["Hello", "Why? " * 30])
    assert ended(played) == (CONTEXT, 0) and "outgrew" in played.shown[-1].sentence and len(played.by("agent")) == 2
    with pytest.raises(ScopeError, match="longer context"):
        play(opened(model, text={"context": 64, "max_new_tokens": 65}))


def test_a_partner_that_is_not_there_is_told_in_one_line(model):  # noqa: F811
    policy = opened(model)
    with pytest.raises(ScopeError, match="did you mean 'personas'"):
        Talk(policy, "persona")
    with pytest.raises(ScopeError, match="unknown partner 'training'"):
        Talk(policy, TRAINING)


# -- runs and the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def run(model, scripted, tmp_path):  # noqa: F811
    scripted(YES, NO, VAGUE)
    return train(config_of(model, steps=1, eval_dialogues=1, final_dialogues=1), tmp_path / "runs")


def bare(text: str) -> str:
    """As a terminal gets it, without spaces and line breaks."""
    return "".join(for_terminal(text, "\n").split())


def test_replies_are_typed_and_a_bad_one_is_passed_over(run):
    lines = ["Hello", "", "UNDO", "undo", "Who are you?", "Why?", "$2", "more", "restart", "quit", "Hello"]
    root = ["--out", str(run.parent), "--seed", "5"]
    result = CliRunner().invoke(cli.app, ["chat", run.name, *root], input="".join(f"{x}\n" for x in lines))
    assert result.exit_code == 0, result.output
    slips = ["nothing to take back", "the talk is over; undo, or restart"]
    assert result.stderr.splitlines() == [f"scope-lite: {slip}" for slip in slips]
    played = play(load_policy(run, run.parent), replies=["Who are you?", "Why?", "$2"], seed=5)
    shown = bare(result.stdout)
    assert all(bare(message.line) in shown for message in played.shown)
    assert "trainedfor1steps" in shown and "reward1.00" in shown and "geometricmean" in shown


def test_a_simulator_talks_to_the_end_by_itself(run):
    words = ["chat", run.name, "--out", str(run.parent), "--with", TRAINING]
    result = CliRunner().invoke(cli.app, words, input="")
    assert result.exit_code == 0 and result.stderr == "", result.output
    played = play(load_policy(run, run.parent), TRAINING)
    assert f"reward {ended(played)[1]:.2f}\n" in result.stdout
    assert all(f"training: {said} (0.607 a token)\n" in result.stdout for said in said_by(played, TRAINING))


def test_a_run_on_any_engine_is_talked_to_through_transformers(run):
    config = load_config(run / "config.yaml")
    config = config.model_copy(update={"text": config.text.model_copy(update={"rollout_engine": "vllm"})})
    (run / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    facts = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    (run / "provenance.json").write_text(json.dumps({**facts, "made_of": made_of(config)}), encoding="utf-8")
    policy = load_policy(run, run.parent)
    assert policy.scene.config.text.rollout_engine == "hf"
