"""The paper's recipe by one key, in two readings: ``recipe: stated`` (its text), ``recipe: launched`` (its launchers).

    scope-lite train --method population --world retail --recipe launched

A recipe is settings of a run (``recipes.yaml``), laid over a method's preset and below what a config says itself. It
differs by method and by the benchmark that a world follows: ``persuasion*`` and ``p4g`` are Persuasion for Good,
``retail``, ``airline`` and ``tau2-*`` are τ²-bench, ``coding`` and ``cooperbench`` are CooperBench.

Carried over as they are: steps, groups and their size, evaluation cadence, estimator of advantages, clip, KL weights,
temperatures of the policy, K_VS, and who is paid what, starts from what and plays when. Learning rates are carried over
as multiples of the world's default, since the paper's 1e-6 is for full weights of a 4B model. Not carried over: models,
the temperature of frozen simulators (a panel has its own), weight decay, token limits, top-p, and the penalty of .1 for
a tool error in the launched τ²-bench curriculum. So ratios between methods are the paper's, absolute speeds are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.plain_yaml import read_yaml
from scope_lite.store.settings import merged

RECIPES: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_suffix(".yaml"))
BENCHMARKS = {
    "persuasion": "p4g",
    "p4g": "p4g",
    "retail": "tau2",
    "airline": "tau2",
    "tau2": "tau2",
    "coding": "cooperbench",
    "cooperbench": "cooperbench",
}
"""the benchmark that a world follows, by what its name begins with"""


def recipe_settings(recipe: str, method: str, world: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """What a recipe sets for a method in a world; ``defaults`` has the rates that its learning rates are multiples of.

    Raises:
        ScopeError: no such recipe, a world that follows no benchmark, or a method that the recipe lacks there.
    """
    if not isinstance(recipe, str) or recipe not in RECIPES:
        raise ScopeError(closest(str(recipe), list(RECIPES), "recipe"))
    found = [benchmark for prefix, benchmark in BENCHMARKS.items() if world.startswith(prefix)]
    if not found:
        raise ScopeError(f"world {world!r} follows none of the paper's benchmarks, so there is no recipe for it")
    content, benchmark = RECIPES[recipe], found[0]
    if method in content.get("lacks", {}).get(benchmark, ()):
        raise ScopeError(f"no public launcher runs {method!r} on {benchmark}: take recipe 'stated'")
    own = dict(content["methods"].get(method, {}))
    there = own.pop("where", {}).get(benchmark, {})
    settings = merged(content["all"], content[benchmark], own, there)
    return _scaled(settings, defaults)


def _scaled(settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Both seats' learning rates as rates."""
    scaled = {**settings, "learning_rate": settings["learning_rate"] * defaults["learning_rate"]}
    return scaled | (
        {"simulator": _scaled(scaled["simulator"], defaults["simulator"])} if "simulator" in scaled else {}
    )
