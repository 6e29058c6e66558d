"""One dialogue of a nano world: act and reply in turn, then the outcome; one word a message."""

from __future__ import annotations

from collections.abc import Mapping

from scope_lite.envs.nano.spec import World
from scope_lite.envs.turns import SeatName, TurnEpisode

CLOSE = "close"
"""what the user hears when the turns are over, and answers with an outcome"""


class NanoEpisode(TurnEpisode):
    """The policy acts and the simulator replies, ``world.horizon`` times; the simulator's last word is the outcome."""

    kind = "act"
    """what kind of word comes next: "act", "reply" or "outcome" """
    hears: str | None = None

    def __init__(self, world: World, systems: Mapping[str, str]):
        """``systems``: the system prompt of the "policy", which is its task's name in records, and the "simulator"."""
        super().__init__(systems["policy"], opens="policy")
        self.world, self.systems = world, systems

    def _turn(self, seat: SeatName, message: str) -> None:
        if self.kind == "act":
            self.acts.append(message)
            self.next_seat, self.kind, self.hears = "simulator", "reply", message
        elif self.kind == "outcome":
            self.stop(message)
        else:
            self.replies.append(message)
            if len(self.replies) < self.world.horizon:
                self.next_seat, self.kind, self.hears = "policy", "act", message
            else:
                self.kind, self.hears = "outcome", CLOSE

    @property
    def turns(self) -> int:
        """Turns that counted."""
        return self.world.spec.turns(tuple(zip(self.acts, self.replies, strict=False)))

    def _earned(self) -> float:
        """The world's value of the outcome."""
        return dict(zip(self.world.spec.outcomes, self.world.spec.rewards, strict=True))[self.outcome]
