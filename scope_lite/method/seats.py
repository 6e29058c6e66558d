"""Seats: who hears and speaks in a batch of dialogues, whatever sits behind the words.

A seat hears one message a row and speaks one message a row. A ``ModelSeat`` is a
language model with its own transcripts, a ``GatedSeat`` holds its words to the gate; a
``ScriptedSeat`` is the world's real users; a ``RefereedSeat`` lets the world say how a
model's dialogue ended; a ``RoutedSeat`` sends each row to the seat that plays it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int

from scope_lite.envs.nano import World
from scope_lite.envs.nano.users import BeliefUsers, ScriptedUsers, draw
from scope_lite.method.episodes import EpisodeSeat, Unsaid
from scope_lite.method.sampling import Direct, SamplingRule
from scope_lite.models.gate import Said, heard
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Transcript
from scope_lite.models.rng import RowKeys


class Seat(Protocol):
    """One side of a batch of dialogues; ``messages[i]`` and row i belong together."""

    def hear(self, messages: list[str]) -> None: ...

    def speak(self, turn: int, kind: str) -> list[str]: ...

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        """For each message spoken so far, the distribution that it was drawn from."""
        ...

    @property
    def transcripts(self) -> Sequence[Transcript | None]:
        """One a row; None where no model speaks."""
        ...


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
        self._unread: list[list[int]] = [[] for _ in systems]  # ids the model has not been fed yet
        self._distributions: list[Float[np.ndarray, "b n"]] = []

    def resume(self, transcripts: Sequence[Transcript]) -> None:
        """Take up copies of these transcripts, one a row, where they end; the model reads them before it speaks."""
        self.transcripts = [copy.deepcopy(transcript) for transcript in transcripts]
        self._session = self.model.session(len(self.transcripts))
        self._unread = [list(transcript.ids) for transcript in self.transcripts]

    def hear(self, messages: Sequence[str | None]) -> None:
        """A row whose message is None hears nothing."""
        for row, message in enumerate(messages):
            if message is not None:
                self._read(row, self.model.format.heard(self.transcripts[row], self.systems[row], message))

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        """One message from each of ``rows`` (by default all); the other rows are neither fed nor sampled."""
        speaking = np.arange(len(self.transcripts)) if rows is None else rows
        said: dict[int, list[int]] = {row: [] for row in speaking.tolist()}
        for row in said:
            if not self.transcripts[row].ids:
                self._read(row, self.model.format.opening(self.systems[row], None))
        choice = self.model.choice_index[kind]
        for token in range(self.max_new_tokens):
            self._feed(speaking)
            tokens, logprobs = self._sample(turn, kind, token, speaking)
            ended = np.isin(tokens, list(self.model.stop_ids))
            for row, sampled, logprob, end in zip(speaking.tolist(), tokens, logprobs, ended, strict=True):
                self.transcripts[row].write(int(sampled), float(logprob), choice)
                self._unread[row].append(int(sampled))
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
        mine = set(rows.tolist())
        self._session.append([ids if row in mine else [] for row, ids in enumerate(self._unread)])
        self._unread = [[] if row in mine else ids for row, ids in enumerate(self._unread)]

    def _sample(
        self, turn: int, kind: str, token: int, rows: Int[np.ndarray, " r"]
    ) -> tuple[Int[np.ndarray, " r"], Float[np.ndarray, " r"]]:
        ids = self.model.choice_ids[kind]
        whole = self._session.next_probabilities(self.model.choice_index[kind], self.rule.sharpness, rows)
        probabilities = whole[:, ids] if kind else whole
        index, distribution = self.rule(probabilities, self.keys[rows], turn, self.seat, token)
        if token == 0 and kind:  # of free text it says little, and a vocabulary is too large to keep
            self._distributions.append(distribution)
        chance = np.take_along_axis(probabilities, index[:, None], axis=1)[:, 0]
        return ids[index], np.log(np.maximum(chance, 1e-300))

    def _read(self, row: int, ids: list[int]) -> None:
        self.transcripts[row].read(ids)
        self._unread[row] = self._unread[row] + ids


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

    def __init__(self, seat: EpisodeSeat, model: SeatModel):
        """``model`` is the one that speaks in ``seat``: its tokenizer and stop tokens are used."""
        self.seat, self.model, self.max_new_tokens = seat, model, seat.max_new_tokens
        self.failures: list[str] = []
        """of each message, the reason why it did not pass; empty where it did"""

    @property
    def transcripts(self) -> Sequence[Transcript | None]:
        return self.seat.transcripts

    def hear(self, messages: Sequence[str | None]) -> None:
        self.seat.hear(messages)

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str | Unsaid]:
        self.seat.speak(turn, kind, rows)
        written = self.transcripts if rows is None else [self.transcripts[row] for row in rows.tolist()]
        said = [newest_said(self.model, t, self.max_new_tokens) for t in written if t is not None]
        self.failures += [one.failure for one in said]
        return [Unsaid() if one.failure else one.words for one in said]


class ScriptedSeat:
    """The world's own users: with a hidden type a row, or the exact simulator that mixes and may sharpen them."""

    def __init__(self, world: World, users: ScriptedUsers | BeliefUsers, keys: RowKeys):
        self.world, self.users, self.keys = world, users, keys
        self.transcripts: list[Transcript | None] = [None] * len(keys)
        self._acts: Int[np.ndarray, " b"] = np.zeros(len(keys), dtype=int)
        self._distributions: list[Float[np.ndarray, "b n"]] = []

    def hear(self, messages: list[str]) -> None:
        self._acts = np.array([self.world.agent_index.get(m, -1) for m in messages])

    def speak(self, turn: int, kind: str) -> list[str]:
        uniforms = self.keys.uniforms(turn, "simulator")[:, 0]
        if kind == "outcome":
            probabilities = self.users.outcome_probabilities()
            said = [self.world.spec.outcomes[o] for o in draw(probabilities, uniforms)]
        else:
            probabilities = self.users.reply_probabilities(self._acts)
            replies = draw(probabilities, uniforms)
            self.users.observe(self._acts, replies)
            said = [self.world.spec.user_acts[r] for r in replies]
        self._distributions.append(probabilities)
        return said

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        return self._distributions


class RefereedSeat:
    """A simulator that speaks, and a world that says how it ended: by what was said, not by the simulator's last word.

    ``referee`` holds, for each row, the belief over the types that the simulator may have been.
    """

    def __init__(self, seat: Seat, referee: BeliefUsers, keys: RowKeys):
        self.seat, self.referee, self.keys = seat, referee, keys
        self._acts: Int[np.ndarray, " b"] = np.zeros(len(keys), dtype=int)
        self._outcome: list[Float[np.ndarray, "b n"]] = []

    @property
    def transcripts(self) -> Sequence[Transcript | None]:
        return self.seat.transcripts

    def hear(self, messages: list[str]) -> None:
        index = self.referee.world.agent_index
        if all(m in index for m in messages):
            self._acts = np.array([index[m] for m in messages])
            self.seat.hear(messages)

    def speak(self, turn: int, kind: str) -> list[str]:
        world = self.referee.world
        if kind == "outcome":
            self._outcome = [self.referee.outcome_probabilities()]
            drawn = draw(self._outcome[0], self.keys.uniforms(turn, "simulator")[:, 0])
            return [world.spec.outcomes[o] for o in drawn]
        said = self.seat.speak(turn, kind)
        self.referee.observe(self._acts, np.array([world.user_index[reply] for reply in said]))
        return said

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        return [*self.seat.distributions(), *self._outcome]


class RoutedSeat:
    """Several seats, each for its own rows of the batch; in text (``episodes.EpisodeSeat``) some rows may be silent."""

    def __init__(self, parts: Sequence[tuple[Int[np.ndarray, " p"], Any]]):
        self.parts = parts
        self.rows = sum(len(rows) for rows, _ in parts)

    @property
    def transcripts(self) -> list[Transcript | None]:
        placed = {i: t for rows, seat in self.parts for i, t in zip(rows.tolist(), seat.transcripts, strict=True)}
        return [placed[i] for i in range(self.rows)]

    @property
    def max_new_tokens(self) -> int:
        return max(seat.max_new_tokens for _, seat in self.parts)

    def hear(self, messages: Sequence[str | None]) -> None:
        for rows, seat in self.parts:
            seat.hear([messages[i] for i in rows])

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[Any]:
        """One message from each of ``rows``, in their order; by default from all."""
        said: dict[int, Any] = {}
        for mine, seat in self.parts:
            if rows is None:
                said |= zip(mine.tolist(), seat.speak(turn, kind), strict=True)
                continue
            within = np.flatnonzero(np.isin(mine, rows))
            if len(within):
                said |= zip(mine[within].tolist(), seat.speak(turn, kind, within), strict=True)
        return [said[i] for i in (range(self.rows) if rows is None else rows.tolist())]

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        merged = []
        for spoken in zip(*(seat.distributions() for _, seat in self.parts), strict=True):
            whole = np.zeros((self.rows, spoken[0].shape[1]))
            for (rows, _), part in zip(self.parts, spoken, strict=True):
                whole[rows] = part
            merged.append(whole)
        return merged
