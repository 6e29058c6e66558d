"""Rollouts: what is sampled is what is trained, in a batch as one by one, and no other token gets a gradient."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.users import BeliefUsers, ScriptedUsers
from scope_lite.method.config import method_config
from scope_lite.method.grpo import clipped_loss
from scope_lite.method.nano import Library, NanoScene, WorldSeat, collapse_error
from scope_lite.method.partner import Partner
from scope_lite.method.sampling import Direct, VerbalizedModel
from scope_lite.method.scene import Scene
from scope_lite.method.seats import ModelSeat, RoutedSeat
from scope_lite.method.words import WordSeat
from scope_lite.models.chat import ChatFormat
from scope_lite.models.records import Transcript, collate
from scope_lite.models.rng import RowKeys
from scope_lite.models.stack import tree_of
from scope_lite.store.errors import ScopeError

WORLD = get_world("persuasion")
KEYS = RowKeys.grid(run=0, step=1, groups=3, group_size=4)


@pytest.fixture(scope="module")
def library():
    return Library(WORLD)


@pytest.fixture(scope="module")
def policy(library):
    model = library.seat_model("qwen3-tiny")
    model.add_adapter(rank=4, alpha=8, seed=0)
    for name, parameter in model.model.named_parameters():
        if "lora_B" in name:  # a fresh adapter is the identity; this one is not
            torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(len(name)))
    return model


def frozen(library, **simulator):
    return Partner(NanoScene(method_config("single", simulator=simulator), library))


def play(library, policy, keys):
    partner = frozen(library, sharpness=1.0)
    return partner.play(policy, keys).rollouts


@pytest.fixture(scope="module")
def rollouts(library, policy):
    return play(library, policy, KEYS)


def test_a_batch_gives_the_same_dialogues_as_one_row_at_a_time(library, policy, rollouts):
    for row, whole in enumerate(rollouts):
        (alone,) = play(library, policy, KEYS[np.array([row])])
        assert (alone.acts, alone.replies, alone.outcome) == (whole.acts, whole.replies, whole.outcome)
        np.testing.assert_allclose(alone.policy.logprobs, whole.policy.logprobs, atol=1e-5)


def test_sampled_logprobs_equal_recomputed_ones(library, policy, rollouts):
    batch = collate([r.policy for r in rollouts], pad=0)
    with torch.no_grad():
        logprobs, _ = policy.token_logprobs(batch)
    torch.testing.assert_close(logprobs, batch.sampled_logprobs, atol=1e-5, rtol=0)
    simulator = library.seat_model("qwen3-tiny")
    batch = collate([r.simulator_transcript for r in rollouts], pad=0)
    with torch.no_grad():
        logprobs, _ = simulator.token_logprobs(batch)
    torch.testing.assert_close(logprobs, batch.sampled_logprobs, atol=1e-5, rtol=0)


def say(seat, act, reply):
    """Two turns of one side, in which some rows hear nothing and some do not speak."""
    rows = len(seat.transcripts)
    told = [seat.speak(0, "act")]
    seat.hear([reply if i % 3 else None for i in range(rows)])
    told.append(seat.speak(1, "act", np.flatnonzero(np.arange(rows) % 3)))
    seat.hear([act if i % 3 else None for i in range(rows)])
    return [*told, seat.speak(2, "act", np.flatnonzero(np.arange(rows) % 3))]


@pytest.mark.parametrize("rule", [Direct(), VerbalizedModel()])
def test_rows_with_the_same_words_are_read_once_and_say_what_each_alone_would(policy, monkeypatch, rule):
    systems = ["agent", "user"] * 12
    keys = RowKeys.grid(0, 1, 6, 4)
    plain = ModelSeat(policy, keys, "policy", systems, rule)
    shared = WordSeat(policy, keys, "policy", systems, rule)
    expected, rows = say(plain, "no", "yes"), []
    hook = policy.merged().model.embed_tokens.register_forward_hook(lambda module, ids, out: rows.append(len(out)))
    assert say(shared, "no", "yes") == expected
    hook.remove()
    assert rows[0] == 2 and rows[1] < len(keys)
    for ours, theirs in zip(shared.transcripts, plain.transcripts, strict=True):
        assert (ours.ids, ours.generated, ours.choices) == (theirs.ids, theirs.generated, theirs.choices)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
    for ours, theirs in zip(shared.distributions(), plain.distributions(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    taken_up = WordSeat(policy, keys, "policy", systems, rule)
    taken_up.resume(shared.transcripts)
    assert taken_up.speak(3, "act") == shared.speak(3, "act")


@pytest.mark.parametrize("world", ["persuasion", "retail", "coding"])
def test_words_as_numbers_and_models_that_read_together_give_the_dialogues_of_the_plain_loop(world):
    """The whole panel: models of two kinds, users of the world itself, prompts and tasks."""
    scene = NanoScene(method_config("single", world=world))
    policy, n = scene.policy_model(), 6
    keys = RowKeys.grid(0, 1, len(scene.members), n)
    playing = [member for member in scene.members for _ in range(n)]
    names, tasks = [member.name for member in playing], scene.draw_tasks(keys, "test").tolist()

    def seat(rows, systems):
        return scene.seat_members(playing, rows, systems, "test")

    told = scene.told(playing, keys, "test")
    passes = []
    hook = tree_of(policy.base).register_forward_hook(lambda *read: passes.append(1))
    fast, simulators = scene.run(policy, keys, names, seat, tasks, told, "test")
    hook.remove()
    assert len(passes) <= scene.world.horizon + 1
    plain, known = Scene.run(scene, policy, keys, names, seat, tasks, told, "test")
    for ours, theirs in zip(fast, plain, strict=True):
        assert ours.readable() == theirs.readable()
        for a, b in ((ours.policy, theirs.policy), (ours.simulator_transcript, theirs.simulator_transcript)):
            assert (a is None) == (b is None)
            if a and b:
                assert (a.ids, a.generated, a.choices) == (b.ids, b.generated, b.choices)
                np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
    for ours, theirs in zip(simulators.distributions(), known.distributions(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_ids_trained_are_ids_sampled(policy, rollouts):
    tokenizer = policy.tokenizer
    batch = collate([r.policy for r in rollouts], pad=0)
    said = tokenizer.convert_ids_to_tokens(batch.targets.tolist())
    assert said == [act for r in rollouts for act in r.acts]
    batch = collate([r.simulator_transcript for r in rollouts], pad=0)
    said = tokenizer.convert_ids_to_tokens(batch.targets.tolist())
    assert said == [word for r in rollouts for word in [*r.replies, r.outcome]]


def test_transcripts_equal_the_chat_template_rendered_once(policy, rollouts):
    """Append-only pieces against one rendering of the finished dialogue, both seats."""
    tokenizer = policy.tokenizer
    for r in rollouts:
        agent = [("system", "agent"), ("assistant", r.acts[0])]
        user = [("system", "user")]
        for act, reply in zip(r.acts, r.replies, strict=True):
            user += [("user", act), ("assistant", reply)]
        for act, reply in zip(r.acts[1:], r.replies, strict=False):
            agent += [("user", reply), ("assistant", act)]
        user += [("user", "close"), ("assistant", r.outcome)]
        for messages, transcript in ((agent, r.policy), (user, r.simulator_transcript)):
            turns = [{"role": role, "content": content} for role, content in messages]
            assert tokenizer.apply_chat_template(turns, return_dict=False) == transcript.ids


def test_members_of_a_group_differ(rollouts):
    assert len({tuple(r.acts + r.replies) for r in rollouts}) > len(rollouts) // 2


def hand_written(tokenizer, turns):
    """A policy transcript of ``turns`` turns, token by token, with its golden mask."""
    ids = tokenizer.convert_tokens_to_ids
    transcript = Transcript()
    transcript.read(ids(["<|system|>", "agent", "<|assistant|>"]))
    for t in range(turns):
        if t:
            transcript.read(ids(["<|user|>", "no", "<|assistant|>"]))
        transcript.write(ids("appeal-heart"), -1.0, choice=1)
    return transcript


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_prompt_and_simulator_tokens_get_exactly_zero_gradient(policy, turns):
    """Through the real backend: the hidden state before every other token receives no gradient at all."""
    batch = collate([hand_written(policy.tokenizer, turns)], pad=0)
    seen = []

    def keep(module, args, output):
        output.last_hidden_state.retain_grad()
        seen.append(output.last_hidden_state)

    hook = policy.merged().model.register_forward_hook(keep)
    logprobs, _ = policy.token_logprobs(batch)
    hook.remove()
    clipped_loss(logprobs, logprobs.detach(), torch.ones(1), batch.row).loss.backward()
    received = seen[0].grad[0].abs().sum(-1)
    before_an_act = torch.zeros(len(received), dtype=torch.bool)
    before_an_act[[2 + 4 * t for t in range(turns)]] = True
    assert (received[~before_an_act] == 0).all()
    assert (received[before_an_act] > 0).all()


def test_gradient_agrees_with_full_logits_and_an_explicit_mask(policy, rollouts):
    """The path that computes logits only where needed, against the plain one that computes them all."""
    rollouts = [*rollouts, *rollouts[:3]]  # rows with the same tokens are read once
    batch = collate([r.policy for r in rollouts], pad=0)
    advantages = torch.linspace(-1, 1, len(rollouts))
    logprobs, _ = policy.token_logprobs(batch)
    fast = torch.autograd.grad(
        clipped_loss(logprobs, logprobs.detach(), advantages, batch.row).loss, policy.trainable()
    )
    logits = policy.model(input_ids=batch.ids).logits[:, :-1]
    mask = torch.zeros(batch.ids.shape, dtype=torch.bool)
    mask[batch.row, batch.column] = True
    allowed = policy.choice_bias[policy.choice_index["act"]]
    everything = (logits + allowed).log_softmax(-1).gather(-1, batch.ids[:, 1:, None])[..., 0]
    weight = advantages[:, None] * mask[:, 1:]
    loss = -torch.where(mask[:, 1:], everything, torch.zeros_like(everything)).mul(weight).sum() / mask.sum()
    plain = torch.autograd.grad(loss, policy.trainable())
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_a_transcript_that_begins_with_a_sample_is_refused():
    transcript = Transcript()
    transcript.write(1, -1.0, 0)
    with pytest.raises(ValueError, match="put a prompt before it"):
        collate([transcript], pad=0)


def test_rows_of_different_length_are_masked_and_not_moved(policy):
    long, short = hand_written(policy.tokenizer, 4), hand_written(policy.tokenizer, 1)
    with torch.no_grad():
        together, _ = policy.token_logprobs(collate([long, short], pad=0))
        apart = [policy.token_logprobs(collate([t], pad=0))[0] for t in (long, short)]
    torch.testing.assert_close(together, torch.cat(apart), atol=1e-6, rtol=1e-5)


def test_cached_session_agrees_with_a_fresh_forward_on_ragged_rows(policy):
    session = policy.session(3)
    words = [["<|system|>", "agent"], ["<|system|>"], ["<|system|>", "agent", "<|assistant|>"]]
    more = [["<|assistant|>"], ["agent", "<|assistant|>"], []]
    ids = policy.tokenizer.convert_tokens_to_ids
    session.append([ids(w) for w in words])
    session.append([ids(w) if w else [] for w in more])
    whole = torch.tensor([ids(words[2])])
    with torch.no_grad():
        expected = policy.model.model(input_ids=whole).last_hidden_state[0, -1]
    for row in session.hidden:
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-4)


def users(user_type, rows):
    return ScriptedUsers(WORLD, np.full(rows, WORLD.spec.user_types.index(user_type)))


def test_scripted_users_speak_their_own_types_words():
    keys = RowKeys.grid(0, 0, 1, 500)
    seat = WorldSeat(users("facts", 500), keys)
    seat.hear(["ask"] * 500)
    said = seat.speak(0, "reply")
    assert set(said) == {"reveal-facts", "hi"}
    assert 0.9 < said.count("reveal-facts") / 500 < 0.99


def test_routed_rows_say_what_they_would_say_alone():
    keys = RowKeys.grid(0, 0, 2, 10)
    odd, even = np.arange(1, 20, 2), np.arange(0, 20, 2)
    facts, heart = (users(z, 10) for z in ("facts", "heart"))
    routed = RoutedSeat([(odd, WorldSeat(facts, keys[odd])), (even, WorldSeat(heart, keys[even]))])
    routed.hear(["ask"] * 20)
    said = routed.speak(0, "reply")
    assert {said[i] for i in odd} <= {"reveal-facts", "hi"} and {said[i] for i in even} <= {"reveal-heart", "hi"}
    assert routed.distributions()[0].shape == (20, len(WORLD.spec.user_acts))


def test_ensemble_rotates_over_groups_and_keeps_one_simulator_a_group(library):
    partner = frozen(library, members=["sim-a", "sim-b", "sim-c"])
    names = [[m.name for m in partner.playing(RowKeys.grid(0, step, 4, 2))] for step in range(3)]
    assert all(group[2 * i] == group[2 * i + 1] for group in names for i in range(4))
    played = [group[2 * i] for group in names for i in range(4)]
    assert played == ["sim-a", "sim-b", "sim-c"] * 4


def test_by_rollout_the_ensemble_rotates_within_the_group(library):
    partner = frozen(library, members=["sim-a", "sim-b"], draw="dialogue")
    assert [m.name for m in partner.playing(RowKeys.grid(0, 0, 1, 4))] == ["sim-a", "sim-b"] * 2


def test_the_worlds_outcome_follows_from_what_was_said_and_leaves_the_simulator_no_last_word(library, policy):
    partner = frozen(library, sharpness=1.0, outcome="world")
    rollouts = partner.play(policy, RowKeys.grid(0, 1, 50, 8)).rollouts
    seat = partner.newest
    for r, believed in zip(rollouts, seat.distributions()[-1], strict=True):
        assert sum(r.simulator_transcript.generated) == WORLD.horizon
        slow = BeliefUsers(WORLD, WORLD.prior, 1)
        for act, reply in zip(r.acts, r.replies, strict=True):
            slow.observe(np.array([WORLD.agent_index[act]]), np.array([WORLD.user_index[reply]]))
        np.testing.assert_allclose(believed, slow.outcome_probabilities()[0], atol=1e-12)
    expected = seat.distributions()[-1] @ WORLD.rewards
    error = np.sqrt(seat.distributions()[-1] @ WORLD.rewards**2 - expected**2)
    assert abs(np.mean([r.reward for r in rollouts]) - expected.mean()) < 4 * error.mean() / np.sqrt(len(rollouts))


def test_a_frozen_judge_takes_every_user_for_the_favourite_type(library, policy):
    partner = frozen(library, sharpness=1.0, outcome="judge")
    rollouts = partner.play(policy, KEYS).rollouts
    for r, judged in zip(rollouts, partner.newest.distributions()[-1], strict=True):
        hearts = users("heart", 1)
        for act, reply in zip(r.acts, r.replies, strict=True):
            hearts.observe(np.array([WORLD.agent_index[act]]), np.array([WORLD.user_index[reply]]))
        np.testing.assert_allclose(judged, hearts.outcome_probabilities()[0], atol=1e-12)


def test_with_draw_step_one_member_plays_the_whole_step(library):
    partner = frozen(library, members=["sim-a", "sim-b"], draw="step")
    played = [{m.name for m in partner.playing(RowKeys.grid(0, step, 3, 4))} for step in (1, 2, 3)]
    assert played == [{"sim-b"}, {"sim-a"}, {"sim-b"}]


def test_with_fewer_tasks_the_policy_and_the_worlds_judge_have_the_first_ones():
    def tasks(split, **settings):
        scene = NanoScene(method_config("single", world="coding", **settings))
        assert len(scene.world.tasks) == 2
        keys = RowKeys.grid(0, 1, 40, 2)
        drawn = scene.draw_tasks(keys.by_group() if split == "train" else keys, split)
        if split == "train":
            seat = scene.seat_members([scene.members[0]] * len(keys), keys, ["x"] * len(keys), split)
            users = seat.parts[0][1].users
            np.testing.assert_array_equal(users.states[:, 0], scene.world.starts[drawn])
        return set(drawn.tolist())

    assert tasks("train") == tasks("test", tasks=1) == tasks("train", tasks=16) == {0, 1}
    assert tasks("train", tasks=1) == {0}


def test_at_a_temperature_acts_are_sharper_and_are_trained_as_they_were_sampled(library):
    scene = NanoScene(method_config("single", temperature=0.5), library)
    plain, sharp = library.seat_model("qwen3-tiny"), scene.policy_model()
    laws = []
    for model in (plain, sharp):
        seat = scene.seat_model(model, KEYS, ["agent"] * len(KEYS), "train")
        seat.speak(0, "act")
        laws.append(seat.distributions()[0])
    np.testing.assert_allclose(laws[1], laws[0] ** 2 / (laws[0] ** 2).sum(axis=1, keepdims=True), atol=1e-6)
    rollouts = Partner(scene).play(sharp, KEYS).rollouts
    batch = collate([r.policy for r in rollouts], pad=0)
    with torch.no_grad():
        torch.testing.assert_close(sharp.token_logprobs(batch)[0], batch.sampled_logprobs, atol=1e-5, rtol=0)
        torch.testing.assert_close(
            sharp.reference().token_logprobs(batch)[0], batch.sampled_logprobs, atol=1e-5, rtol=0
        )


def test_the_panel_can_hear_the_policy_at_another_temperature_and_greedily_at_none(library):
    def spoken(split, step=0, **settings):
        scene = NanoScene(method_config("single", **settings), library)
        keys = RowKeys.grid(0, step, 50, 4)
        seat = scene.seat_model(scene.policy_model(), keys, [scene.world.tasks[0]] * len(keys), split)
        return seat.speak(0, "act"), seat.distributions()[0]

    _, plain = spoken("test")
    greedy = {act for step in range(3) for act in spoken("test", step, temperature=0.7, eval_temperature=0)[0]}
    assert greedy == {WORLD.spec.agent_acts[plain[0].argmax()]}
    assert len(set(spoken("train", eval_temperature=0)[0])) > 1
    cold = spoken("test", temperature=0.7, eval_temperature=0.5)[1]
    np.testing.assert_allclose(cold, plain**2 / (plain**2).sum(axis=1, keepdims=True), atol=1e-6)


def test_a_persona_is_drawn_for_each_group(library):
    partner, keys = frozen(library, kind="persona", persona="says"), RowKeys.grid(0, 1, 200, 2)
    systems = partner.scene.told(partner.playing(keys), keys.by_group(), "train")
    assert all(systems[2 * i] == systems[2 * i + 1] for i in range(200))
    assert set(systems) == {f"user-says-{z}" for z in WORLD.spec.prior}


def test_a_collapsed_simulator_measures_as_collapsed_and_p_does_not(library, policy):
    errors = {}
    for sharpness in (1.0, 8.0):
        partner = frozen(library, sharpness=sharpness)
        errors[sharpness] = partner.play(policy, KEYS).epsilon
        assert errors[sharpness] == collapse_error(partner.newest.distributions()[: WORLD.horizon])
    assert errors[8.0] < 0.05 < 0.1 < errors[1.0]


class ForgetfulTokenizer:
    """A template that drops the assistant's earlier turns, as thinking models' templates drop thoughts."""

    added_tokens_decoder: ClassVar[dict] = {}
    all_special_tokens: ClassVar[list] = []

    def apply_chat_template(self, turns, tokenize, add_generation_prompt):
        return "".join(f"<{t['role']}>{t['content']}" for t in turns if t["role"] != "assistant") + "<assistant>"


def test_a_template_that_rewrites_history_is_refused_in_one_line():
    with pytest.raises(ScopeError, match="rewrites earlier turns") as error:
        ChatFormat(ForgetfulTokenizer())
    assert "\n" not in str(error.value)
