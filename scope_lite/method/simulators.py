"""Who sits in the user's seat: the nano models under their sharpness, personas, the model of Verbalized Sampling.

Every simulator is a seat that hears a message and speaks one, for a whole batch of
dialogues at once. Which simulator speaks in which group is decided by a ``Cast``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from scope_lite.envs.nano import World, get_world
from scope_lite.envs.nano.users import BeliefUsers, draw, told_prior
from scope_lite.method.config import RunConfig, SimulatorConfig, closest
from scope_lite.method.members import COLLAPSED_SHARPNESS, PanelMember, read_panel
from scope_lite.method.sampling import Direct, SamplingRule, VerbalizedModel
from scope_lite.method.seats import ModelSeat, RefereedSeat, RoutedSeat, Seat
from scope_lite.models.hf import SeatModel, load_base
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import model_folder

OutcomeRule = Literal["simulator", "world", "judge"]
CLOSE = "close"
"""what the user hears when the turns are over, and answers with an outcome"""


def choice_sets(world: World, tokenizer: Any) -> dict[str, list[int]]:
    """The token ids that each kind of message is drawn from: act, reply, outcome."""
    spec = world.spec
    names = {"act": spec.agent_acts, "reply": spec.user_acts, "outcome": spec.outcomes}
    return {kind: tokenizer.convert_tokens_to_ids(list(words)) for kind, words in names.items()}


class Library:
    """Loads each nano model of a world once, and hands it out as a seat model."""

    def __init__(self, world: World, folder: Path | None = None):
        self.world = world
        self.folder = folder / world.name if folder else model_folder(world.name)
        self._bases: dict[str, tuple[Any, Any]] = {}

    def seat_model(self, name: str, sharpness: float = 1.0) -> SeatModel:
        """A frozen seat model on the (shared) weights of the model ``name``.

        Raises:
            ScopeError: if the world has no such model.
        """
        if name not in self._bases:
            self._bases[name] = load_base(self.folder / name)
        model, tokenizer = self._bases[name]
        return SeatModel(model, tokenizer, choice_sets(self.world, tokenizer), sharpness)


def check_names(config: RunConfig, folder: Path | None = None) -> None:
    """Look up every model and simulator that a run names, before anything is written for it.

    Raises:
        ScopeError: for the first that does not exist.
    """
    library = Library(get_world(config.world), folder)
    if config.simulator.kind == "persona" and library.world.spec.told:
        raise ScopeError(f"world {config.world!r} tells its users what to do: there is no persona prompt for them")
    for name in config.simulator.members:
        panel_member(library, name)
    if not (library.folder / config.model / "config.json").exists():
        there = sorted(p.parent.name for p in library.folder.glob("*/config.json"))
        raise ScopeError(closest(config.model, there, "model"))


def draw_tasks(count: int, keys: RowKeys) -> Int[np.ndarray, " b"]:
    """The task of each row, uniform over ``count``; from ``keys.by_group()`` it is one for a whole group."""
    return (keys.uniforms(0, "task", token=4)[:, 0] * count).astype(int)


def draw_prompts(world: World, prior: Float[np.ndarray, " Z"], keys: RowKeys) -> Int[np.ndarray, " b"]:
    """What the simulator of each row is told, by the shares of the types that are told it."""
    shares = np.broadcast_to(world.knows @ prior, (len(keys), len(world.prompts)))
    return draw(shares, keys.uniforms(0, "task", token=5)[:, 0])


def seat_simulator(
    world: World,
    model: SeatModel,
    population: Mapping[str, float],
    keys: RowKeys,
    shared: RowKeys,
    outcome: OutcomeRule,
    rule: SamplingRule | None = None,
    systems: list[str] | None = None,
) -> Seat:
    """A model in the simulator's seat, with whoever says how the dialogue ended.

    Args:
        population: the users that it speaks for; the world's referee believes in them at the start.
        shared: keys of what is drawn once for a group, or for a row: its task and what the simulator is told.
        outcome: "simulator": its own last word; "world": what follows from what was said; "judge": a frozen
            judge that takes every user for the favourite type of ``population``.
        systems: system prompts; by default what the world tells its users.
    """
    prior = world.prior_vector(population)
    drawn = draw_prompts(world, prior, shared)
    seat = ModelSeat(model, keys, "simulator", systems or [world.prompts[i] for i in drawn], rule)
    if outcome == "simulator":
        return seat
    believed = told_prior(world, prior, drawn)
    if outcome == "judge":
        believed = np.eye(len(prior))[believed.argmax(axis=1)]
    referee = BeliefUsers(world, believed, len(keys), tasks=draw_tasks(len(world.tasks), shared))
    return RefereedSeat(seat, referee, keys)


def rotation(keys: RowKeys, members: int, draw: Literal["group", "rollout"]) -> Int[np.ndarray, " b"]:
    """The member of an ensemble that plays each row.

    Group g of step s is played by member (s * groups + g) mod K: a cyclic rotation that
    continues from step to step. The paper rotates over rollouts (``draw: rollout``); here a
    group has one simulator, so that its rewards can be compared with each other.
    """
    turn = keys.step * (int(keys.group.max()) + 1) + keys.group
    return (turn + keys.member if draw == "rollout" else turn) % members


class FrozenCast:
    """What simulators that learn nothing, at nano or in text, have to tell and to keep."""

    def answers(self) -> dict[str, float]:
        """Where the mode stands is worth drawing only when it can move."""
        return {}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Nothing to keep in a checkpoint."""
        return {}

    def load_state(self, parts: dict[str, dict[str, Tensor]]) -> None:
        pass


class Cast(FrozenCast):
    """Decides which simulator plays which group, and seats it (the paper's Frozen, Persona, VS and Ensemble)."""

    def __init__(self, library: Library, config: SimulatorConfig):
        self.library, self.config = library, config
        self.members = [panel_member(library, name) for name in config.members]
        sharpness = [config.sharpness or m.sharpness for m in self.members]
        self.models = [library.seat_model(m.model, s) for m, s in zip(self.members, sharpness, strict=True) if m.model]
        self.outcome = outcome_rule(library.world, config)
        self.rule: SamplingRule = Direct()
        if config.kind == "verbalized":
            self.rule = VerbalizedModel(config.k, config.noise, config.eta, config.direction)

    def personas(self, keys: RowKeys) -> list[str]:
        """A persona prompt for each row, drawn uniformly for each group."""
        types = list(self.library.world.spec.prior)
        drawn = (keys.by_group().uniforms(0, "task", token=1)[:, 0] * len(types)).astype(int)
        return [f"user-{self.config.persona}-{types[i]}" for i in drawn]

    def seat(self, keys: RowKeys) -> tuple[Seat, list[str]]:
        """The simulator's seat for these rows, and the name of the simulator in each row."""
        member = rotation(keys, len(self.members), self.config.draw)
        systems = self.personas(keys) if self.config.kind == "persona" else None
        parts: list[tuple[np.ndarray, Seat]] = []
        for i, model in enumerate(self.models):
            rows = np.flatnonzero(member == i)
            if len(rows):
                said = [systems[r] for r in rows] if systems else None
                population, mine = self.members[i].population, keys[rows]
                seat = seat_simulator(
                    self.library.world, model, population, mine, mine.by_group(), self.outcome, self.rule, said
                )
                parts.append((rows, seat))
        return RoutedSeat(parts), [self.members[i].name for i in member]

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, Any]:
        """A frozen simulator learns nothing."""
        return {}


def outcome_rule(world: World, config: SimulatorConfig) -> OutcomeRule:
    """Who says how a training dialogue ended: the config, or what the world has it.

    Raises:
        ScopeError: if the world cannot leave it to the simulator.
    """
    if config.outcome == "simulator" and world.spec.outcome_by == "world":
        raise ScopeError(
            f"in world {world.name!r} the simulator does not say how a dialogue ended; leave outcome at null"
        )
    return config.outcome or world.spec.outcome_by


def panel_member(library: Library, name: str) -> PanelMember:
    """The member of that name, as one to train with; a base model's name is a simulator of P on that model.

    Raises:
        ScopeError: if the panel has none, or it is a scripted user.
    """
    panel = {m.name: m for m in read_panel(library.world.name, library.folder.parent)}
    if name not in panel and (library.folder / name / "config.json").exists():
        return PanelMember(name, name, COLLAPSED_SHARPNESS, "collapsed", dict(library.world.spec.prior))
    if name not in panel:
        raise ScopeError(closest(name, list(panel), "simulator"))
    if panel[name].model is None:
        raise ScopeError(f"{name!r} is a scripted user: it can be evaluated against, not trained with")
    return panel[name]
