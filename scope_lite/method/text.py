"""Tasks in real text as a scene: the policy is a chat model with an adapter, the simulators are prompted models
or learn, too.

What the policy hears and says is one append-only transcript of token ids, as at nano, and so is what a simulator that
learns does; prompted simulators keep chats of their own. A simulator of the panel is a prompt and a temperature, on the
run's simulator model or one of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel

from scope_lite.envs.turns import SeatName
from scope_lite.method.config import RunConfig, closest
from scope_lite.method.episodes import CONTEXT, EpisodeSeat, run_episodes, seat_systems
from scope_lite.method.learner import Learner
from scope_lite.method.prompted import Sampler, Voice
from scope_lite.method.scene import Played
from scope_lite.method.seats import ModelSeat
from scope_lite.method.simulators import draw_tasks
from scope_lite.method.text_cast import Partner, TextCast, TextMember, TextPanel, TrainedTextCast, read_text_panel
from scope_lite.method.text_tasks import Split, open_task
from scope_lite.method.text_vllm import VllmRollouts
from scope_lite.models.api import open_sampler
from scope_lite.models.endpoint import parse_endpoint
from scope_lite.models.generate import TextSampler
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import LoadedModel, load_model, pick_device, pick_format, require_model
from scope_lite.models.records import Rollout
from scope_lite.models.replies import ReplyCache
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import cache_folder, text_panel

if TYPE_CHECKING:
    from scope_lite.models.unsloth import UnslothBase


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
        require_model(config.model)
        self.number_format = pick_format(pick_device(config.text.device), config.text.number_format)
        """what policy and simulators compute in; with an adapter folded into it (``fold_adapters``), float32"""
        other = config.text.simulator_model
        if other and parse_endpoint(other) is None:
            require_model(other)
        if config.simulator.kind == "trained":
            self._require_trainable(self.member(config.simulator.members[0]).model or other)
        models = [m.model or other for m in self.members]
        self._vllm = VllmRollouts(config, models) if config.text.rollout_engine == "vllm" else None

    @cached_property
    def loaded(self) -> LoadedModel:
        """The policy's base; simulators without a model of their own speak with it too."""
        if self._unsloth and self.config.text.rollout_engine == "vllm":
            return self._unsloth.loaded()  # all that speaks is in vLLM: one copy here will do
        return self._load(self.config.model)

    def _load(self, model: str) -> LoadedModel:
        return load_model(model, self.config.text.device, self.number_format)

    @cached_property
    def _unsloth(self) -> UnslothBase | None:
        return unsloth_base(self.config) if self.config.text.training_engine == "unsloth" else None

    def member(self, name: str) -> TextMember:
        return next(m for m in self.members if m.name == name)

    def policy_model(self) -> SeatModel:
        both_seats = (self.config.simulator.sharpness or 1.0) if self.config.simulator.kind == "self" else 1.0
        return self.seat_model(None, both_seats)

    def seat_model(self, model: str | None, sharpness: float = 1.0) -> SeatModel:
        """A frozen model that can be given an adapter; ``None`` and the policy's name share the policy's weights.

        Its own adapter, where it has one, is folded into it: that is where training starts.
        """
        if model is not None and model != self.config.model:
            loaded = self._load(model)
            return SeatModel(fold_adapters(loaded.model), loaded.tokenizer, sharpness=sharpness)
        if self._unsloth:
            from scope_lite.models.unsloth import UnslothSeat

            return UnslothSeat(self._unsloth, sharpness)
        return SeatModel(fold_adapters(self.loaded.model), self.loaded.tokenizer, sharpness=sharpness)

    def model_seat(self, model: SeatModel, keys: RowKeys, seat: SeatName, systems: list[str]) -> EpisodeSeat:
        """A model of the trainer's in a seat of training or evaluation, sampled by the run's rollout engine."""
        text = self.config.text
        limit = text.max_new_tokens if seat == "policy" else text.reply_tokens
        if self._vllm:
            return self._vllm.seat(self.loaded, model, keys, seat, systems, limit)
        return ModelSeat(model, keys, seat, systems, max_new_tokens=limit)

    def forget(self, model: SeatModel) -> None:
        """A model that will speak no more; a rollout engine need not serve it any longer."""
        if self._vllm:
            self._vllm.forget(model)

    def cast(self, learner: Learner) -> TextCast | TrainedTextCast:
        if self.config.simulator.kind in ("trained", "self"):
            return TrainedTextCast(self, learner)
        return TextCast(self)

    def panel(self, seen: Sequence[str]) -> TextPanel:
        return TextPanel(self, set(seen))

    def play(self, policy: SeatModel, cast: TextCast | TrainedTextCast, keys: RowKeys) -> Played:
        names, about = cast.roles(keys)
        rollouts = self.converse(policy, keys, cast.seat, about, names, "train")
        self.require_counted(rollouts, f"step {keys.step}", cast.failures(), self.config.simulator.kind)
        return Played(rollouts, None)

    def require_counted(self, rollouts: list[Rollout], when: str, failures: Counter[str], kind: str = "") -> None:
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

    def converse(
        self, policy: SeatModel, keys: RowKeys, partner: Partner, about: list[str], names: list[str], split: Split
    ) -> list[Rollout]:
        """Play every row to its end, in training (a group has one task) or with the held-out tasks.

        Args:
            partner: seats the simulators of these rows under their system prompts.
            about: what each row's simulator is told of its person; ``names[i]`` is its name.

        Raises:
            ScopeError: no simulator's model can read even its first chat.
        """
        drawn = keys.by_group() if split == "train" else keys
        numbers = draw_tasks(self.task.count(split), drawn)
        episodes = [self.task.open(int(n), split, text) for n, text in zip(numbers, about, strict=True)]
        seat = self.model_seat(policy, keys, "policy", seat_systems(episodes, "policy"))
        simulators = partner(keys, seat_systems(episodes, "simulator"))
        for sampler in self._samplers.values():
            if isinstance(sampler, TextSampler):
                sampler.readings.forget()  # a resumed run must read what the run that never stopped reads
        limit = self.config.text.context or getattr(policy.model.config, "max_position_embeddings", None)
        rollouts = run_episodes(episodes, seat, simulators, keys, names, limit)
        if self._vllm:
            self._vllm.rest()
        if all(r.outcome == CONTEXT and not r.replies for r in rollouts):
            raise ScopeError(
                "no simulator can read its prompt and the first message: set text.simulator_model to a model with a "
                "longer context, or lower text.reply_tokens"
            )
        return rollouts

    def metrics(self, rollouts: list[Rollout]) -> dict[str, float | None]:
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
        text = self.config.text
        if model not in self._samplers:
            served = self._vllm.sampler(self.loaded, model) if self._vllm else None
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
    vars(model).pop("peft_config", None)  # or peft takes it for a model that still has one
    return model
