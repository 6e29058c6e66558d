"""Co-Training in text: the simulator's own transcripts, its pool of past selves, and what a step teaches it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scope_lite.envs.p4g_episode import P4GEpisode
from scope_lite.method.config import RunConfig
from scope_lite.method.cotraining import LearningPartner, open_partner
from scope_lite.method.dialogue import run_dialogues, seat_systems
from scope_lite.method.learner import Learner
from scope_lite.method.seats import ModelSeat
from scope_lite.method.text import TextScene
from scope_lite.method.train import train
from scope_lite.models.records import Rollout, Transcript, collate
from scope_lite.models.rng import RowKeys
from scope_lite.store import checkpoints
from scope_lite.store.errors import ScopeError
from tests.method.test_text_training import config_of, model, panel, rows_of, scripted  # noqa: F401  (fixtures)
from tests.models.test_vllm import SlowLLM, slow  # noqa: F401  (slow is a fixture)

KEYS = RowKeys.grid(0, 1, 2, 4)


@pytest.fixture(autouse=True)
def rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward that a random model can earn: by the letters of both sides' words."""
    said = property(lambda episode: sum(map(len, [*episode.acts, *episode.replies])) % 5 / 4)
    monkeypatch.setattr(P4GEpisode, "reward", said)


def trained(folder: Path, method: str = "cotraining", **simulator: Any) -> RunConfig:
    rate = {} if method == "selfplay" else {"learning_rate": 1e-2}
    return config_of(folder, method, steps=4, final_dialogues=1, simulator={**rate, **simulator})


def opened(folder: Path, method: str = "cotraining", **simulator: Any) -> tuple[TextScene, LearningPartner]:
    config = trained(folder, method, **simulator)
    scene = TextScene(config)
    partner = open_partner(scene, Learner(scene.policy_model(), config, seed=0))
    assert isinstance(partner, LearningPartner)
    return scene, partner


def play(scene: TextScene, partner: LearningPartner) -> list[Rollout]:
    return partner.play(scene.policy_model(), KEYS).rollouts


def words(transcript: Transcript | None, tokenizer: Any) -> list[str]:
    """What a seat said, message by message, read off its mask alone."""
    assert transcript is not None
    said: list[list[int]] = []
    for i, (token, own) in enumerate(zip(transcript.ids, transcript.generated, strict=True)):
        if own:
            said += [] if i and transcript.generated[i - 1] else [[]]
            said[-1].append(token)
    return [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in said]


def nudge(seat: Any, seed: int) -> None:
    """Other weights than a step would give, and surely different ones."""
    noise = torch.Generator().manual_seed(seed)
    seat.load_adapter_state({n: 0.3 * torch.randn(t.shape, generator=noise) for n, t in seat.adapter_state().items()})


@pytest.mark.parametrize("method", ["cotraining", "population", "selfplay"])
def test_both_seats_learn_in_the_one_loop(method, model, scripted, tmp_path):  # noqa: F811
    scripted("Who are you?")
    pool = {"pool_size": 3, "cadence": 1} if method == "population" else {}
    folder = train(trained(model, method, **pool), tmp_path)
    rows = rows_of(folder)
    assert rows[1]["simulator/variance"] > 0 and rows[1]["simulator/kl"] == pytest.approx(0, abs=1e-6)
    assert [row.get("simulator/pool") for row in rows[1:]] == ([2, 3, 3, 3] if pool else [1, 1, 1, 1])
    assert all(np.isfinite(row[name]) for row in rows[1:] for name in ("loss", "simulator/entropy", "simulator/reward"))
    saved = checkpoints.load_newest(folder / "checkpoints")
    assert saved is not None
    seats = ["policy"] if method == "selfplay" else ["policy", "simulator"]
    assert [part for part in saved.tensors if not part.startswith("pool")] == seats
    for part in seats:
        assert any(t.abs().sum() > 0 for name, t in saved.tensors[part].items() if "lora_B" in name)


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_the_masks_of_both_seats_cover_what_each_of_them_said_and_nothing_else(turns, model):  # noqa: F811
    config = trained(model)
    scene = TextScene(config.model_copy(update={"text": config.text.model_copy(update={"turns": turns})}))
    partner = open_partner(scene, Learner(scene.policy_model(), config, seed=0))
    tokenizer = scene.loaded.tokenizer
    for rollout in play(scene, partner):
        assert words(rollout.policy, tokenizer) == rollout.acts
        written = words(rollout.simulator_transcript, tokenizer)
        heard = written if rollout.counts else written[:-1]  # what ended the dialogue was never said
        assert [text.rstrip("\ufffd ") for text in heard] == [text.rstrip("\ufffd ") for text in rollout.replies]
        assert len(rollout.acts) == turns or not rollout.counts


def test_rows_of_a_pool_are_spoken_and_remembered_under_the_entry_that_played_them(model, sixteen_bits):  # noqa: F811
    scene, partner = opened(model, "population", pool_size=3, cadence=1, sharpness=2.0)
    for step in (1, 2):
        nudge(partner.learner.model, step)
        partner.learn(step, play(scene, partner), KEYS)
    nudge(partner.learner.model, 3)
    rollouts, entries = play(scene, partner), partner.pool.draw(KEYS)
    assert len(set(entries.tolist())) > 1
    batch = collate([r.simulator_transcript for r in rollouts if r.simulator_transcript], pad=0)
    with torch.no_grad():
        by_entry = torch.stack([entry.token_logprobs(batch)[0] for entry in partner.pool.entries])
    speaker = torch.from_numpy(entries)[batch.row]
    gaps = (by_entry - batch.sampled_logprobs).abs()
    assert gaps[speaker, torch.arange(len(speaker))].max() < (0.03 if sixteen_bits else 1e-4)
    assert all(gaps[other, torch.arange(len(speaker))][speaker != other].mean() > 0.05 for other in range(3))


@pytest.mark.usefixtures("float32")
def test_a_row_says_the_same_alone_as_in_a_pooled_batch(model):  # noqa: F811
    scene, partner = opened(model, "population", pool_size=2, cadence=1)
    partner.learn(1, play(scene, partner), KEYS)
    nudge(partner.learner.model, 1)
    whole, entries = play(scene, partner), partner.pool.draw(KEYS)
    policy = scene.policy_model()
    for row in (0, len(KEYS) - 1):
        mine = KEYS[np.array([row])]
        episode = [scene.task.open(0, "train", partner.start.about)]
        agent = ModelSeat(policy, mine, "policy", seat_systems(episode, "policy"), max_new_tokens=5)
        user = ModelSeat(
            partner.pool.entries[entries[row]], mine, "simulator", seat_systems(episode, "simulator"), max_new_tokens=5
        )
        alone = run_dialogues(episode, agent, user, mine, [partner.start.name])[0]
        assert (alone.acts, alone.replies) == (whole[row].acts, whole[row].replies)


@pytest.mark.usefixtures("float32")
def test_the_gradient_of_the_simulator_is_that_of_its_own_words_for_its_own_reward(model):  # noqa: F811
    scene, partner = opened(model, kl_coef=0.0, reward="adversarial")
    rollouts = play(scene, partner)
    learner, parameters = partner.learner, partner.learner.model.trainable()
    scores = -torch.tensor([r.reward for r in rollouts]).view(2, 4)
    spread = scores.std(dim=1, unbiased=False, keepdim=True)
    advantages = torch.where(spread > 0, (scores - scores.mean(1, keepdim=True)) / (spread + 1e-6), 0.0).view(-1)
    tokens = sum(sum(r.simulator_transcript.generated) for r in rollouts if r.simulator_transcript)
    expected = [torch.zeros_like(p) for p in parameters]
    for rollout, advantage in zip(rollouts, advantages, strict=True):
        assert rollout.simulator_transcript is not None
        logprobs, _ = learner.model.token_logprobs(collate([rollout.simulator_transcript], pad=0))
        loss = -advantage * logprobs.sum() / tokens  # the ratio is 1 where nothing has moved
        expected = [a + g for a, g in zip(expected, torch.autograd.grad(loss, parameters), strict=True)]
    learner.optimizer = torch.optim.SGD(parameters, lr=0.0)
    partner.learn(1, rollouts, KEYS)
    scale = min(1.0, 1.0 / float(torch.stack([e.norm() for e in expected]).norm() + 1e-6))  # the norm is clipped
    for parameter, slow_grad in zip(parameters, expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, slow_grad * scale, atol=1e-4, rtol=1e-2)


def test_a_simulator_that_never_spoke_is_left_out_and_harms_nobody(model):  # noqa: F811
    scene, partner = opened(model)
    rollouts = play(scene, partner)
    rollouts[0].simulator_transcript = Transcript()
    metrics = partner.learn(1, rollouts, KEYS)
    assert np.isfinite(metrics["simulator/entropy"])
    assert all(torch.isfinite(t).all() for t in partner.learner.model.adapter_state().values())


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.usefixtures("float32")
def test_on_an_engine_every_entry_has_an_adapter_and_leaves_it(present, model, slow, scripted, tmp_path):  # noqa: F811
    scripted("Who are you?")
    text = {"rollout_engine": "vllm", "max_new_tokens": 3, "reply_tokens": 3}
    pool = {"pool_size": 2, "cadence": 1, "sharpness": 2.0, "learning_rate": 1e-2, "present": present}
    config = config_of(model, "population", steps=3, eval_every=3, final_dialogues=1, text=text, simulator=pool)
    rows = rows_of(train(config, tmp_path))
    assert all(row["simulator/ratio_mean"] > 0 for row in rows[1:])
    assert rows[1]["sampling/logp_difference"] < 1e-4 and rows[1]["engine/logp_difference"] < 1e-4
    engine = SlowLLM.made[-1]
    asked = {(call[2].lora_name.split("-")[0], call[1][0].temperature) for call in engine.calls if call[2]}
    assert {name for name, _ in asked} == {"policy", "simulator"}
    assert {t for name, t in asked if name == "simulator"} == {0.5} and {t for n, t in asked if n == "policy"} == {1.0}
    served = {call[2].lora_int_id for call in engine.calls if call[2]}
    removed = {int(event.split()[1]) for event in engine.events if event.startswith("remove")}
    assert removed < served and len(served - removed) <= 3  # the policy, the simulator, and one past self


@pytest.mark.parametrize("reward", ["curriculum_credit", "disagreement"])
def test_a_resumed_population_equals_one_that_never_stopped(reward, model, scripted, tmp_path):  # noqa: F811
    scripted("Who are you?")
    config = trained(model, "population", pool_size=3, cadence=1, reward=reward)
    whole = train(config, tmp_path / "whole")

    def die(step: int, steps: int, metrics: dict[str, Any]) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", on_step=die)
    resumed = train(config, tmp_path / "cut")
    assert (resumed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_what_cannot_learn_is_refused_before_anything_is_written(model, tmp_path):  # noqa: F811
    elsewhere = config_of(model, "cotraining", text={"simulator_model": "openai:gpt@http://localhost:1/v1"})
    with pytest.raises(ScopeError, match="must be a local model"):
        train(elsewhere, tmp_path / "runs")
    other = config_of(model, "cotraining", text={"simulator_model": "smollm2", "rollout_engine": "vllm"})
    with pytest.raises(ScopeError, match=r"on the policy.s base|no model"):
        train(other, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
