"""Aligning a persuadee: the closed form that it approaches, kill and resume, the adapter that is written, rewards."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from scope_lite.cli import app
from scope_lite.envs.p4g import Dialogue
from scope_lite.envs.prompts import persuadee_chat
from scope_lite.experiments.text_models import AlignConfig, FinetuneConfig, align, finetune
from scope_lite.experiments.text_models.align import Aligner, agreement
from scope_lite.experiments.text_models.data import batch_of, histories, split_of
from scope_lite.experiments.text_models.packed import PackedSeat, shared_tokens
from scope_lite.models import adapters
from scope_lite.models.chat import chat_ids
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import load_model
from scope_lite.models.records import Transcript, collate
from scope_lite.store.errors import ScopeError
from tests.experiments import test_small
from tests.standins.tiny_models import tiny

base, dialogues = test_small.base, test_small.dialogues
CHAT = persuadee_chat(["hello"])
SHORT = [{"role": "user", "content": "hi"}]


def settings(base: Path, **changes: object) -> AlignConfig:
    config = AlignConfig(model=str(base), steps=5, groups=2, group_size=4, max_new_tokens=4, max_prompt_tokens=1000,
                         learning_rate=5e-3, rank=2, checkpoint_every=2)  # fmt: skip
    return dataclasses.replace(config, **changes)


@torch.inference_mode()
def next_token(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> float:
    return float((p - q).abs().sum() / 2)


@pytest.mark.parametrize("strength", [1.0, 0.3])
@pytest.mark.usefixtures("float32")
def test_a_reply_of_one_token_becomes_the_reference_to_the_power_one_plus_strength(base: Path, strength: float) -> None:
    """All replies and their probabilities can be listed then, so the best is known exactly."""
    config = settings(base, strength=strength, groups=1, group_size=64, max_new_tokens=1, rank=8, learning_rate=1e-2)
    loaded = load_model(base)
    aligner = Aligner(config, loaded, [SHORT])
    ids = chat_ids(loaded.tokenizer, SHORT)
    start = next_token(aligner.learner.model.model, ids)
    end = torch.zeros_like(start)
    for step in range(32):
        aligner.metrics.append(aligner.step())
        if step >= 16:  # one step's draws may move it far: by rounding alone, they differ from processor to processor
            end += next_token(aligner.learner.model.model, ids) / 16
    best = start ** (1 + strength)
    best /= best.sum()
    assert total_variation(end, best) < 0.4 * total_variation(start, best)
    spread = [m["score_std"] for m in aligner.metrics]
    assert sum(spread[-8:]) / 8 < 0.6 * spread[0], "at the best all are paid the same"
    kl = float((best * (best / start).log()).sum())
    assert sum(m["kl"] for m in aligner.metrics[-16:]) / 16 == pytest.approx(kl, rel=0.4)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_replies_read_in_one_row_have_the_probabilities_and_gradients_of_reading_each_alone(kind: str) -> None:
    loaded = tiny(kind)
    packed, plain = (seat(loaded.model, loaded.tokenizer) for seat in (PackedSeat, SeatModel))
    for seat in (packed, plain):
        seat.add_adapter(2, alpha=4, seed=0)
        with torch.no_grad():
            for name, weight in seat.model.named_parameters():
                if "lora_B" in name:
                    weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) / 5)
    prompt, replies = [7, 8, 9, 10, 11], [[20, 21, 22], [20], [30, 31, 32, 33, 34, 35]]
    for shared in (5, 2):  # the whole history, or a part of it
        rows = []
        for number, reply in enumerate(replies):
            rows.append(Transcript())
            rows[-1].read(prompt[:shared] + [40 + number + i for i in range(5 - shared)])
            for token in reply:
                rows[-1].write(token, 0.0, 0)
        batch = collate(rows, pad=0)
        assert shared_tokens(batch) == shared
        found = []
        for seat in (packed, plain):
            logprobs, log_all = seat.token_logprobs(batch)
            seat.model.zero_grad()
            (logprobs * torch.arange(1, len(logprobs) + 1)).sum().backward()
            found.append((logprobs, log_all, *(p.grad for p in seat.trainable())))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    alone = collate(rows[:1], pad=0)
    torch.testing.assert_close(packed.token_logprobs(alone)[0], plain.token_logprobs(alone)[0])


@pytest.mark.usefixtures("float32")
def test_what_is_paid_is_the_log_probability_of_the_whole_reply_and_the_kl_starts_at_zero(base: Path) -> None:
    loaded = load_model(base)
    aligner = Aligner(settings(base), loaded, [CHAT])
    ids, reply = chat_ids(loaded.tokenizer, CHAT), [40, 50, 60]
    transcript = Transcript()
    transcript.read(ids)
    for token in reply:
        transcript.write(token, 0.0, 0)
    wanted = sum(float(next_token(loaded.model, ids + reply[:i])[reply[i]].log()) for i in range(3))
    short = Transcript([*ids, 40], [False] * len(ids) + [True], [0.0] * (len(ids) + 1), [0] * (len(ids) + 1))
    assert aligner._reference([transcript, short])[0].item() == pytest.approx(wanted, abs=1e-4)
    first = aligner.step()
    assert first["kl"] == pytest.approx(0, abs=1e-4) and first["mode_share"] >= 1 / 4


def test_histories_are_the_persuadees_turns_of_training_dialogues(dialogues: list[Dialogue]) -> None:
    chats = histories(dialogues)
    training = [d for d in dialogues if split_of(d.name) == "train"]
    assert len(chats) == sum(len(d.turns) // 2 for d in training)
    assert all(chat[0]["role"] == "system" and chat[-1]["role"] == "user" for chat in chats)
    own = [dataclasses.replace(d, turns=d.turns[1:]) for d in training]
    assert histories(own) == [], "a dialogue that the persuadee begins is left out"
    rows = [number for step in range(3) for number in batch_of(range(6), step, 2, seed=0)]
    assert sorted(rows) == list(range(6)), "an epoch sees every history once"


def test_a_killed_run_ends_with_the_same_adapter_as_one_that_was_not(
    base: Path,
    dialogues: list[Dialogue],
    tmp_path: Path,
) -> None:
    class Killed(Exception):
        pass

    def kill(step: int, metrics: dict[str, float]) -> None:
        if step == 3:
            raise Killed

    whole = align(settings(base), dialogues, tmp_path / "a", tmp_path / "a-out", "cpu")
    with pytest.raises(Killed):
        align(settings(base), dialogues, tmp_path / "b", tmp_path / "b-out", "cpu", on_step=kill)
    assert not (tmp_path / "b-out").exists()
    resumed: list[int] = []
    again = align(
        settings(base),
        dialogues,
        tmp_path / "b",
        tmp_path / "b-out",
        "cpu",
        on_step=lambda step, m: resumed.append(step),
    )
    assert resumed == [3, 4, 5], "it must go on from the checkpoint of step 2"
    assert again["metrics"] == whole["metrics"] and again["sha256"] == whole["sha256"]
    with pytest.raises(ScopeError, match="a run with another strength"):
        align(settings(base, strength=2.0), dialogues, tmp_path / "b", tmp_path / "b-out", "cpu")


def test_an_adapter_that_another_cannot_be_added_to_is_refused_before_any_work(base: Path, tmp_path: Path) -> None:
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "use_rslora": True}
    (tmp_path / adapters.CONFIG).write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / adapters.WEIGHTS).write_text("", encoding="utf-8")
    config = AlignConfig(model=f"{base}+{tmp_path}")
    with pytest.raises(ScopeError, match="uses use_rslora"):
        align(config, [], tmp_path / "work", tmp_path / "out", "cpu")
    assert not (tmp_path / "work").exists()


def test_what_is_written_speaks_as_what_was_trained_also_on_top_of_an_adapter(
    base: Path,
    dialogues: list[Dialogue],
    tmp_path: Path,
    sixteen_bits: bool,
) -> None:
    close = {"atol": 0.01, "rtol": 0.2} if sixteen_bits else {"atol": 1e-3, "rtol": 0.02}
    tuned = FinetuneConfig(role="persuadee", model=str(base), steps=3, dialogues_per_step=2, learning_rate=2e-2, rank=2)
    finetune(tuned, dialogues, tmp_path / "w", tmp_path / "persuadee", "cpu")
    for number, model in enumerate((str(base), f"{base}+{tmp_path / 'persuadee'}")):
        config, out = settings(base, model=model, learning_rate=3e-2), tmp_path / f"out{number}"
        manifest = align(config, dialogues, tmp_path / f"work{number}", out, "cpu")
        loaded = load_model(model)
        ids = chat_ids(loaded.tokenizer, CHAT)
        before = next_token(loaded.model, ids)
        aligner = Aligner(config, loaded, histories(dialogues))
        aligner.resume(tmp_path / f"work{number}" / "checkpoints")
        trained = next_token(aligner.learner.model.model, ids)
        assert total_variation(trained, before) > 0.02, "it must have learned something, or the test says nothing"
        torch.testing.assert_close(next_token(load_model(out).model, ids), trained, **close)
        told = json.loads((out / adapters.CONFIG).read_text(encoding="utf-8"))
        assert told["base_model_name_or_path"] == str(base)
        assert str(tmp_path / "persuadee") not in json.dumps(manifest)
        assert "--start" in manifest["command"] and f"--strength {config.strength:g}" in manifest["command"]


def test_a_yes_agrees_more_than_a_no_and_silence_does_not() -> None:
    yes, no, curious, silent = agreement(
        ["Yes, I will donate $1.", "No, I do not want to donate.", "What does the charity do?", " "],
        "Save the Children helps. Would you like to donate some of your payment?",
    ).tolist()
    assert 1 >= yes > 0.5 > no and yes > 0.5 > curious and silent == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--reward", "truth"], "typicality"),
        (["--strength", "0"], "strength: Input should be greater than 0"),
        (["--set", "strength=.inf"], "strength"),
        (["--set", "group_size=1"], "group_size: Input should be greater than or equal to 2"),
        (["--set", "learning_rate=1"], "learning_rate: Input should be less than 1"),
        (["--steps", "0"], "--steps"),
        (["--raw", "nowhere"], "nowhere holds no"),
    ],
)
def test_a_mistake_is_told_before_a_model_is_loaded(words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["small", "align", *words])
    assert result.exit_code == 2 and told in " ".join(result.output.split())


def test_no_history_that_is_short_enough_is_one_line(base: Path) -> None:
    with pytest.raises(ScopeError, match="no history"):
        Aligner(settings(base, max_prompt_tokens=1), load_model(base), [CHAT])
