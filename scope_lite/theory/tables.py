"""The tidy tables behind the theory figures: exact numbers from enumeration, one row per point drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from scope_lite.theory import concentration as steps_on
from scope_lite.theory import gradients, instances, population, regret, sharpening, variance
from scope_lite.theory import quantities as q
from scope_lite.theory.dynamics import two_strategy_log_odds
from scope_lite.theory.inequality import Inequality, adversarial_instances, batches, one, random_instances
from scope_lite.theory.process import Levels, Process, mode_replies, trajectory_probs

Measures = Callable[[Any], dict[str, Tensor]]
"""What a table says of a batch of instances: column -> one number for each."""


def cloud(result: Inequality, measures: Measures, n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """A row an instance of any result: its measures, and of which kind it is (``inequality.batches``)."""
    return rows_of(batches(result, n, n_adversarial, seed), measures)


def rows_of(groups: dict[str, Any], measures: Measures, label: str = "kind") -> pd.DataFrame:
    """A row an instance of each batch: its measures, and in column ``label`` the batch's name."""
    return pd.concat([_numbers(**measures(batch)).assign(**{label: name}) for name, batch in groups.items()],
                     ignore_index=True)  # fmt: skip


def _numbers(**columns: Tensor) -> pd.DataFrame:
    return pd.DataFrame({name: values.detach().numpy() for name, values in columns.items()})


def bound_cloud(result: Inequality, n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Left and sharp right side of any result by instance: kind, left, right."""
    return cloud(
        result, lambda batch: {"left": result.left(batch), "right": result.sharp(batch)}, n, n_adversarial, seed
    )


# -- Theorem 3.2 and Proposition 3.7 --------------------------------------------------------------------------------


def gradient_cloud(n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Theorem 3.2 by instance: kind, epsilon (min ε̄_H), deviation (TV), gap (in units of B·R_max)."""
    result = replace(
        gradients.THEOREM_3_2, tight=lambda: instances.one_bit(torch.logspace(-3, -0.35, 12, dtype=torch.float64))
    )
    return cloud(result, _gradient, n, n_adversarial, seed).replace({"kind": {"constructed": "one bit"}})


def _gradient(process: Process) -> dict[str, Tensor]:
    modes = mode_replies(process.replies)
    return {
        "epsilon": gradients.accumulated_distance(process, modes),
        "deviation": gradients.rollout_distance(process, modes),
        "gap": gradients.gradient_gap(process, modes) / (q.score_sup(process, modes) * process.reward_max),
    }


def long_dialogues(turns: int = 3) -> pd.DataFrame:
    """The tight instance over ``turns`` turns: per-turn epsilon, accumulated ε̄_H, exact gap, in units of B·R_max."""
    epsilon = torch.linspace(0.005, 0.495, 50, dtype=torch.float64)
    return _numbers(**_gradient(instances.one_bit(epsilon, turns=turns)), per_turn=epsilon)


def rare_act_table() -> pd.DataFrame:
    """A rare act before every deviation: ε̄_H, and gap/bound with B as a supremum and as a root mean square."""
    process = instances.rare_act(torch.logspace(-5, -0.4, 30, dtype=torch.float64))
    modes = mode_replies(process.replies)
    epsilon, gap = gradients.accumulated_distance(process, modes), gradients.gradient_gap(process, modes)
    return _numbers(
        epsilon=epsilon, sup=gap / (q.score_sup(process) * epsilon), rms=gap / (q.score_rms(process) * epsilon)
    )


def dose_response(n: int, seed: int) -> pd.DataFrame:
    """P mixed with a wrong mode, p_VS = (1−d)·P + d·wrong: kind, instance, dial d, distance (η̄_H), gap (by B·R_max)."""
    result, bit = gradients.PROPOSITION_3_7, instances.one_bit(one(0.02))
    drawn = {
        "random": random_instances(result, n, seed),
        "gradient ascent": adversarial_instances(result, n // 3, seed),
    }
    pairs = {kind: (process, mode_replies(other)) for kind, (process, other) in drawn.items()}
    pairs["one bit"] = bit, tuple(1.0 - mode for mode in mode_replies(bit.replies))
    rows = [_dose(*pair, dial).assign(kind=kind) for kind, pair in pairs.items() for dial in np.linspace(0.0, 1.0, 21)]
    return pd.concat(rows, ignore_index=True)


def _dose(process: Process, wrong: Levels, dial: float) -> pd.DataFrame:
    mixed = tuple((1 - dial) * p + dial * w for p, w in zip(process.replies, wrong, strict=True))
    gap = gradients.gradient_gap(process, mixed) / (q.score_sup(process, mixed) * process.reward_max)
    table = _numbers(distance=gradients.accumulated_distance(process, mixed), gap=gap)
    return table.assign(instance=range(len(table)), dial=dial)


def monte_carlo_agreement(process: Process, leaves: Tensor) -> tuple[float, float, float]:
    """Exact mean reward, the sampled one, and its standard error, for dialogues sampled from a batch-of-one process."""
    sampled = process.reward[0][leaves]
    exact = float((trajectory_probs(process)[0] * process.reward[0]).sum())
    return exact, float(sampled.mean()), float(sampled.std() / len(leaves) ** 0.5)


# -- Lemma 3.3 ------------------------------------------------------------------------------------------------------


def variance_cloud(n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Lemma 3.3 by instance: kind, and the columns of :func:`variance_examples`, variances in units of R_max²."""
    return cloud(variance.LEMMA_3_3_DOOB, _variance, n, n_adversarial, seed)


def variance_examples() -> pd.DataFrame:
    """Four dialogues, from a collapsed user to fully diverse ones, and who makes the variance of the reward.

    Returns:
        case, epsilon, deviation, total, policy and simulator (Doob), given_acts.
    """
    cases = {
        "collapsed user,\nfair-coin policy": instances.one_bit(one(0.05)),
        "ask, repeat;\nR = the user's bit": instances.ask_then("bit"),
        "ask, match;\nalways R = 1": instances.ask_then("match"),
        "never paid\n(all-failure)": instances.ask_then("nothing"),
    }
    return rows_of(cases, _variance, "case")


def _variance(process: Process) -> dict[str, Tensor]:
    by_policy, by_simulator = q.doob_split(process)
    return {
        "epsilon": q.accumulate(process, q.collapse_errors(process.replies)),
        "deviation": variance.deviation_probability(process),
        "total": q.reward_variance(process),
        "policy": by_policy,
        "simulator": by_simulator,
        "given_acts": q.variance_given_actions(process),
    }


# -- Proposition 3.4 and Corollary 3.5 ------------------------------------------------------------------------------


def step_sizes(n: int, seed: int) -> pd.DataFrame:
    """Gain of exp(c·ηA) for c around 1, as a share of the best gain: instance, multiplier, share."""
    case = random_instances(steps_on.PROPOSITION_3_4, n, seed)
    best = steps_on.gain(case, steps_on.kl_step(case.start, case.advantage, case.eta))
    rows = []
    for c in np.linspace(0.0, 2.0, 41):
        share = steps_on.gain(case, steps_on.kl_step(case.start, case.advantage, case.eta * c)) / best
        rows.append(_numbers(share=share).assign(instance=range(n), multiplier=c))
    return pd.concat(rows, ignore_index=True)


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
    return pd.concat(
        [pd.DataFrame({label: name, "step": range(len(path)), value: path}) for name, path in paths.items()],
        ignore_index=True,
    )


def kl_path(p: Tensor, advantage: Tensor, steps: int, eta: float) -> list[Tensor]:
    """The policies of ``steps`` KL-regularised steps, the first one before any."""
    path = [p]
    for _ in range(steps):
        path.append(steps_on.kl_step(path[-1], advantage, one(eta)))
    return path


def entropy_path(steps: int = 30, eta: float = 0.5, exploit: tuple[float, ...] = (0.007, 0.002, 0.001)) -> pd.DataFrame:
    """Entropy under KL-regularised steps from π(A_x) = .01 with |A_x| = 3: step, inside (π(A_x)), entropy, ceiling."""
    n, outside = len(exploit), (1 - sum(exploit)) / 3
    path = kl_path(one([*exploit, *[outside] * 3]), one([1.0] * n + [0.0] * 3), steps, eta)
    rows = [
        {
            "step": step,
            "inside": float(p[0, :n].sum()),
            "entropy": float(steps_on.entropy(p)),
            "ceiling": float(steps_on.entropy_ceiling(p, n)),
        }
        for step, p in enumerate(path)
    ]
    return pd.DataFrame(rows)


def jackpot_path(steps: int = 12, eta: float = 0.5) -> pd.DataFrame:
    """Odds by step with a uniform gap of .94 and with a gap of MEANS of .94: gap, step, odds."""
    jackpot = steps_on.jackpot_outside()
    cases = {"uniform gap .94": one([0.0, -0.94, -0.94]), "gap of means .94": jackpot.advantage}
    paths = {
        name: np.array([float(steps_on.exploit_odds(p, 1)) for p in kl_path(jackpot.start, advantage, steps, eta)])
        for name, advantage in cases.items()
    }
    return _by_step(paths, "gap", "odds")


# -- Proposition 3.6, Proposition F.1, Lemma B.9 --------------------------------------------------------------------


def deployment_sweep() -> pd.DataFrame:
    """One exploit (1 off E, 0 on E) against .8 everywhere, by ρ: both regrets and their bounds."""
    rho, base = torch.linspace(0.01, 0.99, 99, dtype=torch.float64), regret.gains_elsewhere()
    n = len(rho)
    case = regret.Deployment(base.payoff.expand(n, -1, -1), torch.stack([rho, 1 - rho], -1), base.policy.expand(n, -1))
    return _numbers(
        rho=rho,
        oracle=regret.oracle_regret(case),
        oracle_bound=regret.oracle_bound(case),
        single=regret.single_regret(case),
        single_bound=regret.single_bound(case),
    )


def sharpening_curves() -> pd.DataFrame:
    """P_γ(rare) and its bounds by γ for four distributions: case, gamma, curve, value."""
    ranges = {"two_levels": (1.0, 6.0), "lumpy": (1.0, 6.0), "uneven_major": (1.0, 6.0), "long_tail": (0.05, 1.0)}
    curves = {
        "exact": sharpening.rare_mass,
        "source": sharpening.bound_source,
        "sharp": sharpening.bound_sharp,
        "λ = m/ρ": lambda c: sharpening.bound_source(c, sharpening.lambda_mass(c)),
        "λ = max/max": lambda c: sharpening.bound_source(c, sharpening.lambda_max_max(c)),
    }
    rows = []
    for name, (low, high) in ranges.items():
        base = getattr(sharpening, name)()
        gamma = torch.linspace(low, high, 40, dtype=torch.float64)
        case = replace(base, probs=base.probs.expand(40, -1), gamma=gamma)
        rows += [
            _numbers(gamma=gamma, value=side(case)).assign(case=name, curve=curve) for curve, side in curves.items()
        ]
    return pd.concat(rows, ignore_index=True)


def pool_sizes(largest: int = 10) -> pd.DataFrame:
    """Best exploit's advantage (own mode: 1) by K: pool, K, gap."""
    rows = []
    for k in range(1, largest + 1):
        halving = np.array([0.5**j for j in range(k)])
        # two of every three checkpoints repeat mode 0
        shared = [(j + 1) // 3 if j % 3 == 2 else 0 for j in range(k)]
        pools = {
            "distinct modes": population.distinct_modes(k),
            "overlap .3": population.pool([1 / k] * k, list(range(k)), overlap=0.3),
            "weights halve with age": population.pool(list(halving / halving.sum()), list(range(k))),
            "two of three share a mode": population.pool([1 / k] * k, shared),
        }
        rows += [{"pool": name, "K": k, "gap": float(population.best_exploit_gap(p))} for name, p in pools.items()]
    return pd.DataFrame(rows)


def pool_odds(sizes: tuple[int, ...] = (1, 3, 5, 10), steps: int = 60, eta: float = 0.5) -> pd.DataFrame:
    """Odds of one exploit under KL-regularised steps with advantage Δ/K, by step: K, step, odds."""
    return _by_step({k: np.exp(two_strategy_log_odds(0.0, steps, eta, "kl", 1 / k)) for k in sizes}, "K", "odds")


def staleness_curves(costs: tuple[float, ...] = (0.005, 0.02, 0.08), cadence: float = 4.0) -> pd.DataFrame:
    """MODEL: loss by K for several assumed costs of staleness: cost, K, loss, optimum."""
    k = torch.linspace(1, 12, 111, dtype=torch.float64)
    rows = [
        _numbers(K=k, loss=population.staleness_loss(k, 1.0, c, cadence)).assign(
            cost=c, optimum=population.staleness_optimum(1.0, c, cadence)
        )
        for c in costs
    ]
    return pd.concat(rows, ignore_index=True)
