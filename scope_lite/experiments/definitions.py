"""Which runs each experiment needs: variants, each with what differs from its method's preset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scope_lite.envs.nano.persuasion import random_name
from scope_lite.method.config import RunConfig, closest, method_config
from scope_lite.store.errors import ScopeError

Variant = tuple[str, dict[str, Any]]  # label, what differs from the method's preset

USER_METHODS = (
    "base",
    "single",
    "persona",
    "verbalized",
    "ensemble",
    "cotraining",
    "population",
    "unsharpened",
)
"""every method for a dialogue with a user, and the control"""
FROZEN_METHODS = tuple(m for m in USER_METHODS if m not in ("cotraining", "population"))
"""those whose simulator does not learn"""
COOPERATION = ("base", "single", "ensemble", "selfplay", "selfplay_population", "unsharpened")
"""cross-play with a fixed partner and with a frozen ensemble, self-play, population self-play, and the control"""
GAMMAS = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
LIST_SIZES = (1, 2, 3, 5, 9)
NOISES = (0.0, 0.3, 1.0, 2.0)
START_GAMMAS = (1.0, 2.0, 3.0, 4.0, 8.0)
START_GAMMA = 4.0
"""Where the simulator starts when something else than its start is varied. It was 2 and became 4 after one seed of
plain Co-Training had been seen at both (lost at 2, rescued at 4): where nothing rescues, there is nothing to vary."""
KL_COEFS = (0.0, 0.02, 0.1, 0.5)
POOL_SIZES = (1, 3, 5, 10)
HEAD_STARTS = (0, 10, 20, 40)
"""steps in which only the simulator learns"""
SIMULATOR_RATES = (1e-3, 3e-3, 1e-2)
"""learning rates of the simulator; the policy's stays 1e-3"""
POLICY_RATES = (1e-3, 5e-4, 2.5e-4)
"""learning rates of the policy; the simulator's stays 1e-3"""
CLIP_RANGES = (0.2, 1.0, 1000.0)
"""the last: never clipped"""
MANY, MOST_SEEDS = 10, 100_000
"""seeds where methods are compared, and the most that can be asked for"""
FIRST_WORLD = 1000
"""number of the multiverse's first random world"""

TRAINED_KINDS: dict[str, dict[str, Any]] = {
    "zero reward": {"reward": "zero"},
    "Co-Training": {},
    "Population": {"pool_size": 5},
}
"""the zero-reward control is a frozen simulator under the same loop"""


TEXT_METHODS = ("base", "single", "verbalized")
"""methods that are trained on SmolLM2 as it comes, on a CPU"""
TEXT_SIZE: dict[str, Any] = {
    "groups": 4, "group_size": 4, "eval_dialogues": 2, "final_dialogues": 8,
    "text": {"turns": 2, "max_new_tokens": 24, "reply_tokens": 24},
}  # fmt: skip
"""what a CPU can play: two turns of a sentence each; set by its cost, after a population run of this length had been
seen (two steps, rewards .19 and .63)"""
TUNED_METHODS = ("base", "single", "cotraining")
"""methods that are trained where both seats start from adapters tuned on people; no lists: a persuadee that was tuned
on plain replies is not one to ask for JSON"""
TUNED_SIZE: dict[str, Any] = {
    "model": "smollm2+persuader", "groups": 4, "group_size": 4, "learning_rate": 5e-4,
    "eval_every": 10, "eval_dialogues": 8, "final_dialogues": 16,
    "simulator": {"learning_rate": 5e-4},
    "text": {**TEXT_SIZE["text"], "simulator_model": "smollm2+persuadee"},
}  # fmt: skip
"""The twin in text of the nano experiment: a base policy and a reference P that were tuned on people, and P at T = 0.7
as the collapsed simulator. The learning rate is five times that of ``text_p4g`` because there, after twenty steps, the
policy had moved by .002 nats a token (KL from its start, on 363 tokens of 16 first messages): set by how far a policy
moves, before any training from the adapters. Twenty steps by the clock: a run of thirty was stopped after its first."""


class Experiment(NamedTuple):
    """What an experiment varies, at how many seeds its shipped table is made, and whether only when it is asked for."""

    variants: Callable[[], list[Variant]]
    seeds: int = 3
    apart: bool = False


def _methods(world: str, methods: tuple[str, ...] = USER_METHODS, **settings: Any) -> list[Variant]:
    return [(m, {"method": m, "world": world, **settings}) for m in methods]


def _trained(label: str, **simulator: Any) -> Variant:
    """A run with a trained simulator, under the method's name that its pool size gives it."""
    method = "population" if simulator.get("pool_size", 1) > 1 else "cotraining"
    return label, {"method": method, "simulator": simulator}


def _phases(gammas: tuple[float, ...] = START_GAMMAS, **fixed: Any) -> list[Variant]:
    return [
        _trained(f"{kind}, sharpness={gamma:g}", sharpness=gamma, **extra, **fixed)
        for kind, extra in TRAINED_KINDS.items()
        for gamma in gammas
    ]


def _phases_kl() -> list[Variant]:
    return [
        _trained(f"{kind}, sharpness={gamma:g}, kl={kl:g}", sharpness=gamma, kl_coef=kl, **TRAINED_KINDS[kind])
        for kind in ("Co-Training", "Population")
        for gamma in (2.0, 4.0)
        for kl in KL_COEFS
    ]


def _simulator_rewards() -> list[Variant]:
    rewards = ("curriculum", "adversarial", "cooperative", "zero", "random")
    plain = [_trained(reward, reward=reward, sharpness=START_GAMMA) for reward in rewards]
    # "disagreement" compares with past selves, so it needs a pool; the curriculum with the same pool stands beside it
    pooled = [
        _trained(f"{r}, K=5", reward=r, sharpness=START_GAMMA, pool_size=5) for r in ("curriculum", "disagreement")
    ]
    return plain + pooled


def _pool_sizes() -> list[Variant]:
    return [_trained(f"K={k}", pool_size=k, sharpness=START_GAMMA) for k in POOL_SIZES]


def _pool_rules() -> list[Variant]:
    """What a pool of 5 costs or adds, by how it is drawn from, how often it grows, and per group or per rollout."""
    rules: dict[str, dict[str, Any]] = {
        "uniform": {},
        "newest": {"pool_sampling": "newest"},
        "distinct": {"pool_sampling": "distinct"},
        "cadence=1": {"cadence": 1},
        "cadence=16": {"cadence": 16},
        "per rollout": {"draw": "rollout"},
    }
    return [_trained(name, pool_size=5, sharpness=START_GAMMA, **rule) for name, rule in rules.items()]


def _head_starts() -> list[Variant]:
    """The race, tested by hand: what if the simulator learns first, and the policy waits?"""
    return [
        _trained(f"{kind}, head start={n}", sharpness=START_GAMMA, head_start=n, **TRAINED_KINDS[kind])
        for kind in ("Co-Training", "Population")
        for n in HEAD_STARTS
    ]


def _simulator_rates() -> list[Variant]:
    """The race, by its speed: what if the simulator answers faster? Made after the head starts had saved nobody."""
    return [
        _trained(f"{kind}, rate={rate:g}", sharpness=START_GAMMA, learning_rate=rate, **TRAINED_KINDS[kind])
        for kind in ("Co-Training", "Population")
        for rate in SIMULATOR_RATES
    ]


def _policy_rates() -> list[Variant]:
    """The race, from the other side: what if the policy is slower? Made after a faster simulator had saved nobody."""
    trained = [
        _trained(f"{kind}, rate={rate:g}", sharpness=START_GAMMA, **TRAINED_KINDS[kind])
        for kind in ("Co-Training", "Population")
        for rate in POLICY_RATES
    ]
    variants = [*trained, *((f"un-sharpened, rate={rate:g}", {"method": "unsharpened"}) for rate in POLICY_RATES)]
    return [(v, {**s, "learning_rate": float(v.split("=")[1])}) for v, s in variants]


def _clip_ranges() -> list[Variant]:
    """Does the clipped ratio to older selves hold the population back? The policy's own ratio is 1."""
    variants = [_trained(f"Population, clip={c:g}", sharpness=START_GAMMA, pool_size=5) for c in CLIP_RANGES]
    return [(v, {**s, "clip_range": c}) for (v, s), c in zip(variants, CLIP_RANGES, strict=True)]


def _pool_lag() -> list[Variant]:
    """Is it the lag? Pools that lag by 0, 0.75 and 1.2 steps on average (K = 5 as usual: 6).

    A snapshot is taken after the step's update, so with one every step the newest is the present self. Written down
    before it was run: "K=2, every step" does not lag at all and must end as plain Co-Training does, seed by seed (or
    the code is wrong); if the lag is what costs the population its rescue, the others must come near it.
    """
    pools = {
        "K=1": {},
        "K=2, every step": {"pool_size": 2, "cadence": 1},
        "K=2, every 4 steps": {"pool_size": 2},
        "K=5, every step": {"pool_size": 5, "cadence": 1},
    }
    return [_trained(name, sharpness=START_GAMMA, **pool) for name, pool in pools.items()]


def _controls() -> list[Variant]:
    """What is not a method: a collapsed simulator drawn anew for each group, a frozen judge, more compute."""
    every_mode = {"members": ["sim-a", "sim-b", "sim-c", "sim-d", "sim-e"]}
    return [
        ("single", {"method": "single"}),
        ("diverse, fixed", {"method": "unsharpened"}),
        ("collapsed, drawn anew", {"method": "ensemble", "simulator": every_mode}),
        ("equal compute", {"method": "single", "steps": 160}),
        ("diverse users, frozen judge", {"method": "unsharpened", "simulator": {"outcome": "judge"}}),
        ("collapsed users, the world's outcome", {"method": "single", "simulator": {"outcome": "world"}}),
    ]


def _dial(key: str, values: tuple[float, ...], method: str, **fixed: Any) -> list[Variant]:
    return [(f"{key}={v:g}", {"method": method, "simulator": {key: v, **fixed}}) for v in values]


SHORT: dict[str, Any] = {"steps": 80, "eval_every": 20, "eval_dialogues": 16, "final_dialogues": 128}
"""of a run in the multiverse: many worlds rather than long runs"""

EXPERIMENTS: dict[str, Experiment] = {
    "methods": Experiment(lambda: _methods("persuasion"), MANY),
    "methods_hard": Experiment(lambda: _methods("persuasion_hard"), MANY),
    "methods_retail": Experiment(lambda: _methods("retail"), MANY),
    "methods_airline": Experiment(lambda: _methods("airline")),
    "cooperation": Experiment(lambda: _methods("coding", COOPERATION), MANY),
    "cooperation_small": Experiment(lambda: _methods("coding", COOPERATION, model="qwen3-small")),
    "larger_retail": Experiment(lambda: _methods("retail", model="qwen3-small")),
    "family_persuasion": Experiment(lambda: _methods("persuasion", model="olmo3-tiny")),
    "family_retail": Experiment(lambda: _methods("retail", model="olmo3-tiny")),
    "stronger_simulator": Experiment(
        lambda: [
            (f"{m}, {s}", {"method": m, "simulator": {"members": [s]}})
            for m in ("single", "verbalized")
            for s in ("sim-a", "qwen3-small")
        ]
    ),
    "single_by_simulator": Experiment(
        lambda: [(s, {"method": "single", "simulator": {"members": [s]}}) for s in ("sim-a", "sim-b", "sim-c")], 5
    ),
    "no_exploit": Experiment(
        lambda: _methods("persuasion_plain", ("base", "single", "cotraining", "population", "unsharpened")), 5
    ),
    "sharpness": Experiment(lambda: _dial("sharpness", GAMMAS, "single"), 5),
    "sharpness_centred": Experiment(
        lambda: [(v, {**settings, "scale_advantages": False}) for v, settings in _dial("sharpness", GAMMAS, "single")]
    ),
    "persona": Experiment(lambda: [(p, {"method": "persona", "simulator": {"persona": p}}) for p in ("says", "as")]),
    "vs_eta_mode": Experiment(lambda: _dial("eta", ETAS, "verbalized", direction="mode")),
    "vs_eta_wrong": Experiment(lambda: _dial("eta", ETAS, "verbalized", direction="wrong")),
    "vs_k": Experiment(lambda: _dial("k", LIST_SIZES, "verbalized")),
    "vs_noise": Experiment(lambda: _dial("noise", NOISES, "verbalized")),
    "theory_odds": Experiment(lambda: [(m, {"method": m, "eval_every": 100}) for m in ("single", "unsharpened")]),
    "phases": Experiment(_phases),
    "phases_world": Experiment(lambda: _phases(outcome="world")),
    "phases_kl": Experiment(_phases_kl),
    "simulator_rewards": Experiment(_simulator_rewards),
    "pool_sizes": Experiment(_pool_sizes),
    "pool_rules": Experiment(_pool_rules),
    "head_starts": Experiment(_head_starts),
    "simulator_rates": Experiment(_simulator_rates),
    "policy_rates": Experiment(_policy_rates),
    "clip_ranges": Experiment(_clip_ranges),
    "pool_lag": Experiment(_pool_lag, 5),
    "controls": Experiment(_controls, 5),
    "multiverse": Experiment(
        lambda: _methods("", ("base", "single", "verbalized", "cotraining", "unsharpened"), **SHORT), 100
    ),
    "text_p4g": Experiment(lambda: _methods("p4g", TEXT_METHODS, **TEXT_SIZE), 1, apart=True),
    "text_tuned": Experiment(lambda: _methods("p4g", TUNED_METHODS, **TUNED_SIZE), 1, apart=True),
}
"""seeds: how many the shipped tables have (in the multiverse: worlds)"""


def runs_of(
    experiment: str, seeds: int | None, variants: Sequence[str] | None = None, **overrides: Any
) -> list[tuple[str, RunConfig]]:
    """(variant, config) of every run of an experiment, seed by seed; in the multiverse each seed is a world of its own.

    Args:
        seeds: None: as many as its shipped table has.
        variants: only these.
        overrides: keys of RunConfig that hold for every run (steps=10 for a quick look).

    Raises:
        ScopeError: for an unknown experiment.
    """
    if experiment not in EXPERIMENTS:
        raise ScopeError(closest(experiment, list(EXPERIMENTS), "experiment"))
    seeds = EXPERIMENTS[experiment].seeds if seeds is None else seeds
    if not 0 <= seeds <= MOST_SEEDS:
        raise ScopeError(f"an experiment has at most {MOST_SEEDS:,} seeds, not {seeds}")
    runs = []
    for seed in range(seeds):
        for label, settings in EXPERIMENTS[experiment].variants():
            if variants is not None and label not in variants:
                continue
            chosen = {**settings, **overrides, "seed": seed}
            if experiment == "multiverse":
                chosen["world"] = random_name(FIRST_WORLD + seed)
            if settings["method"] == "base":
                chosen.pop("steps", None)
            runs.append((label, method_config(**chosen)))
    return runs
