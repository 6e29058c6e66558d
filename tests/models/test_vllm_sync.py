"""The guard against stale adapters, with a stand-in for vLLM that serves what it should not, in both number formats."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from scope_lite.envs.prompts import persuader
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import load_model
from scope_lite.models.vllm.engine import VllmEngine, VllmSettings
from scope_lite.models.vllm.sync import AdapterSync, Move, Reading, probe_prompts
from scope_lite.store.errors import ScopeError
from tests.method.test_text_training import model, panel  # noqa: F401  (fixtures)
from tests.models.test_vllm import SlowLLM, engine, seat_model, shift, slow, synced  # noqa: F401  (fixtures)


def reading(served: torch.Tensor, trainer: torch.Tensor) -> Reading:
    """Of answers by place and token, all of which the engine names."""
    table = [dict(enumerate(row)) for row in served.tolist()]
    return Reading(trainer, table, table, {})


def test_the_share_of_the_move_is_told_only_where_rounding_allows() -> None:
    random = torch.Generator().manual_seed(0)
    before, step, *noise = (torch.randn(96, 5, generator=random) for _ in range(6))
    start = reading(before + 0.1 * noise[0], before)

    def move(share: float, of: torch.Tensor, new: float, trainer: float = 0.0) -> Move:
        """Served is ``share`` of the step; ``new``: rounding of the engine's answer, which is made anew."""
        served = before + 0.1 * noise[0] + share * of + new * noise[1]
        return Move(reading(served, before + of + trainer * noise[2]), start)

    direction = 30 * step + noise[3]
    for share in (0.0, 1.0):
        assert move(share, step, 0.1).seen() == pytest.approx(share, abs=0.05)
        assert move(share, 0.2 * step, 0.1, 0.1).seen() is None
        assert move(share, 0.2 * step, 0.1, 0.1).estimated(direction) == pytest.approx(share, abs=0.2)
        assert move(share, step / 1000, 0.1, 0.1).seen() is None
        assert move(share, step / 1000, 0.1, 0.1).estimated(direction) is None
    # in 16 bits the trainer's answers are rounded anew: an engine's that are not were made with the old weights
    assert move(0.0, step / 1000, 0.0, 0.1).seen() == 0
    assert Move(start, start).seen() is None and Move(start, start).estimated(direction) is None
    few = torch.zeros(96, 5).index_fill(0, torch.arange(40), 0.1)  # so small a step that little was rounded anew
    assert move(0.0, few, 0.0).seen() is None


@pytest.mark.usefixtures("float32")
def test_a_sync_publishes_what_changed_and_proves_that_it_is_served(engine, model) -> None:  # noqa: F811
    seat = seat_model(model)
    sync = synced(engine, seat)
    first = sync()
    assert sync.metrics()["engine/moved"] is None  # an adapter that does nothing cannot be told from the base
    asked = len(engine.llm.calls)
    assert sync() is first and len(engine.llm.calls) == asked
    shift(seat, 0.05)
    second = sync()
    assert second.number > first.number and engine.llm.events == [f"remove {first.number}"]
    assert sync.metrics()["engine/moved"] == pytest.approx(1, abs=0.01) and sync.difference < 1e-4


def served_in(
    number_format: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SlowLLM, SeatModel, AdapterSync]:
    """A stand-in and a trainer in this number format; in 16 bits the stand-in has rounding of its own."""
    monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", number_format)
    seat, made = seat_model(folder, 0.1), VllmEngine(folder, VllmSettings(number_format))
    made.llm.rounding = 0.05 if number_format == "bfloat16" else 0.0
    return made.llm, seat, AdapterSync(made, seat, probe_prompts(seat.format, [persuader.SYSTEM])[:2])


@pytest.mark.parametrize("number_format", ["float32", "bfloat16"])
def test_old_weights_are_found_out_after_one_small_step_and_new_ones_are_not(
    slow,  # noqa: F811
    model,  # noqa: F811
    monkeypatch,
    number_format,
) -> None:
    for stale in (False, True):
        llm, seat, sync = served_in(number_format, model, monkeypatch)
        llm.stale = stale
        sync()
        shift(seat, 1e-4)  # a step far too small for the two to disagree
        if stale:
            with pytest.raises(ScopeError, match="vLLM serves old weights: it shows 0% of the trainer's last move"):
                sync()
        else:
            sync()
            assert sync.moved is None if number_format == "bfloat16" else sync.moved == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("stale", [False, True])
def test_in_16_bits_small_steps_add_up_to_a_verdict_on_an_engine_that_never_repeats_itself(
    slow,  # noqa: F811
    model,  # noqa: F811
    monkeypatch,
    stale,
) -> None:
    llm, seat, sync = served_in("bfloat16", model, monkeypatch)
    llm.jitter, llm.stale, steps, moved = 0.05, stale, 0, None
    sync()
    before = seat.adapter_state()
    with pytest.raises(ScopeError, match="vLLM serves old weights") if stale else contextlib.nullcontext():
        while moved is None and steps < 30:
            steps += 1
            shift(seat, 0.002)
            sync()
            moved = sync.moved
        assert not stale and moved == pytest.approx(1, abs=0.4)
    assert steps > 1
    for name, weight in seat.adapter_state().items():  # what the probe tried out has left no trace
        assert 0 < (weight - before[name]).abs().max() < 0.01 * steps


@pytest.mark.usefixtures("float32")
def test_an_engine_with_another_base_is_found_out(slow, model, tmp_path) -> None:  # noqa: F811
    other = load_model(model, "cpu")
    with torch.no_grad():
        other.model.model.layers[0].mlp.down_proj.weight.mul_(2)
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(ScopeError, match="vLLM and the trainer disagree on policy-1"):
        synced(VllmEngine(tmp_path / "other"), seat_model(model))()
