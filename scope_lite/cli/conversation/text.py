"""One dialogue in text, one message at a time: what was said, how likely it was, and what might have been said instead.

The episode is the one of training and evaluation (held-out tasks): it says who speaks next, what they hear, when it is
over and what it earned. In tau2-bench several tool calls may come between two messages of the customer; each is a turn
that a tool answers. The same seed and the same replies give the same talk, however many other samples are shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scope_lite.cli.conversation.base import AGENT, OUTCOME, YOU, Ending, Message, Talk, Turn
from scope_lite.cli.conversation.policy import LoadedTextPolicy
from scope_lite.cli.conversation.speakers import ModelSpeaker, Speaker
from scope_lite.envs.turns import SeatName
from scope_lite.method.dialogue import CONTEXT, Episode, Unsaid
from scope_lite.method.partner import draw_tasks
from scope_lite.models.records import FAILED, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError

FORM, TOOL = "form", "tool"
"""Speakers that are neither side: what is asked when the chat is over (p4g), and what a tool answers (tau2)."""
ENDINGS = {
    "given": "a donation above 0 was stated",
    "nothing": "a donation of 0 was stated",
    "unread": "no amount that could be read was stated",
    "stop": "the customer ended it",
    "transfer": "the customer was handed over to a person",
    "out-of-scope": "the customer was asked for what the scenario does not hold",
    "max-turns": "the agent had said all that it may say",
    CONTEXT: "the talk outgrew what the model can read at once",
    FAILED: "the simulator said nothing that can be used, however often it was asked; this talk does not count",
}
"""What each outcome of an episode means."""


class Spoken(NamedTuple):
    """A message of one of the two seats."""

    seat: SeatName
    message: Message
    read: int
    """tokens of the policy's transcript after it"""


class TextConversation(Talk):
    """A talk with a policy that speaks in text, on a held-out task.

    You answer it yourself, and are told what a simulator in your place would be told, or a simulator answers
    (``partner``, a name out of ``policy.partners``).

    Raises:
        ScopeError: for a partner that does not exist, or a negative number of ``alternatives``, which is how many
            other samples stand beside each message.
    """

    replies = ()
    keys: RowKeys
    """of everything that is drawn in this talk: its own row first, then one for each other sample"""
    task: str
    """the task's name, for instance "retail/12" """
    _episode: Episode
    _policy: ModelSpeaker
    _partner: Speaker | None
    """None for a person"""
    _record: list[Spoken]

    def __init__(self, policy: LoadedTextPolicy, partner: str = YOU, seed: int = 0, alternatives: int = 3):
        if alternatives < 0:
            raise ScopeError(f"alternatives must be 0 or more, got {alternatives}")
        self.policy, self.alternatives = policy, alternatives
        text = policy.scene.config.text
        self.context = text.context or getattr(policy.model.model.config, "max_position_embeddings", None)
        super().__init__(partner, seed)

    @property
    def legend(self) -> str:
        others = "; below it stand other samples of the same place" if self.alternatives else ""
        return f"a message's probability is the geometric mean of its tokens' probabilities{others}"

    @property
    def revealed(self) -> str:
        return f"task {self.task}" if self.policy.scene.task.count("test") > 1 else ""

    def heading(self, number: int) -> str:
        return f"turn {number}"

    def sentence(self, said: str) -> str:
        return said

    def _checked(self, reply: str) -> str:
        if not reply.strip():
            raise ScopeError("say something")
        return reply.strip()

    def _begin(self) -> None:
        self._set_up()
        self._go_on()

    def _set_up(self) -> None:
        """A task and its seats, before anyone has spoken."""
        self.keys = RowKeys(self.seed, 0, np.full(1 + self.alternatives, self.talk), np.arange(1 + self.alternatives))
        scene, row = self.policy.scene, self.keys[np.array([0])]
        number = int(draw_tasks(scene.task.count("test"), row)[0])  # as in evaluation
        self._episode = scene.task.open(number, "test", self.policy.person(self.partner, row))
        systems, limit = self._episode.systems, scene.config.text.max_new_tokens
        self._policy = ModelSpeaker(AGENT, self.policy.model, self.keys, "policy", systems["policy"], limit)
        self._partner = None
        if not self.by_hand:
            self._partner = self.policy.speaker(self.partner, self.keys, systems["simulator"])
        self.told = systems["simulator"] if self.by_hand else ""
        self.task = self._episode.task
        self.turns, self.ending, self._record = [], None, []
        self._open_turn()

    def _go_on(self) -> None:
        """Let the policy speak, and its tools answer, until its partner is to speak or the talk is over."""
        while self._episode.next_seat == "policy":
            self._speak("policy", self._policy)
        if self._episode.next_seat is None:
            ended = self._episode.outcome
            self.ending = Ending(Message(OUTCOME, ended, ENDINGS[ended], {}), self._episode.reward)

    def _reply(self, reply: str) -> None:
        if self._partner:
            self._speak("simulator", self._partner)
        else:
            self._took(Spoken("simulator", Message(YOU, reply, reply, {}), self._policy.read))
        self._go_on()

    def _speak(self, seat: SeatName, speaker: Speaker) -> None:
        """The next message of a seat, or the end of a talk in which there can be none."""
        if self._episode.hears is not None:
            speaker.hear(self._episode.hears)
        if self.context is not None and speaker.needs() > self.context:
            self._episode.stop(CONTEXT)
            return
        message = speaker.speak(len(self._record))
        if isinstance(message, Unsaid):
            self._episode.stop(message.outcome)
        else:
            self._took(Spoken(seat, message, self._policy.read))

    def _took(self, spoken: Spoken) -> None:
        """Put a message into the episode and into the turns."""
        episode = self._episode
        self._record.append(spoken)
        episode.take(spoken.message.said)
        if spoken.seat == "simulator":
            self.turns[-1] = replace(self.turns[-1], reply=spoken.message)
        else:
            answered = len(episode.replies) == len(episode.acts)  # before any partner could speak
            answer = Message(TOOL, episode.replies[-1], episode.replies[-1], {}) if answered else None
            self.turns.append(Turn(spoken.message, answer))
        self._open_turn()

    def _open_turn(self) -> None:
        """A turn for what is to be answered and the policy has not sampled: a greeting, the question of a form."""
        asked, answered = self._episode.hears, not self.turns or self.turns[-1].reply
        if self._episode.next_seat == "simulator" and answered and asked is not None:
            self.turns.append(Turn(Message(AGENT if asked in self._episode.acts else FORM, asked, asked, {})))

    def _take_back(self) -> None:
        last = max(i for i, spoken in enumerate(self._record) if spoken.seat == "simulator")
        kept, transcript = self._record[:last], self._policy.row.transcripts[0]
        self._set_up()
        if kept:
            n = kept[-1].read
            before = (transcript.ids[:n], transcript.generated[:n], transcript.logprobs[:n], transcript.choices[:n])
            self._policy.resume(Transcript(*before))
        for spoken in kept:
            self._took(spoken)
