"""The particular facts that the notebook tells: leaks, zero variance, entropy, growth laws, pools, nano worlds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import brentq

from scope_lite.method.nano import odds_from_logprobs
from scope_lite.method.panel_file import COLLAPSED_SHARPNESS
from scope_lite.store.errors import ScopeError
from scope_lite.theory import concentration as steps_on
from scope_lite.theory import gradients, instances, leads, population, regret, sharpening, tables
from scope_lite.theory.dynamics import (
    StrategyBandit,
    appeal_bandit,
    expected_group_sigma,
    group_advantages,
    sampled_grpo,
    two_strategy_log_odds,
)
from scope_lite.theory.measured import geometric_law, growth_rates, load_odds
from scope_lite.theory.nano import bias_by_sharpness, favour, process_from_world
from scope_lite.theory.process import (
    expected_return,
    optimal_return,
    policy,
    sample_dialogues,
    trajectory_probs,
)
from scope_lite.theory.quantities import (
    accumulate,
    coin_split,
    collapse_errors,
    reward_variance,
    variance_given_actions,
)

torch.set_num_threads(1)


def test_asking_and_repeating_hides_the_simulators_variance_in_the_realised_acts():
    process = instances.ask_then("bit")
    assert float(variance_given_actions(process)) == pytest.approx(0, abs=1e-12)
    assert float(coin_split(process)[1]) == pytest.approx(0.25, abs=1e-12)


@pytest.mark.parametrize("reward", ["match", "nothing"])
def test_zero_variance_groups_do_not_prove_a_collapsed_simulator(reward):
    process = instances.ask_then(reward)
    assert float(reward_variance(process)) == pytest.approx(0, abs=1e-12)
    assert float(accumulate(process, collapse_errors(process.replies))) == pytest.approx(1.0)
    assert float(expected_return(process)) == pytest.approx(float(optimal_return(process)), abs=1e-12)


def test_the_kl_step_maximises_its_objective_and_a_rival_falls_short_by_kl_over_eta():
    generator = torch.Generator().manual_seed(0)
    start, rival, advantage = (torch.randn(10_000, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    start, rival = start.softmax(-1), rival.softmax(-1)
    eta = torch.rand(10_000, generator=generator, dtype=torch.float64) + 0.1
    best = steps_on.kl_step(start, advantage, eta)

    def kl(p, q):
        return (p * (p / q).log()).sum(-1)

    def objective(p):
        return (p * advantage).sum(-1) - kl(p, start) / eta

    assert torch.allclose(objective(best) - objective(rival), kl(rival, best) / eta, atol=1e-10)


def test_errors_of_prop_3_4_cost_what_eq_18_says():
    ideal, worst = steps_on.two_levels(), steps_on.with_errors()
    cost = 0.8 * (2 * 0.05 + 2 * 0.1) + 0.15
    grown = steps_on.odds_growth(ideal).log() - steps_on.odds_growth(worst).log()
    assert float(grown) == pytest.approx(cost)
    assert float(steps_on.rates(worst, steps_on.uniform_gap)) == pytest.approx(0.8 * 0.75 - cost)


def test_entropy_may_rise_first_and_its_limit_is_the_log_size_of_the_exploit_set_at_most():
    p = torch.tensor([[0.01, 0.99]], dtype=torch.float64)
    assert float(steps_on.entropy(p)) == pytest.approx(0.056, abs=1e-3)
    path = tables.entropy_path()
    assert path.entropy.max() > path.entropy.iloc[0] + 0.1
    assert (path.entropy <= path.ceiling + 1e-12).all()
    assert 0.1 < path.entropy.iloc[-1] < np.log(3)


def test_entropy_never_passes_its_ceiling():
    case = steps_on.build_updates(steps_on.sample_updates(1)(torch.Generator().manual_seed(1), 10_000))
    assert (steps_on.entropy(case.start) <= steps_on.entropy_ceiling(case.start, 2) + 1e-12).all()


def test_equal_leads_of_unequal_size_break_lemma_b_5_and_corollary_b_6():
    """Assumption B.3 holds at .2 in every step and N⁺ = N⁻ = 100: the lemma says at least 0, and −40 is true."""
    case = leads.unequal_leads(times=100)
    assert leads.leads(case)[0].tolist() == [1, -1] * 100
    assert float(leads.set_gap(case)) == pytest.approx(0.2)
    assert float(leads.gain_counted(case)) == 0.0
    assert float(leads.log_odds_gain(case)) == pytest.approx(-40)
    # and so the policy concentrates on y' at a constant rate, with no exclusive lead on either side
    halves = [float(leads.log_odds_gain(leads.unequal_leads(times=n))) for n in (50, 100)]
    assert halves[1] == pytest.approx(2 * halves[0])


def test_steps_without_a_lead_can_decide_everything():
    case = leads.both_exploit(times=100)
    assert not leads.leads(case).any() and float(leads.gain_counted(case)) == 0.0
    assert float(leads.log_odds_gain(case)) == pytest.approx(-40)


def test_log_odds_of_kl_steps_grow_by_the_summed_advantage_exactly():
    case = leads.build_chases(leads.LEMMA_B_5.sample(torch.Generator().manual_seed(0), 1000))
    policy = start = torch.rand(1000, 4, dtype=torch.float64).softmax(-1)
    for value in case.value.unbind(1):
        policy = steps_on.kl_step(policy, value, case.eta)
    grown = (policy[:, 0] / policy[:, 1]).log() - (start[:, 0] / start[:, 1]).log()
    assert torch.allclose(grown, leads.log_odds_gain(case), atol=1e-10)


def test_the_repaired_bound_counts_each_kind_of_step_at_its_worst_and_holds_on_ten_thousand_instances():
    case = leads.build_chases(leads.LEMMA_B_5.sample(torch.Generator().manual_seed(1), 10_000))
    ahead, lead = leads.advantage(case), leads.leads(case)
    slow = torch.stack(
        [
            eta * sum(min(won[who == k].tolist(), default=0.0) * int((who == k).sum()) for k in (1, -1, 0))
            for eta, won, who in zip(case.eta, ahead, lead, strict=True)
        ]
    )
    assert torch.allclose(slow, leads.gain_weighed(case), atol=1e-10)
    assert (slow <= leads.log_odds_gain(case) + 1e-10).all()
    assert (leads.gain_counted(case) > leads.log_odds_gain(case) + 1e-10).any()


def test_the_exploit_set_is_what_lies_above_the_widest_gap_and_overlap_counts_what_stays():
    value = torch.tensor([[0.9, 0.8, 0.1, 0.0], [0.9, 0.2, 0.8, 0.1]])
    sets = leads.exploit_set(value)
    assert sets.tolist() == [[True, True, False, False], [True, False, True, False]]
    assert leads.overlap(sets).tolist() == pytest.approx([1 / 3])


def test_sets_drawn_anew_end_geometric_concentration_and_not_concentration():
    """The paper's sufficient model, equal gaps drawn independently: log-odds walk at random, so they grow like √K."""
    paths = tables.chase_paths(steps=400, seeds=2000)
    walk = paths[paths.target.str.startswith("drawn")]
    spread = walk[walk.step.isin([100, 400])].groupby("step").log_odds.std()
    assert spread[400] / spread[100] == pytest.approx(2, rel=0.1) and spread[400] == pytest.approx(0.4 * 20, rel=0.1)
    assert abs(walk[walk.step == 400].log_odds.mean()) < 4 * spread[400] / np.sqrt(2000)


def test_adversarial_and_cooperative_targets_freeze_and_the_curriculum_holds_even_odds():
    paths = tables.target_paths(steps=400).pivot(index="step", columns="reward", values="success")
    assert paths["adversarial"].iloc[-1] < 1e-3 and paths["cooperative"].iloc[-1] > 1 - 1e-3
    assert paths["curriculum"].iloc[-1] == pytest.approx(0.5, abs=1e-3)


def gradient_flow_odds(start: float, time: np.ndarray) -> np.ndarray:
    """Odds o(t) of the softmax gradient flow ``dx/dt = p(1−p)``: ``o + 2 log o − 1/o = t + const``, at last linear."""

    def conserved(x: float) -> float:
        return float(np.exp(x) + 2 * x - np.exp(-x))

    first = conserved(np.log(start))
    return np.exp([brentq(lambda x, t=t: conserved(x) - first - t, -60, 60) for t in time])


def grpo_flow_odds(start: float, time: np.ndarray) -> np.ndarray:
    """Odds of the infinite-group GRPO flow ``dx/dt = √(p(1−p))``: ``√o − 1/√o = t/2 + const``, at last quadratic."""
    u = (np.sqrt(start) - 1 / np.sqrt(start)) + np.asarray(time) / 2
    return ((u + np.sqrt(u**2 + 4)) / 2) ** 2


def test_expected_updates_follow_their_flows_in_the_limit_of_small_steps():
    steps, lr = 4000, 0.01
    time = np.array([10.0, 40.0])
    for update, flow in (("gradient", gradient_flow_odds), ("grpo", grpo_flow_odds)):
        odds = np.exp(two_strategy_log_odds(0.0, steps, lr, update))[[1000, 4000]]
        assert odds == pytest.approx(flow(1.0, time), rel=0.02)


def test_growth_is_geometric_quadratic_or_linear_by_the_power_of_the_group_sigma():
    def late_exponent(update: str, group_size: int | None = None) -> float:
        x = two_strategy_log_odds(0.0, 800, 0.25, update, group_size=group_size)
        return float((x[800] - x[400]) / np.log(2))

    assert late_exponent("kl") > 50
    assert late_exponent("grpo") == pytest.approx(2, abs=0.1)
    assert late_exponent("gradient") == pytest.approx(1, abs=0.1)
    assert late_exponent("grpo", group_size=8) == pytest.approx(1, abs=0.15)


def test_a_group_of_eight_fair_coins_has_variance_219():
    assert expected_group_sigma(0.5, 8, 2) == pytest.approx(0.21875)
    assert expected_group_sigma(0.5, None, 2) == 0.25


def test_sampled_grpo_moves_two_strategies_by_the_expected_sigma():
    bandit = StrategyBandit(np.array([[1.0, 0.0]]), np.array([1.0]))
    runs = sampled_grpo(bandit, 1, 0.1, seeds=20_000, groups=1, group_size=8)
    moved = np.log(runs[runs.step == 1].odds_exploit.to_numpy())
    error = moved.std() / len(moved) ** 0.5
    # each of the two logits moves by lr·σ, so their difference moves by twice that
    assert abs(moved.mean() - 2 * 0.1 * expected_group_sigma(0.5, 8)) < 4.5 * error


def test_equal_rewards_give_zero_advantage():
    assert np.all(group_advantages(np.full((3, 8), 0.7)) == 0)
    normal = group_advantages(np.random.default_rng(0).random((50, 8)))
    assert np.allclose(normal.mean(-1), 0) and np.allclose(normal.std(-1), 1)


def test_sampled_grpo_exploits_a_sharp_simulator_and_asks_with_a_diffuse_one():
    prior = np.array([0.5, 0.18, 0.14, 0.10, 0.08])
    sharp = sampled_grpo(appeal_bandit(prior, 8.0), 200, 0.25, seeds=4).query("step == 200")
    diffuse = sampled_grpo(appeal_bandit(prior, 1.0), 200, 0.25, seeds=4).query("step == 200")
    assert (sharp.odds_exploit > 10).all() and (diffuse.odds_exploit < 0.1).all()


def test_growth_rates_recover_a_geometric_run_and_a_stalled_one():
    step = np.arange(101)
    odds = {"geometric": 0.1 * np.exp(0.1 * step), "stalled": np.minimum(0.1 * np.exp(0.1 * step), 20.0)}
    table = pd.concat(
        [
            pd.DataFrame({"run": k, "seed": 0, "step": step, "odds_exploit": v, "eta": 1.0, "source": "x"})
            for k, v in odds.items()
        ]
    )
    rates = growth_rates(table).set_index("run")
    assert rates.early["geometric"] == pytest.approx(0.1) and rates.ratio["geometric"] == pytest.approx(1.0)
    assert abs(rates.late["stalled"]) < 1e-9
    law = geometric_law(table, rates.reset_index())
    assert law.query("run == 'geometric'").odds_exploit.iloc[-1] == pytest.approx(odds["geometric"][-1], rel=1e-6)


def test_odds_from_act_probabilities_agree_with_enumeration():
    process = instances.build_process(instances.sample_raw(torch.Generator().manual_seed(4), 1, 2, 2, 2, None))
    first, second = (level[0] for level in policy(process))
    leaves = sample_dialogues(process, 100_000, torch.Generator().manual_seed(0))
    follows = (leaves // 8 == 0) & ((leaves // 2) % 2 == 0)  # act 0 in both turns
    log_w = (first[0, 0] * second[leaves[follows] // 4, 0]).log().numpy()
    exact = float(trajectory_probs(process)[0].reshape(2, 2, 2, 2)[0, :, 0, :].sum())
    spread = np.expm1(-log_w).std() / np.sqrt(len(log_w))
    assert abs(1 / odds_from_logprobs(log_w) - (1 - exact) / exact) < 4.5 * spread + 1e-12
    assert np.isnan(odds_from_logprobs(np.array([])))


def test_odds_tables_are_checked_on_reading(tmp_path):
    path = tmp_path / "theory_odds.csv"
    assert load_odds(path) is None
    path.write_text("variant,seed,step,odds_exploit,learning_rate\na,0,0,0.5,0.1\n", encoding="utf-8")
    assert len(load_odds(path)) == 1
    path.write_text("variant,seed,step,odds_exploit,learning_rate\na,0,0,0.0,0.1\n", encoding="utf-8")
    with pytest.raises(ScopeError, match="positive"):
        load_odds(path)
    path.write_text("variant,seed\na,0\n", encoding="utf-8")
    with pytest.raises(ScopeError, match="lacks the columns"):
        load_odds(path)


def test_eq_9_subtracts_what_exploits_gain_off_b_x_and_less_than_r_max_for_the_rest():
    case = regret.gains_elsewhere()
    assert float(regret.regret(case)) == pytest.approx(0.25) == float(regret.bound_sharp(case))
    assert float(regret.bound_paper(case)) == pytest.approx(0.9 * (0.8 * 0.5 - 0.2 * 0.5) - 0.1)
    assert float(regret.bound(case, off=False, rest=regret.excess(case))) == pytest.approx(0.34)  # and .25 is lost


def test_nothing_is_subtracted_for_the_rest_against_a_rival_that_nothing_beats():
    case = regret.build_deployments(regret.sample_deployments(torch.Generator().manual_seed(0), 10_000))
    oracle = case.payoff.amax(-1, keepdim=True)
    best = regret.Deployment(
        torch.cat([case.payoff, oracle], -1), case.users, torch.nn.functional.pad(case.policy, (0, 1)), 2, 2
    )
    assert (regret.excess(best) == 0).all() and (regret.gain(best) <= 0).all()
    assert (regret.regret(best) >= regret.bound(best) - 1e-12).all()


def test_sharp_form_of_the_sharpening_bound_is_reached_for_every_gamma():
    for gamma in (1.0, 2.5, 8.0):
        case = sharpening.two_levels(gamma)
        assert float(sharpening.rare_mass(case)) == pytest.approx(float(sharpening.bound_sharp(case)), rel=1e-12)


def test_default_sharpness_lies_in_the_range_that_the_paper_gives_after_prop_b_2():
    alpha, beta = torch.tensor([0.5, 0.65]), torch.tensor([0.1, 0.01])
    none = torch.zeros(2, 1, dtype=torch.float64)
    low, high = sharpening.gamma_of(sharpening.Alignment(none, none, alpha, beta, none)).tolist()
    assert low == pytest.approx(6) and high == pytest.approx(66) and low <= COLLAPSED_SHARPNESS <= high


def test_one_simulator_a_group_sees_less_than_one_a_dialogue():
    coverage = tables.pool_coverage(5).set_index("K")
    assert coverage.loc[5, "group"] == pytest.approx(1 / 5)
    assert coverage.loc[5, "dialogue"] == pytest.approx(1 - 0.8**8)


def test_a_pool_drawn_once_a_dialogue_deviates_once_and_not_at_every_turn():
    """K deterministic simulators of distinct modes: the first reply tells who speaks."""
    table = tables.pool_collapse(largest=4, turns=3).set_index("K")
    assert table.turn.to_numpy() == pytest.approx(3 * (1 - 1 / table.index.to_numpy()))
    assert table.dialogue.to_numpy() == pytest.approx(1 - 1 / table.index.to_numpy())


def test_a_pool_drawn_once_a_dialogue_has_the_mean_of_its_members_dialogues():
    pool = gradients.PROPOSITION_B_8.build(gradients.PROPOSITION_B_8.sample(torch.Generator().manual_seed(0), 500))
    together = trajectory_probs(pool.process, gradients.mixed_replies(pool))
    assert torch.allclose(together, pool.mean(lambda one: trajectory_probs(pool.process, one)), atol=1e-12)


def test_only_distinct_modes_without_overlap_divide_an_exploit_by_k():
    sizes = tables.pool_sizes(5).query("K == 5").set_index("pool").gap
    assert sizes["distinct modes"] == pytest.approx(1 / 5)
    assert sizes["overlap .3"] == pytest.approx(1 / 5 + 0.3 * 4 / 5)
    assert sizes["two of three share a mode"] == pytest.approx(4 / 5)
    assert float(population.best_exploit_gap(population.pool([0.5, 0.5], overlap=1.0))) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def short_persuasion():
    persuasion = pytest.importorskip("scope_lite.envs.nano.persuasion")
    spec = pytest.importorskip("scope_lite.envs.nano.spec")
    return spec.compile_world(persuasion.persuasion(persuasion.PersuasionNumbers(horizon=2)))


def _users(world):
    from scope_lite.envs.nano.users import BeliefUsers

    return lambda gamma: BeliefUsers(world, world.prior, 1, gamma)


def test_enumerated_persuasion_has_the_worlds_own_optimum(short_persuasion):
    from scope_lite.envs.nano.exact import optimal_value

    process = process_from_world(short_persuasion, _users(short_persuasion), 1.0)
    assert float(optimal_return(process)) == pytest.approx(
        optimal_value(short_persuasion, short_persuasion.prior), abs=1e-10
    )


def test_theorem_holds_in_persuasion_and_its_terms_fall_with_sharpness(short_persuasion):
    policies = {"uniform": None, "repeats": favour([2, 2], 8)}
    table = bias_by_sharpness(short_persuasion, _users(short_persuasion), [1.0, 8.0], policies)
    assert (table.gap <= table.deviation + 1e-12).all() and (table.deviation <= table.epsilon_min + 1e-12).all()
    for _, part in table.groupby("policy"):
        assert part.epsilon.iloc[1] < 0.1 * part.epsilon.iloc[0]
        assert part.gap.iloc[1] < part.gap.iloc[0]
