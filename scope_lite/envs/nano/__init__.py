"""The nano worlds by name: small dialogues whose users are known exactly, those that ship and a user's own."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from scope_lite.envs.nano.coding import coding
from scope_lite.envs.nano.persuasion import (
    RANDOM_NAMES,
    persuasion,
    persuasion_hard,
    persuasion_plain,
    random_persuasion,
    random_seed,
)
from scope_lite.envs.nano.retail import airline, retail
from scope_lite.envs.nano.spec import USER, World, WorldSpec, compile_world
from scope_lite.store.contents import own_files
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import LONGEST_NAME, WORLDS_VARIABLE, checked_name, paths_in

WORLDS: dict[str, Callable[[], WorldSpec[Any]]] = {
    "persuasion": persuasion,
    "persuasion_plain": persuasion_plain,
    "persuasion_hard": persuasion_hard,
    "retail": retail,
    "airline": airline,
    "coding": coding,
}
SHIPPED = frozenset(WORLDS)
"""the worlds that come with the package; ``register`` adds others to WORLDS"""
KNOWN_TYPES = 3
"""types that P must have at least: the panel's ``half`` speaks for the shares moved two places on"""


@cache
def get_world(name: str) -> World:
    """The compiled world of that name; ``persuasion_<seed>`` is a random one of the multiverse.

    Raises:
        ScopeError: for a name that no world has.
    """
    if name in WORLDS:
        return compile_world(WORLDS[name]())
    seed = random_seed(checked_name(name, "world"))
    if seed is not None:
        return compile_world(random_persuasion(seed))
    raise ScopeError(closest(name, [*WORLDS, RANDOM_NAMES], "world"))


# -- a user's own worlds ----------------------------------------------------------------------------------------------


def register(make: Callable[[], WorldSpec[Any]]) -> Callable[[], WorldSpec[Any]]:
    """Add a world of your own under its spec's name; a decorator for the function that describes it.

    It holds for this process. A file named in ``SCOPE_LITE_WORLDS`` is run wherever the package is imported, so its
    worlds are there on the command line and in worker processes, too. Registering again replaces.

    Raises:
        ScopeError: if the world has a shipped one's name, or lacks something (see :func:`check_spec`).
    """
    spec = make()
    check_spec(spec)
    WORLDS[spec.name] = make
    get_world.cache_clear()
    return make


def load_files(files: Iterable[Path]) -> None:
    """Run the files listed in the environment variable (worker processes inherit it); each calls ``register``.

    Raises:
        ScopeError: naming the file that is missing or fails.
    """
    for number, path in enumerate(files):
        spec = importlib.util.spec_from_file_location(f"scope_lite_own_worlds_{number}", path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise ScopeError(f"{WORLDS_VARIABLE}: {path} is no Python file; give the full path of a .py file")
        try:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        except ScopeError:
            raise
        except Exception as error:
            # whatever a user's file raises, the file is what has to be mended
            raise ScopeError(f"{WORLDS_VARIABLE}: {path}: {type(error).__name__}: {error}") from error


def check_spec(spec: WorldSpec[Any]) -> None:
    """Whether the loop, the panel and the tokenizer can work with this world.

    Raises:
        ScopeError: for the first thing that is missing or wrong.
    """
    types = () if spec.told else tuple(spec.prior)
    named = {*spec.agent_acts, *spec.user_acts, *spec.outcomes, *spec.tasks, *spec.told.values(), *types}
    no_words = sorted(name for name in named if name.split() != [name])
    by_prompt = set(Counter(spec.told.get(z, USER) for z in spec.prior).values())
    simple_name = re.fullmatch(rf"[a-z][a-z0-9_]{{0,{LONGEST_NAME - 1}}}", spec.name)
    for wrong, what in (
        (
            not simple_name,
            f"the name must be small letters, digits and _, at most {LONGEST_NAME} (it becomes a folder)",
        ),
        (spec.name in SHIPPED or random_seed(spec.name) is not None, "the package has a world of that name"),
        (no_words, f"one word each, without spaces (one act is one token): {no_words}"),
        (len(spec.rewards) != len(spec.outcomes), "give one reward for each outcome"),
        (any(not 0 <= r <= 1 for r in spec.rewards), "rewards must lie in [0, 1]"),
        (not spec.habits, "give at least one habit: the agents whom the base model imitates"),
        (
            len(by_prompt) != 1 or min(by_prompt) < KNOWN_TYPES,
            f"the panel needs {KNOWN_TYPES} types or more in prior (as many for each prompt of told)",
        ),
        (not set(spec.real_prior) - set(spec.prior), "real_prior needs a type that prior lacks (panel member outside)"),
        (not spec.told and set(spec.prior) - set(spec.reveals), "reveals must name a reply for every type of prior"),
    ):
        if wrong:
            raise ScopeError(f"world {spec.name!r}: {what}")
    try:
        world = compile_world(spec)
        world.prior_vector(spec.prior), world.prior_vector(spec.real_prior)
    except ValueError as error:
        raise ScopeError(f"world {spec.name!r}: {error}") from None


def own_world_content(name: str) -> dict[str, Any]:
    """What tells one world of a user's own from another of its name; nothing for a world of the package."""
    if name in SHIPPED or name not in WORLDS:
        return {}
    world = get_world(name)
    tables = hashlib.sha256(str(world.spec.rewards).encode())
    for table in (world.reply, world.next_state, world.outcome, world.starts):
        tables.update(table.tobytes())
    return {"world": tables.hexdigest(), "own worlds": own_files()}


load_files(paths_in(WORLDS_VARIABLE))  # last: the files import this module
