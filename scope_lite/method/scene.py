"""Where the dialogues of a run happen, whatever the scale: ``nano`` has worlds of dialogue acts, ``text`` real text.

What differs by scale is abstract here; how a batch is put together and played is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Int

from scope_lite.method.config import START_SHARPNESS, RunConfig
from scope_lite.method.dialogue import Episode, Seat, run_dialogues, seat_systems
from scope_lite.method.panel_file import PanelMember
from scope_lite.method.sampling import SamplingRule, at_temperature
from scope_lite.method.seats import failures_of
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError, closest

Split = Literal["train", "test"]
"""training, where a group shares its task and its simulator, or evaluation on the panel, where every dialogue is its
own"""
SeatOf = Callable[[RowKeys, Sequence[str]], Seat]
"""seats simulators under their system prompts"""
NOTHING_COUNTS = {
    "learns": "the simulator that learns says nothing that can be used ({reasons}); start from a larger model",
    "lists": "{tries} times in a row no list of the verbalized simulator could be read ({reasons}); set text.grammar "
    "to true, or text.simulator_model to a larger one",
    "asked": "{tries} times in a row the simulator said nothing that can be used ({reasons}); switch the thoughts of "
    "its model off, raise text.reply_tokens, or set text.simulator_model to another one",
}
"""why no dialogue of a batch counts, by how the simulator speaks, and what to do about it"""


def draw_tasks(count: int, keys: RowKeys) -> Int[np.ndarray, " b"]:
    """The task of each row, uniform over ``count``; from ``keys.by_group()`` it is one for a whole group."""
    return (keys.once("task") * count).astype(int)


class Scene(ABC):
    """One world at one scale. Making it looks up every name of the config, before anything is written for a run."""

    config: RunConfig
    threads: int | None
    """of torch, for the run; None leaves it as it is"""
    number_format: str
    """what the models compute in"""
    members: Sequence[PanelMember]
    """the world's panel"""

    @property
    def training_members(self) -> list[PanelMember]:
        """Those who play the simulator in training; a simulator that learns starts as the first of them."""
        settings = self.config.simulator
        if settings.kind == "self":
            return [self.in_both_seats]
        if settings.kind == "trained" and settings.start == "policy":
            return [replace(self.in_both_seats, name="copy", sharpness=START_SHARPNESS)]
        return [self.member(name) for name in settings.members]

    @property
    def policy_sharpness(self) -> float:
        """In self-play the policy's model is the simulator's, too."""
        simulator, own = self.config.simulator, 1 / self.config.temperature
        return (simulator.sharpness or own) if simulator.kind == "self" else own

    def policy_rule(self, split: Split) -> SamplingRule:
        """How the policy's words are drawn."""
        return at_temperature(self.config.eval_temperature if split == "test" else None)

    def draw_tasks(self, keys: RowKeys, split: Split) -> Int[np.ndarray, " b"]:
        """The task of each row; in training, of those that the run has."""
        count = self.tasks(split)
        return draw_tasks(min(count, self.config.tasks or count) if split == "train" else count, keys)

    def member(self, name: str) -> PanelMember:
        """The member of that name, as one to train with.

        Raises:
            ScopeError: the panel has none.
        """
        found = {member.name: member for member in self.members}
        if name not in found:
            raise ScopeError(closest(name, list(found), "simulator"))
        return found[name]

    def converse(
        self,
        policy: SeatModel,
        keys: RowKeys,
        playing: Sequence[PanelMember],
        seat: SeatOf,
        split: Split,
    ) -> list[Rollout]:
        """Play every row to its end.

        Args:
            playing: the simulator of each row.
            seat: seats them.

        Raises:
            ScopeError: no dialogue counts, so nothing was measured.
        """
        shared = keys.by_group() if split == "train" else keys
        tasks, told = self.draw_tasks(shared, split), self.told(playing, shared, split)
        names = [member.name for member in playing]
        rollouts, simulators = self.run(policy, keys, names, seat, tasks.tolist(), told, split)
        self.played(rollouts)
        if not any(r.counts for r in rollouts):
            when = f"step {keys.step}" if split == "train" else f"the evaluation at step {keys.step}"
            raise ScopeError(f"no dialogue of {when} counts: {self._why(failures_of(simulators), split)}")
        return rollouts

    def run(
        self,
        policy: SeatModel,
        keys: RowKeys,
        names: Sequence[str],
        seat: SeatOf,
        tasks: Sequence[int],
        told: Sequence[str],
        split: Split,
    ) -> tuple[list[Rollout], Seat]:
        """Dialogues on these tasks, with simulators that are told this of themselves; and the simulators' seat."""
        episodes = [self.episode(task, split, text) for task, text in zip(tasks, told, strict=True)]
        agents = self.seat_model(policy, keys, seat_systems(episodes, "policy"), split)
        simulators = seat(keys, seat_systems(episodes, "simulator"))
        return run_dialogues(episodes, agents, simulators, keys, names, self.context(policy)), simulators

    def _why(self, failures: Counter[str], split: Split) -> str:
        kind = self.config.simulator.kind if split == "train" else "frozen"
        how = {"trained": "learns", "self": "learns", "verbalized": "lists"}.get(kind, "asked")
        reasons = ", ".join(f"{reason} {count}" for reason, count in failures.most_common())
        return NOTHING_COUNTS[how].format(reasons=reasons, tries=self.config.text.retries + 1)

    # -- what differs by scale ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def in_both_seats(self) -> PanelMember:
        """The simulator of self-play: the policy's own model, speaking for the world's users."""

    @abstractmethod
    def policy_model(self) -> SeatModel:
        """A model that can be given an adapter."""

    @abstractmethod
    def simulator_model(self, member: PanelMember) -> SeatModel:
        """The model that a simulator which learns starts as."""

    @abstractmethod
    def prepare(self, members: Sequence[PanelMember], split: Split) -> None:
        """Load what these members speak with, so that what cannot be read is told before the run begins."""

    @abstractmethod
    def tasks(self, split: Split) -> int:
        """How many tasks there are."""

    @abstractmethod
    def told(self, playing: Sequence[PanelMember], shared: RowKeys, split: Split) -> list[str]:
        """What each row's simulator is told of itself; ``shared`` are keys of what is drawn once for a group."""

    @abstractmethod
    def episode(self, task: int, split: Split, told: str) -> Episode:
        """A dialogue at its beginning."""

    @abstractmethod
    def seat_model(self, model: SeatModel, keys: RowKeys, systems: Sequence[str], split: Split) -> Seat:
        """The policy's seat."""

    @abstractmethod
    def seat_learner(self, member: PanelMember, model: SeatModel, keys: RowKeys, systems: Sequence[str]) -> Seat:
        """A simulator that learns, or a past self of it; it started as ``member``."""

    @abstractmethod
    def seat_members(self, playing: Sequence[PanelMember], keys: RowKeys, systems: Sequence[str], split: Split) -> Seat:
        """Frozen simulators, one a row."""

    @abstractmethod
    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float | None]:
        """What only this kind of world can tell of the dialogues of a step."""

    def context(self, policy: SeatModel) -> int | None:
        """Tokens that a transcript may hold; None: no limit."""
        return None

    def played(self, rollouts: Sequence[Rollout]) -> None:
        """The dialogues of a batch are over; at nano nothing follows."""
        return

    def epsilon(self, simulators: Seat) -> float | None:
        """Mean collapse error of what these simulators said; None where their reply distribution is not known."""
        return None

    def answers(self, member: PanelMember, model: SeatModel) -> dict[str, float]:
        """Where the mode of a simulator that learns stands, if its replies can be listed."""
        return {}

    def forget(self, model: SeatModel) -> None:
        """A past self that will speak no more."""
        model.release()
