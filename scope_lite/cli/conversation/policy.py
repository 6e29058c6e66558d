"""What one can talk to: the policy of a run at its last checkpoint, or an untrained one, and whoever may answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from scope_lite.cli.conversation.messages import AGENT, YOU
from scope_lite.cli.conversation.speakers import (
    ActPolicy,
    ActSpeaker,
    ModelSpeaker,
    PersonSeat,
    PersonSpeaker,
    PromptedSpeaker,
    Speaker,
)
from scope_lite.envs.nano import WORLDS, random_seed
from scope_lite.envs.nano.users import BeliefUsers, told_prior
from scope_lite.method.config import TEXT_WORLDS, RunConfig, load_config, method_config
from scope_lite.method.cotraining import LearningPartner
from scope_lite.method.dialogue import Seat
from scope_lite.method.learner import Learner
from scope_lite.method.made_of import made_of
from scope_lite.method.nano import NanoScene, OutcomeSeat, draw_prompts
from scope_lite.method.partner import Partner, draw_tasks
from scope_lite.method.seats import ModelSeat
from scope_lite.method.text import TextScene, draw_personas
from scope_lite.method.train import in_format
from scope_lite.models.hf import SeatModel
from scope_lite.models.rng import RowKeys
from scope_lite.store import Checkpoint, find
from scope_lite.store.checkpoints import load_newest
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.folder import changed_since
from scope_lite.store.paths import RUNS, checked_place

BASE = "base:"
"""before a world's name: its base model, untrained"""
TRAINING = "training"
"""the partner that a run trained with: frozen, verbalized, or trained itself, drawn as in training"""
TALK_ENGINES = {"rollout_engine": "hf", "training_engine": "hf", "four_bit": False}
"""A talk needs no engine that is made for many dialogues at once, whatever the run had: transformers will do."""
S = TypeVar("S", NanoScene, TextScene)


@dataclass(frozen=True)
class LoadedPolicy(Generic[S]):
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

    def told(self, partner: str, row: RowKeys) -> str:
        """What a partner is told of itself, as in training or on the panel; ``row``: keys of the one row that talks.

        Raises:
            ScopeError: if nobody has that name.
        """
        if partner not in self.partners:
            raise ScopeError(closest(partner, self.partners, "partner"))
        if partner == TRAINING and self.trained_with:
            (told,) = self.scene.told(self.trained_with.playing(row), row.by_group(), "train")
        else:
            (told,) = self.scene.told(self._playing(partner), row, "test")
        return str(told)

    def _playing(self, partner: str) -> list[Any]:
        return [next(m for m in self.scene.members if m.name == partner)]

    @property
    def trained(self) -> str:
        return f"trained for {self.step} steps" if self.step else "untrained"


class NanoPolicy(LoadedPolicy[NanoScene]):
    """A policy that speaks in acts, in a nano world."""

    @property
    def about(self) -> str:
        """What to know before a talk begins, to read."""
        return f"a policy of world {self.scene.world.name}, {self.trained}"

    @property
    def replies(self) -> tuple[str, ...]:
        """What a partner can say; empty where it may say anything."""
        return self.scene.world.spec.user_acts

    @property
    def horizon(self) -> int:
        """Turns of every talk; 0 where they differ."""
        return self.scene.world.horizon

    def told(self, partner: str, row: RowKeys) -> str:
        world = self.scene.world
        if partner != YOU:
            return super().told(partner, row)
        return world.prompts[draw_prompts(world, world.real_prior, row)[0]]

    def briefing(self, system: str) -> str:
        """What a person is told before it begins, of the simulator's system prompt."""
        return system if self.scene.world.spec.told else ""

    def sentence(self, said: str) -> str:
        """A message that might be said, to read."""
        return self.scene.world.say(said)

    def revealed(self, task: str) -> str:
        """What is told of the task when the talk is over, to read; empty where that is nothing."""
        return f"the agent was told: {self.sentence(task)}" if self.scene.world.spec.tasks else ""

    def expected_reward(self, outcomes: Mapping[str, float]) -> float | None:
        """Mean over the outcomes that a talk could have had, by their probabilities; None where none are known."""
        spec = self.scene.world.spec
        value = dict(zip(spec.outcomes, spec.rewards, strict=True))
        return sum(value[name] * p for name, p in outcomes.items())

    def policy_speaker(self, keys: RowKeys, system: str) -> ActPolicy:
        """The policy's side; ``keys``: one row that talks, and a row for each other sample of its messages."""
        return ActPolicy(AGENT, ModelSeat(self.model, keys, "policy", [system]), self.scene.world)

    def partner_speaker(self, partner: str, keys: RowKeys, system: str) -> ActSpeaker:
        """A partner's side by its name, as the panel (or the training step) seats it."""
        if partner != YOU:
            return ActSpeaker(partner, self.seat(partner, keys, system), self.scene.world)
        # the world weighs which of its real users would have said what you said
        world, person = self.scene.world, PersonSeat()
        believed = told_prior(world, world.real_prior, draw_prompts(world, world.real_prior, keys))
        referee = BeliefUsers(world, believed, 1, tasks=draw_tasks(len(world.tasks), keys))
        return ActSpeaker(YOU, OutcomeSeat(person, referee, keys), world, person)

    def seat(self, partner: str, keys: RowKeys, system: str) -> Seat:
        """A simulator's seat by its name, as the panel (or the training step) seats it."""
        if partner == TRAINING and self.trained_with:
            return self.trained_with.seat(keys, [system])
        return self.scene.seat_members(self._playing(partner), keys, [system], "test")


class TextPolicy(LoadedPolicy[TextScene]):
    """A policy that speaks in text; its parts are those of :class:`NanoPolicy`."""

    replies: ClassVar[tuple[str, ...]] = ()
    horizon: ClassVar[int] = 0

    @property
    def about(self) -> str:
        config = self.scene.config
        model = Path(config.model).name  # a run may name a folder
        most = f"at most {config.text.turns} messages"
        return f"a policy of world {config.world} ({model}), {self.trained}; it has {most}"

    def told(self, partner: str, row: RowKeys) -> str:
        """You play one of the held-out personas."""
        you = partner == YOU
        return draw_personas(self.scene.task.personas["test"], row)[0] if you else super().told(partner, row)

    def briefing(self, system: str) -> str:
        return system

    def sentence(self, said: str) -> str:
        return said

    def revealed(self, task: str) -> str:
        return f"task {task}" if self.scene.tasks("test") > 1 else ""

    def expected_reward(self, outcomes: Mapping[str, float]) -> float | None:
        return None

    def policy_speaker(self, keys: RowKeys, system: str) -> ModelSpeaker:
        return ModelSpeaker(AGENT, self.model, keys, "policy", system, self.scene.config.text.max_new_tokens)

    def partner_speaker(self, partner: str, keys: RowKeys, system: str) -> Speaker:
        if partner == YOU:
            return PersonSpeaker()
        if partner != TRAINING or self.trained_with is None:
            return PromptedSpeaker(partner, self.scene.voice(self.scene.member(partner)), keys, system, "panel")
        row = keys[np.array([0])]
        if isinstance(self.trained_with, LearningPartner):
            model = self.trained_with.pool.entries[self.trained_with.pool.draw(row)[0]]
            return ModelSpeaker(partner, model, keys, "simulator", system, self.scene.config.text.reply_tokens)
        (member,) = self.trained_with.playing(row)
        return PromptedSpeaker(partner, self.scene.voice(member, "train"), keys, system, "simulator")


def load_policy(run: str | Path, root: Path = RUNS) -> NanoPolicy | TextPolicy:
    """The policy of a run (its name, the beginning of it, or its folder), or of "base:<world>".

    Raises:
        ScopeError: if there is no such run or world, it has no checkpoint yet, or its models are not the ones that it
            trained on.
    """
    name, checkpoint = str(run), None
    if name.startswith(BASE):
        config = _base(name.removeprefix(BASE))
    else:
        folder = _find(root, run)
        name, (config, checkpoint) = folder.name, _read(folder)
    scene: NanoScene | TextScene = TextScene(config) if config.is_text else NanoScene(config)
    learner = Learner(scene.policy_model(), config, seed=config.seed)
    partner: Partner[Any] | None = None
    if checkpoint is not None:
        learner.load_state(checkpoint.tensors["policy"])
        partner = scene.partner(learner)
        partner.load_state(checkpoint.tensors)
    step = checkpoint.step if checkpoint else 0
    if isinstance(scene, TextScene):
        return TextPolicy(name, step, scene, learner.model, partner)
    return NanoPolicy(name, step, scene, learner.model, partner)


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
    if changed := changed_since(folder, made_of(config)):
        told = f"{folder.name} was trained on models or settings that are not the present ones"
        raise ScopeError(f"{told} ({', '.join(changed[:3])}); train again")
    checkpoint = load_newest(folder / "checkpoints")
    if checkpoint is None and config.steps:
        raise ScopeError(f"{folder.name} has no checkpoint yet; train on, or talk to {BASE}{config.world}")
    if config.is_text:
        config = in_format(config, folder)
        config = config.model_copy(update={"text": config.text.model_copy(update=TALK_ENGINES)})
    return config, checkpoint
