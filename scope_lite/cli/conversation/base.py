"""What every talk is made of, whether its policy speaks in acts or in text: messages, turns, an ending, and undo."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from scope_lite.store.errors import ScopeError

AGENT, YOU, OUTCOME = "agent", "you", "outcome"
"""Speakers of messages, besides the simulators' names: the policy, a person, and whoever says how a talk ended."""
A_TOKEN, STATED = "a token", "stated"
"""What a probability is of, where it is not simply a message's own; see ``Message.unit``."""


@dataclass(frozen=True)
class Message:
    """What was said, by whom, and what else it was drawn from."""

    speaker: str
    said: str
    """the name of an act or outcome; in text the words themselves"""
    sentence: str
    """the same, to read"""
    probabilities: Mapping[str, float]
    """of every message of its kind, in the world's order; in text of this message and of the other samples, NaN where
    an endpoint tells none. Empty for what was not sampled: a person's words, a tool's output"""
    unit: str = ""
    """"": they are probabilities of whole messages, and sum to 1; "a token": the geometric mean of the probabilities
    of a message's tokens, its end among them; "stated": what a verbalized list says of its candidates"""

    @property
    def probability(self) -> float | None:
        p = self.probabilities.get(self.said)
        return None if p is None or math.isnan(p) else p

    def options(self, least: float = 0.005) -> dict[str, float]:
        """Likeliest first; of a whole distribution without those below ``least``, but with the one that was said."""
        ranked = sorted(self.probabilities.items(), key=lambda option: 0.0 if math.isnan(option[1]) else -option[1])
        return {name: p for name, p in ranked if p >= least or name == self.said or self.unit}

    @property
    def label(self) -> str:
        """What stands beside the sentence: the name, where it is another than the sentence, and the probability."""
        name = self.said if self.said != self.sentence else ""
        chance = "" if self.probability is None else f"{self.probability:.3f} {self.unit}".rstrip()
        return ", ".join(part for part in (name, chance) if part)


@dataclass(frozen=True)
class Turn:
    """A message to the partner, and the reply to it once there is one."""

    act: Message
    """the policy's; in text also the question of a form"""
    reply: Message | None = None
    """the partner's; in text also a tool's"""


@dataclass(frozen=True)
class Ending:
    """How a talk ended."""

    outcome: Message
    reward: float
    """of that outcome, in [0, 1]"""
    expected_reward: float | None = None
    """mean over the outcomes that this talk could have had; None where they are not known, in text"""


class Talk(ABC):
    """A talk with a policy, one message at a time; ``partner`` answers, a person or a simulator."""

    talk: int
    """number of the talk; each restart begins the next one"""
    replies: tuple[str, ...]
    """what a partner can say; empty where it may say anything"""
    told: str
    """what you alone are told before it begins; empty where that is nothing"""
    turns: list[Turn]
    ending: Ending | None

    def __init__(self, partner: str, seed: int):
        self.partner, self.seed, self.talk = partner, seed, 0
        self._begin()

    @property
    def by_hand(self) -> bool:
        """Whether a person answers."""
        return self.partner == YOU

    def say(self, reply: str | None = None) -> Turn | None:
        """Answer the last act with ``reply`` (a simulator's partner needs none), and hear the next act.

        Returns:
            The open turn, or None when the talk is over; then ``ending`` says how.

        Raises:
            ScopeError: if the talk is over, or the reply is none that can be given.
        """
        if self.ending is not None:
            raise ScopeError("the talk is over; undo, or restart")
        if not self.by_hand and reply is not None:
            raise ScopeError(f"{self.partner} answers by itself")
        self._reply(self._checked(reply or "") if self.by_hand else "")
        return self.turns[-1] if self.ending is None else None

    def undo(self) -> Turn:
        """Take back your last reply; the act that it answered is open again, and is returned.

        Raises:
            ScopeError: if there is none, or a simulator answers (it would say the same again).
        """
        if not self.by_hand:
            raise ScopeError(f"{self.partner} would say the same again; restart begins another talk")
        if not any(turn.reply and turn.reply.speaker == YOU for turn in self.turns):
            raise ScopeError("nothing to take back")
        self._take_back()
        return self.turns[-1]

    def restart(self) -> None:
        """Begin another talk, with a draw of its own."""
        self.talk += 1
        self._begin()

    @property
    def transcript(self) -> str:
        """The talk so far, to read: one message after the other, and the outcome."""
        messages = [m for turn in self.turns for m in (turn.act, turn.reply) if m]
        lines = [_line(message) for message in messages]
        if self.ending:
            lines.append(f"{_line(self.ending.outcome)} (reward {self.ending.reward:.2f})")
        return "\n".join(lines)

    @property
    def legend(self) -> str:
        """How to read the probabilities, where that needs a word."""
        return ""

    @property
    @abstractmethod
    def revealed(self) -> str:
        """What is told of the task when the talk is over, to read; empty where that is nothing."""

    @abstractmethod
    def heading(self, number: int) -> str:
        """What stands above turn ``number``, counted from 1."""

    @abstractmethod
    def sentence(self, said: str) -> str:
        """A message that might be said, to read."""

    @abstractmethod
    def _checked(self, reply: str) -> str:
        """A person's reply, if it can be given; else a ScopeError."""

    @abstractmethod
    def _begin(self) -> None:
        """Set everything up, and let the policy open."""

    @abstractmethod
    def _reply(self, reply: str) -> None:
        """Let the partner answer (a person says ``reply``), and whoever comes next, until the partner is to speak."""

    @abstractmethod
    def _take_back(self) -> None:
        """Go back to before the person's last reply."""


def in_figures(p: float) -> tuple[str, float]:
    """A probability in figures, and as the length of a bar; nothing for one that is not known (NaN)."""
    return ("", 0.0) if math.isnan(p) else (f"{p:.3f}", p)


def _line(message: Message) -> str:
    name = f" ({message.said})" if message.said != message.sentence else ""
    return f"{message.speaker}{name}: {message.sentence}"
