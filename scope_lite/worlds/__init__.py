"""The nano worlds: small dialogues whose users are known exactly."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from scope_lite.errors import ScopeError
from scope_lite.paths import checked_name, paths_in
from scope_lite.settings import closest
from scope_lite.worlds.coding import coding
from scope_lite.worlds.own import VARIABLE, check_spec, load_files
from scope_lite.worlds.persuasion import persuasion, persuasion_plain, random_persuasion
from scope_lite.worlds.persuasion_hard import persuasion_hard
from scope_lite.worlds.retail import airline, retail
from scope_lite.worlds.spec import World, WorldSpec, compile_world

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
    if random := re.fullmatch(r"persuasion_(0|[1-9][0-9]{0,8})", checked_name(name, "world")):
        return compile_world(random_persuasion(int(random[1])))
    raise ScopeError(closest(name, [*WORLDS, "persuasion_<seed>"], "world"))


load_files(paths_in(VARIABLE))  # last: the files import this module
