"""Tasks in real text as a scene: the policy is a chat model with an adapter, the simulators are prompted models.

What the policy hears and says is one append-only transcript of token ids, as at nano; the simulators keep chats of
their own. A simulator of the panel is a prompt and a temperature, on the run's simulator model or one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import yaml
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import PreTrainedModel

from scope_lite.config import RunConfig, closest
from scope_lite.engines.api import open_sampler
from scope_lite.engines.endpoint import parse_endpoint
from scope_lite.engines.generate import TextSampler
from scope_lite.engines.hf import SeatModel
from scope_lite.engines.pretrained import LoadedModel, find_model, load_model
from scope_lite.engines.reply_cache import ReplyCache
from scope_lite.episodes import EpisodeSeat, run_episodes, seat_systems
from scope_lite.errors import ScopeError
from scope_lite.learner import Learner
from scope_lite.panel import FIRST_GROUP, member_rewards
from scope_lite.paths import cache_folder, text_panel
from scope_lite.records import Rollout
from scope_lite.rng import RowKeys
from scope_lite.scenes import Played
from scope_lite.scenes.prompted import PromptedSeat, Sampler, Voice
from scope_lite.scenes.text_tasks import Split, open_task
from scope_lite.scenes.text_vllm import VllmRollouts
from scope_lite.seats import ModelSeat
from scope_lite.simulators import rotation

if TYPE_CHECKING:
    from scope_lite.engines.unsloth import UnslothBase

KINDS = ("frozen", "persona", "verbalized")
"""the simulators that text has so far"""


@dataclass(frozen=True)
class TextMember:
    """One simulator of a text panel, as its file lists it (the file says what each key means)."""

    name: str
    kind: str
    model: str | None
    temperature: float
    about: str
    personas: bool


def read_text_panel(path: Path) -> list[TextMember]:
    return [TextMember(**entry) for entry in yaml.safe_load(path.read_text())]


class TextScene:
    """Policy and simulators of one run in text."""

    threads = None  # a real model gains from every core

    def __init__(self, config: RunConfig):
        self.config, self.task = config, open_task(config.world, config.text)
        self.members = read_text_panel(text_panel(config.world))
        self._samplers: dict[str | None, Sampler] = {}
        known = [m.name for m in self.members]
        for name in config.simulator.members:
            if name not in known:
                raise ScopeError(closest(name, known, "simulator"))
        if config.simulator.kind not in KINDS:
            raise ScopeError(
                f"a simulator of kind {config.simulator.kind!r} cannot play in text yet: choose {', '.join(KINDS)}"
            )
        find_model(config.model)
        other = config.text.simulator_model
        if other and parse_endpoint(other) is None:
            find_model(other)
        models = [m.model or other for m in self.members]
        self._vllm = VllmRollouts(config, models) if config.text.rollout_engine == "vllm" else None

    @cached_property
    def loaded(self) -> LoadedModel:
        """The policy's base; simulators without a model of their own speak with it too."""
        if self._unsloth and self.config.text.rollout_engine == "vllm":
            return self._unsloth.loaded()  # all that speaks is in vLLM: one copy here will do
        return load_model(self.config.model, self.config.text.device)

    @cached_property
    def _unsloth(self) -> UnslothBase | None:
        return unsloth_base(self.config) if self.config.text.training_engine == "unsloth" else None

    def policy_model(self) -> SeatModel:
        if self._unsloth:
            from scope_lite.engines.unsloth import UnslothSeat

            return UnslothSeat(self._unsloth)
        return SeatModel(fold_adapters(self.loaded.model), self.loaded.tokenizer)

    def cast(self, learner: Learner) -> TextCast:
        return TextCast(self)

    def panel(self, seen: Sequence[str]) -> TextPanel:
        return TextPanel(self, set(seen))

    def play(self, policy: SeatModel, cast: TextCast, keys: RowKeys) -> Played:
        names, voices, about = cast.roles(keys)
        cast.seat, rollouts = self.converse(policy, keys, voices, about, names, "train")
        if not any(r.counts for r in rollouts):
            raise ScopeError(
                f"no dialogue of step {keys.step} counts: {self.config.text.retries + 1} times in a row no list of the "
                "verbalized simulator could be read; set text.grammar to true, or text.simulator_model to a larger one"
            )
        return Played(rollouts, None)

    def converse(
        self, policy: SeatModel, keys: RowKeys, voices: list[Voice], about: list[str], names: list[str], split: Split
    ) -> tuple[PromptedSeat, list[Rollout]]:
        """Play every row to its end, in training (a group has one task) or with the held-out tasks."""
        drawn = keys.by_group() if split == "train" else keys
        numbers = (drawn.uniforms(0, "task", token=4)[:, 0] * self.task.count(split)).astype(int)
        episodes = [self.task.open(int(n), split, text) for n, text in zip(numbers, about, strict=True)]
        text = self.config.text
        systems = seat_systems(episodes, "policy")
        seat: EpisodeSeat = (
            self._vllm.policy_seat(self.loaded, policy, keys, systems)
            if self._vllm
            else ModelSeat(policy, keys, "policy", systems, max_new_tokens=text.max_new_tokens)
        )
        simulators = PromptedSeat(
            voices, seat_systems(episodes, "simulator"), keys, "simulator" if split == "train" else "panel"
        )
        for sampler in self._samplers.values():
            if isinstance(sampler, TextSampler):
                sampler.readings.forget()  # a resumed run must read what the run that never stopped reads
        limit = text.context or getattr(policy.model.config, "max_position_embeddings", None)
        rollouts = run_episodes(episodes, seat, simulators, keys, names, limit)
        if self._vllm:
            self._vllm.rest()
        return simulators, rollouts

    def metrics(self, rollouts: list[Rollout]) -> dict[str, float | None]:
        """The share of each outcome, by name, and how well the engine follows the trainer, where there is one."""
        ended = [r.outcome for r in rollouts]
        shares = {f"outcome/{name}": ended.count(name) / len(ended) for name in self.task.outcomes}
        return {**shares, **(self._vllm.metrics() if self._vllm else {})}

    def voice(self, member: TextMember, in_training: bool = False) -> Voice:
        """How a member is asked; in training, as the config says."""
        config, text = self.config.simulator, self.config.text
        temperature = 1 / config.sharpness if in_training and config.sharpness else member.temperature
        sampler = self._sampler(member.model or text.simulator_model)
        lists = in_training and config.kind == "verbalized"
        local = isinstance(sampler, TextSampler)
        return Voice(
            sampler,
            temperature,
            text.reply_tokens,
            config.k if lists else None,
            local if text.grammar is None else text.grammar,
            text.retries,
            self.task.speaker,
        )

    def _sampler(self, model: str | None) -> Sampler:
        if model not in self._samplers:
            served = self._vllm.sampler(self.loaded, model) if self._vllm else None
            if served:
                self._samplers[model] = served
            elif model is None or model == self.config.model:
                self._samplers[model] = TextSampler(self.loaded)
            else:
                budget = {} if self.config.text.budget is None else {"budget": self.config.text.budget}
                # what an endpoint said is on record, so that a resumed run hears the same again
                record = ReplyCache(cache_folder() / "replies") if parse_endpoint(model) else None
                self._samplers[model] = open_sampler(
                    model, self.config.text.device, record, self.config.text.prices, **budget
                )
        return self._samplers[model]


class TextCast:
    """The frozen simulators of training: which plays which group, and what it is told of its person."""

    def __init__(self, scene: TextScene):
        self.scene, self.config = scene, scene.config.simulator
        by_name = {m.name: m for m in scene.members}
        self.members = [by_name[name] for name in self.config.members]
        self.voices = [scene.voice(m, in_training=True) for m in self.members]
        self.seat: PromptedSeat | None = None
        """the simulators of the newest step"""

    def roles(self, keys: RowKeys) -> tuple[list[str], list[Voice], list[str]]:
        """Name, voice and person of each row's simulator; a group has one persona."""
        playing = rotation(keys, len(self.members), self.config.draw)
        about = [self.members[i].about for i in playing]
        if self.config.kind == "persona":
            about = draw_personas(self.scene.task.personas["train"], keys.by_group())
        return [self.members[i].name for i in playing], [self.voices[i] for i in playing], about

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, float | None]:
        """A prompted simulator learns nothing; how it spoke in this step."""
        return self.seat.metrics() if self.seat else {}

    def answers(self) -> dict[str, float]:
        """Where the mode stands is worth drawing only when it can move."""
        return {}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Nothing to keep in a checkpoint."""
        return {}

    def load_state(self, parts: dict[str, dict[str, Tensor]]) -> None:
        pass


class TextPanel:
    """The panel of a text world, on its held-out tasks."""

    def __init__(self, scene: TextScene, seen: set[str]):
        self.scene, self.seen, self.members = scene, seen, scene.members

    def play(self, policy: SeatModel, run: int, step: int, dialogues: int) -> list[Rollout]:
        """``dialogues`` rollouts with each member, members in the panel's order."""
        n = len(self.members)
        keys = RowKeys(run, step, FIRST_GROUP + np.repeat(np.arange(n), dialogues), np.tile(np.arange(dialogues), n))
        voices = [self.scene.voice(m) for m in self.members]
        persons = draw_personas(self.scene.task.personas["test"], keys)
        playing = [m for m in self.members for _ in range(dialogues)]
        about = [person if m.personas else m.about for m, person in zip(playing, persons, strict=True)]
        rows = [voice for voice in voices for _ in range(dialogues)]
        return self.scene.converse(policy, keys, rows, about, [m.name for m in playing], "test")[1]

    def metrics(self, rollouts: list[Rollout]) -> dict[str, float]:
        """Mean reward by member, and over the seen and the unseen ones."""
        return member_rewards(rollouts, [m.name for m in self.members], self.seen)


def draw_personas(personas: Sequence[str], keys: RowKeys) -> list[str]:
    """A persona for each row, uniform; from ``keys.by_group()`` it is one for a whole group."""
    return [personas[i] for i in (keys.uniforms(0, "task", token=1)[:, 0] * len(personas)).astype(int)]


def unsloth_base(config: RunConfig) -> UnslothBase:
    """The policy's base on Unsloth.

    Raises:
        ScopeError: Unsloth is not installed, an adapter where it wants a plain base, or a local simulator beside it on
            a GPU: Unsloth's kernels would stand in for those that the simulator's sampler needs, in the whole process.
    """
    from scope_lite.engines.unsloth import UnslothBase

    text = config.text
    base = UnslothBase(config.model, text.context, text.four_bit, text.device)
    endpoint = text.simulator_model is not None and parse_endpoint(text.simulator_model) is not None
    if base.device.type != "cpu" and text.rollout_engine == "hf" and not endpoint:
        raise ScopeError(
            "with Unsloth on a GPU the simulators speak through vLLM or an endpoint: set text.rollout_engine to vllm, "
            "or text.simulator_model to openai:NAME@URL"
        )
    return base


@torch.no_grad()
def fold_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its adapters added into the weights, so that it can carry a new one; itself if it has none.

    In float32, and in place: with 16 bits the sum would round the adapter away.
    """
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, LoraLayer)]
    if layers:
        model.float()
    for name, layer in layers:
        layer.merge()
        above, _, last = name.rpartition(".")
        setattr(model.get_submodule(above), last, layer.get_base_layer())
    return model
