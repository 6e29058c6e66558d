"""Many sampled replies to each of many histories, quickly and repeatably.

All histories and replies advance together in a few large batches, each history is read once, and of one that has grown
since only what is new. Every reply has its own stream of random numbers, a function of (seed, history, reply), so a
reply does not depend on which others share its batch: asking for 64 replies later keeps the first 16.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.models.chat import chat_ids, opened_thought, stop_ids
from scope_lite.models.constrained import GrammarConstraint, compile_grammar
from scope_lite.models.draw import draw
from scope_lite.models.pretrained import LoadedModel
from scope_lite.models.replies import Message, Reply, ReplyCache, Sampler, SamplingConfig
from scope_lite.models.rows import RowCache, row_attention
from scope_lite.models.shared_prefix import (
    Readings,
    SharedPrefix,
    bytes_a_token,
    has_sliding_window,
    shared_prefix_attention,
    step,
)
from scope_lite.store.errors import ScopeError

OWN_BYTES = 2 * 2**30
"""The most memory for the keys and values of the tokens that a batch of replies writes."""
FORMAT = 1
"""Part of every record's name; raise it when the sampler's numbers change."""


Rows = TypeVar("Rows", RowCache, SharedPrefix)


class TextSampler(Sampler):
    """Samples replies from one loaded model.

    A reply's text holds whatever the model wrote, control tokens and the thought that its prompt began among it;
    ``gate`` tells the words.
    """

    def __init__(self, loaded: LoadedModel, cache: ReplyCache | None = None, rows: int = 256) -> None:
        """``rows`` is the most replies decoded at once; it changes speed and memory, never what is sampled.

        Fewer are decoded where their new keys and values would exceed :data:`OWN_BYTES`.

        Raises:
            ScopeError: the model has a sliding window, or no token that ends a turn.
        """
        super().__init__(loaded.name, cache)
        if has_sliding_window(loaded.model):
            raise ScopeError(
                f"{loaded.name} forgets old tokens (sliding-window or linear attention): "
                "choose a model with full attention"
            )
        self.loaded, self.rows = loaded, rows
        self.stop_ids = stop_ids(loaded.model, loaded.tokenizer)
        if not self.stop_ids:
            raise ScopeError(f"{loaded.name} names no end-of-turn token: set eos_token in its tokenizer_config.json")
        self.opened = opened_thought(loaded.tokenizer)
        self.context: int | None = getattr(loaded.model.config, "max_position_embeddings", None)
        self.readings = Readings(loaded.model)

    def prompt_ids(self, history: Sequence[Message], room: int | None = None) -> list[int]:
        """The token ids that the model reads for ``history``; with ``room``, only if so many new ones fit behind.

        Raises:
            ScopeError: history and ``room`` new tokens do not fit the model's context.
        """
        ids = chat_ids(self.loaded.tokenizer, history)
        if room is not None and not self._fits(ids, room):
            raise ScopeError(
                f"a history of {len(ids)} tokens and {room} new ones exceed the {self.context} tokens of "
                f"{self.loaded.name}: shorten the history or max_new_tokens"
            )
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """What the model wrote, with the beginning that its prompt gave it."""
        return self.opened + self.loaded.tokenizer.decode(list(ids)).strip()

    def _check(self, config: SamplingConfig) -> None:
        if self.context and config.max_new_tokens >= self.context:
            raise ScopeError(
                f"{config.max_new_tokens} new tokens leave no room for a history in the {self.context} tokens of "
                f"{self.loaded.name}: lower max_new_tokens"
            )

    def _prompt(self, history: Sequence[Message]) -> list[int]:
        return self.prompt_ids(history)

    def _fits(self, prompt: list[int], room: int) -> bool:
        return not self.context or len(prompt) + room <= self.context

    def _key(self, prompt: list[int], config: SamplingConfig) -> str:
        if not self._fits(prompt, config.max_new_tokens):
            return ""
        content = [FORMAT, self.loaded.fingerprint, prompt, sorted(self.stop_ids), asdict(config)]
        content += [self.opened] if self.opened else []
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _draw(
        self, todo: dict[str, list[int]], known: dict[str, list[Reply]], replies: int, config: SamplingConfig
    ) -> Iterator[dict[str, list[Reply]]]:
        """Those decoded together lack as many replies, are of similar lengths, and no more than :meth:`_rows`."""
        ordered = sorted(todo, key=lambda key: (len(known[key]), len(todo[key])))
        for start, alike in groupby(ordered, key=lambda key: len(known[key])):
            keys, each = list(alike), max(1, self._rows(config) // (replies - start))
            for batch in (keys[i : i + each] for i in range(0, len(keys), each)):
                drawn = self._decode([todo[key] for key in batch], start, replies, config)
                yield {key: known[key] + new for key, new in zip(batch, drawn, strict=True)}

    def _rows(self, config: SamplingConfig) -> int:
        """The most rows whose new keys and values stay within the bytes for them."""
        return max(1, min(self.rows, OWN_BYTES // (config.max_new_tokens * bytes_a_token(self.loaded.model))))

    @torch.inference_mode()
    def _decode(self, prompts: list[list[int]], start: int, stop: int, config: SamplingConfig) -> list[list[Reply]]:
        """Replies ``start`` to ``stop - 1`` to each prompt, at most ``rows / len(prompts)`` of each at a time."""
        chunk = max(1, self._rows(config) // len(prompts))
        result: list[list[Reply]] = [[] for _ in prompts]
        model, cache, logits = self.loaded.model, *self.readings.read(prompts)
        texts = [cache.text(row) for row in range(len(prompts))]
        for prompt, text in zip(prompts, texts, strict=True):
            self.readings.keep(prompt, text)
        for low in range(start, stop, chunk):
            reply_numbers = range(low, min(low + chunk, stop))
            each = len(reply_numbers)
            numbers = np.stack([reply_uniforms(config, p, i) for p in prompts for i in reply_numbers])
            uniforms = torch.from_numpy(numbers).to(logits.device)
            if stop - start == 1:  # a history with one reply is a row that grows
                with row_attention(model):
                    drawn = self._decode_rows(cache, self.readings.advance, logits, uniforms, config)
            else:
                rows = SharedPrefix(texts, each, config.max_new_tokens)
                with shared_prefix_attention(model):
                    first = logits.repeat_interleave(each, 0)
                    drawn = self._decode_rows(rows, partial(step, model), first, uniforms, config)
            for i, replies in enumerate(result):
                replies.extend(drawn[i * each : (i + 1) * each])
        return result

    def _decode_rows(
        self,
        rows: Rows,
        advance: Callable[[Rows, Tensor], Tensor],
        logits: Tensor,
        uniforms: Tensor,
        config: SamplingConfig,
    ) -> list[Reply]:
        """Advance all rows token by token; rows that have ended leave the batch.

        Args:
            advance: feeds every row its newest token, and returns the logits of the next.
        """
        constraint = None
        if config.grammar is not None:
            constraint = GrammarConstraint(compile_grammar(config.grammar, self.loaded, self.stop_ids), len(uniforms))
        ids: list[list[int]] = [[] for _ in uniforms]
        measured: list[list[list[float]]] = [[] for _ in uniforms]
        live = list(range(len(ids)))
        for t in range(config.max_new_tokens):
            scores = logits.float()
            if constraint:
                constraint.mask(scores, live)
            tokens, statistics = draw(scores, uniforms[live, t], config.temperature)
            for row, token, numbers in zip(live, tokens.tolist(), statistics.tolist(), strict=True):
                ids[row].append(token)
                measured[row].append(numbers)
                if constraint:
                    constraint.accept(row, token)
            ended = {place for place, row in enumerate(live) if ids[row][-1] in self.stop_ids}
            if len(ended) == len(live) or t + 1 == config.max_new_tokens:
                break
            if ended:
                kept = rows.drop(ended)
                live, tokens = [live[place] for place in kept], tokens[kept]
            logits = advance(rows, tokens)
        return [self._drawn(*row) for row in zip(ids, measured, strict=True)]

    def _drawn(self, ids: list[int], measured: list[list[float]]) -> Reply:
        finished = ids[-1] in self.stop_ids
        # Six digits are more than fp32 kernels agree on, and make a recorded reply equal to a fresh one.
        numbers = [[float(f"{x:.6g}") for x in row] for row in measured]
        logprobs, entropies, top_probs = (tuple(column) for column in zip(*numbers, strict=True))
        return Reply(self.text(ids[:-1] if finished else ids), tuple(ids), logprobs, entropies, top_probs, finished)


def reply_uniforms(config: SamplingConfig, prompt: list[int], number: int) -> Float[np.ndarray, " tokens"]:
    """The random numbers of one reply, from (seed, history, reply number); a longer reply continues the same stream."""
    content = json.dumps([config.seed, prompt, number]).encode()
    key = int.from_bytes(hashlib.sha256(content).digest()[:16], "big")
    return np.random.Generator(np.random.Philox(key=key)).random(config.max_new_tokens)
