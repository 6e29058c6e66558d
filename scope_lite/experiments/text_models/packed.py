"""Replies to one history trained together: what they share is read once, forward and backward.

A history of 250 tokens and sixteen replies of 34 are 4,544 tokens one by one, and 794 in one row.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_lite.models.hf import SeatModel
from scope_lite.models.records import TokenBatch


class PackedSeat(SeatModel):
    """A seat that reads the rows of a batch in one: first what all begin with, then each row's own rest.

    A mask keeps a row's rest from the others', and positions go on from what is shared, so the log probabilities are
    those of reading every row alone, up to rounding.
    """

    def hidden_before(self, batch: TokenBatch) -> Float[Tensor, "n d"]:
        """As ``SeatModel.hidden_before``; rows that share nothing are read as there."""
        shared = shared_tokens(batch)
        if shared == 0 or len(batch.ids) == 1:
            return super().hidden_before(batch)
        lengths = batch.attention.sum(1)
        rests = lengths - shared
        owner = torch.cat([torch.full((shared,), -1), torch.arange(len(rests)).repeat_interleave(rests)])
        first = shared + rests.cumsum(0) - rests  # where each row's rest begins
        positions = torch.arange(len(owner)) - torch.where(owner < 0, 0, first[owner] - shared)
        ids = batch.ids[owner.clamp(min=0), positions]
        seen = (owner[None] == owner[:, None]) | (owner[None] < 0)
        mask = torch.zeros(seen.shape, dtype=self.model.dtype).masked_fill(~seen.tril(), -torch.inf)
        hidden = self.model.model(
            input_ids=ids[None].to(self.device),
            position_ids=positions[None].to(self.device),
            attention_mask=mask[None, None].to(self.device),
            use_cache=False,
        ).last_hidden_state[0]
        before = batch.column - 1
        place = torch.where(before < shared, before, first[batch.row] + before - shared)
        return hidden[place.to(self.device)]


def shared_tokens(batch: TokenBatch) -> int:
    """How many tokens all rows begin with, before the first one that any of them generated."""
    heard: Int[Tensor, "b t"] = batch.ids[:, : int(batch.column.min())]
    return int((heard == heard[:1]).all(0).long().cumprod(0).sum())
