"""One dialogue, one message at a time, with everything else that might have been said, and how likely it was.

The seats are those of training and evaluation, so the probabilities shown are those that
are sampled from. Randomness is keyed by (seed, number of the talk, turn): the same seed
and the same replies give the same talk, and after ``undo`` whatever changes is due to the
other reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from scope_lite.chat.policy import YOU, LoadedPolicy
from scope_lite.config import closest
from scope_lite.errors import ScopeError
from scope_lite.records import Transcript
from scope_lite.rng import RowKeys
from scope_lite.seats import ModelSeat, RefereedSeat, Seat
from scope_lite.simulators import CLOSE, draw_prompts, draw_tasks
from scope_lite.worlds.users import BeliefUsers, told_prior


@dataclass(frozen=True)
class Message:
    """What was said, and the distribution that it was drawn from."""

    said: str
    probabilities: Mapping[str, float]
    """of every message of its kind, in the world's order; empty for a person's"""

    @property
    def probability(self) -> float | None:
        return self.probabilities.get(self.said)

    def options(self, least: float = 0.005) -> dict[str, float]:
        """Likeliest first; without those below ``least``, unless it is the one that was said."""
        ranked = sorted(self.probabilities.items(), key=lambda option: -option[1])
        return {name: p for name, p in ranked if p >= least or name == self.said}


@dataclass(frozen=True)
class Turn:
    """An act of the policy, and the reply to it once there is one."""

    act: Message
    reply: Message | None = None


@dataclass(frozen=True)
class Ending:
    """How a talk ended."""

    outcome: Message
    reward: float
    """of that outcome, in [0, 1]"""
    expected_reward: float
    """mean over the outcomes that this talk could have had"""


class PersonSeat:
    """A person in the partner's seat: says whatever was put into ``reply``."""

    def __init__(self) -> None:
        self.reply = ""
        self.transcripts: Sequence[Transcript | None] = [None]

    def hear(self, messages: list[str]) -> None:
        pass

    def speak(self, turn: int, kind: str) -> list[str]:
        return [self.reply]

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        return []


class Conversation:
    """A talk with a policy.

    You answer it yourself, or a simulator of its world does (``partner``, a name out of
    ``policy.partners``). With you, the world says how it ended: it weighs which of its real
    users (P_real) would have said what you said. With a simulator it ends as in evaluation.

    Raises:
        ScopeError: for a partner that does not exist.
    """

    talk: int
    """number of the talk; each restart begins the next one"""
    keys: RowKeys
    """of everything that is drawn in this talk"""
    task: str
    """what the policy alone is told; empty in a world that tells it nothing"""
    told: str
    """what you alone are told, in a world that tells its users something"""
    turns: list[Turn]
    ending: Ending | None
    _policy: ModelSeat
    _partner: Seat

    def __init__(self, policy: LoadedPolicy, partner: str = YOU, seed: int = 0):
        self.policy, self.partner, self.seed = policy, partner, seed
        self.world, self._person = policy.world, PersonSeat()
        self.talk = 0
        self._begin()

    @property
    def by_hand(self) -> bool:
        """Whether a person answers."""
        return self.partner == YOU

    @property
    def replies(self) -> tuple[str, ...]:
        """What a partner can say in this world."""
        return self.world.spec.user_acts

    def say(self, reply: str | None = None) -> Turn | None:
        """Answer the last act with ``reply`` (a simulator's partner needs none), and hear the next act.

        Returns:
            The new turn, or None when the talk is over; then ``ending`` says how.

        Raises:
            ScopeError: if the talk is over, or the reply is not one of ``replies``.
        """
        if self.ending is not None:
            raise ScopeError("the talk is over; undo, or restart")
        if self.by_hand:
            if reply not in self.replies:
                raise ScopeError(closest(str(reply), list(self.replies), "reply"))
            self._person.reply = reply
        elif reply is not None:
            raise ScopeError(f"{self.partner} answers by itself")
        self._partner.hear([self.turns[-1].act.said])
        heard = self._partner.speak(len(self.turns) - 1, "reply")
        told = Message(heard[0], {} if self.by_hand else self._last(self._partner, self.replies))
        self.turns[-1] = replace(self.turns[-1], reply=told)
        if len(self.turns) == self.world.horizon:
            self.ending = self._end()
            return None
        self._policy.hear(heard)
        return self._act()

    def undo(self) -> Turn:
        """Take back your last reply; the act that it answered is open again, and is returned.

        Raises:
            ScopeError: if there is none, or a simulator answers (it would say the same again).
        """
        if not self.by_hand:
            raise ScopeError(f"{self.partner} would say the same again; restart begins another talk")
        replies = [turn.reply.said for turn in self.turns if turn.reply]
        if not replies:
            raise ScopeError("nothing to take back")
        self._begin()
        for reply in replies[:-1]:
            self.say(reply)
        return self.turns[-1]

    def restart(self) -> Turn:
        """Begin another talk, with a draw of its own, and return its first act."""
        self.talk += 1
        self._begin()
        return self.turns[-1]

    @property
    def transcript(self) -> str:
        """The talk so far, to read: one line a message, and the outcome."""
        said = [pair for t in self.turns for pair in (("agent", t.act), (self.partner, t.reply))]
        lines = [f"{who} ({m.said}): {self.world.say(m.said)}" for who, m in said if m]
        if self.ending:
            outcome = self.ending.outcome.said
            lines.append(f"outcome ({outcome}): {self.world.say(outcome)} (reward {self.ending.reward:.2f})")
        return "\n".join(lines)

    def _begin(self) -> None:
        world = self.world
        self.keys = RowKeys(self.seed, 0, np.array([self.talk]), np.zeros(1, dtype=int))
        tasks = draw_tasks(world, self.keys)
        system = world.tasks[tasks[0]]
        self._policy = ModelSeat(self.policy.model, self.keys, "policy", [system])
        if self.by_hand:
            prompt = draw_prompts(world, world.real_prior, self.keys)
            referee = BeliefUsers(world, told_prior(world, world.real_prior, prompt), 1, tasks=tasks)
            self._partner = RefereedSeat(self._person, referee, self.keys)
            self.told = world.prompts[prompt[0]] if world.spec.told else ""
        else:
            self._partner = self.policy.seat(self.partner, self.keys)
            self.told = ""
        self.task = system if world.spec.tasks else ""
        self.turns, self.ending = [], None
        self._act()

    def _act(self) -> Turn:
        (said,) = self._policy.speak(len(self.turns), "act")
        self.turns.append(Turn(Message(said, self._last(self._policy, self.world.spec.agent_acts))))
        return self.turns[-1]

    def _end(self) -> Ending:
        self._partner.hear([CLOSE])
        (said,) = self._partner.speak(self.world.horizon, "outcome")
        outcome = Message(said, self._last(self._partner, self.world.spec.outcomes))
        value = dict(zip(self.world.spec.outcomes, self.world.spec.rewards, strict=True))
        return Ending(outcome, value[said], sum(value[name] * p for name, p in outcome.probabilities.items()))

    @staticmethod
    def _last(seat: Seat, names: tuple[str, ...]) -> dict[str, float]:
        """What the seat's last message was drawn from, by name."""
        return dict(zip(names, seat.distributions()[-1][0].tolist(), strict=True))
