"""Talking to a policy: what is shown is what is sampled, the same seed says the same, and bad input ends nothing."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.cli.conversation import BASE, TRAINING, YOU, Again, Message, Talk, load_policy
from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.episode import NanoEpisode
from scope_lite.envs.nano.spec import AGENT
from scope_lite.method.config import method_config
from scope_lite.method.dialogue import run_dialogues
from scope_lite.method.nano import choice_sets
from scope_lite.method.scene import draw_tasks
from scope_lite.method.seats import ModelSeat
from scope_lite.method.train import train
from scope_lite.models.hf import SeatModel, load_base
from scope_lite.models.records import Rollout, collate
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


@dataclass
class Played:
    """A talk, what it showed, and how it ended: None, where the replies did not last."""

    talk: Talk
    shown: list[Message] = field(default_factory=list)
    rollout: Rollout | None = None

    def go_on(self, *words):
        """Play on with these replies; "undo" and "restart" are commands."""
        left = iter(words)

        def ask():
            word = next(left)
            return getattr(self.talk, word)() if word in ("undo", "restart") else word

        while self.rollout is None:
            try:
                self.rollout = self.talk.play(ask, self.shown.append)
            except Again:
                continue
            except StopIteration:
                break
        return self

    def by(self, *speakers):
        return [m for m in self.shown if m.speaker in speakers]

    @property
    def transcript(self):
        return "\n".join(m.line for m in self.shown)


def play(policy, partner=YOU, replies=(), seed=0):
    return Played(Talk(policy, partner, seed)).go_on(*replies)


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_probabilities_are_those_of_the_adapter_in_the_checkpoint(root, trained):
    """Against a model put together here, read through the trainer's own log probabilities on the whole transcript."""
    played = play(trained, replies=["hi", "reveal-facts", "no", "yes"])
    base, tokenizer = load_base(NANO_MODELS / "persuasion" / "qwen3-tiny")
    model = SeatModel(base, tokenizer, choice_sets(WORLD, tokenizer))
    model.add_adapter(rank=8, alpha=16, seed=5)
    (folder,) = root.glob("persuasion-single-*")
    saved = load_newest(folder / "checkpoints").tensors["policy"]
    model.load_adapter_state({n.removeprefix("adapter."): t for n, t in saved.items() if n.startswith("adapter.")})
    with torch.no_grad():
        _, log_all = model.token_logprobs(collate([played.rollout.policy], pad=0))
    expected = log_all.exp()[:, model.choice_ids["act"]].numpy()
    shown = np.array([[m.probabilities[a] for a in WORLD.spec.agent_acts] for m in played.by("agent")])
    np.testing.assert_allclose(shown, expected, atol=1e-5)
    before = play(untrained("persuasion")).shown[0].probabilities
    assert max(abs(before[a] - p) for a, p in played.shown[0].probabilities.items()) > 0.01  # it has learned a step


def test_acts_are_drawn_with_the_probabilities_that_are_shown(trained):
    shown = play(trained).shown[0].probabilities
    keys = RowKeys.grid(0, 0, groups=3000, group_size=1)
    said = ModelSeat(trained.model, keys, "policy", [AGENT] * len(keys)).speak(0, "act")
    shares = np.array([said.count(act) / len(said) for act in shown])
    np.testing.assert_allclose(shares, list(shown.values()), atol=0.04)
    assert [play(trained, seed=s).shown[0].said for s in range(3)] == [
        ModelSeat(trained.model, RowKeys.grid(s, 0, 1, 1), "policy", [AGENT]).speak(0, "act")[0] for s in range(3)
    ]


def test_options_are_ranked_and_keep_what_was_said(trained):
    message = play(trained, "sim-a").by("sim-a")[0]  # a collapsed simulator: nearly all on one reply
    options = message.options(least=0.5)
    assert message.said in options and list(options.values()) == sorted(options.values(), reverse=True)
    assert sum(message.probabilities.values()) == pytest.approx(1) and len(options) <= 2


# -- who answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", ["persuasion", "coding"])  # the simulator says how it ended, and the world does
def test_a_talk_with_a_member_is_a_rollout_with_it(world):
    policy = untrained(world)
    scene, keys = policy.scene, RowKeys.grid(3, 0, 1, 1)
    for member in scene.members:
        played = play(policy, member.name, seed=3)
        told = [scene.world.tasks[t] for t in draw_tasks(len(scene.world.tasks), keys)]
        agent = ModelSeat(policy.model, keys, "policy", told)
        simulator = scene.seat_members([member], keys, scene.told([member], keys, "test"), "test")
        (rollout,) = run_dialogues(
            [NanoEpisode(scene.world, {"policy": told[0], "simulator": ""})], agent, simulator, keys, [member.name]
        )
        assert [m.said for m in played.by("agent")] == rollout.acts
        assert [m.said for m in played.by(member.name)] == rollout.replies
        assert [m.said for m in played.by("outcome")] == [rollout.outcome] and played.rollout.reward == rollout.reward


def test_the_same_seed_replays_the_talk_and_another_does_not(trained):
    talks = [play(trained, "real", seed=s) for s in (0, 0, *range(1, 8))]
    assert talks[0].transcript == talks[1].transcript
    assert len({played.transcript for played in talks}) > 3
    with pytest.raises(Again):
        talks[0].talk.restart()
    assert Played(talks[0].talk).go_on().transcript != talks[1].transcript


def test_a_run_can_talk_to_the_simulator_that_it_trained(root):
    policy = load_policy("persuasion-population", root)
    played = play(policy, TRAINING)
    pool = policy.trained_with.pool
    speaker = pool.entries[pool.draw(RowKeys.grid(0, 0, 1, 1))[0]]
    with torch.no_grad():
        _, log_all = speaker.token_logprobs(collate([played.rollout.simulator_transcript], pad=0))
    expected = log_all.exp()[0, speaker.choice_ids["reply"]].numpy()
    shown = [played.by(TRAINING)[0].probabilities[r] for r in played.talk.replies]
    np.testing.assert_allclose(shown, expected, atol=1e-5)
    assert len(pool.entries) == 2 and TRAINING not in untrained("persuasion").partners


def test_the_world_says_how_a_talk_with_a_person_ended(trained):
    """Against the sum over types, written out: what each would have said, and what it would then give."""
    talk, shown, said = Talk(trained), [], []
    facts, state = WORLD.spec.user_types.index("facts"), WORLD.starts[0]

    def ask():  # a person who likes facts
        nonlocal state
        act = WORLD.agent_index[shown[-1].said]
        reply = WORLD.reply[facts, state, act].argmax()
        state = WORLD.next_state[facts, state, act, reply]
        said.append((act, reply))
        return WORLD.spec.user_acts[reply]

    rollout = talk.play(ask, shown.append)
    weights, values = [], []
    for z, prior in enumerate(WORLD.real_prior):
        state, likelihood = WORLD.starts[0], prior
        for a, r in said:
            likelihood *= WORLD.reply[z, state, a, r]
            state = WORLD.next_state[z, state, a, r]
        weights.append(likelihood)
        values.append(WORLD.outcome[z, state] @ WORLD.rewards)
    assert talk.expected_reward() == pytest.approx(np.average(values, weights=weights))
    assert rollout.reward in WORLD.spec.rewards


# -- undo -------------------------------------------------------------------------------------------------------------


def test_undo_takes_back_one_reply_and_the_same_reply_gives_the_same_act(trained):
    played = play(trained, replies=["hi", "reveal-trust"])
    acts = played.by("agent")
    played.go_on("hi", "reveal-trust", "undo", "displeased", "undo", "reveal-trust")
    again = played.by("agent")[-5:]  # the third act; the second, open again; another; the second; the third
    assert again[0] == acts[2] and again[1] == again[3] == acts[1]
    assert again[2].probabilities != acts[2].probabilities
    assert again[4].said == acts[2].said and again[4].probabilities == pytest.approx(acts[2].probabilities, rel=1e-5)
    over = play(trained, replies=["hi", "reveal-trust", "no", "no"])
    with pytest.raises(Again):
        over.talk.undo()
    over.shown.clear()
    over.rollout = None
    over.go_on("yes")
    assert [m.speaker for m in over.shown] == ["agent", "you", "outcome"] and over.rollout.replies[-2:] == ["no", "yes"]


def test_what_cannot_be_done_is_told(trained):
    with pytest.raises(ScopeError, match="nothing to take back"):
        play(trained).talk.undo()
    with pytest.raises(ScopeError, match="say the same again"):
        play(trained, "sim-a").talk.undo()


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
        Talk(untrained("persuasion"), "sim_a")
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
    played = play(trained, replies=["hi", "displeased", "no", "yes"])
    for message in played.by("agent"):
        line = f"agent: {WORLD.say(message.said)} ({message.said}, {message.probability:.3f})"
        assert message.line == line and line in result.stdout
    assert all(f"you: {WORLD.say(m.said)} ({m.said})" in result.stdout for m in played.by("you"))
    assert f"reward {played.rollout.reward:.2f}" in result.stdout
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
    played = play(trained, "sim-c", seed=4)
    assert all(f"sim-c: {WORLD.say(m.said)} ({m.said}, " in shown for m in played.by("sim-c"))
    assert f"reward {played.rollout.reward:.2f}" in shown


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
    played = play(policy, replies=["wait"] * 4)
    told, ended = played.shown[0], played.shown[-1]
    assert f"you are told: {policy.scene.world.say(told.said)}" in shown and told.said.startswith("half-")
    assert f"the agent was told: {policy.scene.world.say(played.rollout.task)}" in shown
    # one who writes nothing leaves a half missing, unless the other did what is worse
    assert ended.said in ("unfinished", "conflict") and ended.probability == 1
