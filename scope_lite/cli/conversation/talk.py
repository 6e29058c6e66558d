"""One dialogue, one message at a time, with everything else that might have been said, and how likely it was.

The episode and the seats are those of evaluation (held-out tasks) or training: the episode says who speaks next, what
they hear, when it is over and what it earned, and the probabilities shown are those that are sampled from. Randomness
is keyed by (seed, number of the talk, message): the same seed and replies give the same talk, however many other
samples are shown, and after ``undo`` whatever changes is due to the other reply. In tau2-bench several tool calls may
come between two messages of the customer; each is a turn that a tool answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scope_lite.cli.conversation.messages import AGENT, OUTCOME, YOU, Ending, Message, Turn
from scope_lite.cli.conversation.policy import NanoPolicy, TextPolicy
from scope_lite.cli.conversation.speakers import PolicySpeaker, Speaker
from scope_lite.envs.turns import SeatName
from scope_lite.method.dialogue import CONTEXT, TEXT, Episode, Unsaid
from scope_lite.method.scene import draw_tasks
from scope_lite.models.records import FAILED, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError, closest

FORM, TOOL = "form", "tool"
"""speakers that are neither side: what is asked when the chat is over (p4g), and what a tool answers (tau2)"""
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
"""what each outcome of an episode in text means"""


class Spoken(NamedTuple):
    """A message of one of the two seats."""

    seat: SeatName
    message: Message
    read: int
    """tokens of the policy's transcript after it"""


class Conversation:
    """A talk with a policy: you answer it yourself, or a simulator does.

    With you it ends as the world says: a nano world weighs which of its real users (P_real) would have said what you
    said. In text you are told what a simulator in your place would be told.
    """

    keys: RowKeys
    """of everything that is drawn in this talk: its own row first, then one for each other sample"""
    task: str
    """its name, for instance "retail/12"; at nano what the policy alone is told"""
    told: str
    """what you alone are told before it begins; empty where that is nothing"""
    turns: list[Turn]
    ending: Ending | None
    _episode: Episode
    _policy: PolicySpeaker
    _partner: Speaker
    _record: list[Spoken]

    def __init__(self, policy: NanoPolicy | TextPolicy, partner: str = YOU, seed: int = 0, alternatives: int = 3):
        """Begin a talk.

        Args:
            partner: who answers, a name out of ``policy.partners``.
            seed: the same seed and replies give the same talk.
            alternatives: in text, how many other samples stand beside a message; acts are few, and all of them do.

        Raises:
            ScopeError: for a partner that does not exist, or a negative number of alternatives.
        """
        if alternatives < 0:
            raise ScopeError(f"alternatives must be 0 or more, got {alternatives}")
        self.policy, self.partner, self.seed, self.talk = policy, partner, seed, 0
        self.replies = policy.replies
        self.rows = 1 if self.replies else 1 + alternatives
        self._begin()

    @property
    def by_hand(self) -> bool:
        """Whether a person answers."""
        return self.partner == YOU

    @property
    def legend(self) -> str:
        """How to read the probabilities, where that needs a word."""
        others = "; below it stand other samples of the same place" if self.rows > 1 else ""
        shown = f"a message's probability is the geometric mean of its tokens' probabilities{others}"
        return "" if self.replies else shown

    @property
    def revealed(self) -> str:
        """What is told of the task when the talk is over, to read; empty where that is nothing."""
        return self.policy.revealed(self.task)

    def heading(self, number: int) -> str:
        """What stands above turn ``number``, counted from 1."""
        return f"turn {number}" + (f" of {self.policy.horizon}" if self.policy.horizon else "")

    def sentence(self, said: str) -> str:
        """A message that might be said, to read."""
        return self.policy.sentence(said)

    @property
    def transcript(self) -> str:
        """The talk so far, to read: one message after the other, and the outcome."""
        lines = [message.line for turn in self.turns for message in (turn.act, turn.reply) if message]
        if self.ending:
            lines.append(f"{self.ending.outcome.line} (reward {self.ending.reward:.2f})")
        return "\n".join(lines)

    # -- what can be done -------------------------------------------------------------------------------------------

    def say(self, reply: str | None = None) -> Turn | None:
        """Answer the last act with ``reply`` (a simulator needs none), and hear the next act.

        Returns:
            The open turn, or None when the talk is over; then ``ending`` says how.

        Raises:
            ScopeError: if the talk is over, or the reply is none that can be given.
        """
        if self.ending is not None:
            raise ScopeError("the talk is over; undo, or restart")
        if not self.by_hand and reply is not None:
            raise ScopeError(f"{self.partner} answers by itself")
        if self.by_hand:
            self._partner.reply = self._checked((reply or "").strip())
        self._speak("simulator", self._partner)
        self._go_on()
        return self.turns[-1] if self.ending is None else None

    def _checked(self, reply: str) -> str:
        if self.replies and reply not in self.replies:
            raise ScopeError(closest(reply, list(self.replies), "reply"))
        if not reply:
            raise ScopeError("say something")
        return reply

    def undo(self) -> Turn:
        """Take back your last reply; the act that it answered is open again, and is returned.

        Raises:
            ScopeError: if there is none, or a simulator answers (it would say the same again).
        """
        if not self.by_hand:
            raise ScopeError(f"{self.partner} would say the same again; restart begins another talk")
        own = [i for i, spoken in enumerate(self._record) if spoken.message.speaker == YOU]
        if not own:
            raise ScopeError("nothing to take back")
        kept, transcript = self._record[: own[-1]], self._policy.row.transcripts[0]
        self._set_up()
        if kept:  # the policy need not speak again: it goes on from where its transcript then ended
            n = kept[-1].read
            before = (transcript.ids[:n], transcript.generated[:n], transcript.logprobs[:n], transcript.choices[:n])
            self._policy.row.resume([Transcript(*before)])
        for spoken in kept:
            if spoken.seat == "simulator":
                self._partner.reply = spoken.message.said
                self._heard(self._partner)
                self._partner.speak(self._number, self._episode.kind)
            self._took(spoken)
        return self.turns[-1]

    def restart(self) -> None:
        """Begin another talk, with a draw of its own."""
        self.talk += 1
        self._begin()

    # -- how it goes on ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._set_up()
        self._go_on()

    def _set_up(self) -> None:
        """A task and its seats, before anyone has spoken."""
        self.keys = RowKeys(self.seed, 0, np.full(self.rows, self.talk), np.arange(self.rows))
        scene, row = self.policy.scene, self.keys[np.array([0])]
        number = int(draw_tasks(scene.tasks("test"), row)[0])  # as in evaluation
        self._episode = scene.episode(number, "test", self.policy.told(self.partner, row))
        systems = self._episode.systems
        self._policy = self.policy.policy_speaker(self.keys, systems["policy"])
        self._partner = self.policy.partner_speaker(self.partner, self.keys, systems["simulator"])
        self.told = self.policy.briefing(systems["simulator"]) if self.by_hand else ""
        self.task = self._episode.task
        self.turns, self.ending, self._record = [], None, []
        self._open_turn()

    def _go_on(self) -> None:
        """Let the policy speak, and its tools answer, until its partner is to speak or the talk is over."""
        while self._episode.next_seat == "policy":
            self._speak("policy", self._policy)
        if self._episode.next_seat and self._episode.kind == "outcome":
            self._speak("simulator", self._partner)
        if self._episode.next_seat is None:
            ended, last = self._episode.outcome, self._record[-1].message if self._record else None
            if last is None or last.speaker != OUTCOME:
                last = Message(OUTCOME, ended, ENDINGS[ended], {})
            self.ending = Ending(last, self._episode.reward, self.policy.expected_reward(last.probabilities))

    @property
    def _number(self) -> int:
        """Of the next message among those of its seat, as ``run_dialogues`` counts for its random numbers."""
        return len(self._record) if self._episode.kind == TEXT else len(self._record) // 2

    def _heard(self, speaker: Speaker) -> None:
        if self._episode.hears is not None:
            speaker.hear(self._episode.hears)

    def _speak(self, seat: SeatName, speaker: Speaker) -> None:
        """The next message of a seat, or the end of a talk in which there can be none."""
        self._heard(speaker)
        context = self.policy.scene.context(self.policy.model)
        if context is not None and speaker.needs() > context:
            self._episode.stop(CONTEXT)
            return
        message = speaker.speak(self._number, self._episode.kind)
        if isinstance(message, Unsaid):
            self._episode.stop(message.outcome)
        else:
            self._took(Spoken(seat, message, self._policy.read))

    def _took(self, spoken: Spoken) -> None:
        """Put a message into the episode and into the turns."""
        episode = self._episode
        self._record.append(spoken)
        episode.take(spoken.message.said)
        if spoken.message.speaker == OUTCOME:
            return
        if spoken.seat == "simulator":
            self.turns[-1] = replace(self.turns[-1], reply=spoken.message)
        else:
            answered = len(episode.replies) == len(episode.acts)  # before any partner could speak
            answer = Message(TOOL, episode.replies[-1], episode.replies[-1], {}) if answered else None
            self.turns.append(Turn(spoken.message, answer))
        self._open_turn()

    def _open_turn(self) -> None:
        """A turn for what is to be answered and the policy has not sampled: a greeting, the question of a form."""
        episode, answered = self._episode, not self.turns or self.turns[-1].reply
        asked = episode.hears if episode.kind == TEXT and episode.next_seat == "simulator" else None
        if answered and asked is not None:
            self.turns.append(Turn(Message(AGENT if asked in episode.acts else FORM, asked, asked, {})))
