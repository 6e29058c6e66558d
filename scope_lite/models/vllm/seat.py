"""A seat whose words come from vLLM: what ``seats.ModelSeat`` is for transformers, one message a call.

Its transcripts are append-only token ids, as there: a turn's prompt is the transcript so far, so vLLM's prefix cache
has read all of it but the newest words, and what is trained is what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.models.vllm.engine import Adapter, VllmEngine


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
    ):
        """``model`` is the same model in the trainer: its template, its temperature and its stop tokens
        are used, not its weights."""
        self.engine, self.adapter, self.model = engine, adapter, model
        self.keys, self.seat, self.systems = keys, seat, list(systems)
        self.max_new_tokens = max_new_tokens
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
        mine = [self.transcripts[row] for row in speaking.tolist()]
        for row, transcript in zip(speaking.tolist(), mine, strict=True):
            if not transcript.ids:
                transcript.read(self.model.format.opening(self.systems[row], None))
        seeds = (self.keys[speaking].uniforms(turn, self.seat)[:, 0] * 2**32).astype(int)
        drawn = self.engine.generate(
            [list(transcript.ids) for transcript in mine],
            seeds.tolist(),
            self.adapter,
            max_new_tokens=self.max_new_tokens,
            stop_ids=sorted(self.model.stop_ids),
            temperature=self.model.temperature,
        )
        for transcript, message in zip(mine, drawn, strict=True):
            for token, logprob in zip(message.ids, message.logprobs, strict=True):
                transcript.write(token, logprob, 0)
        return [self.model.decode(message.ids[:-1] if message.finished else message.ids) for message in drawn]
