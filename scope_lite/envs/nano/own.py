"""A user's own worlds: files that are read, and what a world must have before models can be made for it."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from scope_lite.envs.nano.persuasion import random_seed
from scope_lite.envs.nano.spec import USER, WorldSpec, compile_world
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import WORLDS_VARIABLE as VARIABLE
from scope_lite.store.paths import name_fault

KNOWN_TYPES = 3
"""types that P must have at least: the panel's ``half`` speaks for the shares moved two places on"""


def load_files(files: Iterable[Path]) -> None:
    """Run the files listed in the environment variable (worker processes inherit it); each calls ``register``.

    Raises:
        ScopeError: naming the file that is missing or fails.
    """
    for number, path in enumerate(files):
        spec = importlib.util.spec_from_file_location(f"scope_lite_own_worlds_{number}", path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise ScopeError(f"{VARIABLE}: {path} is no Python file; give the full path of a .py file")
        try:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        except ScopeError:
            raise
        except Exception as error:
            # whatever a user's file raises, the file is what has to be mended
            raise ScopeError(f"{VARIABLE}: {path}: {type(error).__name__}: {error}") from error


def check_spec(spec: WorldSpec, taken: Collection[str]) -> None:
    """Whether the loop, the panel and the tokenizer can work with this world.

    Args:
        taken: names of the worlds that come with the package.

    Raises:
        ScopeError: for the first thing that is missing or wrong.
    """
    for wrong, what in (
        (not re.fullmatch(r"[a-z][a-z0-9_]*", spec.name), "the name must be small letters, digits and _ (a folder)"),
        (name_fault(spec.name), f"the name becomes a folder: {name_fault(spec.name)}"),
        (spec.name in taken or random_seed(spec.name) is not None, "the package has a world of that name"),
        (_not_words(spec), f"one word each, without spaces (one act is one token): {_not_words(spec)}"),
        (len(spec.rewards) != len(spec.outcomes), "give one reward for each outcome"),
        (any(not 0 <= r <= 1 for r in spec.rewards), "rewards must lie in [0, 1]"),
        (not spec.habits, "give at least one habit: the agents whom the base model imitates"),
        (_too_few(spec), f"the panel needs {KNOWN_TYPES} types or more in prior (as many for each prompt of told)"),
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


def _not_words(spec: WorldSpec) -> list[str]:
    types = () if spec.told else tuple(spec.prior)
    named = (*spec.agent_acts, *spec.user_acts, *spec.outcomes, *spec.tasks, *spec.told.values(), *types)
    return sorted({name for name in named if name.split() != [name]})


def _too_few(spec: WorldSpec) -> bool:
    by_prompt = Counter(spec.told.get(z, USER) for z in spec.prior)
    return not by_prompt or min(by_prompt.values()) < KNOWN_TYPES or len(set(by_prompt.values())) > 1
