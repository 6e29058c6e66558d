"""Evaluation on the panel: one policy against every simulator and the scripted users, in one batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from scope_lite.envs.nano.users import BeliefUsers, ScriptedUsers, told_prior
from scope_lite.method.members import PanelMember, read_panel
from scope_lite.method.rollouts import run_dialogues
from scope_lite.method.seats import ModelSeat, RoutedSeat, ScriptedSeat, Seat
from scope_lite.method.simulators import Library, draw_prompts, draw_tasks, seat_simulator
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys

FIRST_GROUP = 1_000_000  # panel rows are keyed apart from training rows


class Panel:
    """The panel of a world. A member is *seen* if the run trained with it; that is a property of the run."""

    def __init__(self, library: Library, seen: tuple[str, ...]):
        self.world = library.world
        self.members = read_panel(self.world.name, library.folder.parent)
        self.seen = set(seen)
        self.models = {m.name: library.seat_model(m.model, m.sharpness) for m in self.members if m.model}

    def play(self, policy: SeatModel, run: int, step: int, dialogues: int) -> list[Rollout]:
        """``dialogues`` rollouts with each member, members in the panel's order."""
        n = len(self.members)
        keys = RowKeys(run, step, FIRST_GROUP + np.repeat(np.arange(n), dialogues), np.tile(np.arange(dialogues), n))
        parts: list[tuple[np.ndarray, Seat]] = []
        for i, member in enumerate(self.members):
            rows = np.arange(i * dialogues, (i + 1) * dialogues)
            parts.append((rows, self.seat(member, keys[rows])))
        names = [m.name for m in self.members for _ in range(dialogues)]
        tasks = draw_tasks(len(self.world.tasks), keys)
        seat = ModelSeat(policy, keys, "policy", [self.world.tasks[t] for t in tasks])
        return run_dialogues(self.world, seat, RoutedSeat(parts), keys, names)

    def seat(self, member: PanelMember, keys: RowKeys) -> Seat:
        """A member's seat for these rows."""
        if member.model is None:
            return ScriptedSeat(self.world, self._own_users(member, keys), keys)
        model = self.models[member.name]
        return seat_simulator(self.world, model, member.population, keys, keys, self.world.spec.outcome_by)

    def _own_users(self, member: PanelMember, keys: RowKeys) -> ScriptedUsers | BeliefUsers:
        """Scripted users, or (a member with another sharpness than 1) the exact simulator of its population."""
        prior, tasks = self.world.prior_vector(member.population), draw_tasks(len(self.world.tasks), keys)
        if member.kind == "scripted":
            return ScriptedUsers.sample(self.world, prior, keys.uniforms(0, "task")[:, 0], tasks)
        known = told_prior(self.world, prior, draw_prompts(self.world, prior, keys))
        return BeliefUsers(self.world, known, len(keys), member.sharpness, tasks)

    def metrics(self, rollouts: list[Rollout]) -> dict[str, float]:
        """Mean reward by member, and over the seen and the unseen simulators (scripted users apart)."""
        people = {m.name for m in self.members if m.kind == "scripted"}
        return member_rewards(rollouts, [m.name for m in self.members], self.seen, people)


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
