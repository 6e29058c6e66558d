"""Prompted simulators: a chat a row, and a sampler (a local model or an endpoint) that is asked for the next message.

The simulator answers the "user" of its own chat, so the policy's words come in as "user" and its own earlier words
stand as "assistant". With Verbalized Sampling it is asked for several replies with probabilities, and one is drawn; a
list that cannot be read is asked for again with another seed, a few times, and then the dialogue ends uncounted
(``records.FAILED``). It never becomes one reply with probability 1: that would be the collapse itself.

The whole chat is handed over at every turn, and a local model reads what is new in it (``engines.shared_prefix``): in
dialogues of four turns with SmolLM2 a quarter of the tokens, in a third of the time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Int

from scope_lite.engines.generate import Message, SamplingConfig
from scope_lite.engines.reply_cache import Reply
from scope_lite.prompts import with_verbalized_block
from scope_lite.rng import SEATS, RowKeys, mix
from scope_lite.verbalized import ParseAccount, VerbalizedParseError, grammar, parse

MARK_TOKENS = 20
"""For the braces, keys and probability of one candidate; SmolLM2 takes 14 to 16. They do not get fewer where replies
are short: with half a reply's tokens instead, and replies of 24, .55 of a step's lists could not be read, now .06."""


class Sampler(Protocol):
    """``engines.generate.TextSampler`` and ``engines.api.ApiSampler``: reply i to history h is ``[h][i]``."""

    def sample(
        self, histories: Sequence[Sequence[Message]], replies: int, config: SamplingConfig | None = None
    ) -> list[list[Reply]]: ...


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

    def settings(self, seed: int) -> SamplingConfig:
        if self.candidates is None:
            return SamplingConfig(self.temperature, self.reply_tokens, seed)
        rules = grammar(self.candidates) if self.by_grammar else None
        return SamplingConfig(self.temperature, (self.reply_tokens + MARK_TOKENS) * self.candidates, seed, rules)


class PromptedSeat:
    """Simulators that are asked for their next message, one a row; ``episodes.run_episodes`` drives it."""

    max_new_tokens = 0  # there is no transcript to outgrow: the sampler refuses a chat that its model cannot hold

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
        """the replies that were asked for directly"""

    def hear(self, messages: Sequence[str | None]) -> None:
        """A row whose message is None hears nothing."""
        for chat, message in zip(self.chats, messages, strict=True):
            if message is not None:
                chat.append({"role": "user", "content": message})

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str | None]:
        """One message from each of ``rows`` (by default all); None where no list could be read."""
        speaking = (np.arange(len(self.chats)) if rows is None else rows).tolist()
        said: dict[int, str] = {}
        for voice in dict.fromkeys(self.voices[row] for row in speaking):
            mine = [row for row in speaking if self.voices[row] == voice]
            said |= self._directly(voice, mine, turn) if voice.candidates is None else self._listed(voice, mine, turn)
        for row, text in said.items():
            self.chats[row].append({"role": "assistant", "content": text})
        return [said.get(row) for row in speaking]

    def _directly(self, voice: Voice, rows: list[int], turn: int) -> dict[int, str]:
        replies = self._ask(voice, {row: self.chats[row] for row in rows}, turn)
        self.direct += replies.values()
        return {row: reply.text for row, reply in replies.items()}

    def _listed(self, voice: Voice, rows: list[int], turn: int) -> dict[int, str]:
        """Ask for lists, draw one reply from each that can be read, and ask again for the others."""
        assert voice.candidates is not None
        said: dict[int, str] = {}
        for attempt in range(1 + voice.retries):
            chats = {
                row: with_verbalized_block(self.chats[row], voice.candidates, voice.speaker)
                for row in rows
                if row not in said
            }
            if not chats:
                break
            for row, reply in self._ask(voice, chats, turn, attempt).items():
                try:
                    outcome = parse(reply.text, voice.candidates)
                except VerbalizedParseError as error:
                    self.account.add(error)
                    continue
                self.account.add(outcome)
                uniform = self.keys[np.array([row])].uniforms(turn, self.stream, token=attempt)
                said[row] = outcome.draw(float(uniform[0, 0]))
        return said

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

    def metrics(self) -> dict[str, float | None]:
        """How the simulators spoke so far.

        Returns:
            ``simulator/entropy``: mean over the tokens of direct replies (nats), None where the sampler does not tell
            it; ``simulator/cut_off``: share of direct replies cut at the token limit; ``simulator/parse_failures`` and
            ``simulator/repaired``: shares of the verbalized lists that could not be read, and only tolerantly. A kind
            of reply that was not asked for has no entry.
        """
        found: dict[str, float | None] = {}
        if self.direct:
            tokens = [entropy for reply in self.direct for entropy in reply.entropies]
            mean = float(np.mean(tokens)) if tokens else math.nan
            found["simulator/entropy"] = None if math.isnan(mean) else mean
            found["simulator/cut_off"] = float(np.mean([not reply.finished for reply in self.direct]))
        if self.account.calls:
            found["simulator/parse_failures"] = self.account.failure_rate
            found["simulator/repaired"] = self.account.repaired / self.account.calls
        return found
