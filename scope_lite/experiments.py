"""The experiments behind the figures: which runs each one needs, and its table, live or frozen.

A notebook asks for a table by name. ``live`` trains what is missing (finished runs are
reused); ``frozen`` reads the table that was made once with more seeds and is shipped in
``data/results``. ``scope-lite results build`` remakes the shipped tables, resumable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from scope_lite.config import RunConfig, closest, method_config
from scope_lite.errors import ScopeError
from scope_lite.parallel import train_many
from scope_lite.paths import RESULTS, RUNS
from scope_lite.runs import folder_path, is_finished, load_metrics, load_timing

Source = Literal["live", "frozen"]
Variant = tuple[str, dict[str, Any]]  # label, what differs from the method's preset

GAMMAS = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
LIST_SIZES = (1, 2, 3, 5, 9)
NOISES = (0.0, 0.3, 1.0, 2.0)
START_GAMMAS = (1.0, 2.0, 3.0, 4.0, 8.0)
POOL_SIZES = (1, 3, 5, 10)


def _methods() -> list[Variant]:
    return [(m, {"method": m}) for m in ("base", "single", "persona", "verbalized", "ensemble", "unsharpened")]


def _single_by_simulator() -> list[Variant]:
    return [(s, {"method": "single", "simulator": {"members": [s]}}) for s in ("sim-a", "sim-b", "sim-c")]


def _no_exploit() -> list[Variant]:
    return [(m, {"method": m, "world": "persuasion_plain"}) for m in ("base", "single", "unsharpened")]


def _phases() -> list[Variant]:
    """Starting sharpness by method; the zero-reward control is a frozen simulator under the same loop."""
    kinds: dict[str, dict[str, Any]] = {
        "zero reward": {"reward": "zero"},
        "Co-Training": {},
        "Population": {"pool_size": 5},
    }
    return [
        (f"{name}, sharpness={gamma:g}", {"method": _trained_method(extra), "simulator": {"sharpness": gamma, **extra}})
        for name, extra in kinds.items()
        for gamma in START_GAMMAS
    ]


def _trained_method(simulator: dict[str, Any]) -> str:
    return "population" if simulator.get("pool_size", 1) > 1 else "cotraining"


def _simulator_rewards() -> list[Variant]:
    rewards = ("curriculum", "adversarial", "cooperative", "zero", "random")
    return [(r, {"method": "cotraining", "simulator": {"reward": r, "sharpness": 2.0}}) for r in rewards]


def _pool_sizes() -> list[Variant]:
    settings: list[dict[str, Any]] = [{"pool_size": k, "sharpness": 2.0} for k in POOL_SIZES]
    return [(f"K={s['pool_size']}", {"method": _trained_method(s), "simulator": s}) for s in settings]


def _dial(key: str, values: tuple[float, ...], method: str, **fixed: Any) -> list[Variant]:
    return [(f"{key}={v:g}", {"method": method, "simulator": {key: v, **fixed}}) for v in values]


EXPERIMENTS: dict[str, Callable[[], list[Variant]]] = {
    "methods": _methods,
    "single_by_simulator": _single_by_simulator,
    "no_exploit": _no_exploit,
    "sharpness": lambda: _dial("sharpness", GAMMAS, "single"),
    "sharpness_centred": lambda: [
        (v, {**settings, "scale_advantages": False}) for v, settings in _dial("sharpness", GAMMAS, "single")
    ],
    "persona": lambda: [(p, {"method": "persona", "simulator": {"persona": p}}) for p in ("says", "as")],
    "vs_eta_mode": lambda: _dial("eta", ETAS, "verbalized", direction="mode"),
    "vs_eta_wrong": lambda: _dial("eta", ETAS, "verbalized", direction="wrong"),
    "vs_k": lambda: _dial("k", LIST_SIZES, "verbalized"),
    "theory_odds": lambda: [(m, {"method": m, "eval_every": 100}) for m in ("single", "unsharpened")],
    "phases": _phases,
    "simulator_rewards": _simulator_rewards,
    "pool_sizes": _pool_sizes,
    "vs_noise": lambda: _dial("noise", NOISES, "verbalized"),
}


def runs_of(experiment: str, seeds: int, **overrides: Any) -> list[tuple[str, RunConfig]]:
    """(variant, config) of every run of an experiment, seed by seed.

    Args:
        overrides: keys of RunConfig that hold for every run (steps=10 for a quick look).

    Raises:
        ScopeError: for an unknown experiment.
    """
    if experiment not in EXPERIMENTS:
        raise ScopeError(closest(experiment, list(EXPERIMENTS), "experiment"))
    runs = []
    for seed in range(seeds):
        for label, settings in EXPERIMENTS[experiment]():
            chosen = {**overrides, **settings, "seed": seed}
            if settings["method"] == "base":
                chosen.pop("steps", None)
            runs.append((label, method_config(**chosen)))
    return runs


def live_table(
    experiment: str, seeds: int, root: Path = RUNS, workers: int | None = None, **overrides: Any
) -> pd.DataFrame:
    """Train what is missing; one row per run and evaluated step (for ``theory_odds``, per step with odds)."""
    runs = runs_of(experiment, seeds, **overrides)
    folders = train_many([config for _, config in runs], root, workers=workers)
    tables = []
    for (variant, config), folder in zip(runs, folders, strict=True):
        metrics = load_metrics([folder]).assign(variant=variant, run=folder.name, learning_rate=config.learning_rate)
        measured = "odds_exploit" if experiment == "theory_odds" else "panel/real/reward"
        tables.append(metrics[metrics[measured].notna()])
    table = pd.concat(tables, ignore_index=True).assign(experiment=experiment)
    first = ["experiment", "variant", "method", "world", "model", "seed", "run", "step"]
    return table[first + [c for c in table.columns if c not in first]]


def frozen_table(experiment: str, results: Path = RESULTS) -> pd.DataFrame:
    """The shipped table of an experiment.

    Raises:
        ScopeError: if it has not been made yet, with the command that makes it.
    """
    path = results / f"{experiment}.csv"
    if not path.exists():
        raise ScopeError(f"no frozen table {path.name}; make it with 'scope-lite results build {experiment}'")
    return pd.read_csv(path)


def table(experiment: str, source: Source, seeds: int, **overrides: Any) -> pd.DataFrame:
    """What a notebook asks for: the frozen table, or the live one at this many seeds."""
    if source == "frozen":
        return frozen_table(experiment)
    return live_table(experiment, seeds, **overrides)


def unfinished(experiments: Sequence[str], seeds: int, root: Path = RUNS) -> list[RunConfig]:
    """The runs, each once, that these experiments still have to train."""
    wanted = {c.fingerprint(): c for name in experiments for _, c in runs_of(name, seeds)}
    return [c for c in wanted.values() if not is_finished(folder_path(root, c.run_name(), c.fingerprint()))]


def hours_for(configs: Sequence[RunConfig], root: Path = RUNS, workers: int | None = None) -> float:
    """Expected hours, from the pace of the runs in ``root``; 0.3 s a step where there are none."""
    logs = sorted(root.glob("*/timing.jsonl"))[-20:]
    seconds = load_timing([log.parent for log in logs])["step_seconds"].mean() if logs else 0.3
    return float(seconds * sum(c.steps for c in configs) / (workers or os.cpu_count() or 1) / 3600)


def build(experiment: str, seeds: int, root: Path = RUNS, results: Path = RESULTS, workers: int | None = None) -> Path:
    """Make and ship a frozen table, with a note of where it comes from beside it. Resumable: finished runs are kept."""
    made = live_table(experiment, seeds, root, workers)
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{experiment}.csv"
    partial = path.with_suffix(".tmp")
    made.to_csv(partial, index=False, float_format="%.6g", lineterminator="\n")
    partial.replace(path)
    origin = json.loads((root / made["run"].iloc[-1] / "provenance.json").read_text())
    note = {
        "command": f"scope-lite results build {experiment} --seeds {seeds}",
        "seeds": seeds,
        "runs": int(made["run"].nunique()),
        "packages": origin["packages"],
        "git": origin["git"],
        "made": origin["ended"],
    }
    path.with_suffix(".json").write_text(json.dumps(note, indent=1) + "\n")
    return path
