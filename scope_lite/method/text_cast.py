"""Who plays the simulators of a text world: prompted models in training, a model that learns, and the panel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Int
from pydantic import Field

from scope_lite.method.cotraining import TrainedSimulator
from scope_lite.method.episodes import EpisodeSeat
from scope_lite.method.learner import Learner
from scope_lite.method.members import EXACT, read_members
from scope_lite.method.panel import FIRST_GROUP, member_rewards
from scope_lite.method.prompted import PromptedSeat, shares
from scope_lite.method.seats import GatedSeat, RoutedSeat
from scope_lite.method.simulators import FrozenCast, rotation
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys
from scope_lite.store.settings import Name, Place

if TYPE_CHECKING:
    from scope_lite.method.text import TextScene

Partner = Callable[[RowKeys, list[str]], EpisodeSeat]
"""seats the simulators of some rows under their system prompts"""


@dataclass(frozen=True)
class TextMember:
    """One simulator of a text panel, as its file lists it (the file says what each key means)."""

    __pydantic_config__ = EXACT

    name: Name
    kind: str
    model: Place | None
    temperature: Annotated[float, Field(gt=0)]
    about: str
    personas: bool


def read_text_panel(path: Path) -> list[TextMember]:
    return read_members(TextMember, path)


class TextCast(FrozenCast):
    """The frozen simulators of training: which plays which group, and what it is told of its person."""

    def __init__(self, scene: TextScene):
        self.scene, self.config = scene, scene.config.simulator
        self.members = [scene.member(name) for name in self.config.members]
        self.voices = [scene.voice(m, in_training=True) for m in self.members]
        self._newest: PromptedSeat | None = None
        """the simulators of the newest step"""

    def roles(self, keys: RowKeys) -> tuple[list[str], list[str]]:
        """Name and person of each row's simulator; a group has one persona."""
        playing = [self.members[i] for i in rotation(keys, len(self.members), self.config.draw)]
        about = [member.about for member in playing]
        if self.config.kind == "persona":
            about = draw_personas(self.scene.task.personas["train"], keys.by_group())
        return [member.name for member in playing], about

    def seat(self, keys: RowKeys, systems: list[str]) -> PromptedSeat:
        """The simulators of these rows."""
        voices = [self.voices[i] for i in rotation(keys, len(self.members), self.config.draw)]
        self._newest = PromptedSeat(voices, systems, keys)
        return self._newest

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, float | None]:
        """A prompted simulator learns nothing; how it spoke in this step."""
        return self._newest.metrics() if self._newest else {}

    def failures(self) -> Counter[str]:
        """What the newest step's simulators gave that could not be used, by reason."""
        return self._newest.failures() if self._newest else Counter()


class TrainedTextCast(TrainedSimulator):
    """A simulator in text that learns: it starts as a member of the panel, prompt, sharpness and model.

    Unlike a prompted one it writes a transcript of its own, whose tokens it is trained on. In self-play the policy's
    adapter speaks under the simulator's prompt. A message that does not pass the gate ends its dialogue
    (``seats.GatedSeat``), which counts for neither seat: neither is paid for it, and neither is trained on it.
    """

    _newest: RoutedSeat | None = None
    """the simulators of the newest step"""

    def __init__(self, scene: TextScene, policy: Learner):
        settings, self.scene = scene.config.simulator, scene
        member = None if settings.kind == "self" else scene.member(settings.members[0])
        self.name, self.about = (member.name, member.about) if member else ("self", "")
        model = member.model if member and member.model else scene.config.text.simulator_model
        sharpness = settings.sharpness or (1 / member.temperature if member else 1.0)
        super().__init__(scene.config, policy, lambda: scene.seat_model(model, sharpness))

    def roles(self, keys: RowKeys) -> tuple[list[str], list[str]]:
        """Name and person of each row's simulator."""
        return [self.name] * len(keys), [self.about] * len(keys)

    def seat(self, keys: RowKeys, systems: list[str]) -> RoutedSeat:
        """The pool entries that play these rows."""

        def one(model: SeatModel, rows: Int[np.ndarray, " r"]) -> EpisodeSeat:
            seat = self.scene.model_seat(model, keys[rows], "simulator", [systems[row] for row in rows])
            return GatedSeat(seat, model)

        self._newest = self.routed(keys, one)
        return self._newest

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, Any]:
        """One update on the batch, and the share of messages that did not pass the gate."""
        spoken = self._messages()
        refused = shares("simulator/refused", self.failures(), len(spoken)) if spoken else {}
        return {**super().learn(step, rollouts, keys), **refused}

    def failures(self) -> Counter[str]:
        """Messages of the newest step that did not pass the gate, by reason."""
        return Counter(failure for failure in self._messages() if failure)

    def _messages(self) -> list[str]:
        return [failure for _, seat in self._newest.parts for failure in seat.failures] if self._newest else []

    def _leave(self, snapshot: SeatModel) -> None:
        self.scene.forget(snapshot)
        super()._leave(snapshot)

    def answers(self) -> dict[str, float]:
        """In text there is no list of replies whose odds could be told."""
        return {}


class TextPanel:
    """The panel of a text world, on its held-out tasks."""

    def __init__(self, scene: TextScene, seen: set[str]):
        self.scene, self.seen, self.members = scene, seen, scene.members
        self._newest: PromptedSeat | None = None
        """the simulators of the newest evaluation"""

    def play(self, policy: SeatModel, run: int, step: int, dialogues: int) -> list[Rollout]:
        """``dialogues`` rollouts with each member, members in the panel's order."""
        n = len(self.members)
        keys = RowKeys(run, step, FIRST_GROUP + np.repeat(np.arange(n), dialogues), np.tile(np.arange(dialogues), n))
        voices = {m.name: self.scene.voice(m) for m in self.members}
        persons = draw_personas(self.scene.task.personas["test"], keys)
        playing = [m for m in self.members for _ in range(dialogues)]
        about = [person if m.personas else m.about for m, person in zip(playing, persons, strict=True)]
        names = [m.name for m in playing]

        def seat(rows: RowKeys, systems: list[str]) -> PromptedSeat:
            self._newest = PromptedSeat([voices[name] for name in names], systems, rows, "panel")
            return self._newest

        rollouts = self.scene.converse(policy, keys, seat, about, names, "test")
        assert self._newest is not None
        self.scene.require_counted(rollouts, f"the evaluation at step {step}", self._newest.failures())
        return rollouts

    def metrics(self, rollouts: list[Rollout]) -> dict[str, float]:
        """Mean reward by member, and over the seen and the unseen ones; what did not pass the gate, if anything."""
        rewards = member_rewards(rollouts, [m.name for m in self.members], self.seen)
        if not self._newest or not self._newest.refused:
            return rewards
        refused = self._newest.refused
        return rewards | shares("panel/refused", refused, len(self._newest.direct) + refused.total())


def draw_personas(personas: Sequence[str], keys: RowKeys) -> list[str]:
    """A persona for each row, uniform; from ``keys.by_group()`` it is one for a whole group."""
    return [personas[i] for i in (keys.uniforms(0, "task", token=1)[:, 0] * len(personas)).astype(int)]
