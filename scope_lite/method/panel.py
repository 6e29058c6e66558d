"""Evaluation on the panel: one policy against every simulator and the scripted users, in one batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Generic

import numpy as np

from scope_lite.method.dialogue import Seat
from scope_lite.method.panel_file import M
from scope_lite.method.prompted import PromptedSeat, shares
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys

if TYPE_CHECKING:
    from scope_lite.method.scene import Scene

FIRST_GROUP = 1_000_000  # panel rows are keyed apart from training rows


class Panel(Generic[M]):
    """The panel of a world. A member is *seen* if the run trained with it; that is a property of the run."""

    newest: Seat | None = None
    """the simulators of the newest evaluation"""

    def __init__(self, scene: Scene[M], seen: Collection[str]):
        self.scene: Scene[M] = scene
        self.members: Sequence[M] = scene.members
        self.seen = set(seen)
        scene.prepare(self.members, "test")

    def play(self, policy: SeatModel, run: int, step: int, dialogues: int) -> list[Rollout]:
        """``dialogues`` rollouts with each member, members in the panel's order.

        Raises:
            ScopeError: no dialogue counts.
        """
        n = len(self.members)
        keys = RowKeys(run, step, FIRST_GROUP + np.repeat(np.arange(n), dialogues), np.tile(np.arange(dialogues), n))
        playing = [member for member in self.members for _ in range(dialogues)]

        def seat(rows: RowKeys, systems: Sequence[str]) -> Seat:
            self.newest = self.scene.seat_members(playing, rows, systems, "test")
            return self.newest

        rollouts = self.scene.converse(policy, keys, playing, seat, "test")
        asked = self.newest if isinstance(self.newest, PromptedSeat) else None
        if asked:
            self.scene.require_counted(rollouts, f"the evaluation at step {step}", asked.failures())
        return rollouts

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Mean reward by member, and over the seen and the unseen simulators (scripted users apart); what did not pass
        the gate, if anything."""
        people = {m.name for m in self.members if m.kind == "scripted"}
        rewards = member_rewards(rollouts, [m.name for m in self.members], self.seen, people)
        asked = self.newest if isinstance(self.newest, PromptedSeat) else None
        if not asked or not asked.refused:
            return rewards
        return rewards | shares("panel/refused", asked.refused, len(asked.direct) + asked.refused.total())


def member_rewards(
    rollouts: Sequence[Rollout], names: Sequence[str], seen: Collection[str], people: Collection[str] = ()
) -> dict[str, float]:
    """``panel/<name>/reward`` of each member, and its means over the seen and the unseen simulators.

    ``people`` are members that are no simulators. Dialogues that do not count are left out, and so is a member or a
    mean that has none.
    """
    by_name: dict[str, list[float]] = {name: [] for name in names}
    for r in rollouts:
        if r.counts:
            by_name[r.simulator].append(r.reward)
    mean = {name: float(np.mean(rewards)) for name, rewards in by_name.items() if rewards}
    simulators = [name for name in mean if name not in people]
    groups = {"seen": [n for n in simulators if n in seen], "unseen": [n for n in simulators if n not in seen]}
    metrics = {f"panel/{name}/reward": value for name, value in mean.items()}
    for group, members in groups.items():
        if members:
            metrics[f"panel/{group}/reward"] = float(np.mean([mean[n] for n in members]))
    return metrics
