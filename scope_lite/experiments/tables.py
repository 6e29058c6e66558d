"""The table of an experiment, live or frozen.

A notebook asks for a table by name. ``live`` trains what is missing (finished runs are
reused); ``frozen`` reads the table that was made once with more seeds and is shipped in
``data/results``. ``scope-lite results build`` remakes the shipped tables, resumable; with
``--extend`` it keeps the runs that a shipped table already has, so that a long production
can go on where another machine, or another day, left it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from scope_lite.experiments.definitions import EXPERIMENTS, runs_of, with_axes
from scope_lite.experiments.dialogues import dialogues_path, first_and_last, frozen_dialogues
from scope_lite.experiments.parallel import train_many
from scope_lite.method.config import TEXT_WORLDS, RunConfig
from scope_lite.method.made_of import run_folder
from scope_lite.store import is_finished, load_metrics, load_timing
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_csv
from scope_lite.store.files import replace_text
from scope_lite.store.folder import read_provenance
from scope_lite.store.paths import RESULTS, RUNS, checked_name

Source = Literal["live", "frozen"]


Run = tuple[str, RunConfig]  # variant, config


def live_table(
    experiment: str,
    seeds: int,
    root: Path = RUNS,
    workers: int | None = None,
    variants: Sequence[str] | None = None,
    **overrides: Any,
) -> pd.DataFrame:
    """Train what is missing; one row per run and evaluated step (for ``theory_odds``, per step with odds).

    In text it is one row per step: there a run has few steps, and no two training rewards to throw away.
    """
    runs = runs_of(experiment, seeds, variants, **overrides)
    _ensure_models(runs, workers)
    return _trained(experiment, runs, root, workers)


def _ensure_models(runs: Sequence[Run], workers: int | None) -> None:
    # torch takes seconds to import, and a notebook that reads shipped tables only needs no model
    from scope_lite.experiments.nano_models import ensure_models

    ensure_models([config.world for _, config in runs if not config.is_text], workers)


def _trained(experiment: str, runs: Sequence[Run], root: Path, workers: int | None) -> pd.DataFrame:
    folders = train_many([config for _, config in runs], root, workers=workers)
    tables = []
    for (variant, config), folder in zip(runs, folders, strict=True):
        metrics = load_metrics([folder]).assign(variant=variant, run=folder.name, learning_rate=config.learning_rate)
        measured = "odds_exploit" if experiment == "theory_odds" else "panel/unseen/reward"
        measured = "step" if config.is_text else measured
        tables.append(metrics[metrics[measured].notna()])
    table = pd.concat(tables, ignore_index=True).assign(experiment=experiment)
    first = ["experiment", "variant", "method", "world", "model", "seed", "run", "step"]
    return with_axes(experiment, table[first + [c for c in table.columns if c not in first]])


def frozen_table(experiment: str, results: Path = RESULTS) -> pd.DataFrame:
    """The shipped table of an experiment.

    Raises:
        ScopeError: if it has not been made yet, with the command that makes it.
    """
    path = results / f"{checked_name(experiment, 'experiment')}.csv"
    if not path.exists():
        raise ScopeError(f"no frozen table {path.name}; make it with 'scope-lite results build {experiment}'")
    return pd.read_csv(path)


def table(
    experiment: str, source: Source, seeds: int, variants: Sequence[str] | None = None, **overrides: Any
) -> pd.DataFrame:
    """What a notebook asks for: the frozen table, or the live one at this many seeds (of ``variants`` only)."""
    if source == "frozen":
        whole = frozen_table(experiment)
        return whole if variants is None else whole[whole["variant"].isin(list(variants))].reset_index(drop=True)
    return live_table(experiment, seeds, variants=variants, **overrides)


def dialogues(experiment: str, source: Source, seeds: int) -> pd.DataFrame:
    """What was said in the runs of :func:`table`, at the first and the last evaluation (experiments in text only).

    Raises:
        ScopeError: where the table is frozen and no dialogues are beside it.
    """
    if source == "frozen":
        return frozen_dialogues(experiment, RESULTS)
    return first_and_last((key[0], RUNS / key[1]) for key in map(_key, runs_of(experiment, seeds)))


def unfinished(
    experiments: Sequence[str], seeds: int | None = None, root: Path = RUNS, extend: Path | None = None
) -> list[RunConfig]:
    """The runs, each once, that these experiments still have to train; at each one's own number of seeds by default.

    Args:
        extend: a folder of shipped tables, whose runs count as trained.
    """
    wanted: dict[Path, RunConfig] = {}
    for name in experiments:
        runs = runs_of(name, seeds)
        lacking = _shipped(extend / f"{name}.csv", runs)[1] if extend else runs
        wanted |= {run_folder(root, config): config for _, config in lacking}
    return [config for folder, config in wanted.items() if not is_finished(folder)]


def hours_for(configs: Sequence[RunConfig], root: Path = RUNS, workers: int | None = None) -> float:
    """Expected hours, from the pace of the nano runs in ``root``; without any 0.3 s a step.

    In text 100 s on a core, and 300 s with Verbalized Sampling: its lists are five replies and their marks.
    """
    logs = [log for log in sorted(root.glob("*/timing.jsonl")) if log.parent.name.split("-")[0] not in TEXT_WORLDS]
    pace = load_timing([log.parent for log in logs[-20:]])["step_seconds"].mean() if logs else 0.3
    seconds = sum(c.steps * (_text_pace(c) if c.is_text else pace) for c in configs)
    return float(seconds / (workers or os.cpu_count() or 1) / 3600)


def _text_pace(config: RunConfig) -> float:
    return 300.0 if config.simulator.kind == "verbalized" else 100.0


def build(
    experiment: str,
    seeds: int | None = None,
    root: Path = RUNS,
    results: Path = RESULTS,
    workers: int | None = None,
    extend: bool = False,
) -> Path:
    """Make and ship a frozen table, with a note of where it comes from beside it. Resumable: finished runs are kept.

    Args:
        extend: keep also the runs that the shipped table has, of the same content (their name holds its hash).
    """
    runs = runs_of(experiment, seeds)
    seeds = seeds or EXPERIMENTS[experiment].seeds
    _ensure_models(runs, workers)
    path = results / f"{experiment}.csv"
    kept, missing = _shipped(path, runs) if extend else (pd.DataFrame(), runs)
    if not missing:
        return path
    made = pd.concat([kept, _trained(experiment, missing, root, workers)], ignore_index=True)
    made = _in_order(made, runs)
    origin = read_provenance(root / _key(missing[-1])[1])
    note = {
        "command": f"scope-lite results build {experiment} --seeds {seeds}" + " --extend" * extend,
        "seeds": seeds,
        "runs": int(made["run"].nunique()),
        "packages": origin.get("packages"),
        "git": origin.get("git"),
        "made": origin.get("ended"),
    }
    beside = path.with_suffix(".json")
    if len(kept):
        note["kept"] = {"runs": int(kept["run"].nunique()), "from": json.loads(beside.read_text(encoding="utf-8"))}
    results.mkdir(parents=True, exist_ok=True)
    if missing[0][1].is_text:
        note["number_format"] = origin.get("number_format")
        said = first_and_last((key[0], root / key[1]) for key in map(_key, missing))
        spoken = dialogues_path(results, experiment)
        if len(kept) and spoken.exists():
            before = frozen_dialogues(experiment, results)
            said = pd.concat([before[before["run"].isin(kept["run"])], said], ignore_index=True)
        replace_text(spoken, for_csv(_in_order(said, runs), "%.6g"))
    replace_text(path, for_csv(made, "%.6g"))
    replace_text(beside, json.dumps(note, indent=1) + "\n")
    return path


def _in_order(table: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """The rows as the experiment lists its runs, whichever of them were made first."""
    place = {key: i for i, key in enumerate(map(_key, runs))}
    return table.iloc[np.argsort([place[key] for key in _keys_of(table)], kind="stable")]


def _key(run: Run) -> tuple[str, str]:
    """Variant and name of the run's folder, which holds the hash of its content."""
    variant, config = run
    return variant, run_folder(RUNS, config).name


def _keys_of(table: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(table["variant"], table["run"], strict=True))


def _shipped(path: Path, runs: Sequence[Run]) -> tuple[pd.DataFrame, list[Run]]:
    """Rows of a shipped table that belong to these runs, and the runs that it lacks."""
    if not path.exists():
        return pd.DataFrame(), list(runs)
    table = pd.read_csv(path)
    wanted = {_key(run): run for run in runs}
    have = set(_keys_of(table))
    return table[[key in wanted for key in _keys_of(table)]], [run for key, run in wanted.items() if key not in have]
