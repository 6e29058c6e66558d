"""The tidy tables behind the theory figures: exact numbers from enumeration, one row per point drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from scope_lite.theory import concentration as steps_on
from scope_lite.theory import gradients, instances, population, regret, sharpening, variance
from scope_lite.theory import quantities as q
from scope_lite.theory.dynamics import TARGET_REWARDS, target_log_odds, two_strategy_log_odds
from scope_lite.theory.inequality import Inequality, adversarial_instances, batches, one, random_instances
from scope_lite.theory.process import Levels, Process, mode_replies, trajectory_probs

Measures = Callable[[Any], dict[str, Tensor]]
"""What a table says of a batch of instances: column -> one number for each."""


def cloud(result: Inequality, measures: Measures, n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """A row an instance of any result: its measures, and of which kind it is (``inequality.batches``)."""
    return rows_of(batches(result, n, n_adversarial, seed), measures)


def rows_of(groups: dict[Any, Any], measures: Measures, label: str = "kind") -> pd.DataFrame:
    """A row an instance of each batch: its measures, and in column ``label`` the batch's name."""
    return _stack(_numbers(**measures(batch)).assign(**{label: name}) for name, batch in groups.items())


def _numbers(**columns: Tensor) -> pd.DataFrame:
    return pd.DataFrame({name: values.detach().numpy() for name, values in columns.items()})


def _stack(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True)


# -- Theorem 3.2 and Proposition 3.7 --------------------------------------------------------------------------------


def gradient_cloud(n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Theorem 3.2 by instance: kind, epsilon (min ε̄_H), deviation (TV), gap (in units of B·R_max)."""
    bits = torch.logspace(-3, -0.35, 12, dtype=torch.float64)
    result = replace(gradients.THEOREM_3_2, tight=lambda: instances.one_bit(bits))
    return cloud(result, _gradient, n, n_adversarial, seed).replace({"kind": {"constructed": "one bit"}})


def _gradient(process: Process) -> dict[str, Tensor]:
    modes = mode_replies(process.replies)
    return {
        "epsilon": gradients.accumulated_distance(process, modes),
        "deviation": gradients.rollout_distance(process, modes),
        "gap": _relative_gap(process, modes),
    }


def _relative_gap(process: Process, other: Levels) -> Tensor:
    return gradients.gradient_gap(process, other) / (q.score_sup(process, other) * process.reward_max)


def long_dialogues(turns: int = 3) -> pd.DataFrame:
    """The tight instance over ``turns`` turns: per-turn epsilon, accumulated ε̄_H, exact gap, in units of B·R_max."""
    epsilon = torch.linspace(0.005, 0.495, 50, dtype=torch.float64)
    return _numbers(**_gradient(instances.one_bit(epsilon, turns=turns)), per_turn=epsilon)


def rare_act_table() -> pd.DataFrame:
    """A rare act before every deviation: ε̄_H, and gap/bound with B as a supremum and as a root mean square."""
    process = instances.rare_act(torch.logspace(-5, -0.4, 30, dtype=torch.float64))
    modes = mode_replies(process.replies)
    epsilon, gap = gradients.accumulated_distance(process, modes), gradients.gradient_gap(process, modes)
    sup, rms = (gap / (size(process) * epsilon) for size in (q.score_sup, q.score_rms))
    return _numbers(epsilon=epsilon, sup=sup, rms=rms)


def dose_response(n: int, seed: int) -> pd.DataFrame:
    """P mixed with a wrong mode, p_VS = (1−d)·P + d·wrong: kind, instance, dial d, distance (η̄_H), gap (by B·R_max)."""
    result, bit = gradients.PROPOSITION_3_7, instances.one_bit(one(0.02))
    drawn = {
        "random": random_instances(result, n, seed),
        "gradient ascent": adversarial_instances(result, n // 3, seed),
    }
    pairs = {kind: (process, mode_replies(other)) for kind, (process, other) in drawn.items()}
    pairs["one bit"] = bit, tuple(1.0 - mode for mode in mode_replies(bit.replies))
    dials = np.linspace(0.0, 1.0, 21)
    return _stack(_dose(*pair, dial).assign(kind=kind) for kind, pair in pairs.items() for dial in dials)


def _dose(process: Process, wrong: Levels, dial: float) -> pd.DataFrame:
    mixed = tuple((1 - dial) * p + dial * w for p, w in zip(process.replies, wrong, strict=True))
    table = _numbers(distance=gradients.accumulated_distance(process, mixed), gap=_relative_gap(process, mixed))
    return table.assign(instance=range(len(table)), dial=dial)


def monte_carlo_agreement(process: Process, leaves: Tensor) -> tuple[float, float, float]:
    """Exact mean reward, the sampled one, and its standard error, for dialogues sampled from a batch-of-one process."""
    sampled = process.reward[0][leaves]
    exact = float((trajectory_probs(process)[0] * process.reward[0]).sum())
    return exact, float(sampled.mean()), float(sampled.std() / len(leaves) ** 0.5)


# -- Lemma 3.3 ------------------------------------------------------------------------------------------------------


def variance_cloud(n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Lemma 3.3 by instance: kind, and the columns of :func:`variance_examples`, variances in units of R_max²."""
    return cloud(variance.LEMMA_3_3, _variance, n, n_adversarial, seed)


def variance_examples() -> pd.DataFrame:
    """Four dialogues, from a collapsed user to fully diverse ones, and who makes the variance of the reward.

    Returns:
        case, epsilon, deviation, total, policy and simulator (Eq. 6, coins fixed), given_acts.
    """
    cases = {
        "collapsed user, fair-coin policy": instances.one_bit(one(0.05)),
        "asks, repeats; R = the user's bit": instances.ask_then("bit"),
        "asks, matches; always R = 1": instances.ask_then("match"),
        "never paid (all-failure)": instances.ask_then("nothing"),
    }
    return rows_of(cases, _variance, "case")


def _variance(process: Process) -> dict[str, Tensor]:
    by_policy, by_simulator = q.coin_split(process)
    return {
        "epsilon": q.accumulate(process, q.collapse_errors(process.replies)),
        "deviation": variance.deviation_probability(process),
        "total": q.reward_variance(process),
        "policy": by_policy,
        "simulator": by_simulator,
        "given_acts": q.variance_given_actions(process),
    }


# -- Proposition 3.4, Corollary 3.5, Lemma B.5 ------------------------------------------------------------------------


def growth_cloud(n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Proposition 3.4 by instance: kind, rate (g_x with its errors) and growth of the log-odds, in nats."""
    return cloud(
        steps_on.PROPOSITION_3_4,
        lambda b: {"rate": steps_on.rates(b, steps_on.sharp_gap)[:, 0], "growth": steps_on.odds_growth(b).log()},
        n,
        n_adversarial,
        seed,
    )


def growth_laws(steps: int = 300, eta: float = 0.2, start_odds: float = 0.1, group_size: int = 8) -> pd.DataFrame:
    """Odds of the better of two strategies (gap 1) by step under four updates: update, step, odds."""
    laws = {
        "KL-regularised step": ("kl", None),
        "GRPO, infinite group": ("grpo", None),
        f"GRPO, G = {group_size}": ("grpo", group_size),
        "softmax policy gradient": ("gradient", None),
    }
    odds = {
        name: np.exp(two_strategy_log_odds(np.log(start_odds), steps, eta, update, group_size=size))
        for name, (update, size) in laws.items()
    }
    return _by_step(odds, "update", "odds")


def _by_step(paths: dict[Any, np.ndarray], label: str, value: str) -> pd.DataFrame:
    """Several paths of numbers as rows: their names in column ``label``, step, and the number in column ``value``."""
    return _stack(pd.DataFrame({label: name, "step": range(len(path)), value: path}) for name, path in paths.items())


def entropy_path(steps: int = 30, eta: float = 0.5, exploit: tuple[float, ...] = (0.007, 0.002, 0.001)) -> pd.DataFrame:
    """Entropy under KL-regularised steps from π(A_x) = .01 with |A_x| = 3: step, inside (π(A_x)), entropy, ceiling."""
    n, outside = len(exploit), (1 - sum(exploit)) / 3
    advantage = one([1.0] * n + [0.0] * 3)
    p = steps_on.kl_step(one([*exploit, *[outside] * 3]), advantage, eta * torch.arange(steps + 1, dtype=torch.float64))
    inside, entropy, ceiling = p[:, :n].sum(-1), steps_on.entropy(p), steps_on.entropy_ceiling(p, n)
    return _numbers(step=torch.arange(steps + 1), inside=inside, entropy=entropy, ceiling=ceiling)


def chase_paths(steps: int = 200, seeds: int = 12, seed: int = 0) -> pd.DataFrame:
    """Log-odds of y against y' by step while the simulator moves: target, path (number), step, log_odds (nats).

    One target stands; one leads y and y' in turn, by .2 and by .6 (the counterexample to Lemma B.5); one draws whom it
    pays .4 at random (the paper's sufficient model), ``seeds`` times.
    """
    drawn = np.random.default_rng(seed).integers(0, 2, (seeds, steps))
    won = {
        "it stands: y leads by .4": np.full((1, steps), 0.4),
        "turns: y by .2, y' by .6": np.tile([0.2, -0.6], (1, steps // 2)),
        "drawn anew: either by .4": np.where(drawn, 0.4, -0.4),
    }
    paths = {name: np.pad(np.cumsum(ahead, 1), ((0, 0), (1, 0))) for name, ahead in won.items()}
    return _stack(
        _by_step(dict(enumerate(path)), "path", "log_odds").assign(target=name) for name, path in paths.items()
    )


def target_paths(steps: int = 60, eta: float = 0.2, start: float = 0.7) -> pd.DataFrame:
    """Remark B.10, a fixed policy's success rate by step of a simulator paid in three ways: reward, step, success."""
    odds = {reward: target_log_odds(np.log(start / (1 - start)), steps, eta, reward) for reward in TARGET_REWARDS}
    return _by_step({reward: 1 / (1 + np.exp(-x)) for reward, x in odds.items()}, "reward", "success")


# -- Propositions 3.6 and F.1, Lemmas B.7 and B.9 ---------------------------------------------------------------------


def deployment_sweep() -> pd.DataFrame:
    """An exploit (1 off B_x, 0 on it) against a rival of .8 everywhere, by q: regret, Eq. 9, sharp, and without ν."""
    q_lost = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    case = regret.gains_elsewhere(q_lost)
    return _numbers(
        q=q_lost,
        regret=regret.regret(case),
        paper=regret.bound_paper(case),
        sharp=regret.bound_sharp(case),
        without=regret.bound(case, off=False, rest=regret.excess(case)),
    )


def deployment_cloud(n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Proposition 3.6 by instance: kind, regret and its sharp bound."""
    sides = {"regret": regret.regret, "bound": regret.bound_sharp}
    return cloud(
        regret.PROPOSITION_3_6, lambda b: {name: side(b) for name, side in sides.items()}, n, n_adversarial, seed
    )


def sharpening_curves() -> pd.DataFrame:
    """P_γ(B) and its bounds by γ for three distributions: case, gamma, curve, value."""
    makers = (sharpening.two_levels, sharpening.lump, sharpening.long_tail)
    curves = {
        "exact": sharpening.rare_mass,
        "paper": sharpening.bound_paper,
        "sharp": sharpening.bound_sharp,
        "VS keeps": sharpening.kept_at_least,
        "λ = mean of B / m": lambda c: sharpening.bound_paper(c, sharpening.lambda_mean),
    }
    rows = []
    for make in makers:
        low, high = (0.05, 1.0) if make is sharpening.long_tail else (1.0, 6.0)
        gamma = torch.linspace(low, high, 40, dtype=torch.float64)
        base = make()
        case = replace(base, gamma=gamma, probs=base.probs.expand(40, -1), verbalized=base.verbalized.expand(40, -1))
        for curve, side in curves.items():
            rows.append(_numbers(gamma=gamma, value=side(case)).assign(case=make.__name__, curve=curve))
    return _stack(rows)


def pool_sizes(largest: int = 10) -> pd.DataFrame:
    """Best exploit's advantage (own mode: 1) by K: pool, K, gap."""
    rows = []
    for k in range(1, largest + 1):
        halving = np.array([0.5**j for j in range(k)])
        # two of every three checkpoints repeat mode 0
        modes = [(j + 1) // 3 if j % 3 == 2 else 0 for j in range(k)]
        pools = {
            "distinct modes": population.pool([1 / k] * k),
            "overlap .3": population.pool([1 / k] * k, overlap=0.3),
            "weights halve with age": population.pool(list(halving / halving.sum())),
            "two of three share a mode": population.pool(list(np.bincount(modes) / k)),
        }
        rows += [{"pool": name, "K": k, "gap": float(population.best_exploit_gap(p))} for name, p in pools.items()]
    return pd.DataFrame(rows)


def pool_coverage(largest: int = 10) -> pd.DataFrame:
    """P(a group of 8 sees what one of K members does), by what draws one: K, dialogue, group; at_most (Gq, up to 1)."""
    rows = []
    for k in range(1, largest + 1):
        case = population.members([0.0, 1.0], *[[1.0, 0.0]] * (k - 1))
        sides = {
            "dialogue": population.seen_of_all,
            "group": population.seen_of_one,
            "at_most": lambda c: population.seen_at_most(c).clamp(max=1.0),
        }
        rows.append({"K": k, **{name: float(side(case)) for name, side in sides.items()}})
    return pd.DataFrame(rows)


def pool_collapse(largest: int = 6, turns: int = 4) -> pd.DataFrame:
    """ε̄_H of K deterministic simulators with distinct modes, by when one is drawn: K, dialogue, turn."""
    rows = []
    for k in range(1, largest + 1):
        levels = [torch.eye(k, dtype=torch.float64)[:, None, None, :].expand(-1, k**t, 1, -1) for t in range(turns)]
        simulators = tuple(tuple(level[i : i + 1] for level in levels) for i in range(k))
        features = tuple(torch.zeros(1, k**t, 1, 1, dtype=torch.float64) for t in range(turns))
        process = Process(one([0.0]), features, simulators[0], torch.zeros(1, k**turns, dtype=torch.float64))
        pool = gradients.Pool(process, simulators, one([1 / k] * k))
        mixtures = {"dialogue": gradients.mixed_replies(pool), "turn": tuple(level.mean(0)[None] for level in levels)}
        found = {
            name: float(q.accumulate(replace(process, replies=mixed), q.collapse_errors(mixed)))
            for name, mixed in mixtures.items()
        }
        rows.append({"K": k, **found})
    return pd.DataFrame(rows)
