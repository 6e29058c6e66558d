"""Talking to a policy: what is shown is what is sampled, the same seed says the same, and bad input ends nothing."""

from __future__ import annotations

import builtins
from functools import cache

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.cli.conversation import BASE, TRAINING, YOU, Conversation, load_policy
from scope_lite.cli.conversation.widget import chat_widget
from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.spec import AGENT
from scope_lite.method.config import method_config
from scope_lite.method.dialogue import run_dialogues
from scope_lite.method.nano import choice_sets, nano_episodes
from scope_lite.method.partner import draw_tasks
from scope_lite.method.seats import ModelSeat
from scope_lite.method.train import train
from scope_lite.models.hf import SeatModel, load_base
from scope_lite.models.records import collate
from scope_lite.models.rng import RowKeys
from scope_lite.store.checkpoints import load_newest
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import NANO_MODELS

TINY = dict(groups=2, group_size=4, eval_dialogues=1, final_dialogues=1, learning_rate=0.02)
WORLD = get_world("persuasion")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two runs of one step: a policy alone, and one whose simulator learned as well."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("single", "population"):
        train(method_config(method, steps=1, **TINY, simulator={"learning_rate": 0.02, "cadence": 1}), folder)
    return folder


@pytest.fixture(scope="module")
def trained(root):
    return load_policy("persuasion-single", root)


@cache
def untrained(world):
    return load_policy(BASE + world)


def play(policy, partner=YOU, replies=(), seed=0):
    talk = Conversation(policy, partner, seed)
    for reply in replies or [None] * policy.horizon:
        talk.say(reply)
    return talk


def written(talk):
    return [(t.act.said, t.reply and t.reply.said) for t in talk.turns]


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_probabilities_are_those_of_the_adapter_in_the_checkpoint(root, trained):
    """Against a model put together here, read through the trainer's own log probabilities on the whole transcript."""
    talk = play(trained, replies=["hi", "reveal-facts", "no", "yes"])
    base, tokenizer = load_base(NANO_MODELS / "persuasion" / "qwen3-tiny")
    model = SeatModel(base, tokenizer, choice_sets(WORLD, tokenizer))
    model.add_adapter(rank=8, alpha=16, seed=5)
    (folder,) = root.glob("persuasion-single-*")
    saved = load_newest(folder / "checkpoints").tensors["policy"]
    model.load_adapter_state({n.removeprefix("adapter."): t for n, t in saved.items() if n.startswith("adapter.")})
    with torch.no_grad():
        _, log_all = model.token_logprobs(collate(talk._policy.row.transcripts, pad=0))
    expected = log_all.exp()[:, model.choice_ids["act"]].numpy()
    shown = np.array([[t.act.probabilities[a] for a in WORLD.spec.agent_acts] for t in talk.turns])
    np.testing.assert_allclose(shown, expected, atol=1e-5)
    before = Conversation(untrained("persuasion")).turns[0].act.probabilities
    assert max(abs(before[a] - p) for a, p in talk.turns[0].act.probabilities.items()) > 0.01  # it has learned a step


def test_acts_are_drawn_with_the_probabilities_that_are_shown(trained):
    shown = Conversation(trained).turns[0].act.probabilities
    keys = RowKeys.grid(0, 0, groups=3000, group_size=1)
    said = ModelSeat(trained.model, keys, "policy", [AGENT] * len(keys)).speak(0, "act")
    shares = np.array([said.count(act) / len(said) for act in shown])
    np.testing.assert_allclose(shares, list(shown.values()), atol=0.04)
    assert [Conversation(trained, seed=s).turns[0].act.said for s in range(3)] == [
        ModelSeat(trained.model, RowKeys.grid(s, 0, 1, 1), "policy", [AGENT]).speak(0, "act")[0] for s in range(3)
    ]


def test_options_are_ranked_and_keep_what_was_said(trained):
    message = play(trained, "sim-a").turns[0].reply  # a collapsed simulator: nearly all on one reply
    options = message.options(least=0.5)
    assert message.said in options and list(options.values()) == sorted(options.values(), reverse=True)
    assert sum(message.probabilities.values()) == pytest.approx(1) and len(options) <= 2


# -- who answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", ["persuasion", "coding"])  # the simulator says how it ended, and the world does
def test_a_talk_with_a_member_is_a_rollout_with_it(world):
    policy = untrained(world)
    for member in policy.scene.members:
        talk = play(policy, member.name, seed=3)
        keys = RowKeys.grid(3, 0, 1, 1)
        told = [policy.scene.world.tasks[t] for t in draw_tasks(len(policy.scene.world.tasks), keys)]
        seat = ModelSeat(policy.model, keys, "policy", told)
        (rollout,) = run_dialogues(
            nano_episodes(policy.scene.world, told),
            seat,
            policy.seat(member.name, keys, policy.told(member.name, keys)),
            keys,
            [member.name],
        )
        assert written(talk) == list(zip(rollout.acts, rollout.replies, strict=True))
        assert (talk.ending.outcome.said, talk.ending.reward) == (rollout.outcome, rollout.reward)


def test_the_same_seed_replays_the_talk_and_another_does_not(trained):
    talks = [play(trained, "real", seed=s) for s in (0, 0, *range(1, 8))]
    assert talks[0].transcript == talks[1].transcript
    assert len({talk.transcript for talk in talks}) > 3
    again = talks[0]
    again.restart()
    for _ in range(WORLD.horizon):
        again.say()
    assert again.transcript != talks[1].transcript


def test_a_run_can_talk_to_the_simulator_that_it_trained(root):
    policy = load_policy("persuasion-population", root)
    talk = play(policy, TRAINING)
    pool = policy.trained_with.pool
    speaker = pool.entries[pool.draw(talk.keys)[0]]
    with torch.no_grad():
        _, log_all = speaker.token_logprobs(collate([talk._partner.row.transcripts[0]], pad=0))
    expected = log_all.exp()[0, speaker.choice_ids["reply"]].numpy()
    shown = [talk.turns[0].reply.probabilities[r] for r in talk.replies]
    np.testing.assert_allclose(shown, expected, atol=1e-5)
    assert len(pool.entries) == 2 and TRAINING not in untrained("persuasion").partners


def test_the_world_says_how_a_talk_with_a_person_ended(trained):
    """Against the sum over types, written out: what each would have said, and what it would then give."""
    talk, facts, state = Conversation(trained), WORLD.spec.user_types.index("facts"), WORLD.starts[0]
    while talk.ending is None:  # a person who likes facts
        act = WORLD.agent_index[talk.turns[-1].act.said]
        reply = WORLD.reply[facts, state, act].argmax()
        state = WORLD.next_state[facts, state, act, reply]
        talk.say(WORLD.spec.user_acts[reply])
    weights, values = [], []
    for z, prior in enumerate(WORLD.real_prior):
        state, likelihood = WORLD.starts[0], prior
        for said, heard in written(talk):
            a, r = WORLD.agent_index[said], WORLD.user_index[heard]
            likelihood *= WORLD.reply[z, state, a, r]
            state = WORLD.next_state[z, state, a, r]
        weights.append(likelihood)
        values.append(WORLD.outcome[z, state] @ WORLD.rewards)
    assert talk.ending.expected_reward == pytest.approx(np.average(values, weights=weights))
    assert talk.ending.reward in WORLD.spec.rewards


# -- undo -------------------------------------------------------------------------------------------------------------


def test_undo_takes_back_one_reply_and_the_same_reply_gives_the_same_act(trained):
    talk = Conversation(trained)
    acts = [talk.turns[0].act, talk.say("hi").act, talk.say("reveal-trust").act]
    assert talk.undo().act == acts[1] and len(talk.turns) == 2 and talk.turns[1].reply is None
    other = talk.say("displeased").act
    assert other.probabilities != acts[2].probabilities
    talk.undo()
    again = talk.say("reveal-trust").act
    assert again.said == acts[2].said and again.probabilities == pytest.approx(acts[2].probabilities, rel=1e-5)
    for reply in ("no", "no"):
        talk.say(reply)
    assert talk.ending
    talk.undo()
    assert talk.ending is None and len(talk.turns) == WORLD.horizon


def test_what_cannot_be_done_is_told_and_changes_nothing(trained):
    talk = Conversation(trained)
    for wrong, told in ((talk.undo, "nothing to take back"), (lambda: talk.say("yess"), "did you mean 'yes'")):
        with pytest.raises(ScopeError, match=told):
            wrong()
    assert written(talk) == [(talk.turns[0].act.said, None)]
    over = play(trained, "sim-a")
    for wrong, told in ((over.say, "is over"), (over.undo, "say the same again")):
        with pytest.raises(ScopeError, match=told):
            wrong()


# -- what there is to talk to -----------------------------------------------------------------------------------------


def test_a_run_that_cannot_be_talked_to_is_told_in_one_line(root, tmp_path, monkeypatch):
    for name, told in (
        ("nothing", "base:persuasion"),
        ("base:persuasoin", "did you mean"),
        ("base:p4", "did you mean 'p4g'"),
        ("persuasion-", "fits 2 runs"),
    ):
        with pytest.raises(ScopeError, match=told) as error:
            load_policy(name, root)
        assert "\n" not in str(error.value)
    with pytest.raises(ScopeError, match="did you mean 'sim-a'"):
        Conversation(untrained("persuasion"), "sim_a")
    with monkeypatch.context() as without_models:
        without_models.setattr("scope_lite.store.paths.NANO_MODELS", tmp_path / "models")
        with pytest.raises(ScopeError, match="nano build --world airline"):
            load_policy("base:airline", root)

    def die(step, steps, metrics):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(method_config("single", steps=1, **TINY), tmp_path, on_step=die)
    with pytest.raises(ScopeError, match="no checkpoint yet"):
        load_policy("persuasion-single", tmp_path)
    (facts,) = tmp_path.glob("*/provenance.json")
    file = '"qwen3-tiny/model.safetensors": "'
    facts.write_text(facts.read_text(encoding="utf-8").replace(file, f"{file}0"), encoding="utf-8")
    with pytest.raises(ScopeError, match=r"not the present ones \(qwen3-tiny/model.safetensors\)"):
        load_policy("persuasion-single", tmp_path)


# -- the command ------------------------------------------------------------------------------------------------------


def command(root, lines, *words, run="persuasion-single"):
    result = CliRunner().invoke(
        cli.app, ["chat", run, "--out", str(root), *words], input="".join(f"{x}\n" for x in lines)
    )
    assert result.exit_code == 0, result.output
    return result


def test_replies_by_number_name_and_beginning_and_bad_ones_are_passed_over(root, trained):
    result = command(root, ["1", "nope", "99", "reveal", "", "displ", "quitt", "no", "YES"])
    talk = play(trained, replies=["hi", "displeased", "no", "yes"])
    for turn in talk.turns:
        assert f"agent: {WORLD.say(turn.act.said)} ({turn.act.said}, {turn.act.probability:.3f})" in result.stdout
        assert f"you: {WORLD.say(turn.reply.said)} ({turn.reply.said})" in result.stdout
    assert f"reward {talk.ending.reward:.2f}" in result.stdout
    told = result.stderr.splitlines()
    assert ["nope" in told[0], "1 to 9" in told[1], "fits" in told[2], "did you mean 'quit'" in told[3]] == [True] * 4
    assert len(told) == 4


def test_commands_undo_restart_and_quit(root):
    shown = command(root, ["hi", "undo", "restart", "quit", "yes"]).stdout
    assert [line for line in shown.splitlines() if line.startswith("turn")] == [
        "turn 1 of 4", "turn 2 of 4", "turn 1 of 4", "turn 1 of 4"
    ]  # fmt: skip


def test_a_simulator_talks_to_the_end_by_itself(root, trained):
    shown = command(root, [], "--with", "sim-c", "--seed", "4").stdout
    talk = play(trained, "sim-c", seed=4)
    assert all(f"sim-c: {WORLD.say(t.reply.said)} ({t.reply.said}, " in shown for t in talk.turns)
    assert f"reward {talk.ending.reward:.2f}" in shown


@pytest.mark.parametrize("stop", [KeyboardInterrupt, EOFError])
def test_ctrl_c_and_ctrl_d_end_it_cleanly(root, monkeypatch, stop):
    def stopped(prompt=""):
        raise stop

    monkeypatch.setattr(builtins, "input", stopped)
    assert command(root, []).stderr == ""


def test_two_agents_alike_and_a_person_is_told_its_half():
    """In coding the person is the partner: told its version, and paid by the world for what both wrote."""
    policy = untrained("coding")
    shown = command("", ["wait"] * 4, run="base:coding").stdout
    talk = play(policy, replies=["wait"] * 4)
    assert f"you are told: {policy.scene.world.say(talk.told)}" in shown and talk.told.startswith("half-")
    assert f"the agent was told: {policy.scene.world.say(talk.task)}" in shown
    # one who writes nothing leaves a half missing, unless the other did what is worse
    assert talk.ending.outcome.said in ("unfinished", "conflict") and talk.ending.outcome.probability == 1


# -- the notebook cell ------------------------------------------------------------------------------------------------


def test_the_widget_shows_the_talk_and_its_buttons_lead_it(root, trained):
    widget = chat_widget("persuasion-single", root=root)
    talk = play(trained, replies=["hi", "no", "no", "no"])
    widget.undo.click()
    assert widget.trouble.value == "nothing to take back"
    for turn in talk.turns:
        widget.reply.value = turn.reply.said
        widget.say.click()
    assert widget.talk.transcript == talk.transcript and widget.say.disabled and widget.trouble.value == ""
    assert all(f"{t.act.said}, {t.act.probability:.3f}" in widget.page.value for t in talk.turns)
    assert f"reward {talk.ending.reward:.2f}" in widget.page.value
    widget.undo.click()
    assert not widget.say.disabled
    widget.restart.click()
    assert len(widget.talk.turns) == 1
    listening = chat_widget("persuasion-single", "sim-a", root=root)
    listening.say.click()
    assert listening.talk.turns[0].reply and listening.reply not in listening.children[1].children
