"""The nano worlds: small dialogues whose users are known exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

from scope_lite.envs.nano.coding import coding
from scope_lite.envs.nano.own import VARIABLE, check_spec, load_files
from scope_lite.envs.nano.persuasion import (
    RANDOM_NAMES,
    persuasion,
    persuasion_plain,
    random_persuasion,
    random_seed,
)
from scope_lite.envs.nano.persuasion_hard import persuasion_hard
from scope_lite.envs.nano.retail import airline, retail
from scope_lite.envs.nano.spec import World, WorldSpec, compile_world
from scope_lite.store.contents import own_files
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import checked_name, paths_in

WORLDS: dict[str, Callable[[], WorldSpec]] = {
    "persuasion": persuasion,
    "persuasion_plain": persuasion_plain,
    "persuasion_hard": persuasion_hard,
    "retail": retail,
    "airline": airline,
    "coding": coding,
}
SHIPPED = frozenset(WORLDS)
"""the worlds that come with the package; ``register`` adds others to WORLDS"""


def register(make: Callable[[], WorldSpec]) -> Callable[[], WorldSpec]:
    """Add a world of your own under its spec's name; a decorator for the function that describes it.

    It holds for this process. A file named in ``SCOPE_LITE_WORLDS`` is run wherever the package is imported, so its
    worlds are there on the command line and in worker processes, too. Registering again replaces.

    Raises:
        ScopeError: if the world has a shipped one's name, or lacks something (see ``own.check_spec``).
    """
    spec = make()
    check_spec(spec, SHIPPED)
    WORLDS[spec.name] = make
    get_world.cache_clear()
    return make


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


def own_world_content(name: str) -> dict[str, Any]:
    """What tells one world of a user's own from another of its name; nothing for a world of the package."""
    if name in SHIPPED or name not in WORLDS:
        return {}
    world = get_world(name)
    tables = hashlib.sha256(str(world.spec.rewards).encode())
    for table in (world.reply, world.next_state, world.outcome, world.starts):
        tables.update(table.tobytes())
    return {"world": tables.hexdigest(), "own worlds": own_files()}


load_files(paths_in(VARIABLE))  # last: the files import this module
