"""The loop: play, score, centre, train, log. One function for every method and scale.

A step, and where to read on:
  1. play     partner.play              nano.py or text.py seat the two sides, dialogue.py lets them speak in turn
  2. score    Rollout.reward            the world's value of the outcome, in [0, 1]
  3. centre   grpo.counted_advantages   within a group, which has one task and one simulator: [1, 0, 0, 1] becomes
                                        [1, -1, -1, 1] (Eq. 2), or by another estimator
  4. train    learner.update            the policy; then partner.learn: a simulator that learns takes its own step
                                        (cotraining.py), a frozen one does nothing
  5. log      run.log                   one line of metrics.jsonl

Not textbook GRPO: no KL by default, and a mean over tokens, not over rollouts (grpo.py says why).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from scope_lite.method.alarm import UNSEEN, collapse, columns_of
from scope_lite.method.config import RunConfig
from scope_lite.method.cotraining import open_partner
from scope_lite.method.grpo import counted_advantages, counted_metrics
from scope_lite.method.learner import Learner, trainable
from scope_lite.method.made_of import made_of, run_folder
from scope_lite.method.nano import NanoScene
from scope_lite.method.panel import Panel
from scope_lite.method.partner import Partner
from scope_lite.method.scene import Scene
from scope_lite.models.pretrained import NUMBER_FORMATS
from scope_lite.models.rng import RowKeys
from scope_lite.store import RunFolder, recorded_format
from scope_lite.store.files import read_lines
from scope_lite.store.folder import is_finished

KEPT_DIALOGUES = 2  # dialogues a panel member that rollouts.jsonl keeps at each evaluation

OnStep = Callable[[int, int, dict[str, float | None]], None]


def train(config: RunConfig, root: Path, fresh: bool = False, on_step: OnStep | None = None) -> Path:
    """Train one run to its end and return its folder; a finished run of the same content is returned as it is.

    Same config and seed on one CPU give the same metrics.jsonl, bit for bit, also when
    the run was stopped and resumed in between.

    Args:
        root: the folder of run folders.
        fresh: run again although a finished run exists.
        on_step: called after every step with (step, steps, metrics).
    """
    opened = RunFolder(run_folder(root, config), config.model_dump(mode="json"), made_of(config), fresh)
    scene = open_scene(config if fresh else in_format(config, opened.final))
    # before the folder is made: a model that cannot be read or trained leaves nothing behind
    players = None if is_finished(opened.final) and not fresh else _players(config, scene)
    with reproducible(scene.threads), opened as run:
        if run.finished:
            return run.path
        learner, partner, panel = players or _players(config, scene)
        run.computes_in(scene.number_format)
        checkpoint = run.load_checkpoint()
        start = 0
        if checkpoint is not None:
            learner.load_state(checkpoint.tensors["policy"])
            partner.load_state(checkpoint.tensors)
            start = checkpoint.step + 1
        evaluated = [row for row in read_lines(run.path / "metrics.jsonl") if UNSEEN in row]
        for step in range(start, config.steps + 1):
            began = time.perf_counter()
            metrics: dict[str, float | None] = {"step": step}
            timing: dict[str, float] = {}
            if step > 0:
                found, timing = _play_and_learn(config, scene, learner, partner, step)
                metrics |= found
            last = step == config.steps
            if step % config.eval_every == 0 or last:
                dialogues = config.final_dialogues if last else config.eval_dialogues
                evaluation = panel.play(learner.model, config.seed, step, dialogues)
                metrics |= {**panel.metrics(evaluation), **partner.answers()}
                kept = [r.readable() for r in evaluation if r.member < KEPT_DIALOGUES]
                run.log_rollouts([{"step": step, **r} for r in kept])
            evaluated += [metrics] if UNSEEN in metrics else []
            metrics["collapse_alarm"] = UNSEEN in metrics and step in collapse(columns_of(evaluated)).steps
            timing["step_seconds"] = time.perf_counter() - began
            run.log(metrics, timing)
            run.progress(step, config.steps)
            if step and (step % config.checkpoint_every == 0 or last):
                run.save_checkpoint(step, {"policy": learner.state(), **partner.state()}, {})
            if on_step is not None:
                on_step(step, config.steps, metrics)
        run.finish()
        return run.path


def open_scene(config: RunConfig) -> Scene:
    """The scene of a run's world.

    Raises:
        ScopeError: for a world, model or simulator that does not exist.
    """
    if not config.is_text:
        return NanoScene(config)
    from scope_lite.method.text import TextScene  # a nano world needs none of its libraries

    return TextScene(config)


def _players(config: RunConfig, scene: Scene) -> tuple[Learner, Partner, Panel]:
    """The policy with its trainer, who it trains with, and who it is evaluated with."""
    learner = Learner(scene.policy_model(), config, seed=config.seed)
    partner = open_partner(scene, learner)
    return learner, partner, Panel(scene, seen={m.name for m in scene.training_members} if config.steps else ())


def in_format(config: RunConfig, folder: Path) -> RunConfig:
    """The config of a run that goes on, or speaks, in the number format that it began in, on whatever machine."""
    began = recorded_format(folder)
    if not config.is_text or config.text.number_format != "auto" or began not in NUMBER_FORMATS:
        return config
    return config.model_copy(update={"text": config.text.model_copy(update={"number_format": began})})


def _play_and_learn(
    config: RunConfig, scene: Scene, learner: Learner, partner: Partner, step: int
) -> tuple[dict[str, float | None], dict[str, float]]:
    """One batch of rollouts and the update of each trained seat on it: metrics, and where the time went."""
    began = time.perf_counter()
    # 1. play
    keys = RowKeys.grid(config.seed, step, config.groups, config.group_size)
    rollouts, epsilon = partner.play(learner.model, keys)
    played = time.perf_counter()
    # 2. score: NaN where a dialogue says nothing about the policy
    rewards = torch.tensor([r.reward if r.counts else math.nan for r in rollouts])
    rewards = rewards.view(config.groups, config.group_size)
    # 3. centre
    advantages = counted_advantages(rewards, config.advantages).view(-1)
    # 4. train, on the dialogues in which there is something to train
    trained = trainable(rollouts, "policy")
    head_start = step <= config.simulator.head_start
    update = learner.update(list(trained.values()), advantages[list(trained)], learn=not head_start)
    learned = partner.learn(step, rollouts, keys)
    # 5. log
    metrics = {
        **counted_metrics(rewards),
        **update,
        "simulator/epsilon": epsilon,
        **learned,
        **scene.metrics(rollouts),
        "turns": float(np.mean([r.turns for r in rollouts])),
    }
    done = time.perf_counter()
    tokens = sum(len(t.ids) for t in trained.values())
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
