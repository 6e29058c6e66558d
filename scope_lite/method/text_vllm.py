"""A text world's rollouts by vLLM (``text.rollout_engine: vllm``): one engine for the policy and its simulators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from scope_lite.envs.turns import SeatName
from scope_lite.method.config import RunConfig
from scope_lite.models.adapters import read_adapter, split_adapter
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import LoadedModel, find_model
from scope_lite.models.rng import RowKeys
from scope_lite.models.vllm.engine import VllmEngine, VllmSettings, require_vllm
from scope_lite.models.vllm.speakers import EngineSeat, VllmSampler
from scope_lite.models.vllm.sync import AdapterSync, probe_prompts
from scope_lite.store.errors import ScopeError


class VllmRollouts:
    """The engine of one run, started at the first dialogue, and who speaks through it."""

    def __init__(self, config: RunConfig, simulators: Sequence[str | None], loaded: Callable[[], LoadedModel]):
        """``simulators``: the models behind them; those that are adapters on the policy's base are served, too.
        ``loaded`` gives the policy's base, as the trainer holds it.

        Raises:
            ScopeError: vLLM is not installed, or the policy starts from an adapter: the engine has room for one on the
                plain base, the one that is trained.
        """
        if split_adapter(config.model)[1]:
            raise ScopeError(
                f"on vLLM a policy starts from a plain model, not from the adapter of {config.model!r}: set "
                "text.rollout_engine to hf"
            )
        require_vllm()
        self.config, self.base, self.loaded = config, config.model, loaded
        adapters = [folder for name in simulators if (folder := self._adapter(name))]
        self._rank = max([config.lora_rank, *(read_adapter(folder)[0]["r"] for folder in adapters)])
        self._syncs: list[AdapterSync] = []
        """one a trained seat: the policy's first"""

    @cached_property
    def engine(self) -> VllmEngine:
        text, number_format = self.config.text, self.loaded().number_format
        settings = VllmSettings(number_format, text.context, self._rank, text.vllm_share, seed=self.config.seed)
        return VllmEngine(find_model(self.base), settings)

    def seat(
        self,
        model: SeatModel,
        keys: RowKeys,
        seat: SeatName,
        systems: Sequence[str],
        max_new_tokens: int,
        temperature: float | None = None,
    ) -> EngineSeat:
        """The seat of a model that is trained, or of a past self, with the weights that the trainer has now.

        Raises:
            ScopeError: the engine does not serve them.
        """
        sync = next((sync for sync in self._syncs if sync.model is model), None)
        if sync is None:
            sync = AdapterSync(self.engine, model, probe_prompts(model.format, systems), seat)
            self._syncs.append(sync)
        return EngineSeat(self.engine, sync(), model, keys, seat, systems, max_new_tokens, temperature)

    def forget(self, model: SeatModel) -> None:
        """A past self that has left the pool; its adapter leaves the engine."""
        for sync in [sync for sync in self._syncs if sync.model is model]:
            sync.retire()
            self._syncs.remove(sync)

    def sampler(self, model: str | None) -> VllmSampler | None:
        """The sampler of a simulator's model; None where it is not on the policy's base."""
        if model is None or model == self.base:
            return VllmSampler(self.engine, self.loaded())
        folder = self._adapter(model)
        return VllmSampler(self.engine, self.loaded(), self.engine.add(folder, "simulator")) if folder else None

    def rest(self) -> None:
        """The dialogues are over: a GPU's memory is the trainer's."""
        self.engine.sleep()

    def metrics(self) -> dict[str, float | None]:
        """How well the engine follows the policy's trainer."""
        policy = next((sync for sync in self._syncs if sync.name == "policy"), None)
        return policy.metrics() if policy else {}

    def _adapter(self, model: str | None) -> Path | None:
        """The adapter's folder of a model that is an adapter on the policy's base."""
        if model is None or model.startswith("openai:"):
            return None
        base, folder = split_adapter(model)
        return folder if str(base) == self.base else None
