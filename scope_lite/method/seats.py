"""Seats: who hears and speaks in a batch of dialogues, whatever sits behind the words (``dialogue.Seat``).

A ``ModelSeat`` is a language model with its own transcripts, a ``GatedSeat`` holds its words to the gate, a
``RoutedSeat`` sends each row to the seat that plays it. ``words`` has the models that say one word a message,
``prompted`` the simulators that are asked for their words, ``nano`` the users whose law is known.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from scope_lite.method.dialogue import Seat, Unsaid
from scope_lite.method.sampling import Direct, SamplingRule
from scope_lite.models.gate import Said, heard
from scope_lite.models.hf import RowSession, SeatModel
from scope_lite.models.records import Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.models.texts import Reads, read_texts


@runtime_checkable
class KnowsItsLaw(Protocol):
    """A seat of a nano world: for each message spoken so far, the distribution that it was drawn from."""

    def distributions(self) -> list[Float[np.ndarray, "b n"]]: ...


@runtime_checkable
class WordSpeaker(Protocol):
    """A seat of a nano world, where all rows say one word at once: what is said is its number in a list of words."""

    def reads(self, kind: str) -> list[Reads]: ...  # what its models have to read before a word of this kind
    def told(self, words: Sequence[str], said: Int[np.ndarray, " b"]) -> None: ...
    def say(self, turn: int, kind: str) -> Int[np.ndarray, " b"]: ...


def failures_of(seat: Seat) -> Counter[str]:
    """What a seat said that could not be used, by reason; nothing where it has no ``failures``."""
    found: Counter[str] | None = getattr(seat, "failures", None)
    return found or Counter()


class ModelSeat:
    """A language model in a seat, sampling by a rule, writing append-only transcripts."""

    def __init__(
        self,
        model: SeatModel,
        keys: RowKeys,
        seat: str,
        systems: list[str],
        rule: SamplingRule | None = None,
        max_new_tokens: int = 1,
    ):
        self.model, self.keys, self.seat, self.systems = model, keys, seat, systems
        self.rule = rule or Direct()
        self.max_new_tokens = max_new_tokens
        self.transcripts: list[Transcript] = [Transcript() for _ in systems]
        self._session = model.session(len(systems))
        self._fed = [0] * len(systems)  # how many ids of its transcript the model has read, by row
        self._distributions: list[Float[np.ndarray, "b n"]] = []

    def resume(self, transcripts: Sequence[Transcript]) -> None:
        """Take up copies of these transcripts, one a row, where they end; the model reads them before it speaks."""
        self.transcripts = [copy.deepcopy(transcript) for transcript in transcripts]
        self._session, self._fed = self.model.session(len(transcripts)), [0] * len(transcripts)

    def hear(self, messages: Sequence[str | None]) -> None:
        """A row whose message is None hears nothing."""
        for transcript, system, message in zip(self.transcripts, self.systems, messages, strict=True):
            if message is not None:
                transcript.read(self.model.format.heard(transcript, system, message))

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        """One message from each of ``rows`` (by default all); the other rows are neither fed nor sampled."""
        speaking = np.arange(len(self.transcripts)) if rows is None else rows
        said: dict[int, list[int]] = {row: [] for row in speaking.tolist()}
        for row in said:
            if not self.transcripts[row].ids:
                self.transcripts[row].read(self.model.format.opening(self.systems[row], None))
        choice = self.model.choice_index[kind]
        for token in range(self.max_new_tokens):
            self._feed(speaking)
            tokens, logprobs = self._sample(turn, kind, token, speaking)
            ended = np.isin(tokens, list(self.model.stop_ids))
            for row, sampled, logprob, end in zip(speaking.tolist(), tokens, logprobs, ended, strict=True):
                self.transcripts[row].write(int(sampled), float(logprob), choice)
                if not end:
                    said[row].append(int(sampled))
            speaking = speaking[~ended]
            if not len(speaking):
                break
        return [self.model.decode(tuple(ids)) for ids in said.values()]

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        return self._distributions

    def _feed(self, rows: Int[np.ndarray, " r"]) -> None:
        """Let the model read what these rows have not been fed yet."""
        pieces: list[list[int]] = [[] for _ in self.transcripts]
        for row in rows.tolist():
            ids = self.transcripts[row].ids
            pieces[row], self._fed[row] = ids[self._fed[row] :], len(ids)
        self._session.append(pieces)

    def _sample(
        self, turn: int, kind: str, token: int, rows: Int[np.ndarray, " r"]
    ) -> tuple[Int[np.ndarray, " r"], Float[np.ndarray, " r"]]:
        if isinstance(self._session, RowSession) and isinstance(self.rule, Direct):
            return self._session.sample(
                rows, self.keys[rows].uniforms(turn, self.seat, token)[:, 0], self.rule.sharpness
            )
        ids = self.model.choice_ids[kind]
        whole = self._session.next_probabilities(self.model.choice_index[kind], self.rule.sharpness, rows)
        probabilities = whole[:, ids] if kind else whole
        index, distribution = self.rule(probabilities, self.keys[rows], turn, self.seat, token)
        if token == 0 and kind:  # of free text it says little, and a vocabulary is too large to keep
            self._distributions.append(distribution)
        chance = np.take_along_axis(probabilities, index[:, None], axis=1)[:, 0]
        return ids[index], np.log(np.maximum(chance, 1e-300))


def newest_said(model: SeatModel, transcript: Transcript, tokens: int) -> Said:
    """What a model's newest message says, its control tokens read as text."""
    ids = transcript.ids[transcript.newest]
    finished = bool(ids) and ids[-1] in model.stop_ids
    text = model.tokenizer.decode(ids[:-1] if finished else ids)
    # a character that the limit cut in two is no reason to lose the dialogue: nobody is asked again here
    return heard((text if finished else text.rstrip("\ufffd")).strip(), finished, tokens)


class GatedSeat:
    """The seat of a simulator that learns: a message that does not pass the gate ends its dialogue uncounted.

    It is not asked for again. What is trained must be a sample of the model's own distribution; the first of several
    that pleases is none.
    """

    def __init__(self, seat: Seat, model: SeatModel):
        """``model`` is the one that speaks in ``seat``: its tokenizer and stop tokens are used."""
        self.seat, self.model, self.max_new_tokens = seat, model, seat.max_new_tokens
        self.hear = seat.hear
        self.failures: Counter[str] = Counter()
        """messages that did not pass, by reason"""
        self.messages = 0

    @property
    def transcripts(self) -> Sequence[Transcript | None]:
        return self.seat.transcripts

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str | Unsaid]:
        self.seat.speak(turn, kind, rows)
        written = self.transcripts if rows is None else [self.transcripts[row] for row in rows.tolist()]
        said = [newest_said(self.model, t, self.max_new_tokens) for t in written if t is not None]
        self.messages += len(said)
        self.failures.update(one.failure for one in said if one.failure)
        return [Unsaid() if one.failure else one.words for one in said]


class RoutedSeat:
    """Several seats, each for its own rows of the batch."""

    def __init__(self, parts: Sequence[tuple[Int[np.ndarray, " p"], Seat]]):
        self.parts = parts
        self.rows = sum(len(rows) for rows, _ in parts)
        self.max_new_tokens = max(seat.max_new_tokens for _, seat in parts)
        self._words = [(rows, seat) for rows, seat in parts if isinstance(seat, WordSpeaker)]

    @property
    def transcripts(self) -> list[Transcript | None]:
        placed = {i: t for rows, seat in self.parts for i, t in zip(rows.tolist(), seat.transcripts, strict=True)}
        return [placed[i] for i in range(self.rows)]

    @property
    def failures(self) -> Counter[str]:
        return sum((failures_of(seat) for _, seat in self.parts), Counter())

    def reads(self, kind: str) -> list[Reads]:
        return [one for _, seat in self._words for one in seat.reads(kind)]

    def told(self, words: Sequence[str], said: Int[np.ndarray, " b"]) -> None:
        for rows, seat in self._words:
            seat.told(words, said[rows])

    def say(self, turn: int, kind: str) -> Int[np.ndarray, " b"]:
        read_texts(self.reads(kind))  # of all at once
        said = np.zeros(self.rows, dtype=int)
        for rows, seat in self._words:
            said[rows] = seat.say(turn, kind)
        return said

    def hear(self, messages: Sequence[str | None]) -> None:
        for rows, seat in self.parts:
            seat.hear([messages[i] for i in rows])

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str | Unsaid]:
        """One message from each of ``rows``, in their order; by default from all."""
        wanted = np.arange(self.rows) if rows is None else rows
        said: dict[int, str | Unsaid] = {}
        for own, seat in self.parts:
            within = None if rows is None else np.flatnonzero(np.isin(own, rows))
            if within is None or len(within):
                part = seat.speak(turn, kind, within)
                said |= zip((own if within is None else own[within]).tolist(), part, strict=True)
        return [said[i] for i in wanted.tolist()]

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        merged, known = [], [seat for _, seat in self.parts if isinstance(seat, KnowsItsLaw)]
        for spoken in zip(*(seat.distributions() for seat in known), strict=True):
            whole = np.zeros((self.rows, spoken[0].shape[1]))
            for (rows, _), part in zip(self.parts, spoken, strict=True):
                whole[rows] = part
            merged.append(whole)
        return merged
