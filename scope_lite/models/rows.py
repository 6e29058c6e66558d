"""Keys and values of a batch of growing texts, a row each: what was read is never read, copied or repeated again.

A ``DynamicCache`` is copied whole for every token that joins it, and a model with fewer key heads than heads repeats
its keys for every query. Here a row's keys stand in one piece of memory with room to grow, and the heads that share
keys ask together. Rows grow by the same columns; where a row has less to read, the rest is padding that nothing sees.
A text that all rows begin with is read once. The result equals ordinary attention up to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "scope_rows"
WORTH_SHARING = 16
"""tokens that all rows begin with, from which on they are read once for all"""
ROOM = 32
"""columns for new tokens, where nothing is known of how many there will be"""
Forward = Callable[..., Float[Tensor, "b t d"]]
"""last hidden states of token ids, with the keywords of a transformers decoder"""
Text = list[tuple[Float[Tensor, "kv_heads length dim"], Float[Tensor, "kv_heads length dim"]]]
"""keys and values of one text, by layer"""


class RowCache:
    """What a batch of rows has read, in the shape that a model calls a cache."""

    def __init__(self, rows: int, device: torch.device | str = "cpu"):
        self.width = 0
        """columns in use"""
        self.real: Bool[Tensor, "rows room"] = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        """where a token stands, and no padding"""
        self.keys: list[Float[Tensor, "rows kv_heads room dim"]] = []
        self.values: list[Float[Tensor, "rows kv_heads room dim"]] = []

    @classmethod
    def of(cls, texts: Sequence[Text]) -> RowCache:
        """A row for each of ``texts``."""
        lengths = [text[0][0].shape[1] for text in texts]
        made = cls(len(texts), texts[0][0][0].device)
        made.reserve(max(lengths) + ROOM)
        made.width = max(lengths)
        for row, length in enumerate(lengths):
            made.real[row, :length] = True
        for layer in range(len(texts[0])):
            for held, part in ((made.keys, 0), (made.values, 1)):
                one = texts[0][layer][part]
                whole = one.new_zeros(len(texts), one.shape[0], made.room, one.shape[2])
                for row, length in enumerate(lengths):
                    whole[row, :, :length] = texts[row][layer][part]
                held.append(whole)
        return made

    @property
    def room(self) -> int:
        return self.real.shape[1]

    @property
    def lengths(self) -> Int[Tensor, " rows"]:
        """Tokens that each row has read."""
        return self.real[:, : self.width].sum(1)

    def reserve(self, columns: int) -> None:
        """Make room for so many columns more; half as many again, so that a text that grows is seldom moved."""
        if (missing := self.width + columns - self.room) > 0:
            more = max(missing, self.room // 2)
            self.real = torch.nn.functional.pad(self.real, (0, more))
            for held in (self.keys, self.values):
                held[:] = [torch.nn.functional.pad(tensor, (0, 0, 0, more)) for tensor in held]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Put the newest columns in their place; return all that are in use. A model calls this in each layer."""
        if layer_idx == len(self.keys):
            shape = (keys.shape[0], keys.shape[1], self.room, keys.shape[3])
            self.keys.append(keys.new_zeros(shape))
            self.values.append(values.new_zeros(shape))
        found = []
        for held, new in ((self.keys[layer_idx], keys), (self.values[layer_idx], values)):
            held[:, :, self.width - new.shape[2] : self.width] = new
            found.append(held[:, :, : self.width])
        return found[0], found[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.width

    def text(self, row: int) -> Text:
        """Keys and values of one row's tokens, a copy."""
        columns = self.real[row].nonzero()[:, 0]
        return [(k[row].index_select(1, columns), v[row].index_select(1, columns)) for k, v in self._layers()]

    def drop(self, rows: Collection[int]) -> list[int]:
        """Forget these rows; returns for every row that stays which one it was before."""
        kept, holes, movers = close_up(len(self.real), rows)
        self.real = self.real[kept]
        for held in (self.keys, self.values):
            for layer, whole in enumerate(held):
                whole[holes, :, : self.width] = whole[movers, :, : self.width]
                held[layer] = whole[: len(kept)]
        return kept

    def _layers(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.keys, self.values, strict=True)

    def append(self, forward: Forward, pieces: Sequence[Sequence[int]]) -> Float[Tensor, "rows d"]:
        """Read each row's new tokens; returns the hidden state of the last of them (of none: of padding)."""
        if not self.width and len(pieces) > 1:
            shared = min(common(pieces), min(map(len, pieces)) - 1)
            if shared >= WORTH_SHARING:
                self._begin(forward, pieces[0][:shared])
                pieces = [piece[shared:] for piece in pieces]
        device, width = self.real.device, max(map(len, pieces))
        lengths = torch.tensor([len(piece) for piece in pieces], device=device)
        ids = torch.tensor([[*piece, *[0] * (width - len(piece))] for piece in pieces], device=device)
        columns = torch.arange(width, device=device)
        positions = self.lengths[:, None] + columns
        self.reserve(width)
        self.real[:, self.width : self.width + width] = columns < lengths[:, None]
        self.width += width
        hidden = forward(
            ids,
            attention_mask=self._visible(width),
            position_ids=positions,
            past_key_values=self,
            use_cache=True,
        )
        return hidden[torch.arange(len(pieces), device=device), (lengths - 1).clamp_min(0)]

    def _begin(self, forward: Forward, ids: Sequence[int]) -> None:
        """Read a text once, and let every row begin with it."""
        one = RowCache(1, self.real.device)
        one.append(forward, [ids])
        rows = len(self.real)
        self.reserve(len(ids))
        self.real[:, : len(ids)], self.width = True, len(ids)
        for keys, values in one._layers():
            for held, read in ((self.keys, keys), (self.values, values)):
                held.append(torch.nn.functional.pad(read[:, :, : one.width], (0, 0, 0, self.room - one.width)))
                held[-1] = held[-1].repeat(rows, 1, 1, 1)

    def _visible(self, width: int) -> Bool[Tensor, "rows 1 width columns"]:
        """What each of the newest ``width`` tokens may look at: real ones up to itself; padding sees itself."""
        seen = self.real[:, None, None, : self.width]
        if width == 1:
            return seen | (torch.arange(self.width, device=seen.device) == self.width - 1)
        order = torch.ones(width, self.width, dtype=torch.bool, device=seen.device).tril(self.width - width)
        itself = torch.eye(width, dtype=torch.bool, device=seen.device)
        return (seen & order) | torch.nn.functional.pad(itself, (self.width - width, 0))


def common(texts: Sequence[Sequence[int]]) -> int:
    """Tokens at the beginning that all texts share."""
    first, last = min(map(list, texts)), max(map(list, texts))  # what these two share, all do
    differing = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return next(differing, min(len(first), len(last)))


def close_up(count: int, dropped: Collection[int]) -> tuple[list[int], list[int], list[int]]:
    """How ``count`` rows close up when some are dropped: the last ones take their places, so that few are moved.

    Returns:
        For every row that stays which one it was before; the places that are filled, and the rows that fill them.
    """
    left = count - len(dropped)
    holes = [row for row in sorted(dropped) if row < left]
    movers = [row for row in range(left, count) if row not in dropped]
    kept = list(range(left))
    for hole, mover in zip(holes, movers, strict=True):
        kept[hole] = mover
    return kept, holes, movers


def attention(
    module: torch.nn.Module,
    query: Float[Tensor, "rows heads new dim"],
    key: Float[Tensor, "rows kv_heads columns dim"],
    value: Float[Tensor, "rows kv_heads columns dim"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "rows new heads dim"], None]:
    """Attention in which the heads that share keys ask together; without a mask of ours, plain SDPA."""
    if attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    (rows, heads, new, dim), kv_heads = query.shape, key.shape[1]
    asking = query.reshape(rows, kv_heads, heads // kv_heads * new, dim)
    mask = attention_mask.repeat(1, 1, heads // kv_heads, 1) if new > 1 else attention_mask
    found = scaled_dot_product_attention(asking, key, value, attn_mask=mask, scale=scaling)
    return found.reshape(rows, heads, new, dim).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextlib.contextmanager
def row_attention(model: PreTrainedModel, name: str = NAME) -> Iterator[None]:
    """Let ``model`` attend by what is registered as ``name`` inside the block, and as before outside."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
