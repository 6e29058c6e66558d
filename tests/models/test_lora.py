"""What is trained is what was meant: the two factors of an adapter on every matrix, and nothing that others share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PretrainedConfig, Qwen3MoeConfig

from scope_lite.cli.base import make_config
from scope_lite.method.learner import Learner
from scope_lite.models.adapters import FUSED, LORA_TARGETS, add_lora, fold_adapters
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Transcript
from scope_lite.store.errors import ScopeError
from tests.standins.tiny_models import byte_tokenizer

SHAPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip


def seat_of(kind: type[PretrainedConfig] = LlamaConfig, **changes: Any) -> SeatModel:
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(vocab_size=len(tokenizer), **{**SHAPE, **changes}))
    return SeatModel(model.eval().requires_grad_(False), tokenizer)


def trained_names(seat: SeatModel) -> list[str]:
    return [name for name, p in seat.model.named_parameters() if p.requires_grad]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [LlamaConfig, Phi3Config])
def test_exactly_the_matrices_of_every_layer_are_trained_and_kept(kind: type[PretrainedConfig], tied: bool) -> None:
    seat = seat_of(kind, tie_word_embeddings=tied)
    wanted = sorted(
        f"{name.removesuffix('.weight')}.lora_{factor}"
        for name, p in seat.model.named_parameters()
        for factor in "AB"
        if p.ndim == 2 and "embed" not in name and not (tied and "lm_head" in name)
    )
    seat.add_adapter(8, 16, seed=0)
    assert sorted(name.removesuffix(".default.weight") for name in trained_names(seat)) == wanted
    kept = sorted(n.removeprefix("base_model.model.").removesuffix(".weight") for n in seat.adapter_state())
    assert kept == wanted
    kinds = {name.split(".")[-2] for name in wanted} - {"lm_head"}
    assert kinds == ({"o_proj", "down_proj", *FUSED} if kind is Phi3Config else set(LORA_TARGETS))


def test_a_model_with_matrices_that_an_adapter_would_leave_out_is_refused() -> None:
    experts = seat_of(Qwen3MoeConfig, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)
    with pytest.raises(ScopeError, match="cannot train an adapter on this qwen3_moe"):
        experts.add_adapter(8, 16, seed=0)
    renamed = seat_of()
    layer = renamed.model.model.layers[1].self_attn
    layer.my_q_proj = torch.nn.Linear(32, 32)  # a name that ends as a known one does
    with pytest.raises(ScopeError, match="my_q_proj is none of the matrices"):
        renamed.add_adapter(8, 16, seed=0)
    twice = seat_of()
    twice.add_adapter(8, 16, seed=0)
    with pytest.raises(ScopeError, match="has an adapter already"):
        twice.add_adapter(8, 16, seed=0)


def test_a_parameter_that_would_be_trained_beside_the_adapter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap = get_peft_model

    def with_bias(model: Any, config: Any) -> Any:
        config.bias = "all"
        return wrap(model, config)

    monkeypatch.setattr("peft.get_peft_model", with_bias)
    with pytest.raises(ScopeError, match="bias would be trained beside the adapter"):
        add_lora(seat_of(attention_bias=True).model, 8, 16, seed=0)
    monkeypatch.setattr("peft.get_peft_model", lambda model, config: wrap(model, config).requires_grad_(False))
    with pytest.raises(ScopeError, match="of the adapter would not be trained"):
        add_lora(seat_of().model, 8, 16, seed=0)


@pytest.mark.parametrize("rank", [17, 100_000_000, 0])
def test_a_rank_above_the_smallest_matrix_is_refused_before_it_is_allocated(rank: int) -> None:
    with pytest.raises(ScopeError, match="smallest matrix has rank 16"):
        seat_of().add_adapter(rank, 16, seed=0)


@pytest.mark.parametrize("kind", [LlamaConfig, Phi3Config])
def test_a_step_moves_the_adapter_and_nothing_that_reference_or_snapshot_holds(kind: Any, tmp_path: Path) -> None:
    config = make_config(None, [], world="p4g", model=str(tmp_path), learning_rate=0.1, kl_coef=0.1)
    learner = Learner(seat_of(kind, tie_word_embeddings=False), config, seed=0)
    seat = learner.model
    past = seat.snapshot(seat.adapter_state())
    said = Transcript()
    said.read([5, 6, 7])
    for token in (9, 10, 11):
        said.write(token, -1.0, 0)
    learner.update([said, said], torch.tensor([1.0, 0.5]))  # B, which begins at 0
    others = (learner.reference, past)

    def outputs() -> list[Tensor]:
        with torch.no_grad():
            return [s.model(torch.tensor([said.ids])).logits for s in (*others, seat)]

    before, state = outputs(), seat.adapter_state()
    learner.update([said, said], torch.tensor([1.0, 0.5]))
    after, moved = outputs(), seat.adapter_state()
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
    assert not torch.equal(before[2], after[2])
    assert all(not torch.equal(state[name], moved[name]) for name in state)


def test_an_adapter_s_state_of_another_shape_or_name_is_refused() -> None:
    seat = seat_of()
    seat.add_adapter(8, 16, seed=0)
    state = seat.adapter_state()
    first = next(iter(state))
    for wrong in ({}, {**state, "extra": state[first]}, {**state, first: state[first][:4]}):
        with pytest.raises(ScopeError, match=r"it (lacks|has)"):
            seat.load_adapter_state(wrong)


def test_an_adapter_on_16_bit_weights_speaks_as_it_is_trained():
    plain = seat_of()
    seat = SeatModel(plain.model.bfloat16(), plain.tokenizer)
    seat.add_adapter(4, 8, seed=0)
    assert {p.dtype for p in seat.trainable()} == {torch.float32}
    assert seat.speaking_model() is seat.model
    transcript = Transcript()
    transcript.read(seat.format.opening("sum", "hi"))
    session = seat.session(1)
    session.append([transcript.ids])
    said = session.next_probabilities(0)
    assert said.dtype == np.float64 and said.sum() == pytest.approx(1, abs=1e-9)


def test_a_folded_adapter_says_the_same_and_leaves_room_for_a_new_one():
    tuned = get_peft_model(
        seat_of().model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    )
    ids = torch.tensor([[1, 5, 9, 20]])
    with torch.no_grad():
        before = tuned(ids).logits
        folded = fold_adapters(tuned.get_base_model())
        torch.testing.assert_close(folded(ids).logits, before, atol=1e-5, rtol=1e-4)
    assert not [name for name, _ in folded.named_parameters() if "lora" in name] and not hasattr(folded, "peft_config")
