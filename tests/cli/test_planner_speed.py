"""The planner's arithmetic against torch's own count, and what a step then takes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scope_lite.cli import planner
from scope_lite.cli.planner import shapes
from scope_lite.cli.planner.plan import backward_flops, decode_seconds, forward_flops
from tests.standins.planner_models import RANK, ROWS, TOKENS, adapted, ids, made, tiny


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
    count = backward_flops if backward else forward_flops
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
    one = decode_seconds(shape, card, 16, rows=1, length=1)
    assert one == pytest.approx(2 * shape.parameters / card.bandwidth, rel=1e-3)
    many = decode_seconds(shape, card, 16, rows=10**5, length=1)
    assert many == pytest.approx(10**5 * 2 * (shape.matrices + shape.head) / card.flops, rel=0.01)


def test_a_cache_too_small_for_both_seats_costs_reading_again() -> None:
    crowded, calm = (made("Qwen3-4B-Instruct-2507", method="single", groups=groups, group_size=2) for groups in (32, 1))
    assert crowded.rereads and not calm.rereads and calm.at_once == 2
    roomy = made("Qwen3-4B-Instruct-2507", "H200", method="single", groups=32, group_size=2)
    assert not roomy.rereads and crowded.seconds()[0] > roomy.seconds()[0]
    assert crowded.seconds(likely=True)[1] > crowded.seconds()[1]
