"""Replies to histories by vLLM: what ``generate.TextSampler`` is for transformers, with the same prompts."""

from __future__ import annotations

import hashlib
import json
import math

from scope_lite.models.adapters import adapter_fingerprint
from scope_lite.models.generate import TextSampler
from scope_lite.models.pretrained import LoadedModel
from scope_lite.models.replies import Reply, ReplyCache, SamplingConfig
from scope_lite.models.vllm.engine import Adapter, Drawn, VllmEngine


class VllmSampler(TextSampler):
    """Samples replies from an engine's base model, or from one adapter on it.

    A reply's seed is a function of (seed, history, reply), but vLLM's sums depend on what else is in a batch: only
    recorded replies are the same in every company. Entropies are NaN, since vLLM does not tell them.
    """

    def __init__(
        self, engine: VllmEngine, loaded: LoadedModel, adapter: Adapter | None = None, cache: ReplyCache | None = None
    ) -> None:
        """``loaded`` is the same base in the trainer: its tokenizer renders the prompts."""
        super().__init__(loaded, cache, rows=engine.settings.rows)
        self.engine, self.adapter = engine, adapter
        self.context = min(filter(None, (self.context, engine.settings.context)), default=None)
        self._served = ["vllm", engine.settings.dtype, adapter_fingerprint(adapter.folder) if adapter else None]

    def _key(self, prompt: list[int], config: SamplingConfig) -> str:
        key = super()._key(prompt, config)
        content = [self._served, key]
        return key and hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _decode(self, prompts: list[list[int]], start: int, stop: int, config: SamplingConfig) -> list[list[Reply]]:
        """Replies ``start`` to ``stop - 1`` to each prompt, in one call."""
        asked = [(prompt, number) for prompt in prompts for number in range(start, stop)]
        replies = [
            self._reply(one)
            for one in self.engine.generate(
                [prompt for prompt, _ in asked],
                [reply_seed(config, prompt, number) for prompt, number in asked],
                self.adapter,
                max_new_tokens=config.max_new_tokens,
                stop_ids=sorted(self.stop_ids),
                temperature=config.temperature,
                grammar=config.grammar,
            )
        ]
        each = stop - start
        return [replies[i * each : (i + 1) * each] for i in range(len(prompts))]

    def _reply(self, one: Drawn) -> Reply:
        spoken = one.ids[:-1] if one.finished else one.ids
        return Reply(
            text=self.text(spoken),
            token_ids=one.ids,
            logprobs=tuple(float(f"{x:.6g}") for x in one.logprobs),
            entropies=(math.nan,) * len(one.ids),
            top_probs=tuple(float(f"{math.exp(x):.6g}") for x in (max(table.values()) for table in one.tables)),
            finished=one.finished,
        )


def reply_seed(config: SamplingConfig, prompt: list[int], number: int) -> int:
    """The seed of one reply, 32 bits, from (seed, history, reply number)."""
    content = json.dumps([config.seed, prompt, number]).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:4], "big")
