"""What one can talk to: the policy of a run at its last checkpoint, or an untrained one, and whoever may answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from scope_lite.cli.conversation.base import YOU
from scope_lite.cli.conversation.speakers import ModelSpeaker, Speaker, prompted
from scope_lite.envs.nano import WORLDS, World, random_seed
from scope_lite.method.config import TEXT_WORLDS, RunConfig, closest, load_config, method_config
from scope_lite.method.cotraining import LearningPartner
from scope_lite.method.dialogue import Seat
from scope_lite.method.learner import Learner
from scope_lite.method.nano import NanoScene
from scope_lite.method.partner import Partner
from scope_lite.method.text import TextScene, draw_personas
from scope_lite.method.train import in_format
from scope_lite.models.hf import SeatModel
from scope_lite.models.rng import RowKeys
from scope_lite.store import Checkpoint, find
from scope_lite.store.checkpoints import load_newest
from scope_lite.store.errors import ScopeError
from scope_lite.store.folder import read_provenance
from scope_lite.store.paths import RUNS, checked_place

BASE = "base:"
"""before a world's name: its base model, untrained"""
TRAINING = "training"
"""the partner that a run trained with: frozen, verbalized, or trained itself, drawn as in training"""
TALK_ENGINES = {"rollout_engine": "hf", "training_engine": "hf", "four_bit": False}
"""A talk needs no engine that is made for many dialogues at once, whatever the run had: transformers will do."""


S = TypeVar("S", NanoScene, TextScene)


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """A policy, and who can talk to it."""

    name: str
    step: int
    """optimizer steps it has had"""
    scene: S
    model: SeatModel
    trained_with: Partner[Any] | None
    """None for a policy that was not trained"""

    @property
    def partners(self) -> list[str]:
        """Names of those who can answer it: you, the panel's members, and who it trained with."""
        return [YOU, *(m.name for m in self.scene.members), *([TRAINING] if self.trained_with else [])]

    def told(self, partner: str, keys: RowKeys) -> list[str]:
        """What a partner is told in these rows, as in training or on the panel.

        Raises:
            ScopeError: if nobody has that name.
        """
        if partner not in self.partners:
            raise ScopeError(closest(partner, self.partners, "partner"))
        if partner == TRAINING and self.trained_with:
            told: list[str] = self.scene.told(self.trained_with.playing(keys), keys.by_group(), "train")
            return told
        return list(self.scene.told(self._playing(partner, keys), keys, "test"))

    def _playing(self, partner: str, keys: RowKeys) -> list[Any]:
        return [next(m for m in self.scene.members if m.name == partner)] * len(keys)


class LoadedPolicy(Loaded[NanoScene]):
    """A policy of a nano world."""

    @property
    def world(self) -> World:
        return self.scene.world

    @property
    def about(self) -> str:
        """What to know before a talk begins, to read."""
        return f"a policy of world {self.world.name}, {_trained(self.step)}"

    def seat(self, partner: str, keys: RowKeys) -> Seat:
        """A simulator's seat by its name, as the panel (or the training step) seats it.

        Raises:
            ScopeError: if nobody has that name.
        """
        told = self.told(partner, keys)
        if partner == TRAINING and self.trained_with:
            return self.trained_with.seat(keys, told)
        return self.scene.seat_members(self._playing(partner, keys), keys, told, "test")


class LoadedTextPolicy(Loaded[TextScene]):
    """A policy that speaks in text."""

    @property
    def about(self) -> str:
        """What to know before a talk begins, to read."""
        config = self.scene.config
        model = Path(config.model).name  # a run may name a folder
        most = f"at most {config.text.turns} messages"
        return f"a policy of world {config.world} ({model}), {_trained(self.step)}; it has {most}"

    def person(self, partner: str, keys: RowKeys) -> str:
        """What a partner is told of the person that it plays; you play one of the held-out personas.

        Args:
            keys: the one row that talks.

        Raises:
            ScopeError: if nobody has that name.
        """
        if partner == YOU:
            return draw_personas(self.scene.task.personas["test"], keys)[0]
        return self.told(partner, keys)[0]

    def speaker(self, partner: str, keys: RowKeys, system: str) -> Speaker:
        """A simulator by its name, as the panel (or the training step) seats it.

        Args:
            keys: one row that talks, and a row for each other sample of its messages.
            system: its prompt.
        """
        row = keys[np.array([0])]
        if partner != TRAINING or self.trained_with is None:
            return prompted(partner, self.scene.voice(self.scene.member(partner)), keys, system, "panel")
        if isinstance(self.trained_with, LearningPartner):
            model = self.trained_with.pool.entries[self.trained_with.pool.draw(row)[0]]
            return ModelSpeaker(partner, model, keys, "simulator", system, self.scene.config.text.reply_tokens)
        (member,) = self.trained_with.playing(row)
        return prompted(partner, self.scene.voice(member, "train"), keys, system, "simulator")


def load_policy(run: str | Path, root: Path = RUNS) -> LoadedPolicy | LoadedTextPolicy:
    """The policy of a run (its name, the beginning of it, or its folder), or of "base:<world>".

    Raises:
        ScopeError: if there is no such run or world, it has no checkpoint yet, or its models are not the ones that it
            trained on.
    """
    if str(run).startswith(BASE):
        config, checkpoint = _base(str(run).removeprefix(BASE)), None
        name = str(run)
    else:
        folder = _find(root, run)
        config, checkpoint = _read(folder)
        name = folder.name
    scene: NanoScene | TextScene = TextScene(config) if config.is_text else NanoScene(config)
    learner = Learner(scene.policy_model(), config, seed=config.seed)
    partner: Partner[Any] | None = None
    if checkpoint is not None:
        learner.load_state(checkpoint.tensors["policy"])
        partner = scene.partner(learner)
        partner.load_state(checkpoint.tensors)
    step = checkpoint.step if checkpoint else 0
    if isinstance(scene, TextScene):
        return LoadedTextPolicy(name, step, scene, learner.model, partner)
    return LoadedPolicy(name, step, scene, learner.model, partner)


def _trained(steps: int) -> str:
    return f"trained for {steps} steps" if steps else "untrained"


def _base(world: str) -> RunConfig:
    known = [*WORLDS, *TEXT_WORLDS]
    if world not in known and random_seed(world) is None:
        raise ScopeError(closest(world, known, "world"))
    return method_config("base", world=world)


def _find(root: Path, run: str | Path) -> Path:
    try:
        return find(root, checked_place(str(run), "run"))
    except ScopeError as error:
        raise ScopeError(f"{error} (an untrained policy is {BASE}<world>, such as {BASE}persuasion)") from None


def _read(folder: Path) -> tuple[RunConfig, Checkpoint | None]:
    """A run's configuration and newest checkpoint (None for a run without a step: its policy is the base model)."""
    config = load_config(folder / "config.yaml")
    # an adapter on other weights would talk, and mean nothing
    if read_provenance(folder).get("fingerprint") != config.fingerprint():
        raise ScopeError(f"{folder.name} was trained on models or settings that are not the present ones; train again")
    checkpoint = load_newest(folder / "checkpoints")
    if checkpoint is None and config.steps:
        raise ScopeError(f"{folder.name} has no checkpoint yet; train on, or talk to {BASE}{config.world}")
    if config.is_text:
        config = in_format(config, folder)
        config = config.model_copy(update={"text": config.text.model_copy(update=TALK_ENGINES)})
    return config, checkpoint
