"""The table of an experiment, live or frozen, and what was said in its runs.

A notebook asks for a table by name. ``live`` trains what is missing (finished runs are reused); ``frozen`` reads the
table that was made once with more seeds and is shipped in ``data/results``. ``scope-lite results build`` remakes the
shipped tables, resumable; with ``--extend`` it keeps the runs that a shipped table already has, so that a long
production can go on where another machine, or another day, left it.

Beside a table of runs in text some of their dialogues are shipped: one a panel member, from the first and the last
evaluation. A model of the web says slurs, too; they are masked, since classes read this.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import numpy as np
import pandas as pd

from scope_lite.experiments.definitions import EXPERIMENTS, runs_of, with_axes
from scope_lite.experiments.parallel import train_many
from scope_lite.method.config import TEXT_WORLDS, RunConfig
from scope_lite.method.made_of import run_folder
from scope_lite.store import in_words, is_finished, kept_dialogues, load_metrics, load_timing
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_csv, for_terminal
from scope_lite.store.files import replace_text
from scope_lite.store.folder import read_provenance
from scope_lite.store.paths import RESULTS, RUNS, checked_name

Source = Literal["live", "frozen"]
Run = tuple[str, RunConfig]  # variant, config
SLUR = re.compile(r"\bnigg\w*", re.IGNORECASE)
TEXT_PACE = {"verbalized": 300.0}
"""seconds a step in text on a core, where they are not 100: a list is five replies and their marks"""


# -- reading --------------------------------------------------------------------------------------------------------


def live_table(
    experiment: str,
    seeds: int,
    root: Path = RUNS,
    workers: int | None = None,
    variants: Sequence[str] | None = None,
    **overrides: Any,
) -> pd.DataFrame:
    """Train what is missing; one row per run and step at which the experiment's ``rows`` was measured."""
    return _trained(experiment, runs_of(experiment, seeds, variants, **overrides), root, workers)


def frozen_table(experiment: str, results: Path = RESULTS) -> pd.DataFrame:
    """The shipped table of an experiment.

    Raises:
        ScopeError: if it has not been made yet, with the command that makes it.
    """
    return pd.read_csv(_shipped_file(experiment, results))


def frozen_dialogues(experiment: str, results: Path) -> pd.DataFrame:
    """The shipped dialogues of an experiment; raises ScopeError as :func:`frozen_table` does."""
    return pd.read_csv(_shipped_file(experiment, results, "_dialogues"), keep_default_na=False)


def _shipped_file(experiment: str, results: Path, suffix: str = "") -> Path:
    path = results / f"{checked_name(experiment, 'experiment')}{suffix}.csv"
    if not path.exists():
        raise ScopeError(f"no {path.name}; make it with 'scope-lite results build {experiment}'")
    return path


def table(
    experiment: str, source: Source, seeds: int, variants: Sequence[str] | None = None, **overrides: Any
) -> pd.DataFrame:
    """What a notebook asks for: the frozen table, or the live one at this many seeds (of ``variants`` only)."""
    if source == "live":
        return live_table(experiment, seeds, variants=variants, **overrides)
    whole = frozen_table(experiment)
    return whole if variants is None else whole[whole["variant"].isin(list(variants))].reset_index(drop=True)


def dialogues(experiment: str, source: Source, seeds: int) -> pd.DataFrame:
    """What was said in the runs of :func:`table`, at the first and the last evaluation (experiments in text only)."""
    if source == "frozen":
        return frozen_dialogues(experiment, RESULTS)
    return first_and_last((variant, run_folder(RUNS, config)) for variant, config in runs_of(experiment, seeds))


def first_and_last(runs: Iterable[tuple[str, Path]]) -> pd.DataFrame:
    """A row a message: ``variant run step simulator line speaker words outcome reward``.

    Outcome and reward are those of the whole dialogue and stand in each of its rows.

    Args:
        runs: variant and folder of each run.
    """
    rows = []
    for variant, folder in runs:
        kept = kept_dialogues(folder)
        ends = {one["step"] for one in kept[:1] + kept[-1:]}
        shown: dict[tuple[int, str], dict[str, Any]] = {}
        for one in kept:
            if one["step"] in ends:
                shown.setdefault((one["step"], one["simulator"]), one)
        for (step, simulator), one in shown.items():
            about = {"variant": variant, "run": folder.name, "step": step, "simulator": simulator}
            ended = {"outcome": one["outcome"], "reward": one["reward"]}
            for line, (speaker, words, _) in enumerate(in_words(str, one)[:-1]):  # the last one is the outcome
                rows.append({**about, "line": line, "speaker": speaker, "words": SLUR.sub("[slur]", words), **ended})
    return pd.DataFrame(rows)


def as_text(dialogue: pd.DataFrame, width: int = 120) -> str:
    """One dialogue to be printed: plain text, since a model may write what a notebook would take for HTML or maths."""
    one = dialogue.iloc[0]
    lines = [f"with {one['simulator']}: {one['outcome']}, reward {one['reward']:.2f}"]
    for speaker, words in zip(dialogue["speaker"], dialogue["words"], strict=True):
        lines.append(fill(f"{speaker}: {for_terminal(words)}", width, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)


# -- making ---------------------------------------------------------------------------------------------------------


def _trained(experiment: str, runs: Sequence[Run], root: Path, workers: int | None) -> pd.DataFrame:
    # torch takes seconds to import, and a notebook that reads shipped tables only needs no model
    from scope_lite.experiments.nano_models import ensure_models

    ensure_models([config.world for _, config in runs if not config.is_text], workers)
    folders = train_many([config for _, config in runs], root, workers=workers)
    tables = []
    for (variant, config), folder in zip(runs, folders, strict=True):
        metrics = load_metrics([folder]).assign(variant=variant, run=folder.name, learning_rate=config.learning_rate)
        tables.append(metrics[metrics[EXPERIMENTS[experiment].rows].notna()])
    table = pd.concat(tables, ignore_index=True).assign(experiment=experiment)
    first = ["experiment", "variant", "method", "world", "model", "seed", "run", "step"]
    return with_axes(experiment, table[first + [c for c in table.columns if c not in first]])


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
    """Expected hours, from the pace of the nano runs in ``root`` (without any 0.3 s a step), and 100 s a step in text,
    300 s with Verbalized Sampling."""
    logs = [log for log in sorted(root.glob("*/timing.jsonl")) if log.parent.name.split("-")[0] not in TEXT_WORLDS]
    pace = load_timing([log.parent for log in logs[-20:]])["step_seconds"].mean() if logs else 0.3
    paces = [TEXT_PACE.get(c.simulator.kind, 100.0) if c.is_text else pace for c in configs]
    seconds = sum(config.steps * pace for config, pace in zip(configs, paces, strict=True))
    return float(seconds / (workers or os.cpu_count() or 1) / 3600)


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
    path = results / f"{experiment}.csv"
    kept, missing = _shipped(path, runs) if extend else (pd.DataFrame(), runs)
    if not missing:
        return path
    made = _in_order(pd.concat([kept, _trained(experiment, missing, root, workers)], ignore_index=True), runs)
    folders = [(variant, run_folder(root, config)) for variant, config in missing]
    origin = read_provenance(folders[-1][1])
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
        said, spoken = first_and_last(folders), results / f"{experiment}_dialogues.csv"
        if len(kept) and spoken.exists():
            before = frozen_dialogues(experiment, results)
            said = pd.concat([before[before["run"].isin(kept["run"])], said], ignore_index=True)
        replace_text(spoken, for_csv(_in_order(said, runs), "%.6g"))
    replace_text(path, for_csv(made, "%.6g"))
    replace_text(beside, json.dumps(note, indent=1) + "\n")
    return path


def _keys(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Variant and name of each run, which holds the hash of its content."""
    return [(variant, run_folder(RUNS, config).name) for variant, config in runs]


def _keys_of(table: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(table["variant"], table["run"], strict=True))


def _in_order(table: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """The rows as the experiment lists its runs, whichever of them were made first."""
    place = {key: i for i, key in enumerate(_keys(runs))}
    return table.iloc[np.argsort([place[key] for key in _keys_of(table)], kind="stable")]


def _shipped(path: Path, runs: Sequence[Run]) -> tuple[pd.DataFrame, list[Run]]:
    """Rows of a shipped table that belong to these runs, and the runs that it lacks."""
    if not path.exists():
        return pd.DataFrame(), list(runs)
    table = pd.read_csv(path)
    wanted = dict(zip(_keys(runs), runs, strict=True))
    have = set(_keys_of(table))
    return table[[key in wanted for key in _keys_of(table)]], [run for key, run in wanted.items() if key not in have]
