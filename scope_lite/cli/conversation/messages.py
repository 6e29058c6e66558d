"""What a conversation is made of: messages, each with what else it was drawn from, turns, and an ending."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

AGENT, YOU, OUTCOME = "agent", "you", "outcome"
"""speakers of messages, besides the simulators' names: the policy, a person, and whoever says how it ended"""
A_TOKEN, STATED = "a token", "stated"
"""what a probability is of, where it is not simply a message's own; see ``Message.unit``"""


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

    @property
    def line(self) -> str:
        """The message in a transcript."""
        name = f" ({self.said})" if self.said != self.sentence else ""
        return f"{self.speaker}{name}: {self.sentence}"


@dataclass(frozen=True)
class Turn:
    """A message to the partner, and the reply to it once there is one."""

    act: Message
    """the policy's; in text also the question of a form"""
    reply: Message | None = None
    """the partner's; in text also a tool's"""


@dataclass(frozen=True)
class Ending:
    """How a conversation ended."""

    outcome: Message
    reward: float
    """of that outcome, in [0, 1]"""
    expected_reward: float | None = None
    """mean over the outcomes that it could have had; None where they are not known, in text"""


def in_figures(p: float) -> tuple[str, float]:
    """A probability in figures, and as the length of a bar; nothing for one that is not known (NaN)."""
    return ("", 0.0) if math.isnan(p) else (f"{p:.3f}", p)
