"""A frozen matrix with its LoRA adapter as one function, in the number format of the matrix.

peft turns the input of every adapted matrix to float32, multiplies there, scales and adds: at rank 8 this takes as long
as the matrix itself. Here the two thin products are computed in the matrix's own format and added while the result is
written. The factors stay in float32, where the optimizer moves them; for a product they are rounded, each entry to its
own size, so that a first small move is not lost beside a large weight.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

if TYPE_CHECKING:
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer


class LowRank(torch.autograd.Function):
    """``x W' + c + s (x A') B'`` with gradients for x, A and B; the input is kept once, and in its own format."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*n inputs"],
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, " outputs"] | None,
        a: Float[Tensor, "rank inputs"],
        b: Float[Tensor, "outputs rank"],
        scale: float,
    ) -> Float[Tensor, "*n outputs"]:
        flat, a_near, b_near = x.flatten(0, -2), a.to(x.dtype), (scale * b).to(x.dtype)
        inner = flat @ a_near.mT
        ctx.save_for_backward(flat, weight, a_near, b_near, inner)
        ctx.scale, ctx.formats, ctx.shape = scale, (a.dtype, b.dtype), x.shape
        return linear(flat, weight, bias).addmm_(inner, b_near.mT).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "*n outputs"]) -> tuple[Tensor | None, ...]:
        flat, weight, a, b, inner = ctx.saved_tensors
        grad = grad.flatten(0, -2)
        to_inner = grad @ b
        to_x = (grad @ weight).addmm_(to_inner, a).view(ctx.shape) if ctx.needs_input_grad[0] else None
        to_a, to_b = to_inner.mT @ flat, ctx.scale * (grad.mT @ inner)
        return to_x, None, None, to_a.to(ctx.formats[0]), to_b.to(ctx.formats[1]), None


def fuse(peft: PeftModel) -> None:
    """Let every adapted matrix of a model with one adapter, which is always on, compute by :class:`LowRank`."""
    from scope_lite.models.adapters import lora_layers

    for _, layer in lora_layers(peft):
        layer.forward = MethodType(_forward, layer)


def _forward(layer: LoraLayer, x: Tensor) -> Tensor:
    (name,) = layer.active_adapters
    base, a, b = layer.get_base_layer(), layer.lora_A[name].weight, layer.lora_B[name].weight
    return LowRank.apply(x, base.weight, base.bias, a, b, layer.scaling[name])
