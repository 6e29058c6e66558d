"""Who speaks in a conversation: one message at a time, with its probability and with what it might have said instead.

Everyone is seated as in training and on the panel, in row 0 of its seat. A nano seat knows the distribution that its
word is drawn from. In text, what might have been said instead are other rows, which stand where row 0 stands; row 0
draws with keys of its own, so it says the same however many others there are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Int

from scope_lite.cli.conversation.messages import A_TOKEN, OUTCOME, STATED, YOU, Message
from scope_lite.envs.nano import World
from scope_lite.envs.turns import SeatName
from scope_lite.method.dialogue import Seat, Unsaid
from scope_lite.method.prompted import PromptedSeat, Voice
from scope_lite.method.seats import KnowsItsLaw, ModelSeat, newest_said
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Transcript
from scope_lite.models.rng import RowKeys


class Speaker(Protocol):
    """One side of a conversation."""

    reply: str
    """what a person is about to say; of no meaning to the others"""

    def hear(self, words: str) -> None: ...

    def speak(self, turn: int, kind: str) -> Message | Unsaid:
        """The next message, or how the conversation ends because there is none."""
        ...

    def needs(self) -> int:
        """Tokens of its transcript with the next message; 0 where there is no transcript to outgrow."""
        ...


class PolicySpeaker(Speaker, Protocol):
    """The policy's side: the conversation takes its transcript up again after ``undo``."""

    row: ModelSeat

    @property
    def read(self) -> int:
        """Tokens of its transcript so far."""
        ...


class PersonSpeaker:
    """A person in text, who says what was put into ``reply``."""

    reply = ""

    def hear(self, words: str) -> None:
        pass

    def needs(self) -> int:
        return 0

    def speak(self, turn: int, kind: str) -> Message:
        return Message(YOU, self.reply, self.reply, {})


class PersonSeat:
    """A person in the seat of a nano world's user."""

    max_new_tokens = 0
    reply = ""

    def __init__(self) -> None:
        self.transcripts: list[Transcript | None] = [None]

    def hear(self, messages: Sequence[str | None]) -> None:
        pass

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        return [self.reply]


class ActSpeaker:
    """A seat of a nano world, which says one word of a few."""

    reply = ""

    def __init__(self, name: str, row: Seat, world: World, person: PersonSeat | None = None):
        """``person``: who sits in the seat, where it is a person."""
        self.name, self.row, self.world, self.person = name, row, world, person

    def hear(self, words: str) -> None:
        self.row.hear([words])

    def needs(self) -> int:
        return 0

    def speak(self, turn: int, kind: str) -> Message:
        if self.person:
            self.person.reply = self.reply
        said, spec = str(self.row.speak(turn, kind)[0]), self.world.spec
        words = {"act": spec.agent_acts, "reply": spec.user_acts, "outcome": spec.outcomes}[kind]
        laws = self.row.distributions() if isinstance(self.row, KnowsItsLaw) else []
        drawn = dict(zip(words, laws[-1][0].tolist(), strict=True)) if laws else {}
        return Message(OUTCOME if kind == "outcome" else self.name, said, self.world.say(said), drawn)


class ActPolicy(ActSpeaker):
    """The policy of a nano world."""

    row: ModelSeat

    @property
    def read(self) -> int:
        return len(self.row.transcripts[0].ids)


class ModelSpeaker:
    """A model that writes a transcript of token ids, at the temperature that it is trained at."""

    reply = ""

    def __init__(self, name: str, model: SeatModel, keys: RowKeys, seat: SeatName, system: str, max_new_tokens: int):
        """``keys``: one row that talks, and a row for each other sample of its messages."""
        self.name, self.model, self.keys, self.seat = name, model, keys, seat
        self.system, self.max_new_tokens = system, max_new_tokens
        self.row = self._seated(np.array([0]))

    def _seated(self, rows: Int[np.ndarray, " r"]) -> ModelSeat:
        systems = [self.system] * len(rows)
        return ModelSeat(self.model, self.keys[rows], self.seat, systems, max_new_tokens=self.max_new_tokens)

    def hear(self, words: str) -> None:
        self.row.hear([words])

    @property
    def read(self) -> int:
        return len(self.row.transcripts[0].ids)

    def needs(self) -> int:
        return self.read + self.max_new_tokens

    def speak(self, turn: int, kind: str) -> Message | Unsaid:
        before = copy.deepcopy(self.row.transcripts[0])
        said, written = self.row.speak(turn, kind), self.row.transcripts
        if len(self.keys) > 1:
            others = self._seated(np.arange(1, len(self.keys)))
            others.resume([before] * (len(self.keys) - 1))
            said, written = [*said, *others.speak(turn, kind)], [*written, *others.transcripts]
        if self.seat == "simulator":
            heard = [newest_said(self.model, transcript, self.max_new_tokens) for transcript in written]
            if heard[0].failure:
                return Unsaid()
            written = [t for t, one in zip(written, heard, strict=True) if not one.failure]
            said = [one.words for one in heard if not one.failure]
        return _sampled(self.name, said, [t.logprobs[t.newest] for t in written])


class PromptedSpeaker:
    """A simulator that is asked for its next message, or for a verbalized list; then the others are on its list."""

    reply = ""

    def __init__(self, name: str, voice: Voice, keys: RowKeys, system: str, stream: Literal["simulator", "panel"]):
        self.name, self.voice = name, voice
        rows = len(keys) if voice.candidates is None else 1
        self.seat = PromptedSeat([voice] * rows, [system] * rows, keys[np.arange(rows)], stream)

    def hear(self, words: str) -> None:
        self.seat.hear([words] * len(self.seat.chats))

    def needs(self) -> int:
        return 0

    def speak(self, turn: int, kind: str) -> Message | Unsaid:
        said = self.seat.speak(turn, kind)
        self.seat.chats = [list(self.seat.chats[0]) for _ in said]
        if isinstance(said[0], Unsaid):
            return said[0]
        if self.voice.candidates is not None:
            listed = self.voice.read(self.seat.newest[0])
            stated = dict(zip(listed.texts, listed.probabilities, strict=True))
            return Message(self.name, said[0], said[0], stated, STATED)
        heard = {row: words for row, words in enumerate(said) if isinstance(words, str)}
        return _sampled(self.name, list(heard.values()), [self.seat.newest[row].logprobs for row in heard])


def _sampled(speaker: str, said: Sequence[str], logprobs: Sequence[Sequence[float]]) -> Message:
    """A message among other samples of the same place; it is the first of them."""
    chances = [math.exp(math.fsum(of) / len(of)) if of else math.nan for of in logprobs]
    # of two samples with the same words in other tokens the one that was said counts, so it comes last
    probabilities = dict(reversed(list(zip(said, chances, strict=True))))
    return Message(speaker, said[0], said[0], probabilities, A_TOKEN)
