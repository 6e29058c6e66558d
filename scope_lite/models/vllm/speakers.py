"""Who speaks through an engine: a seat with a transcript of its own, and a sampler of replies to histories.

``EngineSeat`` is what ``seats.ModelSeat`` is for transformers, one message a call. Its transcripts are append-only
token ids, as there: a turn's prompt is the transcript so far, so vLLM's prefix cache has read all of it but the newest
words, and what is trained is what was sampled. ``VllmSampler`` is what ``generate.TextSampler`` is, with the same
prompts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from scope_lite.models.adapters import adapter_fingerprint
from scope_lite.models.generate import TextSampler
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import LoadedModel
from scope_lite.models.records import Transcript
from scope_lite.models.replies import Reply, ReplyCache, SamplingConfig
from scope_lite.models.rng import RowKeys
from scope_lite.models.vllm.engine import Adapter, Drawn, VllmEngine


class EngineSeat:
    """A language model in a seat, sampled by an engine; ``dialogue.run_dialogues`` drives it."""

    def __init__(
        self,
        engine: VllmEngine,
        adapter: Adapter | None,
        model: SeatModel,
        keys: RowKeys,
        seat: str,
        systems: Sequence[str],
        max_new_tokens: int,
        temperature: float | None = None,
    ):
        """``model`` is the same model in the trainer: its template, its stop tokens and, where no ``temperature`` is
        given, its own are used, not its weights."""
        self.engine, self.adapter, self.model = engine, adapter, model
        self.keys, self.seat, self.systems = keys, seat, list(systems)
        self.max_new_tokens = max_new_tokens
        self.temperature = model.temperature if temperature is None else temperature
        self.transcripts: list[Transcript] = [Transcript() for _ in systems]

    def hear(self, messages: Sequence[str | None]) -> None:
        """A row whose message is None hears nothing."""
        for transcript, system, message in zip(self.transcripts, self.systems, messages, strict=True):
            if message is not None:
                transcript.read(self.model.format.heard(transcript, system, message))

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        """One message from each of ``rows`` (by default all); the log probabilities go into the transcripts.

        Raises:
            ScopeError: vLLM refuses a transcript, for instance because it is too long.
            ValueError: a kind of message that is confined to some tokens; only nano worlds have those.
        """
        if kind:
            raise ValueError(f"an engine's seat speaks free text, not {kind!r}")
        speaking = np.arange(len(self.transcripts)) if rows is None else rows
        transcripts = [self.transcripts[row] for row in speaking.tolist()]
        for row, transcript in zip(speaking.tolist(), transcripts, strict=True):
            if not transcript.ids:
                transcript.read(self.model.format.opening(self.systems[row], None))
        seeds = (self.keys[speaking].uniforms(turn, self.seat)[:, 0] * 2**32).astype(int)
        drawn = self.engine.generate(
            [list(transcript.ids) for transcript in transcripts],
            seeds.tolist(),
            self.adapter,
            max_new_tokens=self.max_new_tokens,
            stop_ids=sorted(self.model.stop_ids),
            temperature=self.temperature,
        )
        for transcript, message in zip(transcripts, drawn, strict=True):
            for token, logprob in zip(message.ids, message.logprobs, strict=True):
                transcript.write(token, logprob, 0)
        return [self.model.decode(message.spoken) for message in drawn]


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
        return key and hashlib.sha256(json.dumps([self._served, key]).encode()).hexdigest()

    def _decode(self, prompts: list[list[int]], start: int, stop: int, config: SamplingConfig) -> list[list[Reply]]:
        """Replies ``start`` to ``stop - 1`` to each prompt, in one call."""
        drawn = iter(
            self.engine.generate(
                [prompt for prompt in prompts for _ in range(start, stop)],
                [reply_seed(config, prompt, number) for prompt in prompts for number in range(start, stop)],
                self.adapter,
                max_new_tokens=config.max_new_tokens,
                stop_ids=sorted(self.stop_ids),
                temperature=config.temperature,
                grammar=config.grammar,
            )
        )
        return [[self._reply(next(drawn)) for _ in range(start, stop)] for _ in prompts]

    def _reply(self, one: Drawn) -> Reply:
        return Reply(
            text=self.text(one.spoken),
            token_ids=one.ids,
            logprobs=tuple(float(f"{x:.6g}") for x in one.logprobs),
            entropies=(math.nan,) * len(one.ids),
            top_probs=tuple(float(f"{math.exp(max(table.values())):.6g}") for table in one.tables),
            finished=one.finished,
        )


def reply_seed(config: SamplingConfig, prompt: list[int], number: int) -> int:
    """The seed of one reply, 32 bits, from (seed, history, reply number)."""
    content = json.dumps([config.seed, prompt, number]).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:4], "big")
