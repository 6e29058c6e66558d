"""Attention for many replies to one history: the history's keys and values exist once, whatever the number of replies.

Expanding a prompt's key-value cache to 64 replies makes every decoding step read it 64 times, and on a CPU that reading
is most of the step. Here a row holds only its own new tokens; its scores against the history are one matrix product
for the whole group, and both parts meet in one softmax, so the result equals ordinary attention up to rounding.
Works for the decoder families that pass keyword arguments down to their attention function (Llama, Qwen3, ...).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "scope_shared_prefix"


class SharedPrefix:
    """Keys and values of G histories, and of the new tokens of G x n rows; the shape that a model calls a cache.

    Attributes:
        lengths: tokens in each history, shape (G,).
        own_length: new tokens that every row holds so far.
    """

    def __init__(self, prompts: list[DynamicCache], replies: int, max_new_tokens: int) -> None:
        """Stack the caches of ``prompts`` (one per history, batch 1 each), padded to the longest."""
        self.replies = replies
        self.max_new_tokens = max_new_tokens
        self.own_length = 0
        first = prompts[0].layers[0].keys
        self.lengths = torch.tensor([p.get_seq_length() for p in prompts], device=first.device)
        longest = int(self.lengths.max())
        padded = torch.arange(longest, device=first.device)[None] >= self.lengths[:, None]
        self.bias = torch.zeros(padded.shape, dtype=first.dtype, device=first.device).masked_fill(padded, -torch.inf)
        layers = range(len(prompts[0].layers))
        self.keys = [_stack([p.layers[i].keys for p in prompts], longest) for i in layers]
        self.values = [_stack([p.layers[i].values for p in prompts], longest) for i in layers]
        self.own_keys: dict[int, Tensor] = {}
        self.own_values: dict[int, Tensor] = {}

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
        return int(self.lengths.max()) + self.own_length

    def positions(self) -> Int[Tensor, "rows 1"]:
        """The position of the next token of every row."""
        return (self.lengths.repeat_interleave(self.replies) + self.own_length)[:, None]

    def keep(self, rows: Int[Tensor, "groups kept"]) -> None:
        """Drop all rows but these (indices within each history), the same number for every history."""
        offsets = torch.arange(rows.shape[0], device=rows.device)[:, None] * self.replies
        flat = (rows + offsets).flatten()
        self.own_keys = {i: keys[flat] for i, keys in self.own_keys.items()}
        self.own_values = {i: values[flat] for i, values in self.own_values.items()}
        self.replies = rows.shape[1]


def _stack(parts: list[Tensor], length: int) -> Tensor:
    """Stack (1, kv_heads, tokens, head_dim) tensors to (histories, kv_heads, length, head_dim), zeros at the end."""
    return torch.cat([torch.nn.functional.pad(part, (0, 0, 0, length - part.shape[2])) for part in parts])


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
    """Attend to the group's history and to the row's own tokens; without ``shared_prefix``, plain SDPA."""
    if shared_prefix is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    index: int = module.layer_idx  # type: ignore[assignment]
    old_keys, old_values = shared_prefix.keys[index], shared_prefix.values[index]
    rows, heads, _, dim = query.shape
    groups, kv_heads, length, _ = old_keys.shape
    per_kv, replies = heads // kv_heads, rows // groups
    own_query = query.reshape(rows, kv_heads, per_kv, dim) * (dim**-0.5 if scaling is None else scaling)
    # (groups, kv_heads, replies x per_kv, dim): one product for all replies to a history
    group_query = own_query.view(groups, replies, kv_heads, per_kv, dim).transpose(1, 2).flatten(2, 3)
    old_scores = group_query @ old_keys.transpose(-1, -2) + shared_prefix.bias[:, None, None]
    own_scores = (own_query @ key.transpose(-1, -2)).view(groups, replies, kv_heads, per_kv, -1)
    own_scores = own_scores.transpose(1, 2).flatten(2, 3)
    weights = torch.softmax(torch.cat([old_scores, own_scores], -1).float(), -1).to(query.dtype)
    old_part, own_part = weights.split([length, key.shape[2]], -1)
    own_part = own_part.view(groups, kv_heads, replies, per_kv, -1).transpose(1, 2).flatten(0, 1)
    mixed = (old_part @ old_values).view(groups, kv_heads, replies, per_kv, dim).transpose(1, 2).flatten(0, 1)
    return (mixed + own_part @ value).reshape(rows, 1, heads, dim), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextlib.contextmanager
def shared_prefix_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let ``model`` use :func:`attention` inside the ``with`` block, and what it used before outside."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


class Readings:
    """Keys and values of the prompts read lately: a prompt that begins like one of them reads only the rest.

    So a dialogue that has grown by a turn reads that turn, and prompts with the same instructions read them once. What
    is read in two parts equals what is read in one up to rounding.
    """

    def __init__(self, model: PreTrainedModel, most: int = 2**30) -> None:
        """``most`` bytes are kept, those used last; 0 keeps nothing."""
        self.model, self.most = model, most
        self._known: dict[tuple[int, ...], tuple[DynamicCache, Float[Tensor, "1 vocab"]]] = {}

    def read(self, token_ids: list[int]) -> tuple[DynamicCache, Float[Tensor, "1 vocab"]]:
        """The key-value cache of one prompt, not to be changed, and the logits of the token that follows it."""
        ids = tuple(token_ids)
        alike = max(self._known, key=lambda known: _common(known, ids), default=())
        if alike == ids:
            found = self._known.pop(ids)
        else:
            shared = min(_common(alike, ids), len(ids) - 1)  # logits come from reading the last token
            found = self._read_on(self._known[alike][0] if shared else None, shared, ids)
            if alike == ids[:shared] and alike:
                del self._known[alike]  # all of it lives on in the longer one
        self._known[ids] = found
        while self._known and self._bytes() > self.most:
            del self._known[next(iter(self._known))]
        return found

    def forget(self) -> None:
        """Read everything anew from here on."""
        self._known.clear()

    def _read_on(
        self, known: DynamicCache | None, shared: int, ids: tuple[int, ...]
    ) -> tuple[DynamicCache, Float[Tensor, "1 vocab"]]:
        """Read ``ids`` behind the first ``shared`` tokens of ``known``."""
        cache = DynamicCache()
        for i, layer in enumerate(known.layers if known else ()):
            cache.update(layer.keys[:, :, :shared], layer.values[:, :, :shared], i)
        rest = torch.tensor([ids[shared:]], device=self.model.device)
        return cache, self.model(rest, past_key_values=cache, logits_to_keep=1).logits[:, -1]

    def _bytes(self) -> int:
        caches = [cache for cache, _ in self._known.values()]
        return sum(2 * layer.keys.nbytes for cache in caches for layer in cache.layers)


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Tokens at the beginning that two prompts share."""
    differing = (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differing, min(len(first), len(second)))


def step(model: PreTrainedModel, tokens: Int[Tensor, " rows"], shared: SharedPrefix) -> Float[Tensor, "rows vocab"]:
    """Feed every row its newest token; return the logits of the next one."""
    # A four-dimensional mask is handed through untouched; ours carries nothing, since a row sees all that it holds.
    mask = torch.zeros((1, 1, 1, 1), dtype=shared.bias.dtype, device=tokens.device)
    out = model(
        tokens[:, None],
        position_ids=shared.positions(),
        attention_mask=mask,
        past_key_values=shared,
        shared_prefix=shared,
    )
    shared.own_length += 1
    return out.logits[:, -1]


def has_sliding_window(model: PreTrainedModel) -> bool:
    """Whether some layer forgets old tokens, which :func:`attention` does not imitate."""
    kinds = getattr(model.config, "layer_types", None) or []
    return "sliding_attention" in kinds or any("linear" in kind for kind in kinds)
