"""Who sits in the user's seat: the nano models under their sharpness, personas, the model of Verbalized Sampling.

Every simulator is a seat that hears a message and speaks one, for a whole batch of
dialogues at once. Which simulator speaks in which group is decided by a ``Cast``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torch import Tensor

from scope_lite.config import RunConfig, SimulatorConfig, closest
from scope_lite.engines.hf import SeatModel, load_base
from scope_lite.errors import ScopeError
from scope_lite.paths import NANO_MODELS
from scope_lite.records import Rollout
from scope_lite.rng import RowKeys
from scope_lite.sampling import Direct, SamplingRule, VerbalizedModel
from scope_lite.seats import ModelSeat, RoutedSeat, Seat
from scope_lite.worlds import World, get_world

CLOSE = "close"
"""what the user hears when the turns are over, and answers with an outcome"""


@dataclass(frozen=True)
class PanelMember:
    """One simulator of the panel, as ``panel.yaml`` lists it."""

    name: str
    model: str | None
    """folder of its model; None for scripted users with a hidden type"""
    sharpness: float
    """gamma at every reply and outcome"""
    kind: str
    """collapsed, broad, outside (users that no training simulator knows) or scripted"""
    population: dict[str, float]
    """shares of the user types that it speaks for"""


def write_panel(path: Path, members: list[PanelMember]) -> None:
    path.write_text(yaml.safe_dump([asdict(m) for m in members], sort_keys=False))


def read_panel(world_name: str, folder: Path = NANO_MODELS) -> list[PanelMember]:
    """The panel of a world.

    Raises:
        ScopeError: if the world has no models yet.
    """
    path = folder / world_name / "panel.yaml"
    if not path.exists():
        raise ScopeError(f"no panel for world {world_name!r}; run 'scope-lite nano build --world {world_name}'")
    return [PanelMember(**entry) for entry in yaml.safe_load(path.read_text())]


def choice_sets(world: World, tokenizer: Any) -> dict[str, list[int]]:
    """The token ids that each kind of message is drawn from: act, reply, outcome."""
    spec = world.spec
    names = {"act": spec.agent_acts, "reply": spec.user_acts, "outcome": spec.outcomes}
    return {kind: tokenizer.convert_tokens_to_ids(list(words)) for kind, words in names.items()}


class Library:
    """Loads each nano model of a world once, and hands it out as a seat model."""

    def __init__(self, world: World, folder: Path | None = None):
        self.world = world
        self.folder = (folder or NANO_MODELS) / world.name
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
    for name in config.simulator.members:
        panel_member(library, name)
    if not (library.folder / config.model / "config.json").exists():
        there = sorted(p.parent.name for p in library.folder.glob("*/config.json"))
        raise ScopeError(closest(config.model, there, "model"))


class Cast:
    """Decides which simulator plays which group, and seats it (the paper's Frozen, Persona, VS and Ensemble).

    Group g of step s is played by member (s * groups + g) mod K: a cyclic rotation that
    continues from step to step. The paper rotates over rollouts; here a group has one
    simulator, so that its rewards can be compared with each other.
    """

    def __init__(self, library: Library, config: SimulatorConfig):
        self.library, self.config = library, config
        self.members = [panel_member(library, name) for name in config.members]
        sharpness = [config.sharpness or m.sharpness for m in self.members]
        self.models = [library.seat_model(m.model, s) for m, s in zip(self.members, sharpness, strict=True) if m.model]
        self.rule: SamplingRule = Direct()
        if config.kind == "verbalized":
            self.rule = VerbalizedModel(config.k, config.noise, config.eta, config.direction)

    def systems(self, keys: RowKeys) -> list[str]:
        """The system prompt of each row; a persona is drawn uniformly for each group."""
        if self.config.kind != "persona":
            return ["user"] * len(keys)
        types = list(self.library.world.spec.prior)
        whole_group = RowKeys(keys.run, keys.step, keys.group, np.zeros_like(keys.member))
        drawn = (whole_group.uniforms(0, "task", token=1)[:, 0] * len(types)).astype(int)
        return [f"user-{self.config.persona}-{types[i]}" for i in drawn]

    def seat(self, keys: RowKeys) -> tuple[Seat, list[str]]:
        """The simulator's seat for these rows, and the name of the simulator in each row."""
        groups = int(keys.group.max()) + 1
        member = (keys.step * groups + keys.group) % len(self.members)
        systems = self.systems(keys)
        parts: list[tuple[np.ndarray, Seat]] = []
        for i, model in enumerate(self.models):
            rows = np.flatnonzero(member == i)
            if len(rows):
                said = [systems[r] for r in rows]
                parts.append((rows, ModelSeat(model, keys[rows], "simulator", said, self.rule)))
        return RoutedSeat(parts), [self.members[i].name for i in member]

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, Any]:
        """A frozen simulator learns nothing."""
        return {}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Nothing to keep in a checkpoint."""
        return {}

    def load_state(self, parts: dict[str, dict[str, Tensor]]) -> None:
        pass


def panel_member(library: Library, name: str) -> PanelMember:
    """The member of that name, as one to train with.

    Raises:
        ScopeError: if the panel has none, or it is a scripted user.
    """
    panel = {m.name: m for m in read_panel(library.world.name, library.folder.parent)}
    if name not in panel:
        raise ScopeError(closest(name, list(panel), "simulator"))
    if panel[name].model is None:
        raise ScopeError(f"{name!r} is a scripted user: it can be evaluated against, not trained with")
    return panel[name]
