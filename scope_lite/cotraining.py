"""Co-Training and self-play: the simulator learns too, and its past selves make up a pool.

The pool always holds the current weights as its newest entry, so K = 1 is plain
Co-Training. A snapshot joins every ``cadence`` steps and the oldest leaves (FIFO). Each
group is played by one entry; the clipped importance ratio is taken against the entry
that spoke. The KL anchor is to the simulator that the run started from.

In self-play both seats are one adapter, with a mask a role: it is trained on the
policy's tokens for the policy's reward, then on the simulator's for the simulator's.
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
from scope_lite.records import Rollout, TokenBatch, Transcript, collate
from scope_lite.rewards import SIMULATOR_REWARDS, surprise, variance_split
from scope_lite.rng import RowKeys
from scope_lite.seats import RoutedSeat, Seat
from scope_lite.simulators import Library, outcome_rule, panel_member, seat_simulator

SAME_REPLIES = 0.05
"""snapshots whose replies differ by less (mean total variation on visited histories) count as one ("distinct")"""
PROBE = RowKeys(0, 0, np.zeros(1, dtype=int), np.zeros(1, dtype=int))
"""one dialogue that no training step plays"""


class TrainedCast:
    """Seats the trained simulator and its snapshots, and trains it on what they lived through."""

    def __init__(self, library: Library, config: RunConfig, policy: Learner):
        self.config, self.settings, self.library = config, config.simulator, library
        self.outcome = outcome_rule(library.world, self.settings)
        self.shares_policy = self.settings.kind == "self"
        if self.shares_policy:
            self.name, self.model_name, self.sharpness = "self", config.model, self.settings.sharpness or 1.0
            self.population, self.learner = dict(library.world.spec.prior), policy
        else:
            member = panel_member(library, self.settings.members[0])
            assert member.model is not None
            self.name, self.model_name, self.population = member.name, member.model, member.population
            self.sharpness = self.settings.sharpness or member.sharpness
            trained = config.model_copy(
                update={"kl_coef": self.settings.kl_coef, "learning_rate": self.settings.learning_rate}
            )
            # its own seed, so that the two adapters do not begin as copies of each other
            self.learner = Learner(self._frozen(), trained, seed=config.seed + 1_000_003)
        self.snapshots: list[SeatModel] = []
        self.distinct: list[bool] = []
        """of each snapshot: whether its replies differ from every newer entry's, measured when the last one joined"""

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
        """The pool entry that plays each row: one a group, or (the paper's) one a rollout."""
        drawn = keys if self.settings.draw == "rollout" else keys.by_group()
        uniforms = drawn.uniforms(0, "task", token=3)[:, 0]
        edges = np.cumsum(self.weights())
        return np.minimum((edges[None, :] <= uniforms[:, None]).sum(axis=1), len(edges) - 1)

    def weights(self) -> Float[np.ndarray, " pool"]:
        """Probability of each pool entry: uniform (the paper's), halving with age, or uniform over distinct ones."""
        n = len(self.pool)
        raw: Float[np.ndarray, " pool"] = np.ones(n)
        if self.settings.pool_sampling == "newest":
            raw = 0.5 ** np.arange(n)[::-1]
        elif self.settings.pool_sampling == "distinct":
            raw = np.array([*self.distinct, True], dtype=float)
        return raw / raw.sum()

    def seat(self, keys: RowKeys) -> tuple[Seat, list[str]]:
        """The seat for these rows, and the simulator's name in each."""
        entries = self.entries(keys)
        parts: list[tuple[np.ndarray, Seat]] = []
        for i, model in enumerate(self.pool):
            rows = np.flatnonzero(entries == i)
            if len(rows):
                mine = keys[rows]
                seat = seat_simulator(self.library.world, model, self.population, mine, mine.by_group(), self.outcome)
                parts.append((rows, seat))
        return RoutedSeat(parts), [self.name] * len(keys)

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, Any]:
        """One update on the batch, then a snapshot if it is time for one."""
        rewards = torch.tensor([r.reward for r in rollouts]).view(-1, self.config.group_size)
        transcripts = [r.simulator_transcript for r in rollouts if r.simulator_transcript is not None]
        if self.settings.reward == "disagreement":
            credit = self._surprise(transcripts).view_as(rewards)
        else:
            credit = SIMULATOR_REWARDS[self.settings.reward](rewards, keys)
        advantages = group_advantages(credit, scale=self.config.scale_advantages).view(-1)
        update = self.learner.update(transcripts, advantages, behaviour="sampled")
        if self.settings.pool_size > 1 and step % self.settings.cadence == 0:
            self.snapshots.append(self._snapshot(self.learner.model.adapter_state()))
            self.snapshots = self.snapshots[-(self.settings.pool_size - 1) :]
            self.distinct = self._distinct(transcripts)
        kept = ("entropy", "kl", "clip_ratio", "ratio_mean")
        return {
            **{f"simulator/{name}": update[name] for name in kept},
            "simulator/reward": credit.mean().item(),
            "simulator/pool": int((self.weights() > 0).sum()),
            **variance_split([r.reward for r in rollouts], [r.acts for r in rollouts]),
        }

    def _batch(self, transcripts: list[Transcript]) -> TokenBatch:
        return collate(transcripts, pad=self.learner.model.tokenizer.pad_token_id)

    @torch.no_grad()
    def _surprise(self, transcripts: list[Transcript]) -> Float[Tensor, " b"]:
        """The reward "disagreement": how unlike its past selves (the start among them) the simulator spoke."""
        batch = self._batch(transcripts)
        past = [self.learner.reference, *self.snapshots]
        now, _ = self.learner.model.token_logprobs(batch)
        return surprise(now, torch.stack([m.token_logprobs(batch)[0] for m in past]), batch.row, len(transcripts))

    @torch.no_grad()
    def _distinct(self, transcripts: list[Transcript]) -> list[bool]:
        """Which snapshots differ from every newer entry of the pool, on the histories of this batch."""
        if self.settings.pool_sampling != "distinct":
            return [True] * len(self.snapshots)
        batch = self._batch(transcripts)
        replies = [model.token_logprobs(batch)[1].exp() for model in self.pool]
        return [
            all((p - newer).abs().sum(-1).mean() / 2 >= SAME_REPLIES for newer in replies[i + 1 :])
            for i, p in enumerate(replies[:-1])
        ]

    def answers(self) -> dict[str, float]:
        """Where the simulator's mode stands: its replies to the world's most open question, asked first.

        Returns:
            ``simulator/answer/<reply>``: the probability of each reply, under the current weights.
        """
        world = self.library.world
        acts = [world.spec.agent_acts[world.open_question]]
        seat = seat_simulator(world, self.learner.model, self.population, PROBE, PROBE, self.outcome)
        seat.hear(acts)
        seat.speak(0, "reply")
        return {
            f"simulator/answer/{r}": float(p)
            for r, p in zip(world.spec.user_acts, seat.distributions()[0][0], strict=True)
        }

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of the simulator and of every snapshot, by part, for a checkpoint."""
        pool = {f"pool_{i}": snapshot.adapter_state() for i, snapshot in enumerate(self.snapshots)}
        known = {"pool": {"distinct": torch.tensor(self.distinct)}} if self.distinct else {}
        own = {} if self.shares_policy else {"simulator": self.learner.state()}
        return {**own, **pool, **known}

    def load_state(self, parts: dict[str, dict[str, Tensor]]) -> None:
        if not self.shares_policy:
            self.learner.load_state(parts["simulator"])
        names = sorted((n for n in parts if n.startswith("pool_")), key=lambda n: int(n.removeprefix("pool_")))
        self.snapshots = [self._snapshot(parts[name]) for name in names]
        self.distinct = parts["pool"]["distinct"].tolist() if "pool" in parts else []
