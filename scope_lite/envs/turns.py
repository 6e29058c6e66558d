"""What the episodes of all tasks in text share: whose turn it is, an end, and a reward that waits for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Literal

SeatName = Literal["policy", "simulator"]


class TurnEpisode(ABC):
    """One episode, for ``method.dialogue.run_dialogues``; a task says what a turn does and what it earned."""

    kind = ""
    """what kind of message comes next; "": any text"""

    def __init__(self, task: str, opens: SeatName):
        self.task = task
        """its name in records"""
        self.acts: list[str] = []
        """every message of the policy, as it wrote them"""
        self.replies: list[str] = []
        self.outcome = ""
        self.next_seat: SeatName | None = opens

    def take(self, message: str) -> None:
        """The message of the seat whose turn it is.

        Raises:
            RuntimeError: the episode is over.
        """
        if self.next_seat is None:
            raise RuntimeError(f"episode {self.task} is over ({self.outcome}): nobody is to speak")
        self._turn(self.next_seat, message)

    def stop(self, outcome: str) -> None:
        """End it now."""
        self.outcome, self.next_seat = outcome, None

    @cached_property
    def reward(self) -> float:
        """What it earned, in [0, 1]; 0 where it was stopped before its own end.

        Raises:
            RuntimeError: the episode is not over.
        """
        if self.next_seat is not None:
            raise RuntimeError(f"episode {self.task} is not over: it has no reward yet")
        return self._earned()

    @abstractmethod
    def _turn(self, seat: SeatName, message: str) -> None: ...

    @abstractmethod
    def _earned(self) -> float:
        """The reward of an episode that is over; asked once."""
