"""CooperBench's dataset folder as pair tasks: one repository at one commit, two features, a test suite for each.

The folder is the benchmark's own (MIT; a data set of the same name on the Hugging Face hub, or ``dataset/`` of its
repository). Of it are read:

    <name>_task/task<id>/Dockerfile or setup.sh     address of the repository and base commit, by their git commands
    <name>_task/task<id>/feature<n>/feature.md      what an agent is asked to build
    <name>_task/task<id>/feature<n>/tests.patch     the tests, as a change to the base commit; agents never see them
    <name>_task/task<id>/feature<n>/feature.patch   a solution by people ("gold"); may be missing

The repositories themselves are not in it. A second folder holds them, each as a clone or as a plain tree of the base
commit (an unpacked source release, for instance), under <owner>/<repository>, <repository> or <name>_task/task<id>.
Both, as ``dataset`` and ``repositories``, lie in the folder that ``SCOPE_LITE_COOPERBENCH`` names; without it, in
``data/cooperbench``, where four small tasks of our own are.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import COOPERBENCH_VARIABLE, DATA, name_fault, path_in

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


def load_pairs(dataset: Path, repositories: Path) -> list[PairTask]:
    """Every two features of each task of a dataset folder whose repository is at hand.

    Raises:
        ScopeError: a folder or a file is missing or unreadable; or there is no repository for any pair.
    """
    tasks = sorted(filter(_number, dataset.glob("*/task*")))
    if not tasks:
        raise ScopeError(f"{dataset} has no folders <name>_task/task<id>: give the folder of {SOURCE}")
    pairs, missing = [], set()
    for folder in tasks:
        repository, commit, source = find_repository(repositories, folder)
        if source is None:
            missing.add(repository)
            continue
        for first, second in combinations(read_features(folder), 2):
            name = f"{folder.parent.name}/{folder.name}/f{first.number}_f{second.number}"
            pairs.append(PairTask(name, repository, commit, source, (first, second)))
    if not pairs:
        raise ScopeError(f"no CooperBench pair to run: {repositories} has no clones of {', '.join(sorted(missing))}")
    return pairs


def read_base(folder: Path) -> tuple[str, str]:
    """Repository (owner/name) and base commit of a task folder.

    Raises:
        ScopeError: neither Dockerfile nor setup.sh names them.
    """
    for path in (folder / "Dockerfile", folder / "setup.sh"):
        text = _text(path) if path.is_file() else ""
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
        gold = place / "feature.patch"
        try:
            description, tests = _text(place / "feature.md").strip(), _text(place / "tests.patch")
            features.append(Feature(_number(place), description, tests, _text(gold) if gold.is_file() else ""))
        except OSError as error:
            raise ScopeError(
                f"{error.filename}: {error.strerror}; the dataset is incomplete, fetch it again"
            ) from error
    return features


def find_repository(repositories: Path, folder: Path) -> tuple[str, str, Path | None]:
    """A task's repository, base commit ("" where there is a plain tree of its own), and place; None if it has none."""
    own = repositories / folder.parent.name / folder.name
    if own.is_dir() and not (own / ".git").exists():
        return folder.parent.name, "", own.resolve()
    repository, commit = read_base(folder)
    places = (own, repositories / repository, repositories / repository.split("/")[1])
    return repository, commit, next((place.resolve() for place in places if place.is_dir()), None)


def _number(place: Path) -> int:
    """The number in task<id> or feature<n>; 0 for anything else."""
    match = re.fullmatch(r"(?:task|feature)(\d+)", place.name)
    return int(match[1]) if match and place.is_dir() else 0


def _text(path: Path) -> str:
    # newline="": a patch is taken byte for byte, or one of a file with CRLF would no longer apply
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()
