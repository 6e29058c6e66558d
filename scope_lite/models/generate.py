"""Many sampled replies to each of many histories, quickly and repeatably.

All histories and replies advance together in a few large batches, each history is read once, and of one that has grown
since only what is new; finished results come from a cache on disk. Every reply has its own stream of random numbers, a
function of (seed, history, reply), so a reply does not depend on which others share its batch: asking for 64 replies
later keeps the first 16.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_lite.models.chat import chat_ids, opened_thought, stop_ids
from scope_lite.models.constrained import GrammarConstraint, compile_grammar
from scope_lite.models.pretrained import LoadedModel
from scope_lite.models.reply_cache import Reply, ReplyCache
from scope_lite.models.shared_prefix import (
    Readings,
    SharedPrefix,
    bytes_a_token,
    has_sliding_window,
    shared_prefix_attention,
    step,
)
from scope_lite.store.errors import ScopeError

Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant", "content": text}."""

BLOCK = 256
"""Entries summed together in the first stage of a draw."""
OWN_BYTES = 2 * 2**30
"""The most memory for the keys and values of the tokens that a batch of replies writes."""
ROWS_IN_CACHE = 16
"""Rows that a CPU draws at once: 16 of a vocabulary of 49,152 are 3 MB."""
OUTGROWN = Reply("", (), (), (), (), False, "context")
"""Stands for each reply to a history that leaves no room for one; no cache holds it."""
FORMAT = 1
"""Part of every cache key; raise it when the sampler's numbers change."""


@dataclass(frozen=True)
class SamplingConfig:
    """How replies are drawn; every field is part of the cache key."""

    temperature: float = 1.0
    """divides the logits; 1 samples the model's own distribution"""
    max_new_tokens: int = 48
    """a reply is cut here; the cut is visible as ``Reply.finished == False``"""
    seed: int = 0
    """base seed of all random streams"""
    grammar: str | None = None
    """EBNF grammar (xgrammar's dialect) that every reply must follow; None leaves the model free"""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ScopeError(f"temperature must be above 0 and finite, got {self.temperature}")
        if self.max_new_tokens < 1:
            raise ScopeError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")


class TextSampler:
    """Samples replies from one loaded model, through a cache if it is given one."""

    def __init__(self, loaded: LoadedModel, cache: ReplyCache | None = None, rows: int = 256) -> None:
        """``rows`` is the most replies decoded at once; it changes speed and memory, never what is sampled.

        Fewer are decoded where their new keys and values would exceed :data:`OWN_BYTES`.
        """
        if has_sliding_window(loaded.model):
            raise ScopeError(
                f"{loaded.name} forgets old tokens (sliding-window or linear attention): "
                "choose a model with full attention"
            )
        self.loaded, self.cache, self.rows = loaded, cache, rows
        self.name = loaded.name
        self.stop_ids = stop_ids(loaded.model, loaded.tokenizer)
        if not self.stop_ids:
            raise ScopeError(f"{loaded.name} names no end-of-turn token: set eos_token in its tokenizer_config.json")
        self.opened = opened_thought(loaded.tokenizer)
        self.context: int | None = getattr(loaded.model.config, "max_position_embeddings", None)
        self.readings = Readings(loaded.model)

    def sample(
        self,
        histories: Sequence[Sequence[Message]],
        replies: int,
        config: SamplingConfig | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[list[Reply]]:
        """Draw ``replies`` replies to each history; result ``[h][i]`` is reply i to history h.

        A reply's text holds whatever the model wrote, control tokens and the thought that its prompt began among it;
        ``gate`` tells the words. To a history that leaves no room for a reply each reply is :data:`OUTGROWN`.

        Args:
            histories: chats that end where the model is to speak.
            replies: how many for each.
            config: temperature, length, seed and grammar.
            progress: called with (histories done, histories in all) after each batch.

        Raises:
            ScopeError: fewer than one reply asked for, or replies longer than the model's context.
        """
        config = config or SamplingConfig()
        if replies < 1:
            raise ScopeError(f"replies must be at least 1, got {replies}")
        if self.context and config.max_new_tokens >= self.context:
            raise ScopeError(
                f"{config.max_new_tokens} new tokens leave no room for a history in the {self.context} tokens of "
                f"{self.loaded.name}: lower max_new_tokens"
            )
        prompts = [self.read_ids(history) for history in histories]
        fit = [self._fits(prompt, config.max_new_tokens) for prompt in prompts]
        keys = [self._key(prompt, config) if fits else "" for prompt, fits in zip(prompts, fit, strict=True)]
        done = {key: (self.cache.get(key) if self.cache else []) for key in keys if key} | {"": [OUTGROWN] * replies}
        # Equal histories share a key and are decoded once; a longer cached list serves a smaller request.
        todo = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if len(done[key]) < replies}
        for batch in _batches(todo, done, replies, self._rows(config)):
            fresh = self._decode([todo[key] for key in batch], len(done[batch[0]]), replies, config)
            for key, drawn in zip(batch, fresh, strict=True):
                done[key] = done[key] + drawn
                if self.cache:
                    self.cache.put(key, done[key])
            if progress:
                progress(sum(len(done[key]) >= replies for key in keys), len(keys))
        return [done[key][:replies] for key in keys]

    def recorded(self, histories: Sequence[Sequence[Message]], config: SamplingConfig) -> list[int]:
        """How many replies to each history the cache holds."""
        if not self.cache:
            return [0] * len(histories)
        prompts = [self.read_ids(history) for history in histories]
        return [len(self.cache.get(self._key(prompt, config))) for prompt in prompts]

    def read_ids(self, history: Sequence[Message]) -> list[int]:
        """The token ids that the model reads for ``history``, however many."""
        return chat_ids(self.loaded.tokenizer, history)

    def prompt_ids(self, history: Sequence[Message], room: int) -> list[int]:
        """The same.

        Raises:
            ScopeError: history and ``room`` new tokens do not fit the model's context.
        """
        ids = self.read_ids(history)
        if not self._fits(ids, room):
            raise ScopeError(
                f"a history of {len(ids)} tokens and {room} new ones exceed the {self.context} tokens of "
                f"{self.loaded.name}: shorten the history or max_new_tokens"
            )
        return ids

    def _fits(self, prompt: list[int], room: int) -> bool:
        return not self.context or len(prompt) + room <= self.context

    def text(self, ids: Sequence[int]) -> str:
        """What the model wrote, with the beginning that its prompt gave it."""
        return self.opened + self.loaded.tokenizer.decode(list(ids)).strip()

    def _rows(self, config: SamplingConfig) -> int:
        """The most rows whose new keys and values stay within the bytes for them."""
        return max(1, min(self.rows, OWN_BYTES // (config.max_new_tokens * bytes_a_token(self.loaded.model))))

    def _key(self, prompt: list[int], config: SamplingConfig) -> str:
        content = [FORMAT, self.loaded.fingerprint, prompt, sorted(self.stop_ids), asdict(config)]
        content += [self.opened] if self.opened else []
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @torch.inference_mode()
    def _decode(self, prompts: list[list[int]], start: int, stop: int, config: SamplingConfig) -> list[list[Reply]]:
        """Replies ``start`` to ``stop - 1`` to each prompt, at most ``rows / len(prompts)`` of each at a time."""
        chunk = max(1, self._rows(config) // len(prompts))
        result: list[list[Reply]] = [[] for _ in prompts]
        with shared_prefix_attention(self.loaded.model):
            read = [self.readings.read(prompt) for prompt in prompts]
            for low in range(start, stop, chunk):
                numbers = range(low, min(low + chunk, stop))
                uniforms = np.stack([reply_uniforms(config, p, i) for p in prompts for i in numbers])
                shared = SharedPrefix([cache for cache, _ in read], len(numbers), config.max_new_tokens)
                logits = torch.cat([logits for _, logits in read]).repeat_interleave(len(numbers), 0)
                rows = self._decode_rows(shared, logits, torch.from_numpy(uniforms).to(logits.device), config)
                for group, replies in enumerate(result):
                    replies.extend(rows[group * len(numbers) : (group + 1) * len(numbers)])
        return result

    def _decode_rows(
        self, shared: SharedPrefix, logits: Tensor, uniforms: Tensor, config: SamplingConfig
    ) -> list[Reply]:
        """Advance all rows token by token; rows that are done leave the batch."""
        constraint = None
        if config.grammar is not None:
            constraint = GrammarConstraint(compile_grammar(config.grammar, self.loaded, self.stop_ids), len(uniforms))
        traces = [_Trace() for _ in uniforms]
        live = list(range(len(traces)))
        for t in range(config.max_new_tokens):
            scores = logits.float()
            if constraint:
                constraint.mask(scores, live)
            tokens, statistics = draw(scores, uniforms[live, t], config.temperature)
            for row, token, numbers in zip(live, tokens.tolist(), statistics.tolist(), strict=True):
                traces[row].append(token, numbers, token in self.stop_ids)
                if constraint:
                    constraint.accept(row, token)
            done = {place for place, row in enumerate(live) if traces[row].finished}
            if len(done) == len(live) or t + 1 == config.max_new_tokens:
                break
            if done:
                kept = shared.drop(done)
                live, tokens = [live[place] for place in kept], tokens[kept]
            logits = step(self.loaded.model, tokens, shared)
        return [trace.reply(self.text) for trace in traces]


class _Trace:
    """One reply while it grows."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.numbers: list[list[float]] = []
        self.finished = False

    def append(self, token: int, numbers: list[float], is_stop: bool) -> None:
        self.token_ids.append(token)
        # Six digits are more than fp32 kernels agree on, and make a cached reply equal to a fresh one.
        self.numbers.append([float(f"{x:.6g}") for x in numbers])
        self.finished = is_stop

    def reply(self, text: Callable[[list[int]], str]) -> Reply:
        spoken = self.token_ids[:-1] if self.finished else self.token_ids
        logprobs, entropies, top_probs = (tuple(column) for column in zip(*self.numbers, strict=True))
        return Reply(text(spoken), tuple(self.token_ids), logprobs, entropies, top_probs, self.finished)


def draw(
    scores: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"], temperature: float = 1.0
) -> tuple[Int[Tensor, " rows"], Float[Tensor, "rows 3"]]:
    """Draw one token a row by the inverse of the cumulative distribution, ``softmax(scores / temperature)``.

    One uniform number a token is all the randomness, so a row's draw does not depend on its neighbours. The search runs
    over sums of blocks first and then inside one block, in double precision: at a vocabulary of 49,152 this costs a
    third of one long cumulative sum, and far less than ``torch.multinomial``.

    Returns:
        The tokens, and for each its log-probability, the entropy and the largest probability of the distribution that
        it was drawn from (nats, nats, and 1; after temperature and grammar).
    """
    # A CPU goes over the vocabulary several times, which is quick while a few rows stay in its cache.
    rows = ROWS_IN_CACHE if scores.device.type == "cpu" else len(scores)
    parts = zip(scores.split(rows), uniforms.split(rows), strict=True)
    tokens, statistics = zip(*(_draw(part, numbers, temperature) for part, numbers in parts), strict=True)
    return torch.cat(tokens), torch.cat(statistics)


def _draw(scores: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    # 0 x -inf, at tokens that a grammar forbids, would be NaN in the entropy; the bound turns it into 0.
    logits = (scores - scores.amax(-1, keepdim=True)).div_(temperature).clamp_(min=-1e4)
    odds = logits.exp()  # to the most likely token
    padded = torch.nn.functional.pad(odds, (0, missing)) if (missing := -odds.shape[-1] % BLOCK) else odds
    blocks = padded.view(len(odds), -1, BLOCK)
    masses = blocks.sum(-1).double()
    total = masses.sum(-1)
    block, rest = _search(masses, uniforms.double(), relative=True)
    inside = blocks[torch.arange(len(odds), device=odds.device), block].double()
    tokens = block * BLOCK + _search(inside, rest, relative=False)[0]
    entropy = total.log() - torch.linalg.vecdot(odds, logits) / total
    logp = logits.gather(-1, tokens[:, None]).squeeze(-1) - total.log()
    return tokens, torch.stack([logp, entropy, 1 / total], -1)


def _search(masses: Tensor, targets: Tensor, relative: bool) -> tuple[Tensor, Tensor]:
    """Where each target falls in the row's cumulative masses, and how far into that entry; never an empty entry."""
    cumulative = masses.cumsum(-1)
    total = cumulative[:, -1]
    if relative:
        targets = targets * total
    # Rounding may put a target at the very end, behind the last entry that has any mass.
    targets = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, targets[:, None], right=True)
    before = cumulative.gather(-1, (index - 1).clamp(min=0)).squeeze(-1) * (index.squeeze(-1) > 0)
    return index.squeeze(-1), targets - before


def reply_uniforms(config: SamplingConfig, prompt: list[int], number: int) -> Float[np.ndarray, " tokens"]:
    """The random numbers of one reply, from (seed, history, reply number); a longer reply continues the same stream."""
    content = json.dumps([config.seed, prompt, number]).encode()
    key = int.from_bytes(hashlib.sha256(content).digest()[:16], "big")
    return np.random.Generator(np.random.Philox(key=key)).random(config.max_new_tokens)


def _batches(todo: dict[str, list[int]], done: dict[str, list[Reply]], replies: int, rows: int) -> list[list[str]]:
    """Keys to decode together: the same number of replies missing, similar lengths, at most ``rows`` rows."""
    batches: list[list[str]] = []
    for key in sorted(todo, key=lambda key: (len(done[key]), len(todo[key]))):
        missing = replies - len(done[key])
        last = batches[-1] if batches else []
        if last and len(done[last[0]]) == len(done[key]) and (len(last) + 1) * missing <= rows:
            last.append(key)
        else:
            batches.append([key])
    return batches
