"""The tasks of the text worlds, each as something that opens episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

from scope_lite.envs import p4g_episode
from scope_lite.envs.cooperbench import PairResult, PairTask, Suite, evaluate_pair, load_split
from scope_lite.envs.cooperbench.episode import OUTCOMES, PairEpisode
from scope_lite.envs.cooperbench.sandbox import fault
from scope_lite.envs.p4g_episode import P4GEpisode
from scope_lite.envs.prompts import personas, persuadee, persuadee_chat, persuader
from scope_lite.method.config import TextConfig
from scope_lite.method.dialogue import CONTEXT, Episode
from scope_lite.method.scene import Split
from scope_lite.models.records import FAILED
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import COOPERBENCH_VARIABLE, path_in

WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""our own tasks need none of pytest's plugins, which take most of the time of a small test"""


@dataclass
class TextTask:
    """A family of tasks in text."""

    speaker: str
    """what a request for verbalized replies calls the simulator"""
    outcomes: Sequence[str]
    """how its episodes may end, besides those that any may: the context, or no reply that can be used"""
    personas: Mapping[str, Sequence[str]]
    """what a simulator may be told of its person, by split"""
    count: Callable[[Split], int]
    """how many tasks there are"""
    open: Callable[[int, Split, str], Episode]
    """(number of the task, split, what the simulator is told of its person) to an episode at its beginning"""

    def __post_init__(self) -> None:
        self.outcomes = (*self.outcomes, CONTEXT, FAILED)


def open_task(world: str, config: TextConfig) -> TextTask:
    """The task family of a text world.

    Raises:
        ScopeError: CooperBench, where foreign code cannot be contained, or there is no pytest to run its tests.
    """
    if world == "cooperbench":
        return _cooperbench(config)
    return _p4g(config) if world == "p4g" else _tau2(world.removeprefix("tau2-"), config)


def _p4g(config: TextConfig) -> TextTask:
    """Persuasion for Good: one task, so dialogues differ by who is asked."""

    def begin(number: int, split: Split, about: str) -> P4GEpisode:
        # the persuadee's prompt is what its chat begins with
        systems = {"policy": persuader.SYSTEM, "simulator": persuadee_chat([""], about)[0]["content"]}
        return P4GEpisode("p4g", systems, config.turns, persuadee.QUESTION if config.closing_question else None)

    return TextTask("participant", p4g_episode.OUTCOMES, personas.PERSUADEES, lambda split: 1, begin)


def _tau2(domain: str, config: TextConfig) -> TextTask:
    """tau2-bench: the benchmark's tasks by split, without those on the quarantine list."""
    from scope_lite.envs.tau2.episode import MAX_TURNS, USER_STOPS

    def begin(number: int, split: Split, about: str) -> Episode:
        from scope_lite.envs.tau2.benchmark import guidelines, open_episode
        from scope_lite.envs.tau2.prompt import user_system

        task = _tau2_tasks(domain, split)[number]
        user = user_system(guidelines(), f"{task.user_scenario}\n{about}")
        return open_episode(domain, task, user, config.turns)

    outcomes = (*USER_STOPS.values(), MAX_TURNS)
    return TextTask("customer", outcomes, personas.CUSTOMERS, lambda split: len(_tau2_tasks(domain, split)), begin)


@cache
def _tau2_tasks(domain: str, split: Split) -> list[Any]:
    from scope_lite.envs.tau2.benchmark import load_tasks, without_quarantined

    return without_quarantined(domain, load_tasks(domain, split))


def _cooperbench(config: TextConfig) -> TextTask:
    """CooperBench: every pair of features in both orders; repositories of training and evaluation are disjoint."""
    if reason := fault() or ("" if find_spec("pytest") else "CooperBench's tests need pytest: `pip install pytest`"):
        raise ScopeError(reason)

    def begin(number: int, split: Split, about: str) -> PairEpisode:
        return PairEpisode(_pairs(split)[number], _judged, config.turns, about)

    return TextTask("software engineer", OUTCOMES, personas.ENGINEERS, lambda split: len(_pairs(split)), begin)


@cache
def _pairs(split: Split) -> list[PairTask]:
    return load_split(split)


@lru_cache(1024)
def _judged(pair: PairTask, patches: tuple[str, str]) -> PairResult:
    """The verdict; a group often writes the same patches twice."""
    suite = Suite() if path_in(COOPERBENCH_VARIABLE) else Suite(environment=WITHOUT_PLUGINS)
    return evaluate_pair(pair, patches, suite)
