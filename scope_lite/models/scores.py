"""Log probabilities of given tokens under a frozen head, without holding a score for each token of the vocabulary.

A vocabulary of 49,152 makes 200 KB of scores a token, and training would keep several copies of them. What it needs is
one number a token, and one gradient: that of log p(y) by the hidden state is the head's row for y less the mean of all
rows under p. So a few tokens' scores at a time are enough, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

AT_ONCE = 64
"""tokens whose scores are held together; with a vocabulary of 49,152 they are 12 MB"""


class TokenScores(torch.autograd.Function):
    """Log probability of each target and the entropy of its distribution (nats); the entropy has no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "n d"],
        head: Float[Tensor, "v d"],
        targets: Int[Tensor, " n"],
        temperature: float = 1.0,
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        logprobs, entropies = hidden.new_empty(2, len(hidden), dtype=torch.float32)
        slopes = torch.empty_like(hidden)
        for start in range(0, len(hidden), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            target = targets[part]
            scores = linear(hidden[part], head).float().div_(temperature)
            scores -= scores.amax(-1, keepdim=True)
            odds = scores.exp()  # to the most likely token
            total = odds.sum(-1)
            logprobs[part] = scores.gather(-1, target[:, None])[:, 0] - total.log()
            entropies[part] = total.log() - torch.linalg.vecdot(odds, scores) / total
            if ctx.needs_input_grad[0]:
                mean = (odds.to(head.dtype) @ head).float() / total[:, None]
                slopes[part] = (head[target].float() - mean) / temperature
        ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, " n"], _: Any) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (grad[:, None] * slopes).to(slopes.dtype), None, None, None
