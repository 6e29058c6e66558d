"""The nano worlds as a scene: acts instead of sentences, and every reply distribution known exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scope_lite.collapse import collapse_error
from scope_lite.config import RunConfig
from scope_lite.cotraining import TrainedCast
from scope_lite.engines.hf import SeatModel
from scope_lite.learner import Learner
from scope_lite.panel import Panel
from scope_lite.records import Rollout
from scope_lite.rng import RowKeys
from scope_lite.rollouts import run_dialogues
from scope_lite.scenes import Played
from scope_lite.seats import ModelSeat
from scope_lite.simulators import Cast, Library, check_names, draw_tasks
from scope_lite.theory.measured import odds_from_logprobs
from scope_lite.worlds import get_world


class NanoScene:
    """Models that speak in dialogue acts, from the world's library."""

    threads = 1  # at this size a second costs more than it gives
    number_format = "float32"

    def __init__(self, config: RunConfig):
        check_names(config)
        self.config, self.world = config, get_world(config.world)
        self.library = Library(self.world)

    def policy_model(self) -> SeatModel:
        simulator = self.config.simulator
        both_seats = (simulator.sharpness or 1.0) if simulator.kind == "self" else 1.0
        return self.library.seat_model(self.config.model, both_seats)

    def cast(self, learner: Learner) -> Cast | TrainedCast:
        if self.config.simulator.kind in ("trained", "self"):
            return TrainedCast(self.library, self.config, learner)
        return Cast(self.library, self.config.simulator)

    def panel(self, seen: Sequence[str]) -> Panel:
        return Panel(self.library, tuple(seen))

    def play(self, policy: SeatModel, cast: Cast | TrainedCast, keys: RowKeys) -> Played:
        told = [self.world.tasks[t] for t in draw_tasks(len(self.world.tasks), keys.by_group())]
        seat = ModelSeat(policy, keys, "policy", told)
        simulator, names = cast.seat(keys)
        rollouts = run_dialogues(self.world, seat, simulator, keys, names)
        return Played(rollouts, collapse_error(simulator.distributions()[: self.world.horizon]))

    def metrics(self, rollouts: list[Rollout]) -> dict[str, float | None]:
        return exploit_metrics(rollouts, self.world.spec.exploit)


def exploit_metrics(rollouts: list[Rollout], exploit: tuple[str, ...]) -> dict[str, float | None]:
    """How likely the policy follows the world's exploit, and what it earns there; None if no dialogue followed it.

    Returns:
        ``odds_exploit``: its odds under the policy that played (Cor. 3.5), from its own log probabilities, and
        ``reward_exploit``: the mean reward of the dialogues that followed it.
    """
    followed = [r for r in rollouts if r.policy and tuple(r.acts) == exploit]
    if not followed:
        return {"odds_exploit": None, "reward_exploit": None}
    logprobs = np.array([sum(r.policy.logprobs) for r in followed if r.policy])
    return {
        "odds_exploit": odds_from_logprobs(logprobs),
        "reward_exploit": float(np.mean([r.reward for r in followed])),
    }
