"""Fine-tuning an adapter: which tokens are in the loss, the splits, kill and resume, and the adapter as a model."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from scope_lite.cli import app
from scope_lite.envs.p4g import Dialogue, Person, Turn
from scope_lite.envs.prompts import persuadee_chat
from scope_lite.experiments.text_models import FinetuneConfig, encode, finetune, split_of
from scope_lite.experiments.text_models.adapter import OnStep, lora_settings
from scope_lite.experiments.text_models.data import system_prompt
from scope_lite.experiments.text_models.finetune import Trainer, log_likelihoods, perplexity
from scope_lite.models import adapters
from scope_lite.models.adapters import split_adapter
from scope_lite.models.chat import ChatFormat
from scope_lite.models.generate import TextSampler
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import load_model
from scope_lite.models.replies import SamplingConfig
from scope_lite.store.errors import ScopeError
from tests.standins.tiny_models import tiny

NOBODY = Person("nobody", 0.0)
TALK = ["hello", "hi there", "give money?", "no no no", "please", "no no", "bye"]  # persuader first and last


def dialogue(name: str = "d0", turns: list[str] = TALK, first: int = 0) -> Dialogue:
    roles = ("persuader", "persuadee")
    said = tuple(Turn(roles[(first + i) % 2], (text,)) for i, text in enumerate(turns))
    return Dialogue(name, said, NOBODY, NOBODY)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model on disk."""
    folder = tmp_path_factory.mktemp("tiny")
    loaded = tiny("llama", max_position_embeddings=2048)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def dialogues() -> list[Dialogue]:
    return [dialogue(f"d{i}", TALK[: 7 - i % 3]) for i in range(30)]


def settings(base: Path, **changes: object) -> FinetuneConfig:
    few = dict(steps=7, dialogues_per_step=2, warmup_steps=2, rank=2, evaluate_every=3, checkpoint_every=2)
    config = FinetuneConfig(role="persuadee", model=str(base), learning_rate=2e-2, valid_dialogues=3, **few)
    return dataclasses.replace(config, **changes)


# -- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "first", "own"),
    [
        ("persuadee", 0, ["hi there", "no no no", "no no"]),
        ("persuader", 0, ["hello", "give money?", "please", "bye"]),
        ("persuadee", 1, ["hello", "give money?", "please", "bye"]),  # a dialogue that the persuadee begins
    ],
)
def test_spoken_are_exactly_the_own_words_and_turn_ends(base: Path, role: str, first: int, own: list[str]) -> None:
    tokenizer = load_model(base).tokenizer
    example = encode(dialogue(first=first), role, ChatFormat(tokenizer), 2048)
    ids, own_ids = example.transcript.ids, example.transcript.generated
    spoken = tokenizer.decode([token for token, mine in zip(ids, own_ids, strict=True) if mine])
    assert spoken == "".join(f"{text}</s>" for text in own)
    assert not example.cut


@pytest.mark.parametrize("role", ["persuadee", "persuader"])
def test_ids_equal_the_chat_template_rendered_once(base: Path, role: str) -> None:
    tokenizer = load_model(base).tokenizer
    example = encode(dialogue(), role, ChatFormat(tokenizer), 2048)
    said = [t for t in dialogue().turns if role == "persuader" or t.text != "bye"]
    chat = [{"role": "system", "content": system_prompt(role)}]
    chat += [{"role": "assistant" if t.role == role else "user", "content": t.text} for t in said]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False).removesuffix("<s>assistant: ")
    assert tokenizer.decode(example.transcript.ids) == rendered


def test_a_simulator_is_asked_with_the_very_tokens_that_its_adapter_learned_from(base: Path) -> None:
    loaded = load_model(base)
    example = encode(dialogue(), "persuadee", ChatFormat(loaded.tokenizer), 2048).transcript
    asked = TextSampler(loaded).prompt_ids(persuadee_chat(["hello", "hi there", "give money?"]), 8)
    assert example.ids[: len(asked)] == asked
    assert example.generated[len(asked)] and not example.generated[len(asked) - 1]


def test_turns_of_one_person_in_a_row_are_one_turn(base: Path) -> None:
    tokenizer = load_model(base).tokenizer
    turns = (Turn("persuader", ("a",)), Turn("persuadee", ("b",)), Turn("persuadee", ("c", "d")))
    example = encode(Dialogue("x", turns, NOBODY, NOBODY), "persuadee", ChatFormat(tokenizer), 2048)
    assert tokenizer.decode(example.transcript.ids).endswith("<s>assistant: b c d</s>")


def test_a_long_dialogue_loses_whole_exchanges_at_its_end(base: Path) -> None:
    chat = ChatFormat(load_model(base).tokenizer)
    whole = encode(dialogue(), "persuadee", chat, 2048)
    cut = encode(dialogue(), "persuadee", chat, len(whole.transcript.ids) - 1)
    ids = cut.transcript.ids
    assert cut.cut and ids == whole.transcript.ids[: len(ids)] and ids[-1] == chat.tokenizer.eos_token_id
    with pytest.raises(ScopeError, match="no turn of the persuadee fits 20 tokens"):
        encode(dialogue(), "persuadee", chat, 20)


def test_splits_are_a_matter_of_the_name_and_about_a_tenth() -> None:
    shares = Counter(split_of(f"20180904-{i}") for i in range(5000))
    assert 400 < shares["valid"] < 600 and 400 < shares["test"] < 600
    # frozen: with another rule, a shipped adapter would be tested on what it learned from
    assert "".join(split_of(f"20180904-{i}")[1] for i in range(12)) == "errrreaerrea"


# -- loss -------------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_spoken_tokens_and_no_others(base: Path) -> None:
    loaded = load_model(base)
    example = encode(dialogue(), "persuadee", ChatFormat(loaded.tokenizer), 2048)
    seat, config = SeatModel(loaded.model, loaded.tokenizer), settings(base, dialogues_per_step=1)
    with torch.inference_mode():
        ids, own = example.transcript.ids, example.transcript.generated
        logp = loaded.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        slow = -sum(float(logp[i - 1, token]) for i, token in enumerate(ids) if own[i])
        assert float(log_likelihoods(seat, example).sum()) == pytest.approx(-slow, rel=1e-4)
        short = encode(dialogue(turns=TALK[:2]), "persuadee", ChatFormat(loaded.tokenizer), 2048)
        both = (slow - float(log_likelihoods(seat, short).sum())) / sum([*own, *short.transcript.generated])
    assert perplexity(seat, [example, short]) == pytest.approx(math.exp(both), rel=1e-4)
    trainer = Trainer(config, loaded, {"train": [example], "valid": [short], "test": [short]})
    assert trainer.learn([example]) == pytest.approx(slow / sum(own), rel=1e-4)


def test_a_step_follows_the_gradient_of_the_mean_log_likelihood(base: Path) -> None:
    loaded = load_model(base)
    rows = [encode(dialogue(turns=TALK[:n]), "persuadee", ChatFormat(loaded.tokenizer), 2048) for n in (2, 7)]
    trainer = Trainer(settings(base, warmup_steps=1), loaded, {"train": rows, "valid": rows, "test": rows})
    seat = trainer.learner.model
    (-torch.cat([log_likelihoods(seat, row) for row in rows]).mean()).backward()
    wanted = [p.grad.clone() for p in seat.trainable()]
    norm = torch.stack([g.norm() for g in wanted]).norm()
    trainer.learn(rows)
    for p, g in zip(seat.trainable(), wanted, strict=True):
        torch.testing.assert_close(p.grad, g / norm.clamp(min=1), rtol=1e-3, atol=1e-6)


# -- training ---------------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_a_killed_run_ends_with_the_same_adapter_as_one_that_was_not(
    base: Path, dialogues: list[Dialogue], tmp_path: Path
) -> None:
    def kill(step: int, metrics: dict[str, float]) -> None:
        if step == 5:
            raise Killed

    def run(name: str, on_step: OnStep) -> dict:
        work, out = tmp_path / name, tmp_path / f"{name}-out"
        manifest = finetune(settings(base), dialogues, work, out, "cpu", on_step=on_step)
        return {key: value for key, value in manifest.items() if key != "git"}

    steps: list[int] = []
    resumed: list[int] = []
    whole = run("a", lambda step, metrics: steps.append(step))
    with pytest.raises(Killed):
        run("b", kill)
    assert not (tmp_path / "b-out").exists()
    again = run("b", lambda step, metrics: resumed.append(step))
    assert steps == [1, 2, 3, 4, 5, 6, 7] and resumed == [5, 6, 7], "it must go on from the checkpoint of step 4"
    assert again == whole
    for name in (adapters.CONFIG, adapters.WEIGHTS):
        assert (tmp_path / "a-out" / name).read_bytes() == (tmp_path / "b-out" / name).read_bytes()


def test_held_out_perplexity_falls_and_the_best_is_kept(
    base: Path, dialogues: list[Dialogue], tmp_path: Path, sixteen_bits: bool
) -> None:
    manifest = finetune(settings(base, steps=12), dialogues, tmp_path / "work", tmp_path / "out", "cpu")
    assert manifest["number_format"] == ("bfloat16" if sixteen_bits else "float32")
    told = manifest["perplexity"]
    valid = dict(told["valid_by_step"])
    assert min(valid.values()) < 0.8 * valid[0] and valid[manifest["best_step"]] == min(valid.values())
    assert told["test_adapter"] < 0.9 * told["test_base"]
    assert manifest["dialogues"] == dict(Counter(split_of(d.name) for d in dialogues))
    assert json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["steps_done"] == 12
    assert str(tmp_path) not in manifest["command"]


def test_an_adapter_names_its_base_as_it_was_given(adapter: Path, base: Path) -> None:
    settings = json.loads((adapter / adapters.CONFIG).read_text(encoding="utf-8"))
    assert settings["base_model_name_or_path"] == str(base) and settings["r"] == 2 and settings["lora_alpha"] == 4
    assert split_adapter(adapter) == (str(base), adapter)
    # the shipped ones say "smollm2", and never a folder of the machine that trained them
    nothing: dict = {"train": [], "valid": [], "test": []}
    trainer = Trainer(FinetuneConfig(role="persuadee", model="smollm2", rank=2), load_model(base), nothing)
    assert lora_settings(trainer.learner.model.peft, "smollm2")["base_model_name_or_path"] == "smollm2"


def test_more_steps_go_on_and_end_where_the_longer_run_ends(
    base: Path, dialogues: list[Dialogue], tmp_path: Path
) -> None:
    long = finetune(settings(base, steps=6), dialogues, tmp_path / "a", tmp_path / "a-out", "cpu")
    finetune(settings(base, steps=3), dialogues, tmp_path / "b", tmp_path / "b-out", "cpu")
    grown = finetune(settings(base, steps=6), dialogues, tmp_path / "b", tmp_path / "b-out", "cpu")
    assert grown["sha256"] == long["sha256"] and grown["perplexity"] == long["perplexity"]


def test_the_base_stays_as_it_is_and_every_seed_starts_elsewhere(base: Path, dialogues: list[Dialogue]) -> None:
    loaded = load_model(base)
    chat = ChatFormat(loaded.tokenizer)
    rows = [encode(d, "persuadee", chat, 2048) for d in dialogues[:6]]
    before = perplexity(SeatModel(loaded.model, loaded.tokenizer), rows)
    first = Trainer(settings(base), loaded, {"train": rows, "valid": rows, "test": rows})
    assert perplexity(first.learner.model, rows) == pytest.approx(before, rel=1e-5), "it starts as its base"
    other = Trainer(settings(base, seed=1), load_model(base), first.splits)
    assert any(not torch.equal(first.kept["best"][name], start) for name, start in other.kept["best"].items())
    assert [e.name for e in first.batch(0)] != [e.name for e in other.batch(0)]
    epoch = [e.name for step in range(3) for e in first.batch(step)]
    assert sorted(epoch) == sorted(e.name for e in rows), "an epoch sees every dialogue once"


def test_other_settings_in_the_same_folder_are_refused_until_fresh(
    base: Path, dialogues: list[Dialogue], tmp_path: Path
) -> None:
    config, work, out = settings(base, steps=2), tmp_path / "work", tmp_path / "out"
    finetune(config, dialogues, work, out, "cpu")
    changed = dataclasses.replace(config, learning_rate=1e-3)
    with pytest.raises(ScopeError, match="a run with another learning_rate"):
        finetune(changed, dialogues, work, out, "cpu")
    with pytest.raises(ScopeError, match="a run with another dialogues"):
        finetune(config, dialogues[:-1], work, out, "cpu")
    finetune(changed, dialogues, work, out, "cpu", fresh=True)


# -- the adapter as a model -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(base: Path, dialogues: list[Dialogue], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    finetune(settings(base, steps=6), dialogues, folder / "work", folder / "persuadee", "cpu")
    return folder / "persuadee"


def test_an_adapter_loads_as_a_model_of_its_own(base: Path, adapter: Path) -> None:
    plain, both, alone = load_model(base), load_model(f"{base}+{adapter}"), load_model(adapter)
    assert both.name == f"{base.name} + persuadee" == alone.name
    assert len({plain.fingerprint, both.fingerprint}) == 2 and both.fingerprint == alone.fingerprint
    chats = [persuadee_chat(["hello"]), persuadee_chat(["hello", "hi there", "give money?"])]
    config = SamplingConfig(max_new_tokens=5)
    drawn = [[r.token_ids for group in TextSampler(m).sample(chats, 4, config) for r in group] for m in (plain, both)]
    assert drawn[0] != drawn[1]


@pytest.mark.usefixtures("float32")
def test_the_adapter_is_applied_as_low_rank_matrices_by_hand(base: Path, adapter: Path) -> None:
    tensors = load_file(adapter / adapters.WEIGHTS)
    by_hand = load_model(base)
    for name, weight in by_hand.model.named_parameters():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{key}.lora_A.weight" in tensors:
            a, b = (tensors[f"{key}.lora_{x}.weight"].float() for x in "AB")
            weight.data += 2.0 * b @ a
    ids = torch.tensor([[5, 9, 70, 33]])
    with torch.inference_mode():
        got, wanted = load_model(adapter).model(ids).logits, by_hand.model(ids).logits
    assert torch.allclose(got, wanted, atol=1e-3) and not torch.allclose(
        got, load_model(base).model(ids).logits, atol=1e-2
    )


def test_another_weight_is_another_fingerprint(adapter: Path, tmp_path: Path) -> None:
    copy = tmp_path / "persuadee"
    copy.mkdir()
    (copy / adapters.CONFIG).write_bytes((adapter / adapters.CONFIG).read_bytes())
    tensors = load_file(adapter / adapters.WEIGHTS)
    tensors[next(iter(tensors))][0, 0] += 0.5
    save_file(tensors, copy / adapters.WEIGHTS)
    assert load_model(copy).fingerprint != load_model(adapter).fingerprint


def test_a_wrong_adapter_is_told_in_one_line(base: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ScopeError, match="no adapter in"):
        load_model(f"{base}+{tmp_path}")
    wide = tmp_path / "wide"
    loaded = tiny("llama", hidden_size=64, max_position_embeddings=2048)
    loaded.model.save_pretrained(wide)
    loaded.tokenizer.save_pretrained(wide)
    with pytest.raises(ScopeError, match="could not put the adapter"):
        load_model(f"{wide}+{adapter}")
    deep = tmp_path / "deep"
    loaded = tiny("llama", num_hidden_layers=3, max_position_embeddings=2048)
    loaded.model.save_pretrained(deep)
    loaded.tokenizer.save_pretrained(deep)
    with pytest.raises(ScopeError, match="it lacks base_model"):
        load_model(f"{deep}+{adapter}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--role", "judge"], "choose persuader or persuadee"),
        (["--role", "persuadee", "--raw", "nowhere"], "nowhere holds no"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["small", "finetune", *words])
    assert result.exit_code == 2 and told in " ".join(result.output.split())
