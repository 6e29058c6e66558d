"""The tidy tables behind the theory figures: exact numbers from enumeration, one row per point drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from scope_lite.theory import concentration as steps_on
from scope_lite.theory import gradients, instances, population, regret, sharpening, variance
from scope_lite.theory.dynamics import two_strategy_log_odds
from scope_lite.theory.inequality import Inequality, adversarial_instances, random_instances
from scope_lite.theory.process import Levels, Process, mode_replies, trajectory_probs
from scope_lite.theory.quantities import (
    accumulate,
    collapse_errors,
    doob_split,
    reward_variance,
    score_rms,
    score_sup,
    variance_given_actions,
)


def _numbers(**columns: Tensor) -> pd.DataFrame:
    return pd.DataFrame({k: v.detach().numpy() for k, v in columns.items()})


def _accumulated(process: Process) -> Tensor:
    modes = mode_replies(process.replies)
    return gradients.accumulated_distance(process, modes)


def gradient_cloud(n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Theorem 3.2 by instance: kind, epsilon (min ε̄_H), deviation (TV), gap (in units of B·R_max)."""
    result = gradients.THEOREM_3_2
    batches = {
        "random": random_instances(result, n, seed),
        "gradient ascent": adversarial_instances(result, n_adversarial, seed),
        "one bit": instances.one_bit(torch.logspace(-3, -0.35, 12, dtype=torch.float64)),
    }
    return pd.concat([_gradient_rows(batch).assign(kind=kind) for kind, batch in batches.items()], ignore_index=True)


def _gradient_rows(process: Process) -> pd.DataFrame:
    modes = mode_replies(process.replies)
    return _numbers(
        epsilon=_accumulated(process),
        deviation=gradients.rollout_distance(process, modes),
        gap=gradients.mode_gap(process) / (score_sup(process, modes) * process.reward_max),
    )


def long_dialogues(turns: int = 3) -> pd.DataFrame:
    """The tight instance over ``turns`` turns: per-turn epsilon, accumulated ε̄_H, exact gap, in units of B·R_max."""
    epsilon = torch.linspace(0.005, 0.495, 50, dtype=torch.float64)
    rows = _gradient_rows(instances.one_bit(epsilon, turns=turns))
    return rows.assign(per_turn=epsilon.numpy())


def rare_act_table() -> pd.DataFrame:
    """A rare act before every deviation: ε̄_H, and gap/bound with B as a supremum and as a root mean square."""
    process = instances.rare_act(torch.logspace(-5, -0.4, 30, dtype=torch.float64))
    epsilon, gap = _accumulated(process), gradients.mode_gap(process)
    return _numbers(epsilon=epsilon, sup=gap / (score_sup(process) * epsilon), rms=gap / (score_rms(process) * epsilon))


def variance_cloud(n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Lemma 3.3 by instance: kind, epsilon (ε̄_H), deviation, simulator (Doob), given_acts; variances by R_max²."""
    result = variance.LEMMA_3_3_DOOB
    batches = {
        "random": random_instances(result, n, seed),
        "gradient ascent": adversarial_instances(result, n_adversarial, seed),
    }
    return pd.concat([_variance_rows(p).assign(kind=kind) for kind, p in batches.items()], ignore_index=True)


def _variance_rows(process: Process) -> pd.DataFrame:
    by_policy, by_simulator = doob_split(process)
    return _numbers(
        epsilon=accumulate(process, collapse_errors(process.replies)),
        deviation=variance.deviation_probability(process),
        total=reward_variance(process),
        policy=by_policy,
        simulator=by_simulator,
        given_acts=variance_given_actions(process),
    )


def variance_examples() -> pd.DataFrame:
    """Four dialogues, from a collapsed user to fully diverse ones, and who makes the variance of the reward."""
    collapsed = instances.one_bit(torch.tensor([0.05], dtype=torch.float64))
    cases = {
        "collapsed user,\nfair-coin policy": collapsed,
        "ask, repeat;\nR = the user's bit": instances.ask_then("bit"),
        "ask, match;\nalways R = 1": instances.ask_then("match"),
        "never paid\n(all-failure)": instances.ask_then("nothing"),
    }
    return pd.concat([_variance_rows(p).assign(case=name) for name, p in cases.items()], ignore_index=True)


def step_sizes(n: int, seed: int) -> pd.DataFrame:
    """Gain of exp(c·ηA) for c around 1, as a share of the best gain: instance, multiplier, share."""
    case = random_instances(steps_on.PROPOSITION_3_4, n, seed)
    best = steps_on.kl_objective(
        steps_on.kl_step(case.start, case.advantage, case.eta), case.start, case.advantage, case.eta
    )
    zero = (case.start * case.advantage).sum(-1)
    rows = []
    for c in np.linspace(0.0, 2.0, 41):
        moved = steps_on.kl_step(case.start, case.advantage, case.eta * c)
        share = (steps_on.kl_objective(moved, case.start, case.advantage, case.eta) - zero) / (best - zero)
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
    rows = []
    for name, (update, size) in laws.items():
        x = two_strategy_log_odds(np.log(start_odds), steps, eta, update, group_size=size)
        rows.append(pd.DataFrame({"update": name, "step": np.arange(steps + 1), "odds": np.exp(x)}))
    return pd.concat(rows, ignore_index=True)


def entropy_path(steps: int = 30, eta: float = 0.5, exploit: tuple[float, ...] = (0.007, 0.002, 0.001)) -> pd.DataFrame:
    """Entropy under KL-regularised steps from π(A_x) = .01 with |A_x| = 3: step, inside (π(A_x)), entropy, ceiling."""
    outside = (1 - sum(exploit)) / 3
    p = torch.tensor([[*exploit, *[outside] * 3]], dtype=torch.float64)
    advantage = torch.tensor([[1.0] * len(exploit) + [0.0] * 3], dtype=torch.float64)
    rows = []
    for step in range(steps + 1):
        inside = float(p[0, : len(exploit)].sum())
        ceiling = float(steps_on.entropy_ceiling(p, len(exploit)))
        rows.append({"step": step, "inside": inside, "entropy": float(steps_on.entropy(p)), "ceiling": ceiling})
        p = steps_on.kl_step(p, advantage, torch.tensor([eta], dtype=torch.float64))
    return pd.DataFrame(rows)


def jackpot_path(steps: int = 12, eta: float = 0.5) -> pd.DataFrame:
    """Odds by step with a uniform gap of .94 and with a gap of MEANS of .94: gap, step, odds."""
    jackpot = steps_on.jackpot_outside()
    cases = {
        "uniform gap .94": torch.tensor([[0.0, -0.94, -0.94]], dtype=torch.float64),
        "gap of means .94": jackpot.advantage,
    }
    rows = []
    for name, advantage in cases.items():
        p = jackpot.start
        for step in range(steps + 1):
            rows.append({"gap": name, "step": step, "odds": float(steps_on.exploit_odds(p, 1))})
            p = steps_on.kl_step(p, advantage, torch.tensor([eta], dtype=torch.float64))
    return pd.DataFrame(rows)


def deployment_sweep() -> pd.DataFrame:
    """One exploit (1 off E, 0 on E) against .8 everywhere, by ρ: both regrets and their bounds."""
    rho = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    base = regret.gains_elsewhere()
    n = len(rho)
    case = regret.Deployment(base.payoff.expand(n, -1, -1), torch.stack([rho, 1 - rho], -1), base.policy.expand(n, -1))
    return _numbers(
        rho=rho,
        oracle=regret.oracle_regret(case),
        oracle_bound=regret.oracle_bound(case),
        single=regret.single_regret(case),
        single_bound=regret.single_bound(case),
    )


def bound_cloud(result: Inequality, n: int, n_adversarial: int, seed: int) -> pd.DataFrame:
    """Left and sharp right side of any result by instance: kind, left, right."""
    batches = {
        "random": random_instances(result, n, seed),
        "gradient ascent": adversarial_instances(result, n_adversarial, seed),
        "constructed": result.tight(),
    }
    rows = [_numbers(left=result.left(b), right=result.sharp(b)).assign(kind=kind) for kind, b in batches.items()]
    return pd.concat(rows, ignore_index=True)


def dose_response(n: int, seed: int) -> pd.DataFrame:
    """P mixed with a wrong mode, p_VS = (1−d)·P + d·wrong: kind, instance, dial d, distance (η̄_H), gap (by B·R_max)."""
    bit = instances.one_bit(torch.tensor([0.02], dtype=torch.float64))
    deviating = tuple(1.0 - m for m in mode_replies(bit.replies))
    pairs = {
        "random": _wrong_modes(random_instances(gradients.PROPOSITION_3_7, n, seed)),
        "gradient ascent": _wrong_modes(adversarial_instances(gradients.PROPOSITION_3_7, n // 3, seed)),
        "one bit": (bit, deviating),
    }
    rows = [
        _dose_rows(*pair, dial).assign(kind=kind) for kind, pair in pairs.items() for dial in np.linspace(0.0, 1.0, 21)
    ]
    return pd.concat(rows, ignore_index=True)


def _wrong_modes(pair: gradients.Pair) -> gradients.Pair:
    return pair[0], mode_replies(pair[1])


def _dose_rows(process: Process, wrong: Levels, dial: float) -> pd.DataFrame:
    mixed = tuple((1 - dial) * p + dial * w for p, w in zip(process.replies, wrong, strict=True))
    gap = gradients.gradient_gap(process, mixed) / (score_sup(process, mixed) * process.reward_max)
    table = _numbers(distance=gradients.accumulated_distance(process, mixed), gap=gap)
    return table.assign(instance=range(len(table)), dial=dial)


def sharpening_curves() -> pd.DataFrame:
    """P_γ(rare) and its bounds by γ for three distributions: case, gamma, curve, value."""
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
        case = sharpening.Sharpening(base.probs.expand(40, -1), gamma, base.n_major, base.n_rare)
        for curve, side in curves.items():
            rows.append(_numbers(gamma=gamma, value=side(case)).assign(case=name, curve=curve))
    return pd.concat(rows, ignore_index=True)


def pool_sizes(largest: int = 10) -> pd.DataFrame:
    """Best exploit's advantage (own mode: 1) by K: pool, K, gap."""
    rows = []
    for k in range(1, largest + 1):
        skewed = np.array([0.5**j for j in range(k)])
        pools = {
            "distinct modes": population.distinct_modes(k),
            "overlap .3": population.pool([1 / k] * k, list(range(k)), overlap=0.3),
            "weights halve with age": population.pool(list(skewed / skewed.sum()), list(range(k))),
            "two of three share a mode": population.pool([1 / k] * k, _mostly_shared(k)),
        }
        rows += [{"pool": name, "K": k, "gap": float(population.best_exploit_gap(p))} for name, p in pools.items()]
    return pd.DataFrame(rows)


def _mostly_shared(k: int) -> list[int]:
    """Mode of each checkpoint when two of every three repeat mode 0."""
    modes, fresh = [], 0
    for j in range(k):
        fresh += j % 3 == 2
        modes.append(fresh if j % 3 == 2 else 0)
    return modes


def pool_odds(sizes: tuple[int, ...] = (1, 3, 5, 10), steps: int = 60, eta: float = 0.5) -> pd.DataFrame:
    """Odds of one exploit under KL-regularised steps with advantage Δ/K, by step: K, step, log_odds, odds."""
    rows = [
        pd.DataFrame(
            {"K": k, "step": np.arange(steps + 1), "log_odds": two_strategy_log_odds(0.0, steps, eta, "kl", 1 / k)}
        )
        for k in sizes
    ]
    table = pd.concat(rows, ignore_index=True)
    return table.assign(odds=np.exp(table.log_odds))


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


def monte_carlo_agreement(process: Process, leaves: Tensor) -> tuple[float, float, float]:
    """Exact mean reward, the sampled one, and its standard error, for dialogues sampled from a batch-of-one process."""
    sampled = process.reward[0][leaves]
    exact = float((trajectory_probs(process)[0] * process.reward[0]).sum())
    return exact, float(sampled.mean()), float(sampled.std() / len(leaves) ** 0.5)
