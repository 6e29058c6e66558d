"""Where the dialogues of a run happen: what the training loop asks for, whatever the scale.

    nano.py    worlds of dialogue acts, whose users and simulators are small models or known exactly
    text.py    tasks in real text (Persuasion for Good, tau2-bench), with a chat model in each seat

``train.train`` sees a :class:`Scene` only. What differs by scale is abstract here; how a batch is put together and
played is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Literal, NamedTuple

from scope_lite.method.config import RunConfig
from scope_lite.method.cotraining import LearningPartner
from scope_lite.method.dialogue import Episode, Seat, run_dialogues, seat_systems
from scope_lite.method.learner import Learner
from scope_lite.method.panel import Panel
from scope_lite.method.panel_file import M
from scope_lite.method.partner import Partner, draw_tasks
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError

Split = Literal["train", "test"]
"""training, where a group shares its task and its simulator, or evaluation on the panel, where every dialogue is its
own"""


class Played(NamedTuple):
    """The dialogues of one training step."""

    rollouts: list[Rollout]
    epsilon: float | None
    """collapse error of the simulator on the visited histories; None where its reply distribution is not known"""


class Scene(ABC, Generic[M]):
    """One world at one scale. Making it looks up every name of the config, before anything is written for a run."""

    config: RunConfig
    threads: int | None
    """of torch, for the run; None leaves it as it is"""
    number_format: str
    """what the models compute in"""
    members: Sequence[M]
    """the world's panel"""

    def partner(self, policy: Learner | None = None) -> Partner[M]:
        """Who plays the simulator in training; a frozen one needs no ``policy``."""
        return (LearningPartner if self.config.simulator.kind in ("trained", "self") else Partner)(self, policy)

    def panel(self, seen: Collection[str]) -> Panel[M]:
        """The simulators and users that a policy is evaluated with; ``seen`` are those that it trained with."""
        return Panel(self, set(seen))

    def training_members(self) -> list[M]:
        """Those who play the simulator in training; a simulator that learns starts as the first of them."""
        settings = self.config.simulator
        return [self.in_both_seats()] if settings.kind == "self" else [self.member(name) for name in settings.members]

    @property
    def policy_sharpness(self) -> float:
        """In self-play the policy's model is the simulator's, too."""
        return (self.config.simulator.sharpness or 1.0) if self.config.simulator.kind == "self" else 1.0

    def play(self, policy: SeatModel, partner: Partner[M], keys: RowKeys) -> Played:
        """One batch of training.

        Raises:
            ScopeError: no dialogue counts.
        """
        rollouts = self.converse(policy, keys, partner.playing(keys), partner.seat, "train")
        self.require_counted(rollouts, f"step {keys.step}", partner.failures(), self.config.simulator.kind)
        assert partner.newest is not None
        return Played(rollouts, self.epsilon(partner.newest))

    def converse(
        self,
        policy: SeatModel,
        keys: RowKeys,
        playing: Sequence[M],
        seat: Callable[[RowKeys, Sequence[str]], Seat],
        split: Split,
    ) -> list[Rollout]:
        """Play every row to its end.

        Args:
            playing: the simulator of each row.
            seat: seats them under their system prompts.
        """
        shared = keys.by_group() if split == "train" else keys
        tasks, told = draw_tasks(self.tasks(split), shared), self.told(playing, shared, split)
        episodes = [self.episode(int(task), split, text) for task, text in zip(tasks, told, strict=True)]
        agents = self.seat_model(policy, keys, seat_systems(episodes, "policy"))
        simulators = seat(keys, seat_systems(episodes, "simulator"))
        names = [member.name for member in playing]
        return run_dialogues(episodes, agents, simulators, keys, names, self.context(policy))

    def require_counted(self, rollouts: Sequence[Rollout], when: str, failures: Counter[str], kind: str = "") -> None:
        """Refuse to go on where nothing was measured.

        Raises:
            ScopeError: no dialogue counts; says why, and what to do about a simulator of this ``kind``.
        """
        if any(r.counts for r in rollouts):
            return
        reasons = ", ".join(f"{reason} {count}" for reason, count in failures.most_common())
        tries = f"{self.config.text.retries + 1} times in a row"
        if kind in ("trained", "self"):
            why = f"the simulator that learns says nothing that can be used ({reasons}); start from a larger model"
        elif kind == "verbalized":
            why = (
                f"{tries} no list of the verbalized simulator could be read ({reasons}); set text.grammar to true, or "
                "text.simulator_model to a larger one"
            )
        else:
            why = (
                f"{tries} the simulator said nothing that can be used ({reasons}); switch the thoughts of its model "
                "off, raise text.reply_tokens, or set text.simulator_model to another one"
            )
        raise ScopeError(f"no dialogue of {when} counts: {why}")

    # -- what differs by scale ---------------------------------------------------------------------------------------

    @abstractmethod
    def member(self, name: str) -> M:
        """The member of that name, as one to train with."""

    @abstractmethod
    def in_both_seats(self) -> M:
        """The simulator of self-play: the policy's own model, speaking for the world's users."""

    @abstractmethod
    def policy_model(self) -> SeatModel:
        """A model that can be given an adapter."""

    @abstractmethod
    def simulator_model(self, member: M) -> SeatModel:
        """The model that a simulator which learns starts as."""

    @abstractmethod
    def prepare(self, members: Sequence[M], split: Split) -> None:
        """Load what these members speak with, so that what cannot be read is told before the run begins."""

    @abstractmethod
    def tasks(self, split: Split) -> int:
        """How many tasks there are."""

    @abstractmethod
    def told(self, playing: Sequence[M], shared: RowKeys, split: Split) -> list[str]:
        """What each row's simulator is told of itself; ``shared`` are keys of what is drawn once for a group."""

    @abstractmethod
    def episode(self, task: int, split: Split, told: str) -> Episode:
        """A dialogue at its beginning."""

    @abstractmethod
    def seat_model(self, model: SeatModel, keys: RowKeys, systems: Sequence[str]) -> Seat:
        """The policy's seat."""

    @abstractmethod
    def seat_learner(self, member: M, model: SeatModel, keys: RowKeys, systems: Sequence[str]) -> Seat:
        """A simulator that learns, or a past self of it; it started as ``member``."""

    @abstractmethod
    def seat_members(self, playing: Sequence[M], keys: RowKeys, systems: Sequence[str], split: Split) -> Seat:
        """Frozen simulators, one a row."""

    def context(self, policy: SeatModel) -> int | None:
        """Tokens that a transcript may hold; None: no limit."""
        return None

    def epsilon(self, simulators: Seat) -> float | None:
        """Mean collapse error of what these simulators said."""
        return None

    def answers(self, member: M, model: SeatModel) -> dict[str, float]:
        """Where the mode of a simulator that learns stands, if its replies can be listed."""
        return {}

    def forget(self, model: SeatModel) -> None:
        """A past self that will speak no more."""
        model.release()

    @abstractmethod
    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float | None]:
        """What only this kind of world can tell of the dialogues of a step."""


def open_scene(config: RunConfig) -> Scene[Any]:
    """The scene of a run's world.

    Raises:
        ScopeError: for a world, model or simulator that does not exist.
    """
    if config.is_text:
        from scope_lite.method.text import TextScene

        return TextScene(config)
    from scope_lite.method.nano import NanoScene

    return NanoScene(config)
