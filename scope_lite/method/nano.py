"""The nano worlds as a scene: acts instead of sentences, and every reply distribution known exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from scope_lite.envs.nano import get_world
from scope_lite.method.config import RunConfig
from scope_lite.method.cotraining import TrainedCast
from scope_lite.method.learner import Learner
from scope_lite.method.panel import Panel
from scope_lite.method.rollouts import run_dialogues
from scope_lite.method.scene import Played
from scope_lite.method.seats import ModelSeat
from scope_lite.method.simulators import Cast, Library, check_names, draw_tasks
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys


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


def collapse_error(distributions: Sequence[Float[np.ndarray, "rows replies"]]) -> float:
    """Mean collapse error a turn on visited histories, one array of exact reply distributions a turn (Def. 3.1)."""
    return float(np.mean([(1 - np.asarray(p, dtype=float).max(axis=-1)).mean() for p in distributions]))


def odds_from_logprobs(log_probs: Float[np.ndarray, "dialogues"]) -> float:
    """Odds of one act sequence, from the policy's log probability of its acts in the dialogues that followed it.

    Counts cannot exceed 2n + 1; these odds can. With w the product of act probabilities in a dialogue, dialogues that
    follow the sequence come with weight w, so the mean of 1/w over them is 1/P, and the odds are 1 / mean(1/w − 1).

    Args:
        log_probs: ``Σ_t log π(a_t|s_t)`` in nats, one for each dialogue of the batch whose acts are the sequence.

    Returns:
        The odds; NaN if no dialogue followed the sequence.
    """
    if not len(log_probs):
        return float("nan")
    excess = float(np.mean(np.expm1(-np.asarray(log_probs, dtype=np.float64))))
    return 1.0 / max(excess, 1e-12)
