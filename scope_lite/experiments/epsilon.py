"""The collapse error on visited histories, measured twice: exactly, and from sampled replies as one must with text.

The table is shipped as ``data/results/epsilon_sampled.csv``; notebook 08 makes it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from scope_lite.envs.nano.users import draw
from scope_lite.measure.samples import (
    cross_validated_mode_share,
    epsilon,
    miller_madow_entropy,
    mode_share,
    normalise_reply,
)
from scope_lite.method.config import RunConfig, method_config
from scope_lite.method.cotraining import open_partner
from scope_lite.method.learner import Learner
from scope_lite.method.made_of import run_folder
from scope_lite.method.nano import NanoScene
from scope_lite.method.seats import KnowsItsLaw
from scope_lite.method.train import train
from scope_lite.models.rng import RowKeys
from scope_lite.store import Checkpoint, checkpoints

MEASURED = ("single", "cotraining", "unsharpened")
FIRST_GROUP = 2_000_000  # rows are keyed apart from those of training and of the panel


def epsilon_by_sampling(
    seeds: int,
    every: int = 20,
    dialogues: int = 64,
    replies: int = 16,
    workers: int | None = None,
    **overrides: Any,
) -> pd.DataFrame:
    """Train RL (Single), Co-Training and the control, and measure epsilon at every ``every``-th step.

    Args:
        dialogues: played between the policy and its training simulator at each of these steps.
        replies: drawn at each history so visited.
        workers: processes; by default one a core.
        overrides: keys of RunConfig (steps=4 for a quick look).

    Returns:
        The rows of :func:`sampled_epsilon`, with variant, seed, step and ``logged``: the run's own metric at that step.
    """
    settings = {"checkpoint_every": every, "eval_every": 10_000, "final_dialogues": 1, **overrides}
    configs = [method_config(m, seed=seed, **settings) for seed in range(seeds) for m in MEASURED]
    measured = Parallel(n_jobs=workers or -1)(delayed(_measured_run)(c, dialogues, replies) for c in configs)
    return pd.DataFrame([row for rows in measured for row in rows])


def _measured_run(config: RunConfig, dialogues: int, replies: int) -> list[dict[str, Any]]:
    rows = []
    with TemporaryDirectory() as scratch:
        weights = run_folder(Path(scratch), config) / "checkpoints"

        def look(step: int, steps: int, metrics: dict[str, Any]) -> None:
            if step % config.checkpoint_every == 0 or step == steps:
                saved = checkpoints.load_newest(weights)
                logged = metrics.get("simulator/epsilon", float("nan"))
                found = sampled_epsilon(config, saved, dialogues, replies)
                rows.append({"variant": config.method, "seed": config.seed, "step": step, "logged": logged, **found})

        train(config, Path(scratch), on_step=look)
    return rows


def sampled_epsilon(config: RunConfig, saved: Checkpoint | None, dialogues: int, replies: int) -> dict[str, float]:
    """Epsilon of the training simulator on the histories that a policy visits with it (Def. 3.1), three ways.

    Args:
        saved: the weights of the run; None: those it starts from.

    Returns:
        Means over histories, per turn: ``exact`` (the model's own probabilities); from ``replies`` sampled sentences,
        compared as text, ``plug_in`` (biased downward) and ``cross_validated`` (biased upward); also the entropy, exact
        and as estimated (Miller-Madow), in nats, and how many ``histories``.
    """
    scene = NanoScene(config)
    world, learner = scene.world, Learner(scene.policy_model(), config, seed=config.seed)
    partner = open_partner(scene, learner)
    if saved is not None:
        learner.load_state(saved.tensors["policy"])
        partner.load_state(saved.tensors)
    step = saved.step if saved else 0
    keys = RowKeys(config.seed, step, FIRST_GROUP + np.arange(dialogues), np.zeros(dialogues, dtype=int))
    partner.play(learner.model, keys)
    simulator = partner.newest
    assert isinstance(simulator, KnowsItsLaw)
    laws = np.concatenate(simulator.distributions()[: world.horizon])
    rng = np.random.default_rng([config.seed, step, dialogues])
    said = [draw(np.tile(p, (replies, 1)), rng.random(replies)) for p in laws]
    labels = [[normalise_reply(world.say(world.spec.user_acts[r])) for r in row] for row in said]
    return {
        "histories": len(laws),
        "replies": replies,
        "exact": float(epsilon(laws).mean()),
        "plug_in": 1 - float(np.mean([mode_share(row) for row in labels])),
        "cross_validated": 1 - float(np.mean([cross_validated_mode_share(row) for row in labels])),
        "entropy": float(-(laws * np.log(np.maximum(laws, 1e-300))).sum(axis=1).mean()),
        "entropy_estimated": float(np.mean([miller_madow_entropy(row) for row in labels])),
    }
