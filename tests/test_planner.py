"""The planner's counts against models: parameters on the meta device, tensors and FLOPs of tiny models on a CPU."""

from __future__ import annotations

import dataclasses
import re
import weakref
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from typer.testing import CliRunner

from scope_lite import cli, planner
from scope_lite.engines.hf import LORA_TARGETS, SeatModel
from scope_lite.errors import ScopeError
from scope_lite.paths import NANO_MODELS
from scope_lite.planner import cards, memory, shapes, speed
from scope_lite.planner.plan import remedies
from scope_lite.records import Transcript, collate

CONFIGS = {
    "qwen3": Qwen3Config, "llama": LlamaConfig, "olmo3": Olmo3Config, "olmo2": Olmo2Config, "qwen2": Qwen2Config,
    "mistral": MistralConfig,
}  # fmt: skip
ROWS, TOKENS = 2, 48
RANK = 4


def tiny(kind: str, layers: int = 2, tied: bool = True, **sizes: int) -> PretrainedConfig:
    """A config whose widths all differ, so that a mix-up of two changes a count."""
    shape = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2} | sizes
    head = {} if kind == "qwen2" else {"head_dim": 24}
    return CONFIGS[kind](
        **shape, **head, num_hidden_layers=layers, vocab_size=120, tie_word_embeddings=tied, pad_token_id=0,
        eos_token_id=1, bos_token_id=1, use_sliding_window=False,
    )  # fmt: skip


def adapted(config: PretrainedConfig, dtype: torch.dtype = torch.bfloat16) -> Any:
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").requires_grad_(False)
    return get_peft_model(model, LoraConfig(r=RANK, target_modules=list(LORA_TARGETS)))


def ids() -> torch.Tensor:
    return torch.arange(ROWS * TOKENS).view(ROWS, TOKENS) % 120


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
    "Qwen3-4B-Instruct-2507": (Qwen3Config, 4_022_468_096),
    "Qwen3-8B": (Qwen3Config, 8_190_735_360),
    "Olmo-3-7B-Instruct": (Olmo3Config, 7_298_011_136),
    "SmolLM2-135M-Instruct": (LlamaConfig, 134_515_008),
}


@pytest.mark.parametrize("shape", planner.KNOWN, ids=lambda shape: shape.name)
def test_a_known_models_parameters_are_those_of_the_model_on_the_meta_device(shape: planner.ModelShape) -> None:
    kind, published = PUBLISHED[shape.name]
    config = kind(
        hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        vocab_size=shape.vocabulary, tie_word_embeddings=shape.tied, max_position_embeddings=shape.max_context,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters()) == published
    # and the other way: the shape that is read from that config is the one in the table
    assert dataclasses.replace(shapes.from_config(config), name=shape.name) == shape


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architectures_parameters_and_adapters_are_counted(kind: str, tied: bool) -> None:
    config = tiny(kind, tied=tied)
    shape = shapes.from_config(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        assert shape.parameters == sum(p.numel() for p in model.parameters())
        peft = get_peft_model(model, LoraConfig(r=RANK, target_modules=list(LORA_TARGETS)))
    assert shape.lora(RANK) == sum(p.numel() for p in peft.parameters() if p.requires_grad)


@pytest.mark.parametrize("tied", [True, False])
def test_the_hf_engines_own_adapter_is_counted_head_and_all(tied: bool) -> None:
    model = AutoModelForCausalLM.from_config(tiny("qwen3", tied=tied)).requires_grad_(False)
    seat = SeatModel.__new__(SeatModel)
    seat.model = model
    seat.add_adapter(RANK, alpha=8, seed=0)
    work = planner.workload(engine="hf", lora_rank=RANK)
    counted = memory.adapter_parameters(shapes.from_config(model.config), work)
    assert counted == sum(p.numel() for p in seat.trainable())
    assert {p.dtype for p in seat.trainable()} == {torch.float32}  # four bytes each, and so their gradients


def test_adamw_keeps_eight_bytes_a_parameter() -> None:
    weight = torch.nn.Parameter(torch.zeros(100))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    moments = [t for t in optimizer.state[weight].values() if t.shape == weight.shape]
    assert sum(t.nbytes for t in moments) == 8 * weight.numel()
    made = planner.plan(planner.KNOWN[3], planner.card("24"), planner.workload(adapters=1))
    assert made.memory.training["optimizer"] == 8 * memory.adapter_parameters(made.shape, made.work)


def test_four_bits_shrink_the_matrices_only() -> None:
    shape = planner.KNOWN[1]
    saved = memory.weight_bytes(shape, 16) - memory.weight_bytes(shape, 4)
    assert saved == pytest.approx((2 - memory.NF4_BYTES) * shape.matrices)
    # 64 weights share a byte of scale, 256 scales a float: by hand for one block of 64 x 256 weights
    assert memory.NF4_BYTES * 64 * 256 == 64 * 256 / 2 + 256 + 4


# -- tensors of a forward and a backward pass -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen3", "llama", "olmo3"])
@pytest.mark.parametrize("sizes", [{}, {"num_key_value_heads": 4, "intermediate_size": 96}], ids=["wide", "narrow"])
def test_a_layer_keeps_exactly_the_counted_bytes(kind: str, sizes: dict[str, int]) -> None:
    two, three = (saved_bytes(adapted(tiny(kind, layers, **sizes))) for layers in (2, 3))
    shape = shapes.from_config(tiny(kind, **sizes))
    assert three - two == ROWS * TOKENS * memory.saved_per_token(shape, RANK)


def test_a_checkpointed_model_keeps_its_layers_inputs_and_the_final_norm() -> None:
    config = tiny("qwen3", 3)
    kept = memory.kept_activations(shapes.from_config(config), RANK, ROWS * TOKENS, checkpointing=True)
    assert saved_bytes(adapted(config), checkpointing=True) == kept


def test_a_model_that_is_not_checkpointed_keeps_what_is_counted_but_for_the_rotary_tables() -> None:
    config = tiny("qwen3", 3)
    kept = memory.kept_activations(shapes.from_config(config), RANK, ROWS * TOKENS, checkpointing=False)
    assert saved_bytes(adapted(config)) - kept == 2 * 2 * TOKENS * 24  # cosine and sine, bf16, once for all rows


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(
    "sizes", [{}, {"intermediate_size": 800}, {"hidden_size": 192}, {"num_attention_heads": 16}], ids=str
)
def test_the_peak_of_a_training_step_is_the_planned_one(checkpointing: bool, sizes: dict[str, int]) -> None:
    config = tiny("qwen3", 3, **sizes)
    model, shape = adapted(config), shapes.from_config(config)
    base = model.get_base_model()
    if checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.train()
    tokens = ids()
    live = LiveBytes([*model.parameters(), *model.buffers(), tokens])
    with live:
        base.model(input_ids=tokens, use_cache=False).last_hidden_state.float().sum().backward()
    count = ROWS * TOKENS
    planned = memory.kept_activations(shape, RANK, count, checkpointing)
    planned += memory.backward_extra(shape, RANK, count, checkpointing) + 4 * shape.lora(RANK)
    assert live.peak <= 1.02 * planned  # never much more
    assert live.peak >= 0.8 * planned  # and the plan is no wild guess


@pytest.mark.parametrize("engine", ["unsloth", "hf"])
def test_logits_cost_the_counted_bytes_at_trained_tokens_and_nothing_elsewhere(engine: str) -> None:
    vocabulary, trained = 40_000, 40  # so large that the rest of the model does not count
    config = tiny("qwen3", 1, hidden_size=16, intermediate_size=16, num_key_value_heads=1)
    config.vocab_size = vocabulary
    seat = SeatModel.__new__(SeatModel)
    seat.model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).requires_grad_(False)
    seat.choice_bias, seat.choice_scale = torch.zeros(1, vocabulary), torch.ones(1)
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
    assert live.peak == pytest.approx(memory.logit_bytes(vocabulary, trained, engine), rel=0.05)


@pytest.mark.parametrize("kind", ["qwen3", "olmo3"])
def test_the_cache_of_a_sequence_has_the_counted_bytes(kind: str) -> None:
    config = tiny(kind, 4)
    if kind == "olmo3":
        config.sliding_window = 16
    shape = shapes.from_config(config)
    cache = DynamicCache(config=config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        model(input_ids=ids()[:1], past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    # transformers drops the token that the next one pushes out of the window one step early
    early = 2 * 2 * shape.keys * shape.windowed_layers
    assert held == shape.kv_bytes(TOKENS) - early
    assert (kind == "olmo3") == (shape.windowed_layers == 3)
    assert shape.kv_bytes(10) == 2 * 2 * shape.keys * 4 * 10  # shorter than the window: every layer keeps all


@pytest.mark.parametrize("sizes", [{}, {"intermediate_size": 800}, {"num_attention_heads": 16}], ids=str)
def test_reading_a_prompt_needs_what_is_planned(sizes: dict[str, int]) -> None:
    config = tiny("qwen3", 3, **sizes)
    model, tokens, shape = adapted(config), ids(), shapes.from_config(config)
    live = LiveBytes([*model.parameters(), *model.buffers(), tokens])
    with live, torch.no_grad():
        held = model.get_base_model().model(input_ids=tokens, past_key_values=DynamicCache(config=config))
    planned = ROWS * (shape.kv_bytes(TOKENS) + TOKENS * memory.reading_per_token(shape))
    assert held is not None and 0.85 * planned <= live.peak <= 1.05 * planned


# -- arithmetic -------------------------------------------------------------------------------------------------------


def counted_flops(layers: int, backward: bool) -> float:
    model = adapted(tiny("qwen3", layers), torch.float32)
    base = model.get_base_model()
    base.set_attn_implementation("eager")  # the counter sees its matrix products, and no causal half is skipped
    with FlopCounterMode(display=False) as forward:
        hidden = base.model(input_ids=ids(), use_cache=False).last_hidden_state
    with FlopCounterMode(display=False) as back:
        hidden.sum().backward()
    return (back if backward else forward).get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
def test_the_flops_of_a_layer_are_those_that_torch_counts(backward: bool) -> None:
    # the difference of two depths: the first layer's inputs take no gradient, the embedding costs nothing
    measured = counted_flops(3, backward) - counted_flops(2, backward)
    count = speed.backward_flops if backward else speed.forward_flops
    two, three = (shapes.from_config(tiny("qwen3", layers)) for layers in (2, 3))

    def planned(shape: planner.ModelShape) -> float:
        # torch counts the whole square of attention, the plan its causal half
        once_more = shape.attention_flops(TOKENS) * (2 if backward else 1)
        return ROWS * (count(shape, shape.lora(RANK), TOKENS) + once_more)

    assert measured == planned(three) - planned(two)


def test_attention_in_a_window_is_a_band_of_the_triangle() -> None:
    shape = dataclasses.replace(planner.KNOWN[2], layers=4, windowed_layers=4, window=64)
    pairs = sum(min(row + 1, 64) for row in range(1000))
    assert shape.attention_flops(1000) == pytest.approx(4 * shape.queries * 4 * pairs, rel=0.01)
    assert dataclasses.replace(shape, window=5000).attention_flops(1000) == 4 * shape.queries * 4 * 1000**2 / 2


def test_one_sequence_is_drawn_at_the_speed_of_reading_the_weights_and_many_at_that_of_arithmetic() -> None:
    shape, card = planner.KNOWN[0], planner.card("H100")
    one = speed.decode_seconds(shape, card, 16, rows=1, length=1)
    assert one == pytest.approx(2 * shape.parameters / card.bandwidth, rel=1e-3)
    many = speed.decode_seconds(shape, card, 16, rows=10**5, length=1)
    assert many == pytest.approx(10**5 * 2 * (shape.matrices + shape.head) / card.flops, rel=0.01)


def test_a_cache_too_small_for_both_seats_costs_reading_again() -> None:
    shape, card = planner.KNOWN[0], planner.card("24")
    crowded, calm = (planner.plan(shape, card, planner.workload(at_once=rows)) for rows in (64, 4))
    assert crowded.speed.rereads and not calm.speed.rereads
    assert calm.speed.at_once == 4
    assert crowded.speed.rollout_seconds > planner.plan(shape, planner.card("H200"), crowded.work).speed.rollout_seconds


# -- the plan as a whole ----------------------------------------------------------------------------------------------


def made(model: str = "Qwen3-8B", gpu: str = "24", **values: Any) -> planner.Plan:
    return planner.plan(planner.shape_of(model), planner.card(gpu), planner.workload(**values))


def test_the_automatic_share_fills_the_card_and_no_more() -> None:
    plan = made("Qwen3-4B-Instruct-2507")
    assert not plan.short and plan.memory.share
    step = 0.01 * plan.card.memory
    assert plan.card.memory - step <= plan.memory.peak <= plan.card.memory
    assert made("Qwen3-4B-Instruct-2507", vllm_share=plan.memory.share).memory == plan.memory
    assert made("Qwen3-4B-Instruct-2507", vllm_share=plan.memory.share + 0.02).short
    # where the card has room to spare, the cache takes what a step wants
    small = made("SmolLM2-135M-Instruct", "80")
    assert small.memory.kv_wanted <= small.memory.kv_room <= small.memory.kv_wanted + 0.01 * small.card.memory


def test_sleep_frees_the_cache_while_the_seats_train() -> None:
    awake, asleep = (made("Qwen3-4B-Instruct-2507", vllm_share=0.7, sleep=sleep) for sleep in (False, True))
    freed = sum(awake.memory.training.values()) - sum(asleep.memory.training.values())
    assert freed == pytest.approx(awake.memory.kv_room) and awake.memory.rollouts == asleep.memory.rollouts


def test_the_table_adds_up_to_the_peak() -> None:
    for plan in (made(), made(engine="hf", at_once=2), made(bits=4, checkpointing=False)):
        sums = plan.table()[["rollouts", "training"]].sum() * cards.GIB
        assert sums.max() == pytest.approx(plan.memory.peak)
        assert set(plan.memory.rollouts) | set(plan.memory.training) <= set(memory.PARTS)


CROWDED = [
    {}, {"vllm_share": 0.95}, {"vllm_share": 0.3}, {"micro_batch": 8, "bits": 4}, {"checkpointing": False},
    {"engine": "hf"}, {"logits_everywhere": True, "bits": 4, "micro_batch": 2}, {"context": 40_000},
    {"lora_rank": 512, "bits": 4},
]  # fmt: skip


@pytest.mark.parametrize("values", CROWDED, ids=str)
def test_a_plan_that_does_not_fit_is_refused_with_knobs_that_do_make_it_fit(values: dict[str, Any]) -> None:
    plan = made(**values)
    with pytest.raises(ScopeError) as refused:
        planner.require_fit(plan)
    assert "\n" not in str(refused.value) and "GiB" in str(refused.value)
    ways = remedies(plan)
    assert ways
    for words, left in ways:
        assert left <= 0
        changes = dict(re.findall(r"--(\S+?)(?: ([\d.]+))?(?: \(| and|$)", words))
        gone = set(re.findall(r"without --(\S+)", words))
        gpu = changes.pop("gpu", "24")
        typed = {
            n.replace("-", "_"): (float(v) if "." in v else int(v)) if v else n not in gone for n, v in changes.items()
        }
        typed |= {name.replace("-", "_"): None for name in gone if name == "vllm-share"}
        assert not made(gpu=gpu, **{**values, **typed}).short, words


def test_the_mildest_setting_of_a_knob_is_named() -> None:
    plan = made(bits=4, micro_batch=16)
    [(words, _)] = [way for way in remedies(plan) if way[0].startswith("--micro-batch")]
    size = int(words.split()[-1])
    assert not made(bits=4, micro_batch=size).short and made(bits=4, micro_batch=2 * size).short


def test_a_plan_that_fits_is_not_refused() -> None:
    planner.require_fit(made("Qwen3-4B-Instruct-2507"))


# -- names, cards, values ---------------------------------------------------------------------------------------------


def test_a_model_is_found_by_name_or_in_a_folder(tmp_path: Any) -> None:
    assert planner.shape_of("qwen/qwen3-8b") is planner.KNOWN[1]
    nano = planner.shape_of(str(NANO_MODELS / "persuasion" / "qwen3-tiny"))
    assert nano.name == "qwen3-tiny" and 50_000 < nano.parameters < 1_000_000
    with pytest.raises(ScopeError, match="unknown model 'qwen3-9b'; did you mean"):
        planner.shape_of("qwen3-9b")
    with pytest.raises(ScopeError, match=r"no config\.json"):
        planner.shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(ScopeError, match="cannot read"):
        planner.shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ScopeError, match="'gpt2' cannot be planned"):
        planner.shape_of(str(tmp_path))


def test_a_size_stands_for_the_least_memory_that_a_card_so_sold_has() -> None:
    assert planner.card("24").memory == min(one.memory for one in planner.CARDS if one.size == 24)
    assert planner.card("24").like == "RTX 4090" and planner.card("rtx-3090").bandwidth == 936e9
    assert planner.card("36 GB").memory < 36 * cards.GIB and planner.card("36").like == "RTX 5090"
    for text in ("", "0", "-3", "RTX 1", "24.5"):
        with pytest.raises(ScopeError, match="unknown GPU"):
            planner.card(text)


@pytest.mark.parametrize(
    "values, told",
    [
        ({"group_size": 1}, "--group-size"),
        ({"vllm_share": 1.5}, "--vllm-share"),
        ({"bits": 8}, "--bits"),
        ({"context": 100}, "leave no room for a prompt"),
        ({"engine": "hf", "vllm_share": 0.5}, "has no vLLM"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ScopeError, match=told):
        planner.workload(**values)


def test_a_context_longer_than_the_model_reads_is_refused() -> None:
    with pytest.raises(ScopeError, match="reads 8192 tokens"):
        made("SmolLM2-135M-Instruct", context=9000)


def test_the_command_prints_the_plan_draws_it_and_refuses_with_2(tmp_path: Any) -> None:
    words = ["plan", "--model", "Qwen3-4B-Instruct-2507", "--gpu", "24", "--figure", str(tmp_path / "memory.png")]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    for part in (*memory.PARTS, "at most", "likely", "hours of 200 steps"):
        assert part in done.stdout
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    refused = CliRunner().invoke(cli.app, ["plan", "--model", "Qwen3-8B", "--gpu", "24"])
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert "--bits 4 (frees" in refused.stderr
