"""Dialogues of single words, as at nano: all rows speak at once, and what is said is a number.

Rows that have said and heard the same are one text, which is written and read once. It gives what ``ModelSeat`` and
``run_dialogues`` give, up to rounding, many times as fast.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from scope_lite.envs.nano import World
from scope_lite.envs.nano.episode import CLOSE
from scope_lite.method.sampling import Direct, SamplingRule
from scope_lite.method.seats import RoutedSeat
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.models.texts import Reads, Text, hidden_of, read_texts


class WordSeat:
    """A model that says one word a message, out of a set."""

    max_new_tokens = 1

    def __init__(
        self, model: SeatModel, keys: RowKeys, seat: str, systems: Sequence[str], rule: SamplingRule | None = None
    ):
        self.model, self.keys, self.seat = model, keys, seat
        self.rule = rule or Direct()
        texts: dict[str, int] = {}
        self._text = np.array([texts.setdefault(system, len(texts)) for system in systems])  # of each row
        self._texts = [Text(system) for system in texts]
        self._speaker = model.speaker()
        self._distributions: list[Float[np.ndarray, "b n"]] = []

    @property
    def transcripts(self) -> list[Transcript]:
        """One a row; rows of one text share it."""
        return [self._texts[text].transcript for text in self._text.tolist()]

    def resume(self, transcripts: Sequence[Transcript]) -> None:
        """Take up copies of these transcripts, one a row, where they end; the model reads them before it speaks."""
        systems = [self._texts[text].system for text in self._text.tolist()]
        self._texts = [Text(system, copy.deepcopy(t)) for system, t in zip(systems, transcripts, strict=True)]
        self._text = np.arange(len(systems))

    def hear(self, messages: Sequence[str | None]) -> None:
        """A row whose message is None hears nothing."""
        words = {message: number for number, message in enumerate(dict.fromkeys(messages))}
        self.told(list(words), np.array([words[message] for message in messages]))

    def told(self, words: Sequence[str | None], said: Int[np.ndarray, " b"]) -> None:
        for text, _, number in self._part(said):
            if (word := words[number]) is not None:
                text.transcript.read(self.model.format.heard(text.transcript, text.system, word))

    def reads(self, kind: str) -> list[Reads]:
        for text in self._texts:
            if not text.transcript.ids:
                text.transcript.read(self.model.format.opening(text.system, None))
        return [(self._speaker, self._texts)]

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        """One word from each of ``rows``, by default from all."""
        speaking = np.arange(len(self._text)) if rows is None else rows
        ids = self.model.choice_ids[kind]
        return [self.model.decode((int(ids[word]),)) for word in self._say(turn, kind, speaking)]

    def say(self, turn: int, kind: str) -> Int[np.ndarray, " b"]:
        return self._say(turn, kind, slice(None))

    def _say(self, turn: int, kind: str, speaking: Int[np.ndarray, " r"] | slice) -> Int[np.ndarray, " r"]:
        read_texts(self.reads(kind))
        choice, ids = self.model.choice_index[kind], self.model.choice_ids[kind]
        hidden = hidden_of(self._texts)
        by_text = self.model.probabilities(self._speaker.model, hidden, choice, self.rule.sharpness)[:, ids]
        keys = self.keys if isinstance(speaking, slice) else self.keys[speaking]
        index, distribution = self.rule(by_text[self._text[speaking]], keys, turn, self.seat, 0)
        self._distributions.append(distribution)
        said = np.full(len(self._text), len(ids))  # beyond the list: nothing
        said[speaking] = index
        logprobs = np.log(np.maximum(by_text, 1e-300))
        for text, before, word in self._part(said):
            if word < len(ids):
                text.transcript.write(int(ids[word]), float(logprobs[before, word]), choice)
        return index

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        return self._distributions

    def _part(self, said: Int[np.ndarray, " b"]) -> list[tuple[Text, int, int]]:
        """Rows of one text part where what is said differs: each text from now on, the number of the one that it goes
        on from, and what is said."""
        many = int(said.max()) + 1
        pairs, self._text = np.unique(self._text * many + said, return_inverse=True)
        parted = [divmod(pair, many) for pair in pairs.tolist()]
        # the last to go on from a text needs no copy
        last = {before: number for number, (before, _) in enumerate(parted)}
        texts = [
            self._texts[before] if last[before] == number else self._texts[before].copy()
            for number, (before, _) in enumerate(parted)
        ]
        self._texts = texts
        return [(text, *pair) for text, pair in zip(texts, parted, strict=True)]


def run_words(
    world: World, tasks: Sequence[str], policy: WordSeat, simulator: RoutedSeat, keys: RowKeys, names: Sequence[str]
) -> list[Rollout]:
    """As ``run_dialogues`` plays ``NanoEpisode``s with these tasks and simulators, one a row.

    Rollouts of equal dialogues share their lists of words, and their transcripts.
    """
    spec, acts, replies = world.spec, [], []
    for turn in range(world.horizon):
        acts.append(policy.say(turn, "act"))
        simulator.told(spec.agent_acts, acts[-1])
        replies.append(simulator.say(turn, "reply"))
        if turn + 1 < world.horizon:
            policy.told(spec.user_acts, replies[-1])
    simulator.told((CLOSE,), np.zeros(len(keys), dtype=int))
    outcomes = simulator.say(world.horizon, "outcome").tolist()
    told: dict[tuple[int, ...], tuple[list[str], list[str], int]] = {}
    rows = [tuple(row) for row in np.column_stack([*acts, *replies]).tolist()]
    for row in set(rows):
        said = [spec.agent_acts[i] for i in row[: world.horizon]]
        answered = [spec.user_acts[i] for i in row[world.horizon :]]
        told[row] = said, answered, spec.turns(tuple(zip(said, answered, strict=True)))
    columns = zip(tasks, names, keys.group.tolist(), keys.member.tolist(), strict=True)
    transcripts = zip(policy.transcripts, simulator.transcripts, strict=True)
    return [
        Rollout(
            task=task,
            simulator=name,
            group=group,
            member=member,
            acts=told[row][0],
            replies=told[row][1],
            outcome=spec.outcomes[outcome],
            reward=spec.rewards[outcome],
            turns=told[row][2],
            policy=own,
            simulator_transcript=others,
        )
        for (task, name, group, member), row, outcome, (own, others) in zip(
            columns, rows, outcomes, transcripts, strict=True
        )
    ]
