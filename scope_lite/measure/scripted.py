"""A text simulator plays users against a partner who says the same lines to everyone: what ``diagnostics`` measures.

At every turn several replies are drawn; the first that can be used is said. The loop is ``method.dialogue``'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from scope_lite.envs.prompts import Message
from scope_lite.envs.turns import SeatName, TurnEpisode
from scope_lite.measure.diagnostics import Situation, stops
from scope_lite.method.dialogue import Unsaid, WrittenSeat, run_dialogues
from scope_lite.models.gate import hear, readable
from scope_lite.models.records import Transcript
from scope_lite.models.replies import Reply
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError

Ask = Callable[[list[list[Message]]], list[list[Reply]]]
CountRead = Callable[[list[Message]], float]
TurnDone = Callable[[int, int], None]


def play(
    situations: Sequence[Situation],
    sample: Ask,
    count_read: CountRead = lambda chat: math.nan,
    turn_done: TurnDone = lambda turn, turns: None,
    tokens: int | None = None,
) -> pd.DataFrame:
    """Let the simulator play every user against the scripted partner.

    Args:
        situations: the users, all of one script.
        sample: some replies, at least two, to each of the given chats.
        count_read: tokens of a chat, if the engine tells.
        turn_done: called with (turns played, turns in all).
        tokens: the most that a reply was to have; None: no limit.

    Returns:
        One row per dialogue, turn and reply: dialogue, situation, turn, reply, partner (the line answered), text,
        failure (why there is no text: ``gate.REASONS``), thought (whether it thought aloud), raw (the whole reply if it
        is more), finished, tokens_written and tokens_read (NaN where the engine does not tell). The first reply with a
        text goes on; a dialogue ends with the turn where that says STOP, or where there is none.

    Raises:
        ScopeError: no situations, or fewer than two replies a history.
    """
    if not situations:
        raise ScopeError("no dialogues to play: give at least one scenario")
    seat = DrawnSeat(situations, sample, count_read, turn_done, tokens)
    partner = WrittenSeat([situation.script.lines for situation in situations])
    keys = RowKeys.grid(0, 0, 1, len(situations))
    run_dialogues([ScriptedEpisode(s) for s in situations], partner, seat, keys, [s.name for s in situations])
    return pd.DataFrame(seat.rows)


class ScriptedEpisode(TurnEpisode):
    """The partner says its lines, whatever it hears; it is over when they end, or where the user says the stop."""

    hears: str | None = None

    def __init__(self, situation: Situation):
        super().__init__(situation.name, opens="policy")
        self.script, self.systems = situation.script, dict[str, str]()

    @property
    def turns(self) -> int:
        return len(self.acts)

    def _turn(self, seat: SeatName, message: str) -> None:
        (self.acts if seat == "policy" else self.replies).append(message)
        self.next_seat, self.hears = "simulator" if seat == "policy" else "policy", message
        if seat == "simulator" and (stops(message, self.script) or self.turns == len(self.script.lines)):
            self.stop("over")

    def _earned(self) -> float:
        return 0.0


@dataclass
class DrawnSeat:
    """The simulator in every row, with a row of the table for each reply that was drawn; fields as of :func:`play`."""

    situations: Sequence[Situation]
    sample: Ask
    count_read: CountRead
    turn_done: TurnDone
    tokens: int | None
    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        self.said: list[list[str]] = [[] for _ in self.situations]
        self.transcripts: list[Transcript | None] = [None] * len(self.situations)
        self.rows: list[dict[str, Any]] = []

    def hear(self, messages: Sequence[str | None]) -> None:
        for said, message in zip(self.said, messages, strict=True):
            if message is not None:
                said.append(message)

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str | Unsaid]:
        going = list(range(len(self.said))) if rows is None else rows.tolist()
        chats = [self.situations[d].script.chat(self.situations[d].about, self.said[d]) for d in going]
        for d, chat, replies in zip(going, chats, self.sample(chats), strict=True):
            if len(replies) < 2:
                raise ScopeError("one reply cannot be compared with the others: draw at least two a history")
            read, heard = self.count_read(chat), [hear(reply, self.tokens) for reply in replies]
            self.rows += [
                {"dialogue": d, "situation": self.situations[d].name, "turn": turn // 2, "reply": i,
                 "partner": self.said[d][-1], "text": one.words, "failure": one.failure, "thought": one.thought,
                 "raw": readable(reply.text) if one.failure or one.thought else "",
                 "finished": reply.finished, "tokens_written": _length(reply), "tokens_read": read}
                for i, (reply, one) in enumerate(zip(replies, heard, strict=True))
            ]  # fmt: skip
            self.said[d].append(next((one.words for one in heard if one.words), ""))
        self.turn_done(turn // 2 + 1, len(self.situations[0].script.lines))
        return [self.said[d][-1] or Unsaid() for d in going]


def _length(reply: Reply) -> float:
    """Tokens of a reply; an endpoint tells them only through their log-probabilities, if at all."""
    told = [x for x in reply.logprobs if not math.isnan(x)]
    return len(reply.token_ids) or len(told) or math.nan
