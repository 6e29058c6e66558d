"""Prompted simulators: a chat a row, and a sampler (a local model or an endpoint) that is asked for the next message.

The simulator answers the "user" of its own chat, so the policy's words come in as "user" and its own earlier words
stand as "assistant". With Verbalized Sampling it is asked for several replies with probabilities, and one is drawn.
What does not pass the gate (``models.gate``), and a list that cannot be read, is asked for again with another seed,
a few times; then the dialogue ends uncounted (``records.FAILED``). A list never becomes one reply with probability 1:
that would be the collapse itself. A chat that outgrew the simulator's model ends its dialogue with outcome "context".

The whole chat is handed over at every turn, and a local model reads what is new in it (``models.shared_prefix``): in
dialogues of four turns with SmolLM2 a quarter of the tokens, in a third of the time.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

from scope_lite.envs.prompts import with_verbalized_block
from scope_lite.method.dialogue import CONTEXT, Unsaid
from scope_lite.models.gate import hear
from scope_lite.models.replies import Message, Reply, Sampler, SamplingConfig
from scope_lite.models.rng import SEATS, RowKeys, mix
from scope_lite.models.verbalized import ParseAccount, VerbalizedDistribution, VerbalizedParseError, grammar, parse

MARK_TOKENS = 20
"""For the braces, keys and probability of one candidate; SmolLM2 takes 14 to 16. They do not get fewer where replies
are short: with half a reply's tokens instead, and replies of 24, .55 of a step's lists could not be read, now .06."""


@dataclass(frozen=True)
class Voice:
    """One way to ask one model for a user's words; rows with equal voices are asked for in one call."""

    sampler: Sampler
    temperature: float = 1.0
    reply_tokens: int = 40
    """a reply is cut here; a verbalized list may have as many for each candidate, and MARK_TOKENS beside them"""
    candidates: int | None = None
    """replies that a verbalized list holds; None asks for the next message itself"""
    by_grammar: bool = False
    """hold the list to its format"""
    retries: int = 3
    speaker: str = "customer"
    """what the request for a list calls the one whose words are wanted"""
    alike: bool = False
    """draw from a list uniformly, whatever probabilities it states"""

    def settings(self, seed: int) -> SamplingConfig:
        if self.candidates is None:
            return SamplingConfig(self.temperature, self.reply_tokens, seed)
        rules = grammar(self.candidates) if self.by_grammar else None
        return SamplingConfig(self.temperature, (self.reply_tokens + MARK_TOKENS) * self.candidates, seed, rules)

    def chat(self, chat: list[Message]) -> list[Message]:
        """What the model reads: the chat, with the request for a list."""
        return chat if self.candidates is None else with_verbalized_block(chat, self.candidates, self.speaker)

    def read(self, reply: Reply) -> VerbalizedDistribution:
        """The list in a reply; raises as :func:`verbalized.parse` does."""
        return parse(reply.text, self.candidates or 0, tokens=self.reply_tokens, finished=reply.finished)


class PromptedSeat:
    """Simulators that are asked for their next message, one a row; ``dialogue.run_dialogues`` drives it."""

    max_new_tokens = 0  # there is no transcript to outgrow: the sampler says where its model cannot hold a chat

    def __init__(
        self,
        voices: Sequence[Voice],
        systems: Sequence[str],
        keys: RowKeys,
        stream: Literal["simulator", "panel"] = "simulator",
    ):
        """``voices[i]`` speaks in row i under ``systems[i]``; ``stream`` keeps training and evaluation apart."""
        self.voices, self.keys, self.stream = list(voices), keys, stream
        self.chats: list[list[Message]] = [[{"role": "system", "content": system}] for system in systems]
        self.transcripts: list[None] = [None] * len(self.chats)
        self.account = ParseAccount()
        """what became of the verbalized lists"""
        self.direct: list[Reply] = []
        """the replies that were asked for directly and passed the gate"""
        self.refused: Counter[str] = Counter()
        """direct replies that did not pass the gate, by reason (``gate.REASONS``)"""
        self.thoughts = 0
        """direct replies that passed without a thought that stood before them"""
        self.newest: dict[int, Reply] = {}
        """what each row's newest message was taken from"""

    def hear(self, messages: Sequence[str | None]) -> None:
        """A row whose message is None hears nothing."""
        for chat, message in zip(self.chats, messages, strict=True):
            if message is not None:
                chat.append({"role": "user", "content": message})

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str | Unsaid]:
        """One message from each of ``rows`` (by default all), or why there is none."""
        speaking = (np.arange(len(self.chats)) if rows is None else rows).tolist()
        said: dict[int, str | Unsaid] = {}
        for voice in dict.fromkeys(self.voices[row] for row in speaking):
            said |= self._answers(voice, [row for row in speaking if self.voices[row] == voice], turn)
        for row, text in said.items():
            if isinstance(text, str):
                self.chats[row].append({"role": "assistant", "content": text})
        return [said[row] for row in speaking]

    def _answers(self, voice: Voice, rows: list[int], turn: int) -> dict[int, str | Unsaid]:
        """Ask each row, and again where nothing could be used."""
        said: dict[int, str | Unsaid] = {}
        for attempt in range(1 + voice.retries):
            chats = {row: voice.chat(self.chats[row]) for row in rows if row not in said}
            for row, reply in self._ask(voice, chats, turn, attempt).items() if chats else ():
                if reply.failure == CONTEXT:  # it will not get shorter
                    said[row] = Unsaid(CONTEXT)
                elif words := self._read(voice, reply, self.keys[np.array([row])], turn, attempt):
                    said[row], self.newest[row] = words, reply
        return {row: said.get(row, Unsaid()) for row in rows}

    def _read(self, voice: Voice, reply: Reply, key: RowKeys, turn: int, attempt: int) -> str:
        """What a reply says, or one of its list, drawn; nothing where it did not pass the gate or cannot be read."""
        if voice.candidates is None:
            words, failure, thought = hear(reply, voice.reply_tokens)
            if failure:
                self.refused[failure] += 1
            else:
                self.direct.append(reply)
                self.thoughts += thought
            return words
        try:
            listed = voice.read(reply)
        except VerbalizedParseError as error:
            self.account.add(error)
            return ""
        self.account.add(listed)
        return listed.draw(float(key.uniforms(turn, self.stream, token=attempt)[0, 0]), voice.alike)

    def _ask(self, voice: Voice, chats: dict[int, list[Message]], turn: int, attempt: int = 0) -> dict[int, Reply]:
        """One reply to each row's chat; rows with equal chats get different ones, in the order of their keys."""
        config = voice.settings(self._seed(turn, attempt))
        ordered = sorted(chats, key=lambda row: (self.keys.group[row], self.keys.member[row]))
        alike: dict[str, list[int]] = {}
        for row in ordered:
            alike.setdefault(json.dumps(chats[row]), []).append(row)
        replies: dict[int, Reply] = {}
        for count in sorted({len(rows) for rows in alike.values()}):
            sets = [rows for rows in alike.values() if len(rows) == count]
            drawn = voice.sampler.sample([chats[rows[0]] for rows in sets], count, config)
            for rows, given in zip(sets, drawn, strict=True):
                replies |= zip(rows, given, strict=True)
        return {row: replies[row] for row in chats}

    def _seed(self, turn: int, attempt: int) -> int:
        """The seed of one call: the same whenever and however often this step is played, and of no other call."""
        state = np.zeros(1, dtype=np.uint64)
        for part in (self.keys.run, self.keys.step, turn, SEATS[self.stream], attempt):
            state = mix(state ^ np.uint64(part))
        return int(state[0] >> np.uint64(33))

    @property
    def failures(self) -> Counter[str]:
        return self.refused + self.account.failures

    def metrics(self) -> dict[str, float | None]:
        """How the simulators spoke so far; a kind of reply that was not asked for has no entry.

        Returns:
            Of direct replies: ``simulator/entropy`` (mean over tokens, nats; None where the sampler does not tell it),
            ``simulator/cut_off``, the share cut at the token limit, ``simulator/refused``, the share that did not pass
            the gate and was asked for again (the two above are of the others), and ``simulator/thought_aloud``, where
            there is one, the share whose thought was cut out. Of verbalized lists: the shares
            ``simulator/parse_failures`` that could not be read and ``simulator/repaired`` only tolerantly, and
            ``simulator/certain``: of those that could, the share with all probability on one reply.
        """
        found: dict[str, float | None] = {}
        asked, lists = len(self.direct) + self.refused.total(), self.account.calls
        if asked:
            tokens = [entropy for reply in self.direct for entropy in reply.entropies]
            mean = float(np.mean(tokens)) if tokens else math.nan
            found["simulator/entropy"] = None if math.isnan(mean) else mean
            found["simulator/cut_off"] = float(np.mean([not r.finished for r in self.direct])) if self.direct else None
            found |= shares("simulator/refused", self.refused, asked)
            if self.thoughts:
                found["simulator/thought_aloud"] = self.thoughts / asked
        if lists:
            found |= shares("simulator/parse_failures", self.account.failures, lists)
            found["simulator/repaired"] = self.account.repaired / lists
            read = lists - self.account.failed
            found["simulator/certain"] = self.account.certain / read if read else None
        return found


def shares(name: str, reasons: Counter[str], of: int) -> dict[str, float]:
    """``name``: what failed of so many, and ``name/<reason>`` for each reason that occurred."""
    return {name: reasons.total() / of, **{f"{name}/{reason}": reasons[reason] / of for reason in sorted(reasons)}}
