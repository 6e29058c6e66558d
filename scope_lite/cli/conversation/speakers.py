"""Who speaks in a talk in text: one message at a time, with its probability and with what it might have said instead.

A model of the trainer's (the policy, a simulator that learns) and a prompted simulator are seated as in training and on
the panel, in row 0 of their seat; what they might have said instead are the other rows, which stand where row 0
stands. Row 0 draws with keys of its own, so it says the same however many others there are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from scope_lite.cli.conversation.base import A_TOKEN, STATED, Message
from scope_lite.envs.turns import SeatName
from scope_lite.method.dialogue import TEXT, Unsaid
from scope_lite.method.prompted import PromptedSeat, Voice
from scope_lite.method.seats import ModelSeat, newest_said
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Transcript
from scope_lite.models.rng import RowKeys


class Speaker(Protocol):
    """One side of one talk in text."""

    def hear(self, words: str) -> None: ...

    def speak(self, turn: int) -> Message | Unsaid:
        """The next message, or how the talk ends because there is none."""
        ...

    def needs(self) -> int:
        """Tokens of its transcript with the next message; 0 where there is no transcript."""
        ...


class ModelSpeaker:
    """A model that writes a transcript of token ids, at the temperature that it is trained at."""

    def __init__(self, name: str, model: SeatModel, keys: RowKeys, seat: SeatName, system: str, max_new_tokens: int):
        """``keys``: one row that talks, and a row for each other sample of its messages."""
        self.name, self.model, self.keys, self.seat = name, model, keys, seat
        self.system, self.max_new_tokens = system, max_new_tokens
        self.row = self._seated(np.array([0]))

    def _seated(self, rows: np.ndarray) -> ModelSeat:
        systems = [self.system] * len(rows)
        return ModelSeat(self.model, self.keys[rows], self.seat, systems, max_new_tokens=self.max_new_tokens)

    def hear(self, words: str) -> None:
        self.row.hear([words])

    @property
    def read(self) -> int:
        """Tokens of its transcript so far."""
        return len(self.row.transcripts[0].ids)

    def needs(self) -> int:
        return self.read + self.max_new_tokens

    def speak(self, turn: int) -> Message | Unsaid:
        before = copy.deepcopy(self.row.transcripts[0])
        said, written = self.row.speak(turn, TEXT), self.row.transcripts
        if len(self.keys) > 1:
            others = self._seated(np.arange(1, len(self.keys)))
            others.resume([before] * (len(self.keys) - 1))
            said, written = [*said, *others.speak(turn, TEXT)], [*written, *others.transcripts]
        if self.seat == "simulator":
            heard = [newest_said(self.model, transcript, self.max_new_tokens) for transcript in written]
            if heard[0].failure:
                return Unsaid()
            written = [t for t, one in zip(written, heard, strict=True) if not one.failure]
            said = [one.words for one in heard if not one.failure]
        return _sampled(self.name, said, [t.logprobs[t.newest] for t in written])

    def resume(self, transcript: Transcript) -> None:
        """Go on from where this transcript ends."""
        self.row.resume([transcript])


class PromptedSpeaker:
    """A simulator that is asked for its next message."""

    def __init__(self, name: str, voice: Voice, keys: RowKeys, system: str, stream: Literal["simulator", "panel"]):
        self.name, self.rows = name, len(keys)
        self.seat = PromptedSeat([voice] * self.rows, [system] * self.rows, keys, stream)

    def hear(self, words: str) -> None:
        self.seat.hear([words] * self.rows)

    def needs(self) -> int:
        return 0

    def speak(self, turn: int) -> Message | Unsaid:
        said = self.seat.speak(turn, TEXT)
        self.seat.chats = [list(self.seat.chats[0]) for _ in said]
        if isinstance(said[0], Unsaid):
            return said[0]
        heard = {row: words for row, words in enumerate(said) if isinstance(words, str)}
        return _sampled(self.name, list(heard.values()), [self.seat.newest[row].logprobs for row in heard])


class ListedSpeaker:
    """A simulator that is asked for a verbalized list; what it might have said instead is the rest of its list."""

    def __init__(self, name: str, voice: Voice, keys: RowKeys, system: str, stream: Literal["simulator", "panel"]):
        assert voice.candidates is not None
        self.name, self.voice = name, voice
        self.seat = PromptedSeat([voice], [system], keys[np.array([0])], stream)

    def hear(self, words: str) -> None:
        self.seat.hear([words])

    def needs(self) -> int:
        return 0

    def speak(self, turn: int) -> Message | Unsaid:
        (said,) = self.seat.speak(turn, TEXT)
        if isinstance(said, Unsaid):
            return said
        listed = self.voice.read(self.seat.newest[0])
        stated = dict(zip(listed.texts, listed.probabilities, strict=True))
        return Message(self.name, said, said, stated, STATED)


def prompted(
    name: str, voice: Voice, keys: RowKeys, system: str, stream: Literal["simulator", "panel"]
) -> PromptedSpeaker | ListedSpeaker:
    """A prompted simulator, which is asked as its voice says."""
    kind = PromptedSpeaker if voice.candidates is None else ListedSpeaker
    return kind(name, voice, keys, system, stream)


def _sampled(speaker: str, said: Sequence[str], logprobs: Sequence[Sequence[float]]) -> Message:
    """A message among other samples of the same place; it is the first of them."""
    chances = [math.exp(math.fsum(of) / len(of)) if of else math.nan for of in logprobs]
    # of two samples with the same words in other tokens the one that was said counts, so it comes last
    probabilities = dict(reversed(list(zip(said, chances, strict=True))))
    return Message(speaker, said[0], said[0], probabilities, A_TOKEN)
