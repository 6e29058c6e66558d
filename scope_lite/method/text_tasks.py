"""The tasks of the text worlds, each as something that opens episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from scope_lite.envs import p4g_episode
from scope_lite.envs.cooperbench import PairResult, PairTask, Suite, evaluate_pair, load_split
from scope_lite.envs.cooperbench.episode import OUTCOMES, PairEpisode
from scope_lite.envs.cooperbench.sandbox import fault
from scope_lite.envs.p4g_episode import P4GEpisode
from scope_lite.envs.prompts import personas, persuadee, persuadee_chat, persuader
from scope_lite.method.config import TextConfig
from scope_lite.method.dialogue import CONTEXT, Episode
from scope_lite.models.records import FAILED
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import COOPERBENCH_VARIABLE, path_in

Split = Literal["train", "test"]
WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""our own tasks need none of pytest's plugins, which take most of the time of a small test"""


class TextTask(Protocol):
    """A task family: it opens an episode of one of its tasks, with a simulator that is told something of itself."""

    @property
    def speaker(self) -> str:
        """What a request for verbalized replies calls the simulator."""
        ...

    @property
    def outcomes(self) -> Sequence[str]:
        """How its episodes may end."""
        ...

    @property
    def personas(self) -> Mapping[str, Sequence[str]]:
        """What a simulator may be told of its person, by split."""
        ...

    def count(self, split: Split) -> int:
        """How many tasks there are."""
        ...

    def open(self, number: int, split: Split, about: str) -> Episode:
        """An episode of task ``number`` at its beginning; ``about`` is what the simulator is told of its person."""
        ...


class P4GTask:
    """Persuasion for Good: one task, so dialogues differ by who is asked."""

    speaker = "participant"
    outcomes = (*p4g_episode.OUTCOMES, CONTEXT, FAILED)
    personas = personas.PERSUADEES

    def __init__(self, config: TextConfig):
        self.config = config

    def count(self, split: Split) -> int:
        return 1

    def open(self, number: int, split: Split, about: str) -> P4GEpisode:
        # the persuadee's prompt is what its chat begins with
        systems = {"policy": persuader.SYSTEM, "simulator": persuadee_chat([""], about)[0]["content"]}
        question = persuadee.QUESTION if self.config.closing_question else None
        return P4GEpisode("p4g", systems, self.config.turns, question)


class Tau2Task:
    """tau2-bench: the benchmark's tasks by split, without those on the quarantine list."""

    speaker = "customer"
    personas = personas.CUSTOMERS

    def __init__(self, domain: str, config: TextConfig):
        from scope_lite.envs.tau2.episode import MAX_TURNS, USER_STOPS

        self.domain, self.config = domain, config
        self.outcomes = (*USER_STOPS.values(), MAX_TURNS, CONTEXT, FAILED)

    def count(self, split: Split) -> int:
        return len(_tau2_tasks(self.domain, split))

    def open(self, number: int, split: Split, about: str) -> Episode:
        from scope_lite.envs.tau2.benchmark import guidelines, open_episode
        from scope_lite.envs.tau2.prompt import user_system

        task = _tau2_tasks(self.domain, split)[number]
        user = user_system(guidelines(), f"{task.user_scenario}\n{about}")
        return open_episode(self.domain, task, user, self.config.turns)


@cache
def _tau2_tasks(domain: str, split: Split) -> list[Any]:
    from scope_lite.envs.tau2.benchmark import load_tasks, without_quarantined

    return without_quarantined(domain, load_tasks(domain, split))


class CooperTask:
    """CooperBench: every pair of features in both orders; repositories of training and evaluation are disjoint."""

    speaker = "software engineer"
    outcomes = (*OUTCOMES, CONTEXT, FAILED)
    personas = personas.ENGINEERS

    def __init__(self, config: TextConfig):
        """Raises ScopeError if foreign code cannot be contained here, or there is no pytest to run the tests."""
        self.config = config
        if reason := fault() or (
            "" if find_spec("pytest") else "CooperBench's tests need pytest: `pip install pytest`"
        ):
            raise ScopeError(reason)

    def count(self, split: Split) -> int:
        return len(_pairs(split))

    def open(self, number: int, split: Split, about: str) -> PairEpisode:
        return PairEpisode(_pairs(split)[number], _judged, self.config.turns, about)


@cache
def _pairs(split: Split) -> list[PairTask]:
    return load_split(split)


@lru_cache(1024)
def _judged(pair: PairTask, patches: tuple[str, str]) -> PairResult:
    """The verdict; a group often writes the same patches twice."""
    return evaluate_pair(
        pair, patches, Suite() if path_in(COOPERBENCH_VARIABLE) else Suite(environment=WITHOUT_PLUGINS)
    )


def open_task(world: str, config: TextConfig) -> TextTask:
    """The task family of a text world."""
    if world == "cooperbench":
        return CooperTask(config)
    return P4GTask(config) if world == "p4g" else Tau2Task(world.removeprefix("tau2-"), config)
