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
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import checked_name, name_fault

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
        repository, commit = read_base(folder)
        if (source := find_repository(repositories, repository, folder)) is None:
            missing.add(repository)
            continue
        features = read_features(folder)
        for first, second in combinations(features, 2):
            if wanted is None or (_key(folder), first.number, second.number) in wanted:
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
    places = sorted((place for place in folder.glob("feature*") if _number(place) is not None), key=_number_of)
    if len(places) < 2:
        raise ScopeError(f"{folder} has {len(places)} feature folders (feature1, feature2, ...); a pair needs two")
    features = []
    for place in places:
        for name in ("feature.md", "tests.patch"):
            if not (place / name).is_file():
                raise ScopeError(f"{place} has no {name}: the dataset is incomplete, fetch it again")
        gold = place / "feature.patch"
        features.append(
            Feature(
                number=_number_of(place),
                description=_text(place / "feature.md").strip(),
                tests=_text(place / "tests.patch"),
                gold=_text(gold) if gold.is_file() else "",
            )
        )
    return features


def find_repository(repositories: Path, repository: str, folder: Path) -> Path | None:
    """Where a task's repository lies; None if it does not."""
    name = repository.split("/")[1]
    for place in (f"{folder.parent.name}/{folder.name}", repository, name):
        if (repositories / place).is_dir():
            return (repositories / place).resolve()
    return None


def _task_folders(dataset: Path) -> Iterator[Path]:
    folders = sorted(place for place in dataset.glob("*/task*") if _number(place) is not None)
    if not folders:
        raise ScopeError(f"{dataset} has no folders <name>_task/task<id>: give the folder of {SOURCE}")
    yield from folders


def _subset(dataset: Path, name: str) -> set[tuple[tuple[str, int], int, int]]:
    """Pairs of a subset, each as (task, feature, feature) with the smaller number first."""
    path = dataset / "subsets" / f"{checked_name(name, 'subset')}.json"
    if not path.is_file():
        known = sorted(place.stem for place in path.parent.glob("*.json"))
        raise ScopeError(f"{dataset} has no subset {name!r}; it has {', '.join(known) or 'none'}")
    try:
        return {
            ((task["repo"], int(task["task_id"])), min(pair), max(pair))
            for task in json.loads(_text(path))["tasks"]
            for pair in task["pairs"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ScopeError(f"{path} is not a list of pairs as CooperBench writes it ({error!r})") from error


def _key(folder: Path) -> tuple[str, int]:
    return folder.parent.name, _number_of(folder)


def _number(place: Path) -> int | None:
    match = re.fullmatch(r"(?:task|feature)(\d+)", place.name)
    return int(match[1]) if match and place.is_dir() else None


def _number_of(place: Path) -> int:
    return int(re.sub(r"\D", "", place.name))


def _text(path: Path) -> str:
    # newline="": a patch is taken byte for byte, or one of a file with CRLF would no longer apply
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()
