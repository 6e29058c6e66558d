"""The state of one Persuasion-for-Good dialogue: who speaks next, what they hear, how it ended, what was given.

The persuader ("policy") opens and the persuadee ("simulator") answers, in turn. It is over after the last turn, or when
either ends a message with a farewell and the persuadee has answered. The reward is the donation that the persuadee's
own words state, read by ``donation.read_pledge`` and divided by the payment: 0.5 is one dollar of two. In the study a
form asked for the donation when the chat was over; ``question`` stands for that form, and only the persuadee hears it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from scope_lite.envs.donation import PAYMENT, read_pledge
from scope_lite.envs.turns import SeatName, TurnEpisode

GIVEN, NOTHING, UNREAD = "given", "nothing", "unread"
"""How a finished dialogue ended: with a donation above 0, with a stated 0, or with no amount that could be read."""
OUTCOMES = (GIVEN, NOTHING, UNREAD)

_FAREWELL = re.compile(
    r"(?:(?:ok|okay|well|so|then|now|please|yes|great|cool|alright|no problem|thanks?|very|much|take care|i|hope|that|"
    r"u|you|your|you re|welcome|also) )*"
    r"(?:good ?bye|bye(?: bye)?|farewell|see you (?:later|soon|around)"
    r"|(?:have|wish you) an? (?:\w+ )?(?:nice|good|great|wonderful|lovely) (?:rest of your )?"
    r"(?:day|evening|night|afternoon|weekend|time|one))"
    r"(?: (?:then|now|for now|to you|you|too|as well|everyone|all|ahead|again|take care))*"
)
_COURTESY = re.compile(
    r"(?:(?:once )?(?:again )?thanks?|(?:you )?take care|god bless|be well|stay safe|good luck|all the best|cheers|"
    r"you too|(?:it|this) was (?:nice|great|good|fun)|(?:nice|great|good) (?:to|talking|chatting))\b"
)


def says_goodbye(message: str) -> bool:
    """Whether a message ends with a farewell: a clause of its own, and nothing but courtesies after it.

    "Say goodbye to hunger" and "I hope you have a great day so far" are none, so that no phrase in a pitch ends a talk.
    """
    plain = unicodedata.normalize("NFKC", message).casefold().strip()
    if plain[:1] == plain[-1:] == '"':  # the whole message in quotation marks; a part of it is somebody else's word
        plain = plain[1:-1]
    for clause in reversed(re.split(r"(?<=[.!?;,…\n])|\band\b|—|–| - ", plain)):
        words = " ".join(re.sub(r"[^\w\s?\"“”]|(?<=[:;=])[dp]\b", " ", clause).split())
        if _FAREWELL.fullmatch(words):
            return True
        if words and ("?" in words or not _COURTESY.match(words)):
            return False
    return False


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
        over = self.turns >= self.max_turns or says_goodbye(self.acts[-1]) or says_goodbye(message)
        if not over:
            self.next_seat, self.hears = "policy", message
        elif self.question and not self._asked:
            self._asked, self.hears = True, self.question
        else:
            self.stop(UNREAD if self.donation is None else GIVEN if self.donation > 0 else NOTHING)

    @property
    def donation(self) -> float | None:
        """The last amount that the persuadee has stated so far, dollars from 0 to 2; None if none."""
        return read_pledge(self.replies, asked=len(self.replies) > len(self.acts))

    def _earned(self) -> float:
        """The donation as a share of the payment; 0 where none could be read."""
        return (self.donation or 0.0) / PAYMENT if self.outcome in OUTCOMES else 0.0
