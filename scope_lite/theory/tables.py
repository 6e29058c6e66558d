"""The tidy tables behind the theory figures: exact numbers from enumeration, one row per point drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
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


def rows_of(groups: dict[Any, Any], measures: Measures, label: str = "kind") -> pd.DataFrame:
    """A row an instance of each batch: its measures, and in column ``label`` the batch's name."""
    return _stack(_numbers(**measures(batch)).assign(**{label: name}) for name, batch in groups.items())


def _numbers(**columns: Tensor) -> pd.DataFrame:
    return pd.DataFrame({name: values.detach().numpy() for name, values in columns.items()})


def _stack(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True)


def bound_cloud(result: Inequality, n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Left and sharp right side of any result by instance: kind, left, right."""
    return cloud(result, lambda b: {"left": result.left(b), "right": result.sharp(b)}, n, n_adversarial, seed)


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

    def gain(c: float) -> Tensor:
        return steps_on.gain(case, steps_on.kl_step(case.start, case.advantage, case.eta * c))

    best = gain(1.0)
    shares = {c: _numbers(share=gain(c) / best) for c in np.linspace(0.0, 2.0, 41)}
    return _stack(share.assign(instance=range(n), multiplier=c) for c, share in shares.items())


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


def kl_path(p: Tensor, advantage: Tensor, steps: int, eta: float) -> Float[Tensor, "steps+1 strategies"]:
    """The policies of ``steps`` KL-regularised steps, the first one before any."""
    path = [p]
    for _ in range(steps):
        path.append(steps_on.kl_step(path[-1], advantage, one(eta)))
    return torch.cat(path)


def entropy_path(steps: int = 30, eta: float = 0.5, exploit: tuple[float, ...] = (0.007, 0.002, 0.001)) -> pd.DataFrame:
    """Entropy under KL-regularised steps from π(A_x) = .01 with |A_x| = 3: step, inside (π(A_x)), entropy, ceiling."""
    n, outside = len(exploit), (1 - sum(exploit)) / 3
    p = kl_path(one([*exploit, *[outside] * 3]), one([1.0] * n + [0.0] * 3), steps, eta)
    inside, entropy, ceiling = p[:, :n].sum(-1), steps_on.entropy(p), steps_on.entropy_ceiling(p, n)
    return _numbers(step=torch.arange(steps + 1), inside=inside, entropy=entropy, ceiling=ceiling)


def jackpot_path(steps: int = 12, eta: float = 0.5) -> pd.DataFrame:
    """Odds by step with a uniform gap of .94 and with a gap of MEANS of .94: gap, step, odds."""
    jackpot = steps_on.jackpot_outside()
    cases = {"uniform gap .94": one([0.0, -0.94, -0.94]), "gap of means .94": jackpot.advantage}
    paths = {
        name: steps_on.exploit_odds(kl_path(jackpot.start, advantage, steps, eta), 1).numpy()
        for name, advantage in cases.items()
    }
    return _by_step(paths, "gap", "odds")


# -- Proposition 3.6, Proposition F.1, Lemma B.9 --------------------------------------------------------------------


def deployment_sweep() -> pd.DataFrame:
    """One exploit (1 off E, 0 on E) against .8 everywhere, by ρ: both regrets and their bounds."""
    rho, base = torch.linspace(0.01, 0.99, 99, dtype=torch.float64), regret.gains_elsewhere()
    n = len(rho)
    case = regret.Deployment(base.payoff.expand(n, -1, -1), torch.stack([rho, 1 - rho], -1), base.policy.expand(n, -1))
    sides = (regret.oracle_regret, regret.oracle_bound, regret.single_regret, regret.single_bound)
    names = ("oracle", "oracle_bound", "single", "single_bound")
    return _numbers(rho=rho, **{name: side(case) for name, side in zip(names, sides, strict=True)})


def sharpening_curves() -> pd.DataFrame:
    """P_γ(rare) and its bounds by γ for four distributions: case, gamma, curve, value."""
    makers = (sharpening.two_levels, sharpening.lumpy, sharpening.uneven_major, sharpening.long_tail)
    curves = {
        "exact": sharpening.rare_mass,
        "source": sharpening.bound_source,
        "sharp": sharpening.bound_sharp,
        "λ = m/ρ": lambda c: sharpening.bound_source(c, sharpening.lambda_mass(c)),
        "λ = max/max": lambda c: sharpening.bound_source(c, sharpening.lambda_max_max(c)),
    }
    rows = []
    for make in makers:
        low, high = (0.05, 1.0) if make is sharpening.long_tail else (1.0, 6.0)
        gamma = torch.linspace(low, high, 40, dtype=torch.float64)
        base = make()
        case = replace(base, probs=base.probs.expand(40, -1), gamma=gamma)
        for curve, side in curves.items():
            rows.append(_numbers(gamma=gamma, value=side(case)).assign(case=make.__name__, curve=curve))
    return _stack(rows)


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
    losses = {c: _numbers(K=k, loss=population.staleness_loss(k, 1.0, c, cadence)) for c in costs}
    return _stack(
        loss.assign(cost=c, optimum=population.staleness_optimum(1.0, c, cadence)) for c, loss in losses.items()
    )
