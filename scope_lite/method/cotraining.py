"""Co-Training and self-play: the simulator learns too, and its past selves make up a pool.

    kind     adapters  who plays a group              trained on               the clipped ratio is against
    frozen   1         a panel member (partner.py)    the policy's tokens      -
    trained  2         K = 1: the current weights     each seat's own tokens   the current weights (1 at the update)
    trained  2         K > 1: these, or a past self   each seat's own tokens   the entry that spoke, as it sampled
    self     1         the policy's own adapter, or   the policy's tokens,     as above, by K
                       a past self of it              then the simulator's

A snapshot joins the pool every ``cadence`` steps, and the oldest leaves (FIFO). The current weights are always its
newest entry; with ``present: false`` only past selves play, K of them, at first the start alone. With ``behaviour:
current`` the ratio is to the current weights whoever spoke: 1, and no correction. The KL anchor is to the simulator
that the run started from. In self-play the one adapter is trained on the policy's tokens for the policy's reward, then
on the simulator's for the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_lite.method.config import SimulatorConfig
from scope_lite.method.dialogue import Seat
from scope_lite.method.grpo import counted_advantages
from scope_lite.method.learner import Behaviour, Learner, trainable
from scope_lite.method.partner import Partner
from scope_lite.method.prompted import shares
from scope_lite.method.rewards import SIMULATOR_REWARDS, surprise, variance_split
from scope_lite.method.scene import Scene
from scope_lite.method.seats import GatedSeat, RoutedSeat
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout, Transcript
from scope_lite.models.rng import RowKeys

SAME_REPLIES = 0.05
"""snapshots whose replies differ by less (mean total variation on visited histories) count as one ("distinct")"""


class Pool:
    """The current weights of a simulator and its past selves: who is in, who is drawn, who leaves."""

    def __init__(self, current: SeatModel, settings: SimulatorConfig, leave: Callable[[SeatModel], None]):
        """``leave`` is told of every snapshot that leaves."""
        self.current, self.settings, self.leave = current, settings, leave
        self.snapshots = [] if settings.present else [self._now()]
        """oldest first"""
        self.distinct: list[bool] = []
        """of each entry but the newest: whether its replies differ from every newer one's, measured at the last join"""

    def _now(self) -> SeatModel:
        return self.current.snapshot(self.current.adapter_state())

    @property
    def entries(self) -> list[SeatModel]:
        """Those who may play: snapshots, oldest first, and the current weights last, if they are one of them."""
        return [*self.snapshots, self.current] if self.settings.present else self.snapshots

    def odds(self) -> Float[np.ndarray, " pool"]:
        """Probability of each entry: uniform (the paper's Table 5), halving with age, or over distinct ones."""
        raw: Float[np.ndarray, " pool"] = np.ones(len(self.entries))
        if self.settings.pool_sampling == "newest":
            raw = 0.5 ** np.arange(len(raw))[::-1]
        elif self.settings.pool_sampling == "distinct":
            raw = np.array([*self.distinct, True], dtype=float)
        return raw / raw.sum()

    def draw(self, keys: RowKeys) -> Int[np.ndarray, " b"]:
        """The entry that plays each row: one a step (the paper's C.4), one a group, or one a dialogue (its C.1)."""
        drawn = {"step": keys.by_step(), "group": keys.by_group(), "dialogue": keys}[self.settings.draw]
        edges = np.cumsum(self.odds())
        return np.minimum((edges[None, :] <= drawn.once("pool entry")[:, None]).sum(axis=1), len(edges) - 1)

    def join(self) -> None:
        """A snapshot of the current weights enters; those for which there is no room any more leave, oldest first."""
        everyone, room = [*self.snapshots, self._now()], self.settings.pool_size - self.settings.present
        self.snapshots = everyone[-room:]
        for leaving in everyone[: -len(self.snapshots)]:
            self.leave(leaving)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of every snapshot, by part, for a checkpoint."""
        known = {"pool": {"distinct": torch.tensor(self.distinct)}} if self.distinct else {}
        return {f"pool_{i}": snapshot.adapter_state() for i, snapshot in enumerate(self.snapshots)} | known

    def load_state(self, parts: Mapping[str, dict[str, Tensor]]) -> None:
        names = sorted((n for n in parts if n.startswith("pool_")), key=lambda n: int(n.removeprefix("pool_")))
        for replaced in self.snapshots:
            self.leave(replaced)
        self.snapshots = [self.current.snapshot(parts[name]) for name in names]
        self.distinct = parts["pool"]["distinct"].tolist() if "pool" in parts else []


class LearningPartner(Partner):
    """A simulator that learns, and its past selves. It starts as a panel member: prompt, sharpness and model.

    It writes a transcript of its own, whose tokens it is trained on. A dialogue that does not count (in text: a message
    did not pass the gate) teaches neither seat.
    """

    newest: RoutedSeat

    def _load(self, policy: Learner | None) -> None:
        self.config, self.start = self.scene.config, self.members[0]
        self.members = [self.start]
        if self.settings.kind == "self":
            assert policy is not None
            self.learner = policy
        else:
            own = {"kl_coef": self.settings.kl_coef, "learning_rate": self.settings.learning_rate}
            # its own seed, so that the two adapters do not begin as copies of each other
            model, seed = self.scene.simulator_model(self.start), self.config.seed + 1_000_003
            self.learner = Learner(model, self.config.model_copy(update=own), seed=seed)
        self.pool = Pool(self.learner.model, self.settings, self.scene.forget)

    def seat(self, keys: RowKeys, systems: Sequence[str]) -> Seat:
        """Every row played by its entry of the pool."""
        drawn, parts = self.pool.draw(keys), []
        for i, model in enumerate(self.pool.entries):
            rows = np.flatnonzero(drawn == i)
            if len(rows):
                prompts = [systems[row] for row in rows]
                parts.append((rows, self.scene.seat_learner(self.start, model, keys[rows], prompts)))
        self.newest = RoutedSeat(parts)
        return self.newest

    def learn(self, step: int, rollouts: Sequence[Rollout], keys: RowKeys) -> dict[str, float | None]:
        """One update on the batch, then a snapshot if it is time for one; what does not count teaches nothing."""
        counted, trained = [r for r in rollouts if r.counts], trainable(rollouts, "simulator_transcript")
        transcripts = list(trained.values())
        # 1. credit
        credit = self._credit(rollouts, keys, trained)
        # 2. update. In text another engine may have sampled, with a rounding of its own; where only the current weights
        # speak, the trainer computes their log probabilities again, as it does for the policy
        again = self.config.is_text and not self.settings.has_past
        behaviour: Behaviour = "current" if again else self.settings.behaviour
        advantages = counted_advantages(credit, self.config.simulator_advantages).view(-1)
        update = self.learner.update(transcripts, advantages[list(trained)], behaviour=behaviour)
        # 3. snapshot
        if self.settings.has_past and step % self.settings.cadence == 0:
            self.pool.join()
            self.pool.distinct = self._distinct(transcripts)
        gated = sum(seat.messages for _, seat in self.newest.parts if isinstance(seat, GatedSeat))
        return {
            **{f"simulator/{name}": update[name] for name in ("entropy", "kl", "clip_ratio", "ratio_mean")},
            "simulator/reward": credit[~credit.isnan()].mean().item(),
            "simulator/pool": int((self.pool.odds() > 0).sum()),
            **variance_split([r.reward for r in counted], [r.acts for r in counted]),
            **(shares("simulator/refused", self.newest.failures, gated) if gated else {}),
        }

    def _credit(
        self, rollouts: Sequence[Rollout], keys: RowKeys, trained: Mapping[int, Transcript]
    ) -> Float[Tensor, "groups size"]:
        """What each rollout pays the simulator; NaN where it does not count."""
        missing = torch.tensor([not r.counts for r in rollouts]).view(-1, self.config.group_size)
        rewards = torch.tensor([r.reward for r in rollouts]).view_as(missing).masked_fill(missing, torch.nan)
        if self.settings.reward == "disagreement":
            where = torch.tensor(list(trained), dtype=torch.long)
            surprises = self._surprise(list(trained.values()))
            credit = torch.zeros(len(rollouts)).index_put((where,), surprises).view_as(rewards)
        else:
            credit = SIMULATOR_REWARDS[self.settings.reward](rewards, keys)
        return credit.masked_fill(missing, torch.nan)

    @torch.no_grad()
    def _surprise(self, transcripts: list[Transcript]) -> Float[Tensor, " b"]:
        """The reward "disagreement": how unlike its past selves (the start among them) the simulator spoke."""
        past = [self.learner.reference, *self.pool.snapshots]
        found = [torch.zeros(0)]
        for batch in self.learner.batches(transcripts):
            now, _ = self.learner.model.token_logprobs(batch)
            then = torch.stack([m.token_logprobs(batch)[0] for m in past])
            found.append(surprise(now, then, batch.row, len(batch.ids)))
        return torch.cat(found)

    @torch.no_grad()
    def _distinct(self, transcripts: list[Transcript]) -> list[bool]:
        """Which entries but the newest differ from every newer one, on the histories of this batch."""
        entries = self.pool.entries
        n = len(entries)
        if self.settings.pool_sampling != "distinct":
            return [True] * (n - 1)
        distance, tokens = torch.zeros(n, n), 0
        for batch in self.learner.batches(transcripts):
            replies = [model.log_distributions(batch).exp() for model in entries]
            tokens += len(batch.row)
            for i, j in combinations(range(n), 2):
                distance[i, j] += ((replies[i] - replies[j]).abs().sum(-1) / 2).sum().item()
        return [bool((distance[i, i + 1 :] / max(tokens, 1) >= SAME_REPLIES).all()) for i in range(n - 1)]

    def answers(self) -> dict[str, float]:
        return self.scene.answers(self.start, self.learner.model)

    def state(self) -> dict[str, dict[str, Tensor]]:
        own = {} if self.settings.kind == "self" else {"simulator": self.learner.state()}
        return own | self.pool.state()

    def load_state(self, parts: Mapping[str, dict[str, Tensor]]) -> None:
        if self.settings.kind != "self":
            self.learner.load_state(parts["simulator"])
        self.pool.load_state(parts)


def open_partner(scene: Scene, policy: Learner | None = None) -> Partner:
    """Who plays the simulator in training; a frozen one needs no ``policy``."""
    return (LearningPartner if scene.config.simulator.kind in ("trained", "self") else Partner)(scene, policy)
