"""Tables behind the referee's questions: doses of collapse, worlds drawn at random, recovery of the reference users.

All of it is arithmetic on tables of runs or on a world's exact distributions; nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from scope_lite.envs.nano import World, get_world
from scope_lite.envs.nano.exact import ask_then_match, policy_value, repeat
from scope_lite.envs.nano.users import BeliefUsers, draw
from scope_lite.experiments.contrasts import REAL, UNSEEN, rank_correlation
from scope_lite.measure.stats import Interval, clustered_interval
from scope_lite.method.panel_file import COLLAPSED_SHARPNESS
from scope_lite.method.sampling import VerbalizedModel

# -- doses of collapse ----------------------------------------------------------------------------------------------


def collapse_doses(runs: pd.DataFrame, control: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """What each run lost, beside how collapsed its simulator was on the histories that it visited.

    Args:
        runs: of :func:`summaries.run_summaries`: variant, seed, summary, the panel and simulator/epsilon.
        control: the same of the control, a run a seed.
        horizon: turns of a dialogue: accumulated error is epsilon a turn times this many.

    Returns:
        A row a run: variant, seed, ``epsilon_h`` (mean over training of the accumulated error, in expected deviations
        a dialogue), ``unseen_loss`` and ``real_loss`` (control minus run at the end, same seed; rewards).
    """
    keys = ["variant", "seed"]
    end = runs[runs["summary"] == "end"].set_index(keys)
    over = runs[runs["summary"] == "auc"].set_index(keys)["simulator/epsilon"]
    base = control[control["summary"] == "end"].set_index("seed")[[UNSEEN, REAL]].add_prefix("control ")
    paired = end.join(base, on="seed", how="inner")
    table = pd.DataFrame({"epsilon_h": horizon * over.reindex(paired.index)})
    table["unseen_loss"] = paired[f"control {UNSEEN}"] - paired[UNSEEN]
    table["real_loss"] = paired[f"control {REAL}"] - paired[REAL]
    return table.reset_index()


def ranks_by_seed(doses: pd.DataFrame, x: str = "epsilon_h", y: str = "unseen_loss") -> Interval:
    """Spearman's correlation of dose and loss within each seed, averaged over seeds with a t-interval.

    Seeds in which one of the two does not vary are left out; without any seed, the interval is NaN.
    """
    per_seed = [rank_correlation(rows[x], rows[y]).mean for _, rows in doses.groupby("seed")]
    return clustered_interval(per_seed)


def half_loss(doses: pd.DataFrame, x: str = "epsilon_h", y: str = "unseen_loss") -> Interval:
    """The dose at which half of the largest loss is reached, by seed: a step has a place rather than a slope.

    Between the two doses where the loss first passes half, the dose is interpolated on a logarithmic scale. A seed that
    does not pass half of its loss between two doses is left out; without any seed, the interval is NaN.
    """
    places = []
    for _, rows in doses.groupby("seed"):
        rows = rows.sort_values(x, ascending=False)
        level = rows[y].to_numpy() - rows[y].max() / 2
        after = int(np.argmax(level >= 0))
        if after > 0:
            part = -level[after - 1] / (level[after] - level[after - 1])
            low, high = np.log(rows[x].to_numpy()[[after - 1, after]])
            places.append(float(np.exp(low + part * (high - low))))
    return clustered_interval(places)


# -- worlds drawn at random -----------------------------------------------------------------------------------------


def world_properties(names: Sequence[str]) -> pd.DataFrame:
    """What was drawn for each random world (``envs.nano.persuasion.random_persuasion``), read back from its tables.

    Returns:
        A row a world: top share of the prior, wrong penalty, push penalty, reveal rate, polite yes, dry no, horizon,
        unknown share; and ``exploit gain``: what repeating the favourite's appeal is worth more than asking first,
        exactly, against the simulator with gamma = 8.
    """
    return pd.DataFrame({name: _properties(get_world(name)) for name in names}).T.rename_axis("world")


def _properties(world: World) -> dict[str, float]:
    spec, start = world.spec, world.spec.initial_state
    favourite, other = list(spec.prior)[:2]
    own, wrong = f"appeal-{favourite}", f"appeal-{other}"
    exploit, honest = (policy_value(world, world.prior, f, COLLAPSED_SHARPNESS) for f in (repeat(own), ask_then_match))

    def interest(act: str) -> float:
        return float(spec.step(favourite, start, act, "no").interest)

    return {
        "exploit gain": exploit - honest,
        "top share": spec.prior[favourite],
        "wrong penalty": -interest(wrong),
        "push penalty": -interest("push"),
        "reveal rate": spec.reply(favourite, start, "ask")[f"reveal-{favourite}"],
        "polite yes": spec.reply(favourite, start, wrong)["yes"],
        "dry no": spec.reply(favourite, start, own)["no"],
        "turns": float(spec.horizon),
        "unknown share": sum(p for z, p in spec.real_prior.items() if z not in spec.prior),
    }


def dependence(properties: pd.DataFrame, outcome: pd.Series) -> dict[str, Interval]:
    """Rank correlation over worlds of an outcome (indexed by world) with each property.

    The properties are drawn independently, so one at a time is enough; only the exploit's gain follows from the others.
    """
    both = properties.join(outcome.rename("outcome"), how="inner").dropna()
    return {str(name): rank_correlation(both[name], both["outcome"]) for name in properties}


# -- recovery of the reference users --------------------------------------------------------------------------------


def recovery_distance(world: World, rule: VerbalizedModel, dialogues: int = 24, lists: int = 500) -> float:
    """D_TV(p_VS, P) a turn (Prop. 3.7), on histories that an agent of random acts visits with the users P.

    p_VS is the mean of ``lists`` lists' stated distributions, so the distance of two equal laws reads slightly above 0.
    """
    rng = np.random.default_rng(0)
    users = BeliefUsers(world, world.prior, dialogues)
    distances = []
    for _ in range(world.horizon):
        acts = rng.integers(len(world.spec.agent_acts), size=dialogues)
        p = users.reply_probabilities(acts)
        stated = rule.stated(np.repeat(p, lists, axis=0), rng.random((dialogues * lists, 2 * p.shape[1])))
        recovered = stated.reshape(dialogues, lists, -1).mean(axis=1)
        distances.append(np.abs(recovered - p).sum(axis=1).mean() / 2)
        users.observe(acts, draw(p, rng.random(dialogues)))
    return float(np.mean(distances))


def mixture_epsilon(world: World, populations: Sequence[dict[str, float]], act: str) -> float:
    """Collapse error of a draw from several collapsed simulators, as the agent meets it: the first reply to ``act``."""
    heard = np.array([world.agent_index[act]])
    laws = [
        BeliefUsers(world, world.prior_vector(p), 1, COLLAPSED_SHARPNESS).reply_probabilities(heard)[0]
        for p in populations
    ]
    return float(1 - np.mean(laws, axis=0).max())
