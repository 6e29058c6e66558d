"""Who plays the simulator in training. This is the frozen one: panel members, or prompts and samplings of them.

``cotraining.LearningPartner`` is one that learns. Either is asked who plays each row, seats them for a batch, and is
told how the batch went.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int
from torch import Tensor

from scope_lite.method.dialogue import Seat
from scope_lite.method.learner import Learner
from scope_lite.method.panel_file import PanelMember
from scope_lite.method.prompted import PromptedSeat
from scope_lite.method.scene import Scene
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys


class Played(NamedTuple):
    """The dialogues of one training step."""

    rollouts: list[Rollout]
    epsilon: float | None
    """collapse error of the simulator on the visited histories; None where its reply distribution is not known"""


def rotation(keys: RowKeys, members: int, draw: Literal["step", "group", "dialogue"]) -> Int[np.ndarray, " b"]:
    """The member of an ensemble that plays each row.

    Group g of step s is played by member (s * groups + g) mod K: a cyclic rotation that continues from step to step.
    The paper rotates over rollouts (``draw: dialogue``); here a group has one simulator, so that its rewards can be
    compared with each other.
    """
    if draw == "step":
        return np.full(len(keys), keys.step % members)
    turn = keys.step * (int(keys.group.max()) + 1) + keys.group
    return (turn + keys.member if draw == "dialogue" else turn) % members


class Partner:
    """Frozen simulators (the paper's Frozen, Persona, VS and Ensemble)."""

    newest: Seat
    """the simulators of the newest batch"""

    def __init__(self, scene: Scene, policy: Learner | None = None):
        """``policy`` is what a partner in self-play learns with."""
        self.scene, self.settings = scene, scene.config.simulator
        self.members = scene.training_members
        self._load(policy)

    def _load(self, policy: Learner | None) -> None:
        self.scene.prepare(self.members, "train")

    def play(self, policy: SeatModel, keys: RowKeys) -> Played:
        """One batch of training.

        Raises:
            ScopeError: no dialogue counts.
        """
        rollouts = self.scene.converse(policy, keys, self.playing(keys), self.seat, "train")
        return Played(rollouts, self.scene.epsilon(self.newest))

    def playing(self, keys: RowKeys) -> list[PanelMember]:
        """The simulator of each row."""
        return [self.members[i] for i in rotation(keys, len(self.members), self.settings.draw)]

    def seat(self, keys: RowKeys, systems: Sequence[str]) -> Seat:
        """The simulators of these rows, under their system prompts."""
        self.newest = self.scene.seat_members(self.playing(keys), keys, systems, "train")
        return self.newest

    def learn(self, step: int, rollouts: Sequence[Rollout], keys: RowKeys) -> dict[str, float | None]:
        """A frozen simulator learns nothing; how it spoke in this step, where it was asked for its words."""
        return self.newest.metrics() if isinstance(self.newest, PromptedSeat) else {}

    def answers(self) -> dict[str, float]:
        """Where the mode stands is worth drawing only when it can move."""
        return {}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors by part, for a checkpoint."""
        return {}

    def load_state(self, parts: Mapping[str, dict[str, Tensor]]) -> None:
        """Go on from a checkpoint."""
