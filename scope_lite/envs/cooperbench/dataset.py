"""CooperBench's dataset folder as pair tasks: one repository at one commit, two features, a test suite for each.

The folder is the benchmark's own (MIT; a data set of the same name on the Hugging Face hub, or ``dataset/`` of its
repository). Of it are read:

    <name>_task/task<id>/Dockerfile or setup.sh     address of the repository and base commit, by their git commands
    <name>_task/task<id>/feature<n>/feature.md      what an agent is asked to build
    <name>_task/task<id>/feature<n>/tests.patch     the tests, as a change to the base commit; agents never see them
    <name>_task/task<id>/feature<n>/feature.patch   a solution by people ("gold"); may be missing
    subsets/<subset>.json                           named lists of pairs

The repositories themselves are not in it. A second folder holds them, each as a clone or as a plain tree of the base
commit (an unpacked source release, for instance), under <owner>/<repository>, <repository> or <name>_task/task<id>.
Both, as ``dataset`` and ``repositories``, lie in the folder that ``SCOPE_LITE_COOPERBENCH`` names; without it, in
``data/cooperbench``, where four small tasks of our own are.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import COOPERBENCH_VARIABLE, DATA, checked_name, name_fault, path_in

SOURCE = "the benchmark's data set, for instance `git clone https://github.com/cooperbench/CooperBench`, folder dataset"
_CLONE = re.compile(r"git clone\s[^\n]*?https://[\w.-]+/([\w.-]+)/([\w.-]+?)(?:\.git)?[\"'\s]")
_COMMIT = re.compile(r"(?:BASE_COMMIT=[\"']?|git checkout\s+|git reset --hard\s+)([0-9a-f]{7,40})\b")


@dataclass(frozen=True)
class Feature:
    """One agent's half of a task."""

    number: int
    description: str
    tests: str
    """a patch"""
    gold: str
    """a patch; empty where the data set has none"""


@dataclass(frozen=True)
class PairTask:
    """Two features for two agents, in one repository."""

    name: str
    """for instance "pallets_jinja_task/task1621/f1_f2" """
    repository: str
    """owner/repository"""
    commit: str
    """the base commit; of no use where ``source`` is a plain tree"""
    source: Path
    """a clone, or a plain tree"""
    features: tuple[Feature, Feature]


def load_split(split: str) -> list[PairTask]:
    """The pairs of three tasks of four ("train"), or of the others ("test"), each in both orders of its features.

    A dataset of one task has it in both.
    """
    place = path_in(COOPERBENCH_VARIABLE) or DATA / "cooperbench"
    pairs = load_pairs(place / "dataset", place / "repositories")
    folders = sorted({pair.name.rpartition("/")[0] for pair in pairs})
    held_out = folders[3::4] or folders[-1:]
    kept = held_out if split == "test" else [name for name in folders if name not in held_out] or folders
    chosen = [pair for pair in pairs if pair.name.rpartition("/")[0] in kept]
    swapped = [replace(pair, name=f"{pair.name}/swapped", features=pair.features[::-1]) for pair in chosen]
    return [task for both in zip(chosen, swapped, strict=True) for task in both]


def content() -> str:
    """Hash of all that the agents are asked and judged by, wherever it lies."""
    pairs = [replace(pair, source=Path()) for split in ("train", "test") for pair in load_split(split)]
    return hashlib.sha256(repr(pairs).encode(errors="surrogateescape")).hexdigest()


def load_pairs(dataset: Path, repositories: Path, subset: str | None = None) -> list[PairTask]:
    """The pairs of a dataset folder whose repositories are at hand: every two features of a task, or a named subset.

    Raises:
        ScopeError: a folder or a file is missing or unreadable; or there is no repository for any pair.
    """
    if not dataset.is_dir():
        raise ScopeError(f"no CooperBench dataset at {dataset}: give the folder of {SOURCE}")
    if not repositories.is_dir():
        raise ScopeError(
            f"no folder {repositories}: it should hold the repositories that the tasks are about, as clones"
        )
    wanted = _subset(dataset, subset) if subset else None
    pairs, missing = [], set()
    for folder in _task_folders(dataset):
        repository, commit, source = find_repository(repositories, folder)
        if source is None:
            missing.add(repository)
            continue
        features = read_features(folder)
        for first, second in combinations(features, 2):
            if wanted is None or (folder.parent.name, _number(folder), first.number, second.number) in wanted:
                name = f"{folder.parent.name}/{folder.name}/f{first.number}_f{second.number}"
                pairs.append(PairTask(name, repository, commit, source, (first, second)))
    if not pairs:
        clones = f"clones of {', '.join(sorted(missing))}" if missing else f"pairs of subset {subset}"
        raise ScopeError(f"no CooperBench pair to run: {repositories} and {dataset} have no {clones}")
    return pairs


def read_base(folder: Path) -> tuple[str, str]:
    """Repository (owner/name) and base commit of a task folder.

    Raises:
        ScopeError: neither Dockerfile nor setup.sh names them.
    """
    for name in ("Dockerfile", "setup.sh"):
        text = (folder / name).read_text(encoding="utf-8") if (folder / name).is_file() else ""
        clone, commit = _CLONE.search(text), _COMMIT.search(text)
        if clone and commit and not (name_fault(clone[1]) or name_fault(clone[2])):  # it names a folder of clones
            return f"{clone[1]}/{clone[2]}", commit[1]
    raise ScopeError(f"{folder} has neither a Dockerfile nor a setup.sh with `git clone https://...` and a base commit")


def read_features(folder: Path) -> list[Feature]:
    """The features of a task folder, by number.

    Raises:
        ScopeError: fewer than two, or one without description or tests.
    """
    places = sorted(filter(_number, folder.glob("feature*")), key=_number)
    if len(places) < 2:
        raise ScopeError(f"{folder} has {len(places)} feature folders (feature1, feature2, ...); a pair needs two")
    features = []
    for place in places:
        for name in ("feature.md", "tests.patch"):
            if not (place / name).is_file():
                raise ScopeError(f"{place} has no {name}: the dataset is incomplete, fetch it again")
        gold = place / "feature.patch"
        description, tests = _text(place / "feature.md").strip(), _text(place / "tests.patch")
        features.append(Feature(_number(place), description, tests, _text(gold) if gold.is_file() else ""))
    return features


def find_repository(repositories: Path, folder: Path) -> tuple[str, str, Path | None]:
    """A task's repository, base commit ("" where there is a plain tree of its own), and place; None if it has none."""
    own = repositories / folder.parent.name / folder.name
    if own.is_dir() and not (own / ".git").exists():
        return folder.parent.name, "", own.resolve()
    repository, commit = read_base(folder)
    places = (own, repositories / repository, repositories / repository.split("/")[1])
    return repository, commit, next((place.resolve() for place in places if place.is_dir()), None)


def _task_folders(dataset: Path) -> Iterator[Path]:
    folders = sorted(filter(_number, dataset.glob("*/task*")))
    if not folders:
        raise ScopeError(f"{dataset} has no folders <name>_task/task<id>: give the folder of {SOURCE}")
    yield from folders


def _subset(dataset: Path, name: str) -> set[tuple[str, int, int, int]]:
    """Pairs of a subset, each as (name, task, feature, feature) with the smaller number first."""
    path = dataset / "subsets" / f"{checked_name(name, 'subset')}.json"
    if not path.is_file():
        known = sorted(place.stem for place in path.parent.glob("*.json"))
        raise ScopeError(f"{dataset} has no subset {name!r}; it has {', '.join(known) or 'none'}")
    try:
        return {
            (task["repo"], int(task["task_id"]), min(pair), max(pair))
            for task in json.loads(_text(path))["tasks"]
            for pair in task["pairs"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ScopeError(f"{path} is not a list of pairs as CooperBench writes it ({error!r})") from error


def _number(place: Path) -> int:
    """The number in task<id> or feature<n>; 0 for anything else."""
    match = re.fullmatch(r"(?:task|feature)(\d+)", place.name)
    return int(match[1]) if match and place.is_dir() else 0


def _text(path: Path) -> str:
    # newline="": a patch is taken byte for byte, or one of a file with CRLF would no longer apply
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()
