"""The dialogue: one loop for every world, in which two seats take turns, all rows of a batch together.

An episode says who speaks next, what they hear, and what kind of message they owe. At nano that is one act, one reply,
a fixed number of turns (``envs.nano.episode``). In text an agent may call tools several times before the user hears
anything, messages have many tokens, and dialogues of one batch end at different times: a row that has ended, or whose
other seat is speaking, is neither fed nor sampled. In every round each living episode takes exactly one message, so
the round is a row's own count of messages, and its random numbers do not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int

from scope_lite.envs.turns import SeatName
from scope_lite.models.records import FAILED, Rollout, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError

TEXT = ""
"""the kind of message that any token may stand in; at nano it is "act", "reply" or "outcome" """
CONTEXT = "context"
"""outcome of an episode that outgrew a model's context"""


class Unsaid(NamedTuple):
    """In the place of a message where a seat could give none; it ends the episode."""

    outcome: str = FAILED


class Episode(Protocol):
    """One dialogue with its rules, as :class:`envs.turns.TurnEpisode` has them."""

    task: str
    next_seat: SeatName | None
    """who speaks next; None when it is over"""
    kind: str
    """what kind of message ``next_seat`` owes; one kind for all rows of a batch in which it speaks"""
    outcome: str
    """how it ended, in one word"""
    acts: list[str]
    replies: list[str]

    @property
    def turns(self) -> int: ...  # turns that counted; in text: messages of the policy
    @property
    def systems(self) -> Mapping[str, str]: ...  # system prompt of each seat
    @property
    def hears(self) -> str | None: ...  # what next_seat hears before it speaks; None: nothing, it opens
    @property
    def reward(self) -> float: ...
    def take(self, message: str) -> None: ...  # a fault in here raises; it must never look like a failed task
    def stop(self, outcome: str) -> None: ...


class Seat(Protocol):
    """One side of a batch of dialogues; ``messages[i]`` and row i belong together."""

    @property
    def max_new_tokens(self) -> int: ...

    def hear(self, messages: Sequence[str | None]) -> None:
        """A row whose message is None hears nothing."""
        ...

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> Sequence[str | Unsaid]:
        """One message from each of ``rows`` (None: all), or how the episode ends because there is none."""
        ...

    @property
    def transcripts(self) -> Sequence[Transcript | None]:
        """One a row; None where no model speaks."""
        ...


class WrittenSeat:
    """A seat that reads out prepared messages: a gold agent, a customer for a test."""

    max_new_tokens = 0

    def __init__(self, messages: Sequence[Sequence[str]]):
        """``messages[i]`` are those of row i, in order."""
        self.transcripts: list[Transcript | None] = [None] * len(messages)
        self._left = [list(row) for row in messages]

    def hear(self, messages: Sequence[str | None]) -> None:
        pass

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        """The next prepared message of each row; IndexError where a row has none left."""
        return [self._left[row].pop(0) for row in (range(len(self._left)) if rows is None else rows.tolist())]


def seat_systems(episodes: Sequence[Episode], seat: SeatName) -> list[str]:
    """The system prompts of one seat, one a row, as ``ModelSeat`` takes them."""
    return [episode.systems[seat] for episode in episodes]


def run_dialogues(
    episodes: Sequence[Episode],
    policy: Seat,
    simulator: Seat,
    keys: RowKeys,
    names: Sequence[str],
    context: int | None = None,
) -> list[Rollout]:
    """Play every episode to its end.

    Args:
        keys: name the rows: group and member of each record. The seats draw with keys of their own.
        names: the name of the simulator that plays each row.
        context: tokens that a seat's transcript may hold, its next message included; None: no limit. An episode that
            outgrows it ends with outcome "context".

    Returns:
        One rollout a row, in order.

    Raises:
        ScopeError: a seat's first prompt does not fit into ``context``.
    """
    seats: dict[SeatName, Seat] = {"policy": policy, "simulator": simulator}
    round_ = 0
    while any(episode.next_seat for episode in episodes):
        # who speaks is fixed before anyone does: what is said in this round is answered in the next
        speaking = {name: [i for i, e in enumerate(episodes) if e.next_seat == name] for name in seats}
        for name, rows in speaking.items():
            if rows:
                _speak(episodes, name, seats[name], rows, round_, context)
        round_ += 1
    said, answered = policy.transcripts, simulator.transcripts
    return [
        Rollout(
            task=episode.task,
            simulator=names[i],
            group=int(keys.group[i]),
            member=int(keys.member[i]),
            acts=episode.acts,
            replies=episode.replies,
            outcome=episode.outcome,
            reward=episode.reward,
            turns=episode.turns,
            policy=said[i],
            simulator_transcript=answered[i],
        )
        for i, episode in enumerate(episodes)
    ]


def _speak(
    episodes: Sequence[Episode], name: SeatName, seat: Seat, rows: list[int], round_: int, context: int | None
) -> None:
    """One message from each of these rows, of a seat that hears what its episode has for it."""
    heard: list[str | None] = [None] * len(episodes)
    for i in rows:
        heard[i] = episodes[i].hears
    seat.hear(heard)
    if context is not None:
        _stop_outgrown(episodes, name, seat, rows, context)
        rows = [i for i in rows if episodes[i].next_seat]
    if not rows:
        return
    kind = episodes[rows[0]].kind
    # random numbers are keyed by the message, and at nano, where act and reply alternate, by the turn
    turn = round_ if kind == TEXT else round_ // 2
    said = seat.speak(turn, kind, None if len(rows) == len(episodes) else np.array(rows))
    for i, message in zip(rows, said, strict=True):
        if isinstance(message, Unsaid):
            episodes[i].stop(message.outcome)
        else:
            episodes[i].take(message)


def _stop_outgrown(episodes: Sequence[Episode], name: SeatName, seat: Seat, rows: list[int], context: int) -> None:
    """End the episodes whose transcript has no room for this seat's next message."""
    transcripts = seat.transcripts
    for i in rows:
        transcript = transcripts[i]
        if transcript is None or len(transcript.ids) + seat.max_new_tokens <= context:
            continue
        if not any(transcript.generated):
            raise ScopeError(
                f"the {name}'s prompt in {episodes[i].task} has {len(transcript.ids)} tokens, which with "
                f"{seat.max_new_tokens} to speak is over the context of {context}: "
                "take a model with a longer context"
            )
        episodes[i].stop(CONTEXT)
