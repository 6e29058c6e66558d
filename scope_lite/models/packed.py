"""The rows of a batch read in one: what all begin with once, forward and backward, then each row's own rest.

Nothing is padded but inside attention, where a row's tokens look at the common beginning and at its own rest. A group
that shares a system prompt of 70 tokens and goes on for 150 is read in two thirds of the tokens; a history of 250
tokens with sixteen replies of 34 in a sixth. Log probabilities are those of each row alone, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from scope_lite.models.records import TokenBatch
from scope_lite.models.rows import attend, common

NAME = "scope_packed"


@dataclass(frozen=True)
class Packing:
    """How the rows of a batch stand in one."""

    shared: int
    """tokens that all rows begin with"""
    rests: list[int]
    """tokens that each row goes on with; none where a dialogue ended before a seat heard a word"""

    @classmethod
    def of(cls, batch: TokenBatch) -> Packing:
        lengths = batch.attention.sum(1).tolist()
        rows = [ids[:length] for ids, length in zip(batch.ids.tolist(), lengths, strict=True)]
        shared = max(0, min(common(rows), min(lengths) - 1)) if len(rows) > 1 else 0
        return cls(shared, [length - shared for length in lengths])

    def lay(self, rows: Int[Tensor, "b t"]) -> Int[Tensor, "1 n"]:
        """Right-padded rows end to end."""
        rests = [row[self.shared : self.shared + rest] for row, rest in zip(rows, self.rests, strict=True)]
        return torch.cat([rows[0, : self.shared], *rests])[None]

    def place(self, row: Int[Tensor, " n"], column: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Where a row's token at ``column`` stands."""
        ends = torch.tensor(self.rests).cumsum(0)
        own = (ends - torch.tensor(self.rests))[row] + column
        return torch.where(column < self.shared, column, own)

    @property
    def longest(self) -> int:
        return self.shared + max(self.rests)

    def positions(self) -> Int[Tensor, "1 n"]:
        return self.lay(torch.arange(self.longest).expand(len(self.rests), -1))

    def unseen(self, dtype: torch.dtype) -> Float[Tensor, "1 1 longest longest"]:
        """Minus infinity where a token may not look: at later ones. Padding stands on the right, so that no real token
        sees any."""
        return torch.full((1, 1, self.longest, self.longest), -torch.inf, dtype=dtype).triu(1)


def attention(
    module: torch.nn.Module,
    query: Float[Tensor, "1 heads n dim"],
    key: Float[Tensor, "1 kv_heads n dim"],
    value: Float[Tensor, "1 kv_heads n dim"],
    attention_mask: Float[Tensor, "1 1 longest longest"],
    packing: Packing,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "1 n heads dim"], None]:
    """Causal attention of each row of ``packing``; the common beginning's keys are expanded, so that the gradients of
    all rows add up in them. ``attention_mask`` is ``packing.unseen``."""
    dim, kv_heads, shared = query.shape[-1], key.shape[1], packing.shared
    query = query * (dim**-0.5 if scaling is None else scaling)
    asking, keys, values = (t[0].transpose(0, 1) for t in (query, key, value))  # tokens first
    asking = asking.unflatten(1, (kv_heads, -1))

    def rows(tokens: Tensor) -> Tensor:
        """Each row's rest, padded, with heads before tokens."""
        return pad_sequence(tokens[shared:].split(packing.rests), batch_first=True).movedim(1, -2)

    def whole(tokens: Tensor) -> Tensor:
        start = tokens[:shared].transpose(0, 1).expand(len(packing.rests), -1, -1, -1)
        return torch.cat([start, rows(tokens)], dim=2)

    found = attend(rows(asking), whole(keys), whole(values), attention_mask[..., shared:, :]).movedim(-2, 1)
    parts = [row[:rest] for row, rest in zip(found, packing.rests, strict=True)]
    if shared:
        q, k, v = (t[:shared].movedim(0, -2)[None] for t in (asking, keys, values))
        parts.insert(0, attend(q, k, v, attention_mask[..., :shared, :shared]).movedim(-2, 1)[0])
    return torch.cat(parts).flatten(1, 2)[None], None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
