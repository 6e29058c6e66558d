"""The loop: play, score, centre, train, log. One function for every method and scale."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scope_lite.config import RunConfig
from scope_lite.engines.pretrained import NUMBER_FORMATS
from scope_lite.grpo import group_advantages, reward_metrics
from scope_lite.learner import Learner
from scope_lite.rng import RowKeys
from scope_lite.runs import RunFolder, folder_path, recorded_format
from scope_lite.scenes import Scene, SceneCast, open_scene

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
    name, content, fingerprint = config.run_name(), config.model_dump(mode="json"), config.fingerprint()
    scene = open_scene(config if fresh else in_format(config, folder_path(root, name, fingerprint)))
    with reproducible(scene.threads), RunFolder.open(root, content, name, fingerprint, fresh=fresh) as run:
        if run.finished:
            return run.path
        learner = Learner(scene.policy_model(), config, seed=config.seed)
        run.computes_in(scene.number_format)
        cast = scene.cast(learner)
        panel = scene.panel(seen=config.simulator.members if config.steps else ())
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
            metrics = {"step": step}
            timing: dict[str, float] = {}
            if step > 0:
                found, timing = _play_and_learn(config, scene, learner, cast, step)
                metrics |= found
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


def in_format(config: RunConfig, folder: Path) -> RunConfig:
    """The config of a run that goes on, or speaks, in the number format that it began in, on whatever machine."""
    began = recorded_format(folder)
    if not config.is_text or config.text.number_format != "auto" or began not in NUMBER_FORMATS:
        return config
    return config.model_copy(update={"text": config.text.model_copy(update={"number_format": began})})


def _play_and_learn(
    config: RunConfig, scene: Scene, learner: Learner, cast: SceneCast, step: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """One batch of rollouts and the update of each trained seat on it: metrics, and where the time went."""
    began = time.perf_counter()
    keys = RowKeys.grid(config.seed, step, config.groups, config.group_size)
    rollouts, epsilon = scene.play(learner.model, cast, keys)
    played = time.perf_counter()
    rewards = torch.tensor([r.reward if r.counts else math.nan for r in rollouts])
    rewards = rewards.view(config.groups, config.group_size)
    advantages = group_advantages(rewards, scale=config.scale_advantages).view(-1)
    counted = [i for i, r in enumerate(rollouts) if r.counts]
    transcripts = [t for i in counted if (t := rollouts[i].policy)]
    waits = step <= config.simulator.head_start
    update = learner.update(transcripts, advantages[counted], learn=not waits)
    learned = cast.learn(step, rollouts, keys)
    metrics = {
        **reward_metrics(rewards),
        **update,
        "simulator/epsilon": epsilon,
        **learned,
        **scene.metrics(rollouts),
        "turns": float(np.mean([r.turns for r in rollouts])),
    }
    done = time.perf_counter()
    tokens = sum(len(t.ids) for t in transcripts)
    timing = {
        "rollout_seconds": played - began,
        "train_seconds": done - played,
        "tokens_per_second": tokens / (done - began),
    }
    return metrics, timing


@contextmanager
def reproducible(threads: int | None) -> Iterator[None]:
    """A fixed number of threads (None: as many as there are) and deterministic kernels, for this run only."""
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(threads or before)
    # on a GPU some kernels have no deterministic form: a warning there; bit-equality is claimed on a CPU only
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    # it would also write over every tensor before it is filled; nothing here reads before
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


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
