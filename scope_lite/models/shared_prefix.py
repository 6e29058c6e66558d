"""Attention for many replies to one history: the history's keys and values exist once, whatever the number of replies.

Expanding a prompt's key-value cache to 64 replies makes every decoding step read it 64 times, and on a CPU that reading
is most of the step. Here a row holds only its own new tokens; its scores against the history are one matrix product
for the whole group, and both parts meet in one softmax, so the result equals ordinary attention up to rounding.
Works for the decoder families that pass keyword arguments down to their attention function (Llama, Qwen3, ...).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from scope_lite.models.rows import RowCache, Text, close_up, common, row_attention

NAME = "scope_shared_prefix"


class SharedPrefix:
    """Keys and values of some histories, each once, and of the new tokens of the rows that continue them.

    This is the shape that a model calls a cache. Rows stand in no particular order: when one is dropped, the last one
    takes its place, so a drop moves one row and not all of them.

    Attributes:
        lengths: tokens in each history.
        history: which history each row continues, shape (rows,).
        own_length: new tokens that every row holds so far.
    """

    def __init__(self, prompts: Sequence[Text], replies: int, max_new_tokens: int) -> None:
        """``replies`` rows for each of ``prompts``, those of one history side by side."""
        self.max_new_tokens = max_new_tokens
        self.own_length = 0
        self.lengths = [prompt[0][0].shape[1] for prompt in prompts]
        self.keys = [[keys for keys, _ in layer] for layer in zip(*prompts, strict=True)]
        self.values = [[values for _, values in layer] for layer in zip(*prompts, strict=True)]
        self.own_keys: dict[int, Tensor] = {}
        self.own_values: dict[int, Tensor] = {}
        self.history = [h for h in range(len(prompts)) for _ in range(replies)]
        self._sort()

    def _sort(self) -> None:
        """Where the rows of each history stand, for :func:`attention`."""
        device, order = self.keys[0][0].device, sorted(range(len(self.history)), key=self.history.__getitem__)
        self.order = torch.tensor(order, device=device)
        self.back = self.order.argsort()
        counts = Counter(self.history)
        ends = accumulate(counts[h] for h in sorted(counts))
        self.spans = [(h, end - counts[h], end) for h, end in zip(sorted(counts), ends, strict=True)]
        """(history, first, last + 1) among the rows in ``order``, for each history that still has rows"""

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append one token's keys and values, shape (rows, kv_heads, 1, head_dim); return the rows' own ones so far."""
        if layer_idx not in self.own_keys:
            shape = (keys.shape[0], keys.shape[1], self.max_new_tokens, keys.shape[3])
            self.own_keys[layer_idx], self.own_values[layer_idx] = keys.new_empty(shape), values.new_empty(shape)
        at = self.own_length
        self.own_keys[layer_idx][:, :, at : at + 1] = keys
        self.own_values[layer_idx][:, :, at : at + 1] = values
        return self.own_keys[layer_idx][:, :, : at + 1], self.own_values[layer_idx][:, :, : at + 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.lengths) + self.own_length

    def positions(self) -> Int[Tensor, "rows 1"]:
        """The position of the next token of every row."""
        lengths = [self.lengths[h] + self.own_length for h in self.history]
        return torch.tensor(lengths, device=self.order.device)[:, None]

    def drop(self, rows: Collection[int]) -> list[int]:
        """Forget these rows; returns for every row that stays which one it was before."""
        kept, holes, movers = close_up(len(self.history), rows)
        for own in (self.own_keys, self.own_values):
            for layer, held in own.items():
                held[holes, :, : self.own_length] = held[movers, :, : self.own_length]
                own[layer] = held[: len(kept)]
        self.history = [self.history[row] for row in kept]
        self._sort()
        return kept


def attention(
    module: torch.nn.Module,
    query: Float[Tensor, "rows heads 1 dim"],
    key: Float[Tensor, "rows kv_heads own dim"],
    value: Float[Tensor, "rows kv_heads own dim"],
    attention_mask: Tensor | None,
    shared_prefix: SharedPrefix | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "rows 1 heads dim"], None]:
    """Attend to the row's history and to its own tokens; without ``shared_prefix``, plain SDPA."""
    if shared_prefix is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    index: int = module.layer_idx  # type: ignore[assignment]
    rows, heads, _, dim = query.shape
    kv_heads, own = key.shape[1:3]
    per_kv = heads // kv_heads
    own_query = query.reshape(rows, kv_heads, per_kv, dim) * (dim**-0.5 if scaling is None else scaling)
    queries = own_query[shared_prefix.order]
    scores = (own_query @ key.transpose(-1, -2))[shared_prefix.order]
    mixed, weights = torch.empty_like(queries), torch.empty_like(scores)
    for history, first, end in shared_prefix.spans:
        old_keys, old_values = shared_prefix.keys[index][history], shared_prefix.values[index][history]
        # (kv_heads, rows x per_kv, dim): one product for all rows of a history
        asking = queries[first:end].transpose(0, 1).flatten(1, 2)
        both = torch.cat([asking @ old_keys.mT, scores[first:end].transpose(0, 1).flatten(1, 2)], -1)
        old_part, own_part = torch.softmax(both.float(), -1).to(query.dtype).split([old_keys.shape[1], own], -1)
        mixed[first:end] = (old_part @ old_values).unflatten(1, (-1, per_kv)).transpose(0, 1)
        weights[first:end] = own_part.unflatten(1, (-1, per_kv)).transpose(0, 1)
    result = mixed[shared_prefix.back] + weights[shared_prefix.back] @ value
    return result.reshape(rows, 1, heads, dim), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def shared_prefix_attention(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Let ``model`` use :func:`attention` inside the ``with`` block, and what it used before outside."""
    return row_attention(model, NAME)


class Readings:
    """Keys and values of the texts read lately: a prompt that begins like one of them reads only the rest.

    So a dialogue that has grown by a turn reads that turn, and prompts with the same instructions read them once. What
    is read in parts equals what is read in one up to rounding.
    """

    def __init__(self, model: PreTrainedModel, most: int = 2**30) -> None:
        """``most`` bytes are kept, those used last; 0 keeps nothing."""
        self.model, self.most = model, most
        self._known: dict[tuple[int, ...], Text] = {}

    def read(self, prompts: Sequence[Sequence[int]]) -> tuple[RowCache, Float[Tensor, "prompts vocab"]]:
        """All prompts in one batch, a row each, and the logits of the token that follows each."""
        beginnings = [self._beginning(tuple(prompt)) for prompt in prompts]
        if any(length for _, length in beginnings):
            cache = RowCache.of([[(k[:, :length], v[:, :length]) for k, v in text] for text, length in beginnings])
        else:
            cache = RowCache(len(prompts), self.model.device)
        with row_attention(self.model):
            pieces = [prompt[length:] for prompt, (_, length) in zip(prompts, beginnings, strict=True)]
            hidden = cache.append(self.forward, pieces)
        return cache, self.model.lm_head(hidden)

    def forward(self, ids: Int[Tensor, "b t"], **options: Any) -> Float[Tensor, "b t d"]:
        return self.model.get_decoder()(input_ids=ids, **options).last_hidden_state

    def advance(self, cache: RowCache, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab"]:
        """Feed every row its newest token; return the logits of the next one."""
        return self.model.lm_head(cache.append(self.forward, tokens[:, None].tolist()))

    def keep(self, ids: Sequence[int], text: Text) -> None:
        """Remember what was read: the first of ``ids``, as many as ``text`` holds, in place of its beginnings."""
        read = tuple(ids[: text[0][0].shape[1]])
        for known in [known for known in self._known if known == read[: len(known)]]:
            del self._known[known]
        self._known[read] = text
        while self._known and self._bytes() > self.most:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Read everything anew from here on."""
        self._known.clear()

    def _beginning(self, ids: tuple[int, ...]) -> tuple[Text, int]:
        """The known text that shares most with ``ids``, and how much of it; its last token is always read again."""
        alike = max(self._known, key=lambda known: common([known, ids]), default=())
        if not alike:
            return [], 0
        self._known[alike] = self._known.pop(alike)
        return self._known[alike], min(common([alike, ids]), len(ids) - 1)

    def _bytes(self) -> int:
        return sum(2 * keys.nbytes for text in self._known.values() for keys, _ in text)


def step(model: PreTrainedModel, shared: SharedPrefix, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab"]:
    """Feed every row its newest token; return the logits of the next one."""
    # A four-dimensional mask is handed through untouched; ours carries nothing, since a row sees all that it holds.
    mask = torch.zeros((1, 1, 1, 1), dtype=shared.keys[0][0].dtype, device=tokens.device)
    out = model(
        tokens[:, None],
        position_ids=shared.positions(),
        attention_mask=mask,
        past_key_values=shared,
        shared_prefix=shared,
    )
    shared.own_length += 1
    return out.logits[:, -1]


def bytes_a_token(model: PreTrainedModel) -> int:
    """Bytes of the keys and values of one token."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize


def has_sliding_window(model: PreTrainedModel) -> bool:
    """Whether some layer forgets old tokens, which :func:`attention` does not imitate."""
    kinds = getattr(model.config, "layer_types", None) or []
    return "sliding_attention" in kinds or any("linear" in kind for kind in kinds)
