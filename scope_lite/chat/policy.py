"""What one can talk to: the policy of a run at its last checkpoint, or a shipped base model, and whoever may answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scope_lite.config import RunConfig, closest, load_config, method_config
from scope_lite.cotraining import TrainedCast
from scope_lite.engines.hf import SeatModel
from scope_lite.errors import ScopeError
from scope_lite.learner import Learner
from scope_lite.panel import Panel
from scope_lite.paths import RUNS
from scope_lite.rng import RowKeys
from scope_lite.runs import Checkpoint, find
from scope_lite.runs.checkpoints import load_newest
from scope_lite.scenes.nano import NanoScene
from scope_lite.seats import Seat
from scope_lite.simulators import Cast, Library, read_panel
from scope_lite.worlds import World

BASE = "base:"
"""before a world's name: its shipped base model, untrained"""
TRAINING = "training"
"""the partner that a run trained with: frozen, verbalized, or trained itself, drawn as in training"""
YOU = "you"


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy, and the seats that can talk to it."""

    name: str
    step: int
    """optimizer steps it has had"""
    library: Library
    model: SeatModel
    cast: Cast | TrainedCast | None
    """None for a policy that was not trained"""

    @property
    def world(self) -> World:
        return self.library.world

    @cached_property
    def panel(self) -> Panel:
        return Panel(self.library, seen=())  # loads every member, which a talk with a person does not need

    @property
    def partners(self) -> list[str]:
        """Names of those who can answer it: you, the panel's members, and who it trained with."""
        members = read_panel(self.world.name, self.library.folder.parent)
        return [YOU, *(m.name for m in members), *([TRAINING] if self.cast else [])]

    def seat(self, partner: str, keys: RowKeys) -> Seat:
        """A simulator's seat by its name, as the panel (or the training step) seats it.

        Raises:
            ScopeError: if nobody has that name.
        """
        if partner == TRAINING and self.cast:
            return self.cast.seat(keys)[0]
        if partner not in self.partners:
            raise ScopeError(closest(partner, self.partners, "partner"))
        (member,) = [m for m in self.panel.members if m.name == partner]
        return self.panel.seat(member, keys)


def load_policy(run: str | Path, root: Path = RUNS) -> LoadedPolicy:
    """The policy of a run (its name, the beginning of it, or its folder), or of "base:<world>".

    Raises:
        ScopeError: if there is no such run, it has no checkpoint yet, its models are not the ones that it trained on,
            or its world is not a nano world.
    """
    if str(run).startswith(BASE):
        config, checkpoint = method_config("base", world=str(run).removeprefix(BASE)), None
        name = str(run)
    else:
        folder = _find(root, run)
        config, checkpoint = _read(folder)
        name = folder.name
    if config.is_text:
        raise ScopeError(
            f"{name} speaks in text of its own; one can talk to a policy of a nano world, whose acts are few"
        )
    scene = NanoScene(config)
    learner = Learner(scene.policy_model(), config, seed=config.seed)
    cast: Cast | TrainedCast | None = None
    if checkpoint is not None:
        learner.load_state(checkpoint.tensors["policy"])
        cast = scene.cast(learner)
        cast.load_state(checkpoint.tensors)
    step = checkpoint.step if checkpoint else 0
    return LoadedPolicy(name, step, scene.library, learner.model, cast)


def _find(root: Path, run: str | Path) -> Path:
    try:
        return find(root, run)
    except ScopeError as error:
        raise ScopeError(f"{error} (an untrained policy is {BASE}<world>, such as {BASE}persuasion)") from None


def _read(folder: Path) -> tuple[RunConfig, Checkpoint | None]:
    """A run's configuration and newest checkpoint (None for a run without a step: its policy is the base model)."""
    config = load_config(folder / "config.yaml")
    try:
        made_of = json.loads((folder / "provenance.json").read_text())["fingerprint"]
    except (OSError, ValueError, KeyError):
        made_of = None
    if made_of != config.fingerprint():  # an adapter on other weights would talk, and mean nothing
        raise ScopeError(f"{folder.name} was trained on models or settings that are not the present ones; train again")
    checkpoint = load_newest(folder / "checkpoints")
    if checkpoint is None and config.steps:
        raise ScopeError(f"{folder.name} has no checkpoint yet; train on, or talk to {BASE}{config.world}")
    return config, checkpoint
