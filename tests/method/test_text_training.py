"""Training in text through the one loop: on a tiny random chat model, with persuadees whose words are scripted."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from scope_lite.cli.base import make_config
from scope_lite.envs.prompts import persuadee, persuader, verbalized
from scope_lite.method.config import RunConfig, method_config
from scope_lite.method.cotraining import open_partner
from scope_lite.method.grpo import group_advantages
from scope_lite.method.learner import Learner
from scope_lite.method.made_of import run_folder
from scope_lite.method.text import TextScene
from scope_lite.method.train import train
from scope_lite.models.pretrained import load_model
from scope_lite.models.records import FAILED, Transcript
from scope_lite.models.replies import Reply, SamplingConfig
from scope_lite.models.rng import RowKeys
from scope_lite.store import checkpoints, paths
from scope_lite.store.errors import ScopeError

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}<s>assistant: "
YES, NO, VAGUE = "I will donate $1.", "No, I won't donate anything.", "Who are you?"
PANEL = """
- {name: sim-a, kind: collapsed, model: null, sharpness: 1.4285714285714286}
- {name: plain, kind: broad, model: null, sharpness: 1.0, about: "Work: cook"}
- {name: personas, kind: outside, model: null, sharpness: 1.0, personas: true}
"""


class Scripted:
    """A sampler whose replies are a function of (seed, history, number), like the real ones'."""

    def __init__(self, *lines: str):
        self.lines, self.asked = lines, 0

    def sample(
        self, histories: Any, replies: int, config: SamplingConfig | None = None, progress: Any = None
    ) -> list[list[Reply]]:
        assert config is not None
        self.asked += replies * len(histories)
        return [[self.reply(config.seed, json.dumps(h), i) for i in range(replies)] for h in histories]

    def reply(self, seed: int, history: str, number: int) -> Reply:
        digest = hashlib.sha256(f"{seed} {history} {number}".encode()).digest()
        return Reply(self.lines[digest[0] % len(self.lines)], (1,), (-0.5,), (0.5,), (0.5,), True)


def listed(*pairs: tuple[str, float]) -> str:
    return json.dumps([{"text": text, "probability": p} for text, p in pairs])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random chat model whose tokens are pieces of the prompts, so that a dialogue is some hundred tokens."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [persuadee.SYSTEM, persuader.SYSTEM, persuadee.QUESTION, verbalized.BLOCK, YES, NO, VAGUE] * 2
    special = ["<pad>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(fast), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=1024, eos_token_id=2, bos_token_id=1,
        pad_token_id=0, initializer_range=0.3, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "panels").mkdir()
    (tmp_path / "panels" / "p4g.yaml").write_text(PANEL, encoding="utf-8")
    monkeypatch.setattr(paths, "DATA", tmp_path)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a scripted sampler behind every simulator."""

    def put(*lines: str) -> Scripted:
        sampler = Scripted(*lines)
        monkeypatch.setattr(TextScene, "_sampler", lambda scene, model: sampler)
        return sampler

    return put


def config_of(folder: Path, method: str = "single", **changes: Any) -> RunConfig:
    text = {"turns": 2, "max_new_tokens": 5, "reply_tokens": 5, "micro_batch": 3, **changes.pop("text", {})}
    small = dict(world="p4g", model=str(folder), steps=2, groups=2, group_size=4, eval_every=2, eval_dialogues=1,
                 final_dialogues=2, learning_rate=1e-2)  # fmt: skip
    return method_config(method, **{**small, **changes, "text": text})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def adapter_of(folder: Path) -> dict[str, torch.Tensor]:
    saved = checkpoints.load_newest(folder / "checkpoints")
    assert saved is not None
    return {name: t for name, t in saved.tensors["policy"].items() if name.startswith("adapter.")}


# -- the loop ---------------------------------------------------------------------------------------------------------


def test_a_step_trains_and_the_metrics_have_the_names_of_a_nano_run(model, scripted, tmp_path, sixteen_bits):
    scripted(YES, NO, VAGUE)
    folder = train(config_of(model), tmp_path)
    rows = rows_of(folder)
    assert [r["step"] for r in rows] == [0, 1, 2]
    assert rows[1]["reward_std"] > 0 and rows[1]["grad_norm"] > 0 and rows[1]["simulator/epsilon"] is None
    assert rows[1]["sampling/logp_difference"] < (0.05 if sixteen_bits else 1e-4)
    shares = [rows[1][f"outcome/{name}"] for name in ("given", "nothing", "unread", "context", FAILED)]
    assert sum(shares) == pytest.approx(1) and shares[0] > 0 and shares[3:] == [0, 0]
    assert {"panel/sim-a/reward", "panel/seen/reward", "panel/unseen/reward"} <= set(rows[2])
    assert any(t.abs().sum() > 0 for name, t in adapter_of(folder).items() if "lora_B" in name)
    saved = checkpoints.load_newest(folder / "checkpoints")
    assert saved and all("lora" in name or name.startswith("optimizer.") for name in saved.tensors["policy"])


@pytest.mark.parametrize("method", ["base", "persona", "verbalized", "unsharpened"])
def test_the_other_methods_run_through_the_same_loop(method, model, scripted, tmp_path):
    scripted(listed((YES, 0.5), (NO, 0.5)) if method == "verbalized" else YES)
    changes = {} if method == "base" else {"steps": 1}
    rows = rows_of(train(config_of(model, method, **{"steps": 0, **changes}), tmp_path))
    assert 0 <= rows[-1]["panel/plain/reward"] <= 0.5
    if method == "verbalized":
        assert rows[-1]["simulator/parse_failures"] == 0 and 0 < rows[-1]["reward"] < 0.5


def test_a_resumed_run_equals_one_that_never_stopped(model, scripted, tmp_path):
    scripted(YES, NO)
    config = config_of(model, steps=3, kl_coef=0.1, updates_per_step=2, final_dialogues=1)
    whole = train(config, tmp_path / "whole")

    def die(step: int, steps: int, metrics: dict[str, Any]) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", on_step=die)
    resumed = train(config, tmp_path / "cut")
    assert (resumed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert all(torch.equal(t, adapter_of(whole)[name]) for name, t in adapter_of(resumed).items())


def test_a_resumed_run_hears_the_same_from_simulators_that_keep_what_they_read(model, tmp_path):
    config = config_of(model, steps=2, groups=1, group_size=2, final_dialogues=1)
    whole = train(config, tmp_path / "whole")

    def die(step: int, steps: int, metrics: dict[str, Any]) -> None:
        if step == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", on_step=die)
    resumed = train(config, tmp_path / "cut")
    assert (resumed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("silent", [[0, 1, 2, 5], range(8)])
def test_dialogues_that_end_before_the_policy_speaks_are_scored_and_not_trained(
    silent, model, scripted, tmp_path, monkeypatch
):
    """Three of them fill a micro-batch."""
    scripted(YES, NO)
    converse = TextScene.converse

    def cut(*args: Any, **words: Any) -> list[Any]:
        rollouts = converse(*args, **words)
        for i in silent if len(rollouts) == 8 else ():
            rollouts[i].policy = Transcript()
        return rollouts

    monkeypatch.setattr(TextScene, "converse", cut)
    last = rows_of(train(config_of(model, steps=1, kl_coef=0.1), tmp_path))[-1]
    assert last["reward"] is not None and np.isfinite(last["loss"])
    assert (last["grad_norm"] == 0) == (len(silent) == 8)


def test_a_batch_of_equal_rewards_moves_nothing(model, scripted, tmp_path):
    scripted(YES)
    folder = train(config_of(model, steps=1), tmp_path)
    last = rows_of(folder)[-1]
    assert last["reward"] == 0.5 and last["frac_reward_zero_std"] == 1 and last["grad_norm"] == 0
    assert all(t.abs().sum() == 0 for name, t in adapter_of(folder).items() if "lora_B" in name)


def test_lists_that_cannot_be_read_end_dialogues_uncounted_and_too_many_end_the_run(model, scripted, tmp_path):
    good = listed((YES, 0.5), (NO, 0.5))
    scripted(good, good, good, "nonsense")
    config = config_of(model, "verbalized", steps=1, text={"retries": 0, "grammar": False})
    last = rows_of(train(config, tmp_path))[-1]
    assert 0 < last["simulator/parse_failures"] < 1 and 0 < last[f"outcome/{FAILED}"] < 1
    scripted("nonsense")
    with pytest.raises(ScopeError, match=r"2 times in a row .* text\.grammar"):
        train(config_of(model, "verbalized", steps=1, text={"retries": 1}), tmp_path)


def test_real_simulators_of_the_same_base_play_alike_twice(model):
    def play() -> list[list[str]]:
        scene = TextScene(config_of(model))
        learner = Learner(scene.policy_model(), scene.config, seed=0)
        partner = open_partner(scene, learner)
        rollouts = partner.play(learner.model, RowKeys.grid(0, 1, 2, 2)).rollouts
        return [r.acts + r.replies for r in rollouts]

    first = play()
    assert first == play() and len({json.dumps(said) for said in first}) == 4
    assert all(len(said) == 5 for said in first)  # two turns each, and the answer to the closing question


@pytest.mark.usefixtures("float32")
def test_at_a_temperature_of_zero_a_text_is_what_greedy_decoding_gives(model):
    scene = TextScene(config_of(model, temperature=0.7, eval_temperature=0))
    policy, keys = scene.policy_model(), RowKeys.grid(0, 1, 1, 3)
    assert policy.temperature == pytest.approx(0.7)
    seat = scene.seat_model(policy, keys, ["Be kind."] * 3, "test")
    seat.speak(0, "")
    for transcript in seat.transcripts:
        prompt = [i for i, own in zip(transcript.ids, transcript.generated, strict=True) if not own]
        said = policy.model.generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)[0].tolist()
        assert transcript.ids == said
    seat = scene.seat_model(policy, keys, ["Be kind."] * 3, "train")
    seat.speak(0, "")
    assert len({tuple(t.ids) for t in seat.transcripts}) > 1


# -- what is trained --------------------------------------------------------------------------------------------------


def played(model: Path, scripted: Any, **changes: Any) -> tuple[Learner, list[Transcript], list[list[str]]]:
    scripted(YES, NO, VAGUE)
    scene = TextScene(config_of(model, **changes))
    learner = Learner(scene.policy_model(), scene.config, seed=0)
    for name, p in learner.model.model.named_parameters():
        if "lora_B" in name:  # off the start, where half of the gradients are zero
            torch.nn.init.normal_(p, std=0.2, generator=torch.Generator().manual_seed(len(name)))
    keys = RowKeys.grid(0, 1, 2, 4)
    rollouts = open_partner(scene, learner).play(learner.model, keys).rollouts
    return learner, [r.policy for r in rollouts if r.policy], [r.acts for r in rollouts]


def gradient(learner: Learner, transcripts: list[Transcript], advantages: torch.Tensor) -> list[torch.Tensor]:
    learner.update(transcripts, advantages, learn=False)
    return [p.grad.clone() for p in learner.model.trainable() if p.grad is not None]


@pytest.mark.usefixtures("float32")
def test_exactly_the_policys_own_tokens_are_trained(model, scripted):
    learner, transcripts, acts = played(model, scripted, max_grad_norm=1e9)
    tokenizer = learner.model.tokenizer
    for transcript, said in zip(transcripts, acts, strict=True):
        own = [i for i, g in zip(transcript.ids, transcript.generated, strict=True) if g]
        heard = tokenizer.decode([i for i, g in zip(transcript.ids, transcript.generated, strict=True) if not g])
        assert "".join(tokenizer.decode(own, skip_special_tokens=True).split()) == "".join("".join(said).split())
        assert persuader.SYSTEM in heard and any(line in heard for line in (YES, NO, VAGUE))
        assert persuadee.QUESTION not in heard
    advantages = torch.randn(8, generator=torch.Generator().manual_seed(1))
    found = gradient(learner, transcripts, advantages)
    # the same loss, one dialogue at a time, from all logits of the model
    learner.model.model.zero_grad()
    total = torch.zeros(())
    for transcript, advantage in zip(transcripts, advantages, strict=True):
        logp = learner.model.model(torch.tensor([transcript.ids])).logits[0].log_softmax(-1)
        for i, g in enumerate(transcript.generated):
            if g:
                total = total - advantage * logp[i - 1, transcript.ids[i]]
    (total / sum(sum(t.generated) for t in transcripts)).backward()
    slow = [p.grad for p in learner.model.trainable() if p.grad is not None]
    for a, b in zip(found, slow, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("over", ["token", "dialogue"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.usefixtures("float32")
def test_gradients_of_micro_batches_add_up_to_the_batchs(rows, over, model, scripted):
    learner, transcripts, _ = played(model, scripted, kl_coef=0.3, loss_mean=over, text={"micro_batch": 8})
    advantages = torch.randn(8, generator=torch.Generator().manual_seed(1))
    whole, metrics = gradient(learner, transcripts, advantages), learner.update(transcripts, advantages, learn=False)
    learner.config = config_of(model, kl_coef=0.3, loss_mean=over, text={"micro_batch": rows})
    for a, b in zip(gradient(learner, transcripts, advantages), whole, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    assert learner.update(transcripts, advantages, learn=False) == pytest.approx(metrics, abs=1e-5)


@pytest.mark.usefixtures("float32")
def test_a_group_of_equal_rewards_adds_nothing_to_the_other_groups_gradient(model, scripted):
    learner, transcripts, _ = played(model, scripted, max_grad_norm=1e9)
    rewards = torch.tensor([[0.5] * 4, [0.0, 0.5, 0.0, 1.0]])
    both = gradient(learner, transcripts, group_advantages(rewards).view(-1))
    alone = gradient(learner, transcripts[4:], group_advantages(rewards[1:]).view(-1))
    tokens = [sum(sum(t.generated) for t in part) for part in (transcripts[4:], transcripts)]
    for a, b in zip(both, alone, strict=True):
        torch.testing.assert_close(a, b * tokens[0] / tokens[1], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("method", ["single", "cotraining"])
def test_a_run_starts_from_an_adapter_and_is_played_by_another_that_is_named(
    method, model, tmp_path, monkeypatch, sixteen_bits
):
    """The policy of step 0 is the adapter's model, the simulators are the other's, and the run's name holds both."""
    monkeypatch.setattr(paths, "SMALL_MODELS", tmp_path / "small")
    for name in ("mine", "theirs"):
        torch.manual_seed(len(name))
        tuned = get_peft_model(load_model(model, "cpu").model, LoraConfig(r=2, init_lora_weights=False))
        tuned.save_pretrained(tmp_path / "small" / name)
    config = config_of(f"{model}+mine", method, learning_rate=1e-3, text={"simulator_model": f"{model}+theirs"})
    ids = torch.tensor([[1, 5, 9, 20]])
    scene = TextScene(config)
    with torch.no_grad():
        told = {name: load_model(f"{model}+{name}", "cpu").model(ids).logits for name in ("mine", "theirs")}
        assert not torch.allclose(told["mine"], told["theirs"])
        start = scene.policy_model().model(ids).logits  # folded: in float32
        close = {"atol": 0.1, "rtol": 0.05} if sixteen_bits else {"atol": 1e-5, "rtol": 1e-4}
        torch.testing.assert_close(start, told["mine"].float(), **close)
        sampler = scene.voice(scene.member("plain")).sampler
        torch.testing.assert_close(sampler.loaded.model(ids).logits, told["theirs"])
    path = train(config, tmp_path / "runs")
    assert len(rows_of(path)) == 3
    before = run_folder(tmp_path, config)
    (tmp_path / "small" / "mine" / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert run_folder(tmp_path, config) != before


# -- configs ----------------------------------------------------------------------------------------------------------


def test_a_run_in_text_is_named_by_what_it_reads_and_a_nano_run_by_nothing_of_it(model, tmp_path):
    nano, named = method_config("single"), partial(run_folder, tmp_path)
    assert named(nano) == named(method_config("single", text={"turns": 9}))
    first = named(config_of(model))
    assert first == named(config_of(model, text={"budget": 3.0}))
    assert first != named(config_of(model, text={"turns": 3}))
    (tmp_path / "panels" / "p4g.yaml").write_text(PANEL.replace("1.0", "1.5"), encoding="utf-8")
    assert first != named(config_of(model))


def test_options_of_text_are_set_from_the_command_line_and_completed_by_the_worlds_defaults(model, tmp_path):
    config = make_config(None, ["text.turns=7"], method="persona", world="p4g")
    assert config.model == "smollm2" and config.text.turns == 7 and config.learning_rate == 1e-4
    path = tmp_path / "run.yaml"
    path.write_text("method: single\nworld: p4g\ntext: {turns: 5}\n", encoding="utf-8")
    read = make_config(path, ["text.retries=0"])
    assert (read.model, read.text.turns, read.text.retries) == ("smollm2", 5, 0)
    with pytest.raises(ScopeError, match="did you mean 'turns'"):
        make_config(None, ["text.turn=7"], world="p4g")


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("single", {"simulator": {"members": ["plane"]}}, "did you mean 'plain'"),
        ("cotraining", {"simulator": {"members": ["plane"]}}, "did you mean 'plain'"),
        ("single", {"model": "nowhere"}, "no model in 'nowhere'"),
        ("single", {"model": "smollm2+nobody"}, "no adapter in 'nobody'.*BASE.NAME"),
        ("single", {"model": "smollm2+persuader", "text": {"rollout_engine": "vllm"}}, "starts from a plain model"),
        ("single", {"text": {"simulator_model": "smollm2+nobody"}}, "no adapter in 'nobody'"),
    ],
)
def test_names_that_do_not_exist_are_told_before_anything_is_written(method, changes, message, model, tmp_path):
    with pytest.raises(ScopeError, match=message):
        train(config_of(model, method, **changes), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
