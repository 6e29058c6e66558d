"""The loop: play, score, centre, train, log. One function for every method and scale."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scope_lite.collapse import collapse_error
from scope_lite.config import RunConfig
from scope_lite.cotraining import TrainedCast
from scope_lite.grpo import group_advantages, group_fractions
from scope_lite.learner import Learner
from scope_lite.panel import Panel
from scope_lite.records import Rollout
from scope_lite.rng import RowKeys
from scope_lite.rollouts import run_dialogues
from scope_lite.runs import RunFolder
from scope_lite.seats import ModelSeat
from scope_lite.simulators import Cast, Library, check_names, draw_tasks
from scope_lite.theory.measured import odds_from_logprobs
from scope_lite.worlds import get_world

KEPT_DIALOGUES = 2  # dialogues a panel member that rollouts.jsonl keeps at each evaluation

OnStep = Callable[[int, int, dict[str, Any]], None]


def train(config: RunConfig, root: Path, fresh: bool = False, on_step: OnStep | None = None) -> Path:
    """Train one run to its end and return its folder; a finished run of the same content is returned as it is.

    Same config and seed on one CPU give the same metrics.jsonl, bit for bit, also when
    the run was stopped and resumed in between.

    Args:
        root: the folder of run folders.
        fresh: run again although a finished run exists.
        on_step: called after every step with (step, steps, metrics).
    """
    world = get_world(config.world)
    check_names(config)
    name = config.run_name()
    content = config.model_dump(mode="json")
    with reproducible(), RunFolder.open(root, content, name, config.fingerprint(), fresh=fresh) as run:
        if run.finished:
            return run.path
        library = Library(world)
        kind = config.simulator.kind
        both_seats = (config.simulator.sharpness or 1.0) if kind == "self" else 1.0
        learner = Learner(library.seat_model(config.model, both_seats), config, seed=config.seed)
        learns = kind in ("trained", "self")
        cast = TrainedCast(library, config, learner) if learns else Cast(library, config.simulator)
        trained = config.simulator.members if config.steps else ()
        panel = Panel(library, seen=trained)
        alarm = CollapseAlarm()
        checkpoint = run.load_checkpoint()
        start = 0
        if checkpoint is not None:
            learner.load_state(checkpoint.tensors["policy"])
            cast.load_state(checkpoint.tensors)
            alarm.load_state(checkpoint.state)
            start = checkpoint.step + 1
        metrics: dict[str, Any] = {}
        for step in range(start, config.steps + 1):
            began = time.perf_counter()
            metrics, timing = {"step": step}, {}
            if step > 0:
                keys = RowKeys.grid(config.seed, step, config.groups, config.group_size)
                told = [world.tasks[t] for t in draw_tasks(world, keys.by_group())]
                policy = ModelSeat(learner.model, keys, "policy", told)
                simulator, names = cast.seat(keys)
                rollouts = run_dialogues(world, policy, simulator, keys, names)
                played = time.perf_counter()
                rewards = torch.tensor([r.reward for r in rollouts]).view(config.groups, config.group_size)
                advantages = group_advantages(rewards, scale=config.scale_advantages).view(-1)
                waits = step <= config.simulator.head_start
                update = learner.update(policy.transcripts, advantages, learn=not waits)
                learned = cast.learn(step, rollouts, keys)
                metrics |= {
                    "reward": rewards.mean().item(),
                    "reward_std": rewards.std(dim=1, correction=0).mean().item(),
                    **group_fractions(rewards),
                    **update,
                    "simulator/epsilon": collapse_error(simulator.distributions()[: world.horizon]),
                    **learned,
                    **exploit_metrics(rollouts, world.spec.exploit),
                    "turns": float(np.mean([r.turns for r in rollouts])),
                }
                tokens = sum(len(t.ids) for t in policy.transcripts)
                timing = {"rollout_seconds": played - began, "train_seconds": time.perf_counter() - played}
                timing["tokens_per_second"] = tokens / (time.perf_counter() - began)
            last = step == config.steps
            if step % config.eval_every == 0 or last:
                dialogues = config.final_dialogues if last else config.eval_dialogues
                evaluation = panel.play(learner.model, config.seed, step, dialogues)
                metrics |= {**panel.metrics(evaluation), **cast.answers()}
                kept = [r.readable() for r in evaluation if r.member < KEPT_DIALOGUES]
                run.log_rollouts([{"step": step, **r} for r in kept])
            metrics["collapse_alarm"] = alarm.check(metrics)
            timing["step_seconds"] = time.perf_counter() - began
            run.log(metrics, timing)
            run.progress(step, config.steps)
            if step and (step % config.checkpoint_every == 0 or last):
                run.save_checkpoint(step, {"policy": learner.state(), **cast.state()}, alarm.state(), keep=last)
            if on_step is not None:
                on_step(step, config.steps, metrics)
        run.finish(metrics)
        return run.path


@contextmanager
def reproducible() -> Iterator[None]:
    """One thread (at this size a second costs more than it gives) and deterministic kernels, for this run only."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # it would also write over every tensor before it is filled, a tenth of a nano step; nothing here reads before
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


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


class CollapseAlarm:
    """A plain alarm, from step 40 on: entropy below a quarter of its start, and unseen reward below its peak.

    Below means by more than ``MARGIN``: entropy falls for every good policy, and the peak of
    twenty noisy evaluations always lies a little above the latest one.
    """

    FROM_STEP = 40
    MARGIN = 0.1

    def __init__(self) -> None:
        self.first_entropy: float | None = None
        self.entropy: float | None = None
        self.peak: float | None = None

    def check(self, metrics: dict[str, Any]) -> bool:
        """True if the alarm sounds at this step (it needs an evaluation to sound)."""
        self.entropy = metrics.get("entropy", self.entropy)
        if self.first_entropy is None:
            self.first_entropy = self.entropy
        unseen = metrics.get("panel/unseen/reward")
        if unseen is None or self.entropy is None or self.first_entropy is None:
            return False
        self.peak = unseen if self.peak is None else max(self.peak, unseen)
        fell = unseen < self.peak - self.MARGIN
        return metrics["step"] >= self.FROM_STEP and fell and self.entropy < self.first_entropy / 4

    def state(self) -> dict[str, float | None]:
        return dict(vars(self))

    def load_state(self, state: dict[str, Any]) -> None:
        self.first_entropy, self.entropy, self.peak = (state[n] for n in ("first_entropy", "entropy", "peak"))
