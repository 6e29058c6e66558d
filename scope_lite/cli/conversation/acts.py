"""One dialogue, one message at a time, with everything else that might have been said, and how likely it was.

The seats are those of training and evaluation, so the probabilities shown are those that
are sampled from. Randomness is keyed by (seed, number of the talk, turn): the same seed
and the same replies give the same talk, and after ``undo`` whatever changes is due to the
other reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from scope_lite.cli.conversation.base import AGENT, OUTCOME, YOU, Ending, Message, Talk, Turn
from scope_lite.cli.conversation.policy import LoadedPolicy
from scope_lite.envs.nano.episode import CLOSE
from scope_lite.envs.nano.users import BeliefUsers, told_prior
from scope_lite.method.config import closest
from scope_lite.method.dialogue import Seat
from scope_lite.method.nano import OutcomeSeat, draw_prompts
from scope_lite.method.partner import draw_tasks
from scope_lite.method.seats import KnowsItsLaw, ModelSeat
from scope_lite.models.records import Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError


class PersonSeat:
    """A person in the partner's seat: says whatever was put into ``reply``."""

    def __init__(self) -> None:
        self.reply = ""
        self.transcripts: Sequence[Transcript | None] = [None]

    max_new_tokens = 0

    def hear(self, messages: Sequence[str | None]) -> None:
        pass

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        return [self.reply]

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        return []


class Conversation(Talk):
    """A talk with a policy of a nano world.

    You answer it yourself, or a simulator of its world does (``partner``, a name out of
    ``policy.partners``). With you, the world says how it ended: it weighs which of its real
    users (P_real) would have said what you said. With a simulator it ends as in evaluation.

    Raises:
        ScopeError: for a partner that does not exist.
    """

    keys: RowKeys
    """of everything that is drawn in this talk"""
    task: str
    """what the policy alone is told; empty in a world that tells it nothing"""
    _policy: ModelSeat
    _partner: Seat

    def __init__(self, policy: LoadedPolicy, partner: str = YOU, seed: int = 0):
        self.policy, self.world, self._person = policy, policy.world, PersonSeat()
        self.replies = self.world.spec.user_acts
        super().__init__(partner, seed)

    @property
    def revealed(self) -> str:
        return f"the agent was told: {self.sentence(self.task)}" if self.task else ""

    def heading(self, number: int) -> str:
        return f"turn {number} of {self.world.horizon}"

    def sentence(self, said: str) -> str:
        return self.world.say(said)

    def _checked(self, reply: str) -> str:
        if reply not in self.replies:
            raise ScopeError(closest(reply, list(self.replies), "reply"))
        return reply

    def _reply(self, reply: str) -> None:
        self._person.reply = reply
        self._partner.hear([self.turns[-1].act.said])
        heard = [str(said) for said in self._partner.speak(len(self.turns) - 1, "reply")]
        drawn = {} if self.by_hand else self._last(self._partner, self.replies)
        self.turns[-1] = replace(self.turns[-1], reply=self._message(self.partner, heard[0], drawn))
        if len(self.turns) == self.world.horizon:
            self.ending = self._end()
        else:
            self._policy.hear(heard)
            self._act()

    def _take_back(self) -> None:
        replies = [turn.reply.said for turn in self.turns if turn.reply]
        self._begin()
        for reply in replies[:-1]:
            self.say(reply)

    def _begin(self) -> None:
        world = self.world
        self.keys = RowKeys(self.seed, 0, np.array([self.talk]), np.zeros(1, dtype=int))
        tasks = draw_tasks(len(world.tasks), self.keys)
        system = world.tasks[tasks[0]]
        self._policy = ModelSeat(self.policy.model, self.keys, "policy", [system])
        if self.by_hand:
            prompt = draw_prompts(world, world.real_prior, self.keys)
            referee = BeliefUsers(world, told_prior(world, world.real_prior, prompt), 1, tasks=tasks)
            self._partner = OutcomeSeat(self._person, referee, self.keys)
            self.told = world.prompts[prompt[0]] if world.spec.told else ""
        else:
            self._partner = self.policy.seat(self.partner, self.keys)
            self.told = ""
        self.task = system if world.spec.tasks else ""
        self.turns, self.ending = [], None
        self._act()

    def _act(self) -> None:
        (said,) = self._policy.speak(len(self.turns), "act")
        self.turns.append(Turn(self._message(AGENT, said, self._last(self._policy, self.world.spec.agent_acts))))

    def _end(self) -> Ending:
        self._partner.hear([CLOSE])
        said = str(self._partner.speak(self.world.horizon, "outcome")[0])
        outcome = self._message(OUTCOME, said, self._last(self._partner, self.world.spec.outcomes))
        value = dict(zip(self.world.spec.outcomes, self.world.spec.rewards, strict=True))
        return Ending(outcome, value[said], sum(value[name] * p for name, p in outcome.probabilities.items()))

    def _message(self, speaker: str, said: str, probabilities: dict[str, float]) -> Message:
        return Message(speaker, said, self.sentence(said), probabilities)

    @staticmethod
    def _last(seat: Seat, names: tuple[str, ...]) -> dict[str, float]:
        """What the seat's last message was drawn from, by name."""
        assert isinstance(seat, KnowsItsLaw)
        return dict(zip(names, seat.distributions()[-1][0].tolist(), strict=True))
