"""Where the dialogues of a run happen: what the training loop asks for, whatever the scale.

    nano    worlds of dialogue acts, whose users and simulators are small models or known exactly
    text    tasks in real text (Persuasion for Good, tau2-bench), with a chat model in each seat

``train.train`` sees only the protocols below; a new kind of world is a new scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from scope_lite.method.config import RunConfig
from scope_lite.method.learner import Learner
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys


class SceneCast(Protocol):
    """Who plays the simulator in training, and what becomes of it."""

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, Any]:
        """Train the simulator on what it lived through, if it can be trained; returns metrics of the simulator."""
        ...

    def answers(self) -> dict[str, float]: ...

    def state(self) -> dict[str, dict[str, Tensor]]: ...

    def load_state(self, parts: dict[str, dict[str, Tensor]]) -> None: ...


class ScenePanel(Protocol):
    """The simulators and users that a policy is evaluated with."""

    def play(self, policy: SeatModel, run: int, step: int, dialogues: int) -> list[Rollout]: ...

    def metrics(self, rollouts: list[Rollout]) -> dict[str, float]: ...


class Played(NamedTuple):
    """The dialogues of one training step."""

    rollouts: list[Rollout]
    epsilon: float | None
    """collapse error of the simulator on the visited histories; None where its reply distribution is not known"""


class Scene(Protocol):
    """One world at one scale. Making it looks up every name of the config, before anything is written for a run."""

    @property
    def threads(self) -> int | None:
        """Of torch, for the run; None leaves it as it is."""
        ...

    @property
    def number_format(self) -> str:
        """What the models compute in."""
        ...

    def policy_model(self) -> SeatModel: ...

    def cast(self, learner: Learner) -> Any:
        """The :class:`SceneCast` that this scene's :meth:`play` seats."""
        ...

    def panel(self, seen: Sequence[str]) -> ScenePanel: ...

    def play(self, policy: SeatModel, cast: Any, keys: RowKeys) -> Played: ...

    def metrics(self, rollouts: list[Rollout]) -> dict[str, float | None]:
        """What only this kind of world can tell of the dialogues of a step."""
        ...


def open_scene(config: RunConfig) -> Scene:
    """The scene of a run's world.

    Raises:
        ScopeError: for a world, model or simulator that does not exist.
    """
    if config.is_text:
        from scope_lite.method.text import TextScene

        return TextScene(config)
    from scope_lite.method.nano import NanoScene

    return NanoScene(config)
