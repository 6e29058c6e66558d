"""Co-Training: the simulator is a second trainable seat, and its past selves make up a pool.

The pool always holds the current weights as its newest entry, so K = 1 is plain
Co-Training. A snapshot joins every ``cadence`` steps and the oldest leaves (FIFO). Each
group is played by one entry; the clipped importance ratio is taken against the entry
that spoke. The KL anchor is to the simulator that the run started from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_lite.config import RunConfig
from scope_lite.engines.hf import SeatModel
from scope_lite.grpo import group_advantages
from scope_lite.learner import Learner
from scope_lite.records import Rollout
from scope_lite.rewards import SIMULATOR_REWARDS, variance_split
from scope_lite.rng import RowKeys
from scope_lite.sampling import Direct
from scope_lite.seats import ModelSeat, RoutedSeat, Seat
from scope_lite.simulators import Library, panel_member


class TrainedCast:
    """Seats the trained simulator and its snapshots, and trains it on what they lived through."""

    def __init__(self, library: Library, config: RunConfig):
        self.config, self.settings = config, config.simulator
        member = panel_member(library, self.settings.members[0])
        assert member.model is not None
        self.library, self.name, self.model_name = library, member.name, member.model
        self.sharpness = self.settings.sharpness or member.sharpness
        trained = config.model_copy(
            update={"kl_coef": self.settings.kl_coef, "learning_rate": self.settings.learning_rate}
        )
        # its own seed, so that the two adapters do not begin as copies of each other
        self.learner = Learner(self._frozen(), trained, seed=config.seed + 1_000_003)
        self.snapshots: list[SeatModel] = []

    def _frozen(self) -> SeatModel:
        return self.library.seat_model(self.model_name, self.sharpness)

    def _snapshot(self, adapter: dict[str, Tensor]) -> SeatModel:
        model = self._frozen()
        model.add_adapter(self.config.lora_rank, 2 * self.config.lora_rank, seed=0)
        model.load_adapter_state(adapter)
        model.model.requires_grad_(False)
        return model

    @property
    def pool(self) -> list[SeatModel]:
        """Snapshots, oldest first, and the current weights last."""
        return [*self.snapshots, self.learner.model]

    def entries(self, keys: RowKeys) -> Int[np.ndarray, " b"]:
        """The pool entry that plays each row, drawn for each group."""
        whole_group = RowKeys(keys.run, keys.step, keys.group, np.zeros_like(keys.member))
        uniforms = whole_group.uniforms(0, "task", token=3)[:, 0]
        edges = np.cumsum(self.weights())
        return np.minimum((edges[None, :] <= uniforms[:, None]).sum(axis=1), len(edges) - 1)

    def weights(self) -> Float[np.ndarray, " pool"]:
        """Probability of each pool entry: uniform (the paper's), or halving with age ("newest")."""
        n = len(self.pool)
        raw = np.ones(n) if self.settings.pool_sampling == "uniform" else 0.5 ** np.arange(n)[::-1]
        return raw / raw.sum()

    def seat(self, keys: RowKeys) -> tuple[Seat, list[str]]:
        """The seat for these rows, and the simulator's name in each."""
        entries = self.entries(keys)
        parts: list[tuple[np.ndarray, Seat]] = []
        for i, model in enumerate(self.pool):
            rows = np.flatnonzero(entries == i)
            if len(rows):
                parts.append((rows, ModelSeat(model, keys[rows], "simulator", ["user"] * len(rows), Direct())))
        return RoutedSeat(parts), [self.name] * len(keys)

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, Any]:
        """One update on the batch, then a snapshot if it is time for one."""
        rewards = torch.tensor([r.reward for r in rollouts]).view(-1, self.config.group_size)
        credit = SIMULATOR_REWARDS[self.settings.reward](rewards, keys)
        advantages = group_advantages(credit, scale=self.config.scale_advantages).view(-1)
        transcripts = [r.simulator_transcript for r in rollouts if r.simulator_transcript is not None]
        update = self.learner.update(transcripts, advantages, behaviour="sampled")
        if self.settings.pool_size > 1 and step % self.settings.cadence == 0:
            self.snapshots.append(self._snapshot(self.learner.model.adapter_state()))
            self.snapshots = self.snapshots[-(self.settings.pool_size - 1) :]
        kept = ("entropy", "kl", "clip_ratio", "ratio_mean")
        return {
            **{f"simulator/{name}": update[name] for name in kept},
            "simulator/reward": credit.mean().item(),
            **variance_split([r.reward for r in rollouts], [r.acts for r in rollouts]),
        }

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of the simulator and of every snapshot, by part, for a checkpoint."""
        pool = {f"pool_{i}": snapshot.adapter_state() for i, snapshot in enumerate(self.snapshots)}
        return {"simulator": self.learner.state(), **pool}

    def load_state(self, parts: dict[str, dict[str, Tensor]]) -> None:
        self.learner.load_state(parts["simulator"])
        names = sorted((n for n in parts if n.startswith("pool_")), key=lambda n: int(n.removeprefix("pool_")))
        self.snapshots = [self._snapshot(parts[name]) for name in names]
