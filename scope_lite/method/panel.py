"""Evaluation on the panel: one policy against every simulator and the scripted users, in one batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from scope_lite.method.dialogue import Seat
from scope_lite.method.prompted import PromptedSeat, shares
from scope_lite.method.scene import Scene
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys

FIRST_GROUP = 1_000_000  # panel rows are keyed apart from training rows


class Panel:
    """The panel of a world. A member is *seen* if the run trained with it; that is a property of the run."""

    newest: Seat
    """the simulators of the newest evaluation"""

    def __init__(self, scene: Scene, seen: Collection[str]):
        self.scene, self.members, self.seen = scene, scene.members, set(seen)
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

        return self.scene.converse(policy, keys, playing, seat, "test")

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """``panel/<name>/reward`` of each member; ``panel/seen/reward`` and ``panel/unseen/reward``, means over the
        simulators (scripted users apart); what did not pass the gate, if anything.

        Dialogues that do not count are left out, and so is a member or a mean that has none.
        """
        by_name = {m.name: [r.reward for r in rollouts if r.simulator == m.name and r.counts] for m in self.members}
        mean = {name: float(np.mean(rewards)) for name, rewards in by_name.items() if rewards}
        metrics = {f"panel/{name}/reward": value for name, value in mean.items()}
        simulators = [m.name for m in self.members if m.kind != "scripted" and m.name in mean]
        seen, unseen = ([n for n in simulators if (n in self.seen) == known] for known in (True, False))
        for group, members in (("seen", seen), ("unseen", unseen)):
            if members:
                metrics[f"panel/{group}/reward"] = float(np.mean([mean[n] for n in members]))
        if isinstance(self.newest, PromptedSeat) and (refused := self.newest.refused):
            metrics |= shares("panel/refused", refused, len(self.newest.direct) + refused.total())
        return metrics
