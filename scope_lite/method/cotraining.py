"""Co-Training and self-play: the simulator learns too, and its past selves make up a pool.

The pool always holds the current weights as its newest entry, so K = 1 is plain
Co-Training. A snapshot joins every ``cadence`` steps and the oldest leaves (FIFO). Each
group is played by one entry; the clipped importance ratio is taken against the entry
that spoke. The KL anchor is to the simulator that the run started from.

In self-play both seats are one adapter, with a mask a role: it is trained on the
policy's tokens for the policy's reward, then on the simulator's for the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_lite.method.config import RunConfig
from scope_lite.method.grpo import group_advantages
from scope_lite.method.learner import Learner
from scope_lite.method.rewards import SIMULATOR_REWARDS, surprise, variance_split
from scope_lite.method.seats import RoutedSeat, Seat
from scope_lite.method.simulators import Library, outcome_rule, panel_member, seat_simulator
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout, TokenBatch, Transcript, collate
from scope_lite.models.rng import RowKeys

SAME_REPLIES = 0.05
"""snapshots whose replies differ by less (mean total variation on visited histories) count as one ("distinct")"""
PROBE = RowKeys(0, 0, np.zeros(1, dtype=int), np.zeros(1, dtype=int))
"""one dialogue that no training step plays"""


class TrainedSimulator:
    """The simulator that learns, and its past selves: who of them plays which row, and what a step teaches it.

    It knows nothing of worlds or words; ``TrainedCast`` seats it at nano, ``method.text_cast.TrainedTextCast`` in text.
    """

    def __init__(self, config: RunConfig, policy: Learner, frozen: Callable[[], SeatModel]):
        """``frozen`` gives the simulator as it is at the start; in self-play the policy's adapter takes its seat."""
        self.config, self.settings = config, config.simulator
        self.shares_policy = self.settings.kind == "self"
        if self.shares_policy:
            self.learner = policy
        else:
            trained = config.model_copy(
                update={"kl_coef": self.settings.kl_coef, "learning_rate": self.settings.learning_rate}
            )
            # its own seed, so that the two adapters do not begin as copies of each other
            self.learner = Learner(frozen(), trained, seed=config.seed + 1_000_003)
        self.snapshots: list[SeatModel] = []
        self.distinct: list[bool] = []
        """of each snapshot: whether its replies differ from every newer entry's, measured when the last one joined"""

    @property
    def pool(self) -> list[SeatModel]:
        """Snapshots, oldest first, and the current weights last."""
        return [*self.snapshots, self.learner.model]

    def entries(self, keys: RowKeys) -> Int[np.ndarray, " b"]:
        """The pool entry that plays each row: one a group, or one a rollout (the paper's Table 8: one a step)."""
        drawn = keys if self.settings.draw == "rollout" else keys.by_group()
        uniforms = drawn.uniforms(0, "task", token=3)[:, 0]
        edges = np.cumsum(self.weights())
        return np.minimum((edges[None, :] <= uniforms[:, None]).sum(axis=1), len(edges) - 1)

    def weights(self) -> Float[np.ndarray, " pool"]:
        """Probability of each pool entry: uniform (the paper's Table 5), halving with age, or over distinct ones."""
        n = len(self.pool)
        raw: Float[np.ndarray, " pool"] = np.ones(n)
        if self.settings.pool_sampling == "newest":
            raw = 0.5 ** np.arange(n)[::-1]
        elif self.settings.pool_sampling == "distinct":
            raw = np.array([*self.distinct, True], dtype=float)
        return raw / raw.sum()

    def routed(self, keys: RowKeys, seat: Callable[[SeatModel, Int[np.ndarray, " r"]], Any]) -> RoutedSeat:
        """Every row played by its pool entry; ``seat(model, rows)`` seats one of them for some rows of the batch."""
        entries = self.entries(keys)
        rows = [np.flatnonzero(entries == i) for i in range(len(self.pool))]
        return RoutedSeat([(mine, seat(model, mine)) for model, mine in zip(self.pool, rows, strict=True) if len(mine)])

    def learn(self, step: int, rollouts: list[Rollout], keys: RowKeys) -> dict[str, Any]:
        """One update on the batch, then a snapshot if it is time for one; what does not count teaches nothing."""
        counted = [r for r in rollouts if r.counts]
        missing = torch.tensor([not r.counts for r in rollouts]).view(-1, self.config.group_size)
        rewards = torch.tensor([r.reward for r in rollouts]).view_as(missing)
        if missing.any():  # the mean of a group is that of the others
            known = rewards.masked_fill(missing, torch.nan)
            rewards = torch.where(missing, known.nanmean(dim=1, keepdim=True), rewards)
        # a dialogue that ended before the simulator said a word has nothing to train
        said = {i: t for i, r in enumerate(rollouts) if r.counts and (t := r.simulator_transcript) and t.spoke}
        spoke, transcripts = list(said), list(said.values())
        if self.settings.reward == "disagreement":
            where = torch.tensor(spoke, dtype=torch.long)
            credit = torch.zeros(len(rollouts)).index_put((where,), self._surprise(transcripts)).view_as(rewards)
        else:
            credit = SIMULATOR_REWARDS[self.settings.reward](rewards, keys)
        credit = credit.masked_fill(missing, torch.nan)
        advantages = group_advantages(credit, scale=self.config.scale_advantages).view(-1)
        update = self.learner.update(transcripts, advantages[spoke], behaviour=self._behaviour())
        if self.settings.pool_size > 1 and step % self.settings.cadence == 0:
            self._join(self.learner.model.snapshot(self.learner.model.adapter_state()))
            self.distinct = self._distinct(transcripts)
        kept = ("entropy", "kl", "clip_ratio", "ratio_mean")
        return {
            **{f"simulator/{name}": update[name] for name in kept},
            "simulator/reward": credit[~missing].mean().item(),
            "simulator/pool": int((self.weights() > 0).sum()),
            **variance_split([r.reward for r in counted], [r.acts for r in counted]),
        }

    def _behaviour(self) -> Literal["current", "sampled"]:
        """Whose log probabilities the ratio is against: the speaker's, as sampled.

        In text another engine may have sampled, with a rounding of its own; where only the current weights speak, the
        trainer computes them again, as it does for the policy.
        """
        return "current" if self.config.is_text and self.settings.pool_size == 1 else "sampled"

    def _join(self, snapshot: SeatModel) -> None:
        """A snapshot enters the pool; those for which there is no room any more leave it, oldest first."""
        everyone = [*self.snapshots, snapshot]
        self.snapshots = everyone[-(self.settings.pool_size - 1) :]
        for leaving in everyone[: -len(self.snapshots)]:
            self._leave(leaving)

    def _leave(self, snapshot: SeatModel) -> None:
        snapshot.release()

    def _batches(self, transcripts: list[Transcript]) -> Iterator[TokenBatch]:
        """The transcripts, as many at once as a gradient takes."""
        size = self.config.text.micro_batch if self.config.is_text else len(transcripts) or 1
        for start in range(0, len(transcripts), size):
            yield collate(transcripts[start : start + size], pad=self.learner.model.tokenizer.pad_token_id)

    @torch.no_grad()
    def _surprise(self, transcripts: list[Transcript]) -> Float[Tensor, " b"]:
        """The reward "disagreement": how unlike its past selves (the start among them) the simulator spoke."""
        past = [self.learner.reference, *self.snapshots]
        found = [torch.zeros(0)]
        for batch in self._batches(transcripts):
            now, _ = self.learner.model.token_logprobs(batch)
            then = torch.stack([m.token_logprobs(batch)[0] for m in past])
            found.append(surprise(now, then, batch.row, len(batch.ids)))
        return torch.cat(found)

    @torch.no_grad()
    def _distinct(self, transcripts: list[Transcript]) -> list[bool]:
        """Which snapshots differ from every newer entry of the pool, on the histories of this batch."""
        n = len(self.pool)
        if self.settings.pool_sampling != "distinct":
            return [True] * (n - 1)
        distance, tokens = torch.zeros(n, n), 0
        for batch in self._batches(transcripts):
            replies = [model.token_logprobs(batch)[1].exp() for model in self.pool]
            tokens += len(batch.row)
            for i, j in combinations(range(n), 2):
                distance[i, j] += ((replies[i] - replies[j]).abs().sum(-1) / 2).sum().item()
        return [bool((distance[i, i + 1 :] / max(tokens, 1) >= SAME_REPLIES).all()) for i in range(n - 1)]

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
        self.snapshots = [self.learner.model.snapshot(parts[name]) for name in names]
        self.distinct = parts["pool"]["distinct"].tolist() if "pool" in parts else []


class TrainedCast(TrainedSimulator):
    """The trained simulator in a nano world: it starts as a member of the panel, and speaks for that member's users."""

    def __init__(self, library: Library, config: RunConfig, policy: Learner):
        settings = config.simulator
        self.library, self.outcome = library, outcome_rule(library.world, settings)
        if settings.kind == "self":
            self.name, model, sharpness = "self", config.model, settings.sharpness or 1.0
            self.population = dict(library.world.spec.prior)
        else:
            member = panel_member(library, settings.members[0])
            assert member.model is not None
            self.name, model, self.population = member.name, member.model, member.population
            sharpness = settings.sharpness or member.sharpness
        super().__init__(config, policy, lambda: library.seat_model(model, sharpness))

    def seat(self, keys: RowKeys) -> tuple[RoutedSeat, list[str]]:
        """The seat for these rows, and the simulator's name in each."""

        def one(model: SeatModel, rows: Int[np.ndarray, " r"]) -> Seat:
            mine = keys[rows]
            return seat_simulator(self.library.world, model, self.population, mine, mine.by_group(), self.outcome)

        return self.routed(keys, one), [self.name] * len(keys)

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
