"""The claims as data, from ``claims.yaml``: what each says, where, and the contrasts that it stands or falls by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scope_lite.experiments.contrasts import COMMON, REAL, UNSEEN
from scope_lite.experiments.definitions import EXPERIMENTS, runs_of
from scope_lite.store.plain_yaml import read_yaml

HELD_OUT, NOT_OWN = COMMON, "all members but sim-a"
LACKED, LACKED_MINUS_OWN = "members whose mode it lacks", "members whose mode it lacks − its own"
RELATED = "twin and half, whose modes it has"
ENSEMBLE = ("sim-a", "sim-b", "sim-c")
NAMES = {UNSEEN: "unseen", REAL: "real users", HELD_OUT: "members that none trained with"}

Rule = Literal["above", "at or above", "below", "at or below", "same"]


@dataclass(frozen=True)
class Contrast:
    """One comparison that a claim stands or falls with; the head of ``claims.yaml`` says what the fields mean."""

    text: str
    rule: Rule
    a: str
    b: str | None = None
    columns: tuple[str, ...] = (UNSEEN, REAL)
    b_summary: str = "end"
    where: tuple[str, ...] = ()
    context: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim, in our words."""

    id: str
    statement: str
    experiments: tuple[str, ...]
    contrasts: tuple[Contrast, ...]
    caveat: str = ""
    """what a reader must know before believing the verdict"""


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


CLAIMS = tuple(
    Claim(name, **_plain({**entry, "contrasts": [Contrast(**_plain(one)) for one in entry["contrasts"]]}))
    for name, entry in read_yaml(Path(__file__).with_name("claims.yaml")).items()
)


def _setting(experiment: str) -> tuple[str, str]:
    (_, config), *_ = runs_of(experiment, seeds=1)
    return experiment if EXPERIMENTS[experiment].first_world else config.world, config.model


SETTINGS = {
    experiment: _setting(experiment)
    for experiment in dict.fromkeys(e for c in CLAIMS for k in c.contrasts for e in (*c.experiments, *k.where))
}
"""experiment -> its world (of many: the experiment's name) and the policy's base model"""
