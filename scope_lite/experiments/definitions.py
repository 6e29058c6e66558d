"""Which runs each experiment needs: the grids of ``experiments.yaml``, read into variants of a method's preset."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from scope_lite.envs.nano.persuasion import random_name
from scope_lite.method.config import RunConfig, method_config
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.plain_yaml import read_yaml

FROZEN_METHODS = ("base", "single", "persona", "verbalized", "ensemble", "unsharpened")
"""the methods for a dialogue with a user whose simulator does not learn"""
MOST_SEEDS = 100_000


class Variant(NamedTuple):
    """What one line of a figure stands for: a run a seed."""

    label: str
    settings: dict[str, Any]
    """what differs from the method's preset"""
    values: dict[str, Any] = {}  # noqa: RUF012  (a default that nobody writes to)
    """its value on each axis of the experiment: columns of the table"""


class Experiment(NamedTuple):
    """What an experiment varies, and how its shipped table is made."""

    variants: Sequence[Variant]
    seeds: int = 3
    """how many the shipped table has"""
    rows: str = "panel/unseen/reward"
    """the measurement whose steps are rows of the table"""
    apart: bool = False
    """whether it is made only when it is asked for"""
    first_world: int | None = None
    """number of a random world: seed s plays in the s-th after it"""

    @property
    def has_many_worlds(self) -> bool:
        """Whether each seed has a world of its own: one run says little, the share of worlds does."""
        return self.first_world is not None


def _experiment(grids: Any, settings: dict[str, Any], label: str | None, **about: Any) -> Experiment:
    """One entry of the file; its head says what the keys mean."""
    variants = []
    for axes in grids if isinstance(grids, list) else [grids]:
        named = label or ", ".join(f"{{{name}}}" for name in axes)
        for levels in itertools.product(*(_levels(name, axis) for name, axis in axes.items())):
            values = {name: value for name, (value, _) in zip(axes, levels, strict=True)}
            chosen = [settings, *(settings_of for _, settings_of in levels)]
            merged = {key: value for part in chosen for key, value in part.items()}
            variants.append(Variant(named.format(**values), _nested(merged), values))
    return Experiment(variants, **about)


def _levels(name: str, axis: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Each value of an axis, with the settings that it stands for."""
    if isinstance(axis, list):
        axis = {name: axis}
    ((key, values), *others) = axis.items()
    return list(axis.items()) if others or isinstance(values, dict) else [(value, {key: value}) for value in values]


def _nested(settings: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    return nested


EXPERIMENTS: dict[str, Experiment] = {
    name: _experiment(entry.pop("axes"), entry.pop("settings", {}), entry.pop("label", None), **entry)
    for name, entry in read_yaml(Path(__file__).with_name("experiments.yaml")).items()
}


def with_axes(experiment: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table of an experiment (one with column ``variant``) with a column for each of its axes."""
    variants = EXPERIMENTS[experiment].variants
    axes = dict.fromkeys(name for variant in variants for name in variant.values)
    return table.assign(
        **{name: table["variant"].map({v.label: v.values.get(name) for v in variants}) for name in axes}
    )


def runs_of(
    experiment: str, seeds: int | None, variants: Sequence[str] | None = None, **overrides: Any
) -> list[tuple[str, RunConfig]]:
    """(label of the variant, config) of every run of an experiment, seed by seed.

    Args:
        seeds: None: as many as its shipped table has.
        variants: only these labels.
        overrides: keys of RunConfig that hold for every run (steps=10 for a quick look).

    Raises:
        ScopeError: for an unknown experiment.
    """
    if experiment not in EXPERIMENTS:
        raise ScopeError(closest(experiment, list(EXPERIMENTS), "experiment"))
    one = EXPERIMENTS[experiment]
    seeds = one.seeds if seeds is None else seeds
    if not 0 <= seeds <= MOST_SEEDS:
        raise ScopeError(f"an experiment has at most {MOST_SEEDS:,} seeds, not {seeds}")
    runs = []
    for seed in range(seeds):
        for variant in one.variants:
            if variants is not None and variant.label not in variants:
                continue
            chosen = {**variant.settings, **overrides, "seed": seed}
            if one.first_world is not None:
                chosen["world"] = random_name(one.first_world + seed)
            if chosen["method"] == "base":
                chosen.pop("steps", None)
            runs.append((variant.label, method_config(**chosen)))
    return runs
