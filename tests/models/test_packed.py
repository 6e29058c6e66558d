"""Rows read in one and adapters in the matrix's own format, against reading each row alone with peft's products."""

from __future__ import annotations

import pytest
import torch

from scope_lite.models.adapters import add_lora
from scope_lite.models.hf import SeatModel
from scope_lite.models.low_rank import fuse
from scope_lite.models.packed import Packing
from scope_lite.models.records import Transcript, collate
from scope_lite.models.stack import share_weights
from tests.standins.tiny_models import tiny


class Plain(SeatModel):
    """Reads each row by itself, padded, with the adapter as peft computes it."""

    packs = False

    def _attach(self, rank: int, alpha: int, seed: int) -> None:
        self.peft = add_lora(share_weights(self.model), rank, alpha, seed, head=True)
        self.model = self.peft.get_base_model()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_replies_read_in_one_row_have_the_probabilities_and_gradients_of_reading_each_alone(kind: str) -> None:
    loaded = tiny(kind)
    packed, plain = (seat(loaded.model, loaded.tokenizer) for seat in (SeatModel, Plain))
    for seat in (packed, plain):
        seat.add_adapter(2, alpha=4, seed=0)
        with torch.no_grad():
            for name, weight in seat.model.named_parameters():
                if "lora_B" in name:
                    weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) / 5)
    prompt, replies = [7, 8, 9, 10, 11], [[20, 21, 22], [20], [30, 31, 32, 33, 34, 35]]
    for shared in (5, 2, 0):  # the whole history, a part of it, or nothing
        rows = []
        for number, reply in enumerate(replies):
            rows.append(Transcript())
            rows[-1].read(prompt[:shared] + [40 + number + i for i in range(5 - shared)])
            for token in reply:
                rows[-1].write(token, 0.0, 0)
        batch = collate(rows, pad=0)
        assert Packing.of(batch).shared == shared
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


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_an_adapter_in_the_matrixs_format_is_pefts_up_to_that_formats_rounding(dtype: torch.dtype, near: float) -> None:
    found = []
    for fused in (True, False):
        model = tiny("llama").model.to(dtype)
        peft = add_lora(model, 2, 4, seed=0)
        if fused:
            fuse(peft)
        with torch.no_grad():
            for name, weight in peft.named_parameters():
                if "lora_B" in name:
                    weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) / 20)
        layer = next(m for n, m in peft.named_modules() if n.endswith("q_proj"))
        x = torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        y = layer(x)
        (y.float() * torch.arange(y[..., :1].numel()).view(5, 7, 1)).mean().backward()
        found.append((y, x.grad, *(p.grad for p in layer.parameters() if p.requires_grad)))
    for one, other in zip(*found, strict=True):
        scale = other.detach().abs().max().item()
        torch.testing.assert_close(one.float(), other.float(), atol=near * scale, rtol=0)


def test_a_row_that_holds_nothing_is_no_fault() -> None:
    said = Transcript([5, 6, 7], [False, False, True], [0.0] * 3, [0] * 3)
    seat = SeatModel(tiny().model, tiny().tokenizer)
    with torch.no_grad():
        beside, alone = (seat.token_logprobs(collate(rows, pad=0))[0] for rows in ([said, Transcript()], [said]))
    torch.testing.assert_close(beside, alone)
