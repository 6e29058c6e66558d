"""The planner's bytes against models: parameters on the meta device, tensors of tiny models on a CPU."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, DynamicCache

from scope_lite.cli.planner import from_config, shape_of
from scope_lite.cli.planner.shapes import NF4_BYTES
from scope_lite.models.adapters import LORA_TARGETS
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Transcript, collate
from scope_lite.models.registry import models
from tests.standins.planner_models import CONFIGS, RANK, ROWS, TOKENS, adapted, ids, made, tiny


def saved_bytes(model: Any, checkpointing: bool = False) -> int:
    """Bytes of the storages that a forward pass keeps for the backward pass, parameters and buffers aside."""
    base = model.get_base_model()
    if checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.train()
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, or its address could be used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        base.model(input_ids=ids(), use_cache=False)
    return sum(storage.nbytes() for storage in kept.values())


class LiveBytes(TorchDispatchMode):
    """The bytes of all tensors alive, and their peak, besides those named at the start."""

    def __init__(self, besides: list[torch.Tensor]):
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in besides}
        self.now = self.peak = 0
        self._watched: dict[int, Any] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.known:
                self._watch(tensor.untyped_storage())
        return out

    def _watch(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone(_: Any) -> None:
            self.known.discard(key)
            self.now -= size
            del self._watched[key]

        self._watched[key] = weakref.ref(storage, gone)


# -- counts of parameters ---------------------------------------------------------------------------------------------

PUBLISHED = {
    "Qwen3-4B-Instruct-2507": 4_022_468_096, "Qwen3-8B": 8_190_735_360, "Olmo-3-7B-Instruct": 7_298_011_136,
    "SmolLM2-135M-Instruct": 134_515_008, "SmolLM2-360M-Instruct": 361_821_120, "SmolLM2-1.7B-Instruct": 1_711_376_384,
    "Qwen2.5-Coder-0.5B-Instruct": 494_032_768, "Qwen2.5-Coder-1.5B-Instruct": 1_543_714_304,
    "Qwen3-0.6B": 596_049_920, "Qwen3-1.7B": 1_720_574_976, "Qwen3-4B-Base": 4_022_468_096,
    "Llama-3.2-1B-Instruct": 1_235_814_400,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_models_parameters_are_those_that_its_publisher_counts(name: str) -> None:
    titles = {entry.title: entry.size for entry in models().values()}
    assert set(PUBLISHED) == set(titles) and shape_of(name).parameters == PUBLISHED[name]
    assert titles[name] == pytest.approx(PUBLISHED[name] / 1e9, rel=0.01)
    windowed = [kind for kind in getattr(shape_of(name).config, "layer_types", []) if kind == "sliding_attention"]
    assert len(windowed) == (24 if name.startswith("Olmo") else 0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architectures_parameters_and_adapters_are_counted(kind: str, tied: bool) -> None:
    config = tiny(kind, tied=tied)
    shape = from_config(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        peft = get_peft_model(model, LoraConfig(r=RANK, target_modules=list(LORA_TARGETS)))
    assert shape.lora(RANK) == sum(p.numel() for p in peft.parameters() if p.requires_grad)


@pytest.mark.parametrize("tied", [True, False])
def test_the_hf_engines_own_adapter_is_counted_head_and_all(tied: bool) -> None:
    model = AutoModelForCausalLM.from_config(tiny("qwen3", tied=tied)).requires_grad_(False)
    seat = SeatModel.__new__(SeatModel)
    seat.model = model
    seat.add_adapter(RANK, alpha=8, seed=0)
    plan = replace(made(training_engine="hf", lora_rank=RANK), shape=from_config(model.config))
    assert plan.adapter == sum(p.numel() for p in seat.trainable())
    assert {p.dtype for p in seat.trainable()} == {torch.float32}  # four bytes each, and so their gradients


def test_adamw_keeps_eight_bytes_a_parameter() -> None:
    weight = torch.nn.Parameter(torch.zeros(100))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    moments = [t for t in optimizer.state[weight].values() if t.shape == weight.shape]
    assert sum(t.nbytes for t in moments) == 8 * weight.numel()
    plan = made(method="single")
    assert plan.training["optimizer"] == 8 * plan.adapter


def test_four_bits_shrink_the_matrices_only() -> None:
    shape = shape_of("Qwen3-8B")
    saved = shape.weight_bytes(16) - shape.weight_bytes(4)
    assert saved == pytest.approx((2 - NF4_BYTES) * shape.matrices)
    # 64 weights share a byte of scale, 256 scales a float: by hand for one block of 64 x 256 weights
    assert NF4_BYTES * 64 * 256 == 64 * 256 / 2 + 256 + 4


# -- tensors of a forward and a backward pass -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen3", "llama", "olmo3"])
@pytest.mark.parametrize("sizes", [{}, {"num_key_value_heads": 4, "intermediate_size": 96}], ids=["wide", "narrow"])
def test_a_layer_keeps_exactly_the_counted_bytes(kind: str, sizes: dict[str, int]) -> None:
    two, three = (saved_bytes(adapted(tiny(kind, layers, **sizes))) for layers in (2, 3))
    shape = from_config(tiny(kind, **sizes))
    assert three - two == ROWS * TOKENS * shape.saved_per_token(RANK)


def test_a_checkpointed_model_keeps_its_layers_inputs_and_the_final_norm() -> None:
    config = tiny("qwen3", 3)
    kept = from_config(config).kept_activations(RANK, ROWS * TOKENS, checkpointing=True)
    assert saved_bytes(adapted(config), checkpointing=True) == kept


def test_a_model_that_is_not_checkpointed_keeps_what_is_counted_but_for_the_rotary_tables() -> None:
    config = tiny("qwen3", 3)
    kept = from_config(config).kept_activations(RANK, ROWS * TOKENS, checkpointing=False)
    assert saved_bytes(adapted(config)) - kept == 2 * 2 * TOKENS * 24  # cosine and sine, bf16, once for all rows


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(
    "sizes", [{}, {"intermediate_size": 800}, {"hidden_size": 192}, {"num_attention_heads": 16}], ids=str
)
def test_the_peak_of_a_training_step_is_the_planned_one(checkpointing: bool, sizes: dict[str, int]) -> None:
    config = tiny("qwen3", 3, **sizes)
    model, shape = adapted(config), from_config(config)
    base = model.get_base_model()
    if checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.train()
    tokens = ids()
    live = LiveBytes([*model.parameters(), *model.buffers(), tokens])
    with live:
        base.model(input_ids=tokens, use_cache=False).last_hidden_state.float().sum().backward()
    count = ROWS * TOKENS
    planned = shape.kept_activations(RANK, count, checkpointing)
    planned += shape.backward_extra(RANK, count, checkpointing) + 4 * shape.lora(RANK)
    assert live.peak <= 1.02 * planned  # never much more
    assert live.peak >= 0.8 * planned  # and the plan is no wild guess


@pytest.mark.parametrize("engine", ["unsloth", "hf"])
def test_logits_cost_the_counted_bytes_at_trained_tokens_and_nothing_elsewhere(engine: str) -> None:
    vocabulary, trained = 40_000, 40  # so large that the rest of the model does not count
    config = tiny("qwen3", 1, hidden_size=16, intermediate_size=16, num_key_value_heads=1)
    config.vocab_size = vocabulary
    seat = SeatModel.__new__(SeatModel)
    seat.model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).requires_grad_(False)
    seat.choices, seat.choice_bias, seat.choice_scale = {}, torch.zeros(1, vocabulary), torch.ones(1)
    seat.device = torch.device("cpu")
    seat.add_adapter(RANK, alpha=8, seed=0)
    said = Transcript()
    said.read(list(range(100)))
    for token in range(trained):
        said.write(token, 0.0, 0)
    batch = collate([said], pad=0)
    live = LiveBytes([*seat.model.parameters(), *seat.model.buffers(), batch.ids, seat.choice_bias])
    with live:
        if engine == "hf":
            logprobs, log_all = seat.token_logprobs(batch)
        else:
            hidden = seat.model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
            log_all = seat.model.lm_head(hidden[batch.row, batch.column - 1]).float().log_softmax(-1)
            logprobs = log_all.gather(-1, batch.targets[:, None])[:, 0]
        logprobs.mean().backward()
    assert log_all.shape == (trained, vocabulary)
    assert live.peak == pytest.approx(from_config(config).logit_bytes(trained, engine == "unsloth"), rel=0.05)


@pytest.mark.parametrize("kind", ["qwen3", "olmo3"])
def test_the_cache_of_a_sequence_has_the_counted_bytes(kind: str) -> None:
    config = tiny(kind, 4)
    if kind == "olmo3":
        config.sliding_window = 16
    shape = from_config(config)
    cache = DynamicCache(config=config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        model(input_ids=ids()[:1], past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    # transformers drops the token that the next one pushes out of the window one step early
    windowed = getattr(config, "layer_types", []).count("sliding_attention") if kind == "olmo3" else 0
    early = 2 * 2 * shape.keys * windowed
    assert held == shape.kv_bytes(TOKENS) - early
    assert (kind == "olmo3") == (windowed == 3)
    assert shape.kv_bytes(10) == 2 * 2 * shape.keys * 4 * 10  # shorter than the window: every layer keeps all


@pytest.mark.parametrize("sizes", [{}, {"intermediate_size": 800}, {"num_attention_heads": 16}], ids=str)
def test_reading_a_prompt_needs_what_is_planned(sizes: dict[str, int]) -> None:
    config = tiny("qwen3", 3, **sizes)
    model, tokens, shape = adapted(config), ids(), from_config(config)
    live = LiveBytes([*model.parameters(), *model.buffers(), tokens])
    with live, torch.no_grad():
        held = model.get_base_model().model(input_ids=tokens, past_key_values=DynamicCache(config=config))
    planned = ROWS * (shape.kv_bytes(TOKENS) + TOKENS * shape.reading_per_token())
    assert held is not None and 0.85 * planned <= live.peak <= 1.05 * planned
