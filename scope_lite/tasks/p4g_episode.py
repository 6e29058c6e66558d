"""The state of one Persuasion-for-Good dialogue: who speaks next, what they hear, how it ended, what was given.

The persuader ("policy") opens and the persuadee ("simulator") answers, in turn. It is over after the last turn, or when
either says goodbye and the persuadee has answered. The reward is the donation that the persuadee's own words state,
read by ``donation.read_pledge`` and divided by the payment: 0.5 is one dollar of two. In the study a form asked for
the donation when the chat was over; ``question`` stands for that form, and only the persuadee hears it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from scope_lite.tasks.donation import PAYMENT, read_pledge
from scope_lite.tasks.turns import SeatName, TurnEpisode

GIVEN, NOTHING, UNREAD = "given", "nothing", "unread"
"""How a finished dialogue ended: with a donation above 0, with a stated 0, or with no amount that could be read."""
OUTCOMES = (GIVEN, NOTHING, UNREAD)

GOODBYE = re.compile(
    r"\b(?:good-? ?bye|bye(?:[ -]bye)?|farewell|see you (?:later|soon|around)"
    r"|have an? (?:\w+ )?(?:nice|good|great|wonderful|lovely) (?:day|evening|night|afternoon|weekend|time|one))\b",
    re.IGNORECASE,
)


class P4GEpisode(TurnEpisode):
    """One dialogue. ``replies[i]`` answers ``acts[i]``; with a question, its answer stands last."""

    def __init__(self, task: str, systems: Mapping[str, str], turns: int = 10, question: str | None = None):
        """An episode at its beginning: the persuader is to speak.

        Args:
            systems: the system prompt of the "policy" and of the "simulator".
            turns: messages of the persuader, at most.
            question: what the persuadee hears when the dialogue is over; None asks nothing.
        """
        super().__init__(task, opens="policy")
        self.systems, self.max_turns, self.question = systems, turns, question
        self.turns = 0
        self.hears: str | None = None
        self._asked = False

    def _turn(self, seat: SeatName, message: str) -> None:
        if seat == "policy":
            self.turns += 1
            self.acts.append(message)
            self.next_seat, self.hears = "simulator", message
            return
        self.replies.append(message)
        over = self.turns >= self.max_turns or any(GOODBYE.search(said) for said in (self.acts[-1], message))
        if not over:
            self.next_seat, self.hears = "policy", message
        elif self.question and not self._asked:
            self._asked, self.hears = True, self.question
        else:
            self.stop(UNREAD if self.donation is None else GIVEN if self.donation > 0 else NOTHING)

    @property
    def donation(self) -> float | None:
        """The last amount that the persuadee has stated so far, dollars from 0 to 2; None if none."""
        return read_pledge(self.replies)

    def _earned(self) -> float:
        """The donation as a share of the payment; 0 where none could be read."""
        return (self.donation or 0.0) / PAYMENT if self.outcome in OUTCOMES else 0.0
