"""Tasks in real text as a scene: the policy is a chat model with an adapter, the simulators are prompted models
or learn, too.

What the policy hears and says is one append-only transcript of token ids, as at nano, and so is what a simulator that
learns does; prompted simulators keep chats of their own. A simulator of the panel is a prompt and a temperature, on the
run's simulator model or one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from scope_lite.envs.turns import SeatName
from scope_lite.method.config import RunConfig
from scope_lite.method.dialogue import CONTEXT, Episode, Seat
from scope_lite.method.panel_file import PanelMember, read_panel
from scope_lite.method.prompted import PromptedSeat, Sampler, Voice
from scope_lite.method.sampling import at_temperature
from scope_lite.method.scene import Scene, Split
from scope_lite.method.seats import GatedSeat, ModelSeat
from scope_lite.method.text_tasks import open_task
from scope_lite.method.text_vllm import VllmRollouts
from scope_lite.models.adapters import fold_adapters
from scope_lite.models.api import open_sampler
from scope_lite.models.endpoint import parse_endpoint
from scope_lite.models.generate import TextSampler
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import LoadedModel, load_model, pick_device, pick_format, require_model
from scope_lite.models.records import Rollout
from scope_lite.models.replies import ReplyCache
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import cache_folder

if TYPE_CHECKING:
    from scope_lite.models.unsloth import UnslothBase

STREAMS: dict[Split, Literal["simulator", "panel"]] = {"train": "simulator", "test": "panel"}
"""what the random numbers of prompted simulators are keyed by, besides their row"""


class TextScene(Scene):
    """Policy and simulators of one run in text."""

    threads = None  # a real model gains from every core

    def __init__(self, config: RunConfig):
        self.config, self.task = config, open_task(config.world, config.text)
        self.members = read_panel(config.world)
        self._samplers: dict[str | None, Sampler] = {}
        for name in config.simulator.members:
            self.member(name)
        require_model(config.model)
        self.number_format = pick_format(pick_device(config.text.device), config.text.number_format)
        """what policy and simulators compute in; with an adapter folded into it (``fold_adapters``), float32"""
        other = config.text.simulator_model
        if other and parse_endpoint(other) is None:
            require_model(other)
        if config.simulator.kind == "trained":
            self._require_trainable(self.training_members[0].model or other)
        self._vllm: VllmRollouts | None = None
        if config.text.rollout_engine == "vllm":
            self._vllm = VllmRollouts(config, [m.model or other for m in self.members], lambda: self.loaded)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The policy's base; simulators without a model of their own speak with it too."""
        if self._unsloth and self.config.text.rollout_engine == "vllm":
            return self._unsloth.loaded()  # all that speaks is in vLLM: one copy here will do
        return load_model(self.config.model, self.config.text.device, self.number_format)

    @cached_property
    def _unsloth(self) -> UnslothBase | None:
        return unsloth_base(self.config) if self.config.text.training_engine == "unsloth" else None

    @property
    def in_both_seats(self) -> PanelMember:
        return PanelMember("self", self.config.model, 1.0, "collapsed")

    def policy_model(self) -> SeatModel:
        return self.trainable(None, self.policy_sharpness)

    def simulator_model(self, member: PanelMember) -> SeatModel:
        sharpness = self.config.simulator.sharpness or member.sharpness
        return self.trainable(member.model or self.config.text.simulator_model, sharpness)

    def trainable(self, model: str | None, sharpness: float = 1.0) -> SeatModel:
        """A frozen model that can be given an adapter; ``None`` and the policy's name share the policy's weights.

        Its own adapter, where it has one, is folded into it: that is where training starts.
        """
        own = model is None or model == self.config.model
        if own and self._unsloth:
            from scope_lite.models.unsloth import UnslothSeat

            return UnslothSeat(self._unsloth, sharpness)
        text = self.config.text
        loaded = self.loaded if model is None or own else load_model(model, text.device, self.number_format)
        return SeatModel(fold_adapters(loaded.model), loaded.tokenizer, sharpness=sharpness)

    def prepare(self, members: Sequence[PanelMember], split: Split) -> None:
        if split == "train":  # those of the panel are opened when they are asked
            for member in members:
                self.voice(member, split)

    def tasks(self, split: Split) -> int:
        return self.task.count(split)

    def told(self, playing: Sequence[PanelMember], shared: RowKeys, split: Split) -> list[str]:
        """What each row's simulator is told of its person: a persona of this split, or what the panel says."""
        persons = draw_personas(self.task.personas[split], shared)
        everyone = split == "train" and self.config.simulator.kind == "persona"
        return [
            person if everyone or (split == "test" and member.personas) else member.about
            for member, person in zip(playing, persons, strict=True)
        ]

    def episode(self, task: int, split: Split, told: str) -> Episode:
        return self.task.open(task, split, told)

    def seat_model(self, model: SeatModel, keys: RowKeys, systems: Sequence[str], split: Split) -> Seat:
        at = self.config.eval_temperature if split == "test" else None
        return self._sampled(model, keys, "policy", systems, self.config.text.max_new_tokens, at)

    def seat_learner(self, member: PanelMember, model: SeatModel, keys: RowKeys, systems: Sequence[str]) -> Seat:
        return GatedSeat(self._sampled(model, keys, "simulator", systems, self.config.text.reply_tokens), model)

    def _sampled(
        self,
        model: SeatModel,
        keys: RowKeys,
        seat: SeatName,
        systems: Sequence[str],
        limit: int,
        temperature: float | None = None,
    ) -> Seat:
        """A model of the trainer's, sampled by the run's rollout engine; at its own temperature, or at another."""
        if self._vllm:
            return self._vllm.seat(model, keys, seat, systems, limit, temperature)
        return ModelSeat(model, keys, seat, list(systems), at_temperature(temperature), limit)

    def seat_members(
        self, playing: Sequence[PanelMember], keys: RowKeys, systems: Sequence[str], split: Split
    ) -> PromptedSeat:
        voices = {member.name: self.voice(member, split) for member in playing}
        return PromptedSeat([voices[m.name] for m in playing], systems, keys, STREAMS[split])

    def forget(self, model: SeatModel) -> None:
        """A past self that will speak no more; a rollout engine need not serve it any longer."""
        if self._vllm:
            self._vllm.forget(model)
        super().forget(model)

    def context(self, policy: SeatModel) -> int | None:
        return self.config.text.context or getattr(policy.model.config, "max_position_embeddings", None)

    def played(self, rollouts: Sequence[Rollout]) -> None:
        """Raises ScopeError where no simulator could read even the first message."""
        for sampler in self._samplers.values():
            if isinstance(sampler, TextSampler):
                sampler.readings.forget()  # a resumed run must read what the run that never stopped reads
        if self._vllm:
            self._vllm.rest()
        if all(r.outcome == CONTEXT and not r.replies for r in rollouts):
            raise ScopeError(
                "no simulator can read its prompt and the first message: set text.simulator_model to a model with a "
                "longer context, or lower text.reply_tokens"
            )

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float | None]:
        """The share of each outcome, by name, and how well the engine follows the trainer, where there is one."""
        ended = [r.outcome for r in rollouts]
        shares = {f"outcome/{name}": ended.count(name) / len(ended) for name in self.task.outcomes}
        return {**shares, **(self._vllm.metrics() if self._vllm else {})}

    def _require_trainable(self, model: str | None) -> None:
        """A simulator that learns must be at hand, and on vLLM it must be on the policy's base, where adapters are."""
        if model and parse_endpoint(model):
            raise ScopeError(f"a simulator that learns must be a local model, not {model!r}: set text.simulator_model")
        if model and model != self.config.model and self.config.text.rollout_engine == "vllm":
            raise ScopeError(
                "on vLLM a simulator that learns speaks through an adapter on the policy's base: leave "
                "text.simulator_model out, or set text.rollout_engine to hf"
            )

    def voice(self, member: PanelMember, split: Split = "test") -> Voice:
        """How a member is asked; in training, as the config says."""
        config, text, in_training = self.config.simulator, self.config.text, split == "train"
        sharpness = (config.sharpness if in_training else None) or member.sharpness
        sampler = self._sampler(member.model or text.simulator_model)
        candidates = config.k if in_training and config.kind == "verbalized" else None
        by_grammar = isinstance(sampler, TextSampler) if text.grammar is None else text.grammar
        asked = (
            text.reply_tokens,
            candidates,
            by_grammar,
            text.retries,
            self.task.speaker,
            config.vs_draw == "uniform",
        )
        return Voice(sampler, 1 / sharpness, *asked)

    def _sampler(self, model: str | None) -> Sampler:
        text = self.config.text
        if model not in self._samplers:
            served = self._vllm.sampler(model) if self._vllm else None
            if served:
                self._samplers[model] = served
            elif model is None or model == self.config.model:
                self._samplers[model] = TextSampler(self.loaded)
            else:
                budget = {} if text.budget is None else {"budget": text.budget}
                # what an endpoint said is on record, so that a resumed run hears the same again
                record = ReplyCache(cache_folder() / "replies") if parse_endpoint(model) else None
                self._samplers[model] = open_sampler(
                    model, text.device, record, text.prices, number_format=self.number_format, **budget
                )
        return self._samplers[model]


def draw_personas(personas: Sequence[str], keys: RowKeys) -> list[str]:
    """A persona for each row, uniform; from ``keys.by_group()`` it is one for a whole group."""
    return [personas[i] for i in (keys.once("persona") * len(personas)).astype(int)]


def unsloth_base(config: RunConfig) -> UnslothBase:
    """The policy's base on Unsloth.

    Raises:
        ScopeError: Unsloth is not installed, an adapter where it wants a plain base, or a local simulator beside it on
            a GPU: Unsloth's kernels would stand in for those that the simulator's sampler needs, in the whole process.
    """
    from scope_lite.models.unsloth import UnslothBase

    text = config.text
    base = UnslothBase(config.model, text.context, text.four_bit, text.device, text.number_format)
    endpoint = text.simulator_model is not None and parse_endpoint(text.simulator_model) is not None
    if base.device.type != "cpu" and text.rollout_engine == "hf" and not endpoint:
        raise ScopeError(
            "with Unsloth on a GPU the simulators speak through vLLM or an endpoint: set text.rollout_engine to vllm, "
            "or text.simulator_model to openai:NAME@URL"
        )
    return base
