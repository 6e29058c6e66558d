"""Co-Training: rewards by hand, the pool's order and odds, the importance ratio computed directly."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.spec import compile_world
from scope_lite.envs.nano.users import BeliefUsers
from scope_lite.method.config import method_config
from scope_lite.method.cotraining import LearningPartner
from scope_lite.method.grpo import group_advantages
from scope_lite.method.learner import Learner
from scope_lite.method.nano import Library, NanoScene
from scope_lite.method.rewards import (
    SIMULATOR_REWARDS,
    curriculum_credit,
    curriculum_group,
    surprise,
    variance_split,
)
from scope_lite.method.seats import ModelSeat
from scope_lite.method.train import train
from scope_lite.models.records import collate
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError

WORLD = get_world("persuasion")
SMALL = dict(groups=4, group_size=4, steps=6, eval_every=3, eval_dialogues=2, final_dialogues=2, checkpoint_every=2)
KEYS = RowKeys.grid(0, 1, 4, 4)
UPDATE = dict.fromkeys(("entropy", "kl", "clip_ratio", "ratio_mean"), 0.0)


@pytest.fixture(scope="module")
def library():
    return Library(WORLD)


def make_partner(library, method="population", **simulator):
    config = method_config(method, **SMALL, simulator={"sharpness": 2.0, **simulator})
    return LearningPartner(NanoScene(config, library), Learner(library.seat_model("qwen3-tiny", 2.0), config, seed=0))


def play(library, partner, keys=KEYS):
    return partner.play(library.seat_model("qwen3-tiny"), keys).rollouts


def push(partner, rollouts):
    """Move the current weights away from the snapshots, by one update with made-up advantages."""
    made_up = torch.randn(len(rollouts), generator=torch.Generator().manual_seed(0))
    partner.learner.update([r.simulator_transcript for r in rollouts], made_up)


def test_curriculum_credit_by_hand_and_its_mean_is_the_group_variance():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    credit = curriculum_credit(rewards, RowKeys.grid(0, 0, 2, 4))
    torch.testing.assert_close(credit[0], torch.tensor([0.5625, 0.0625, 0.0625, 0.0625]))
    torch.testing.assert_close(credit[1], torch.full((4,), 0.25))  # the target: no more signal
    torch.testing.assert_close(credit.mean(1), rewards.var(dim=1, correction=0))


def test_the_papers_score_is_one_for_a_group_and_grows_to_half_successes():
    rewards = torch.tensor([[1.0] * n + [0.0] * (8 - n) for n in range(9)], dtype=torch.float64)
    scores = curriculum_group(rewards, RowKeys.grid(0, 0, 9, 8))
    assert (scores == scores[:, :1]).all()
    by_hand = [0.0439, 0.3720, 0.8226, 0.9879, 1.0, 0.9879, 0.8226, 0.3720, 0.0439]
    torch.testing.assert_close(scores[:, 0], torch.tensor(by_hand, dtype=torch.float64), atol=1e-4, rtol=0)
    one_missing = torch.cat([rewards, torch.full((9, 1), torch.nan)], dim=1)
    torch.testing.assert_close(curriculum_group(one_missing, KEYS), scores[:, :1].expand(9, 9))


def test_a_score_that_a_group_shares_needs_advantages_that_are_not_centred_in_it():
    shared = {"reward": "curriculum_group"}
    with pytest.raises(ScopeError, match=r"set simulator\.advantages to batch or raw"):
        method_config("cotraining", simulator=shared)
    with pytest.raises(ScopeError, match="advantages 'centred' leave nothing"):
        method_config("cotraining", advantages="centred", simulator=shared)
    assert method_config("cotraining", advantages="raw", simulator=shared).simulator_advantages == "raw"
    assert method_config("cotraining", simulator={**shared, "advantages": "batch"}).simulator_advantages == "batch"
    assert method_config("cotraining", advantages="centred").simulator_advantages == "centred"


@pytest.mark.parametrize("estimator", ["batch", "raw"])
def test_the_simulator_is_trained_on_its_own_estimator(library, estimator, monkeypatch):
    partner = make_partner(library, reward="curriculum_group", advantages=estimator, pool_size=1)
    rollouts = play(library, partner)
    for r in rollouts:
        r.reward = float(r.group == 0 and r.member < 2)  # two of four in the first group, elsewhere none
    given = []
    monkeypatch.setattr(partner.learner, "update", lambda t, advantages, **_: given.append(advantages) or UPDATE)
    paid = partner.learn(1, rollouts, KEYS)["simulator/reward"]
    scores = torch.tensor([1.0, *[math.exp(-(0.25**2) / 0.02)] * 3]).repeat_interleave(4)
    assert paid == pytest.approx(scores.mean().item())
    torch.testing.assert_close(given[0], scores - scores.mean() if estimator == "batch" else scores)


def test_rewards_as_far_above_the_mean_as_below_are_equal_credit_whatever_their_rounding():
    rewards = torch.tensor([[0.9, 0.3, 0.9, 0.3], [0.91, 0.9, 0.91, 0.9], [0.1] * 4])
    assert ((rewards - rewards.mean(1, keepdim=True)) ** 2).unique(dim=1).shape[1] > 1, "rounding tells them apart"
    credit = curriculum_credit(rewards, RowKeys.grid(0, 0, 3, 4))
    assert (group_advantages(credit) == 0).all()
    torch.testing.assert_close(credit.mean(1), rewards.var(dim=1, correction=0), rtol=1e-4, atol=1e-9)


def test_a_variance_that_is_rounding_is_none():
    split = variance_split([0.1 + 0.2, 0.3, 0.3], [["x"]] * 3)
    assert set(split.values()) == {0.0}


def test_the_adversary_earns_what_the_policy_does_not_and_the_helper_what_it_does():
    rewards = torch.tensor([[1.0, 0.25, torch.nan]])
    assert SIMULATOR_REWARDS["adversarial"](rewards, KEYS)[0, :2].tolist() == [0, 0.75]
    assert SIMULATOR_REWARDS["cooperative"](rewards, KEYS)[0, :2].tolist() == [1, 0.25]


def test_controls_carry_no_information_about_the_policys_reward():
    keys = RowKeys.grid(0, 0, 50, 8)
    rewards = torch.rand(50, 8, generator=torch.Generator().manual_seed(0))
    assert (SIMULATOR_REWARDS["zero"](rewards, keys) == 0).all()
    noise = SIMULATOR_REWARDS["random"](rewards, keys)
    assert abs(np.corrcoef(noise.ravel(), rewards.ravel())[0, 1]) < 0.15 and noise.std() > 0.2


def test_a_coin_flip_at_the_end_is_unexplained_variance():
    rng = np.random.default_rng(0)
    acts = [[a] * 4 for a in rng.choice(["x", "y"], size=400)]
    honest = [float(a[0] == "x") for a in acts]
    coin = rng.integers(0, 2, size=400).astype(float)
    told, fake = variance_split(honest, acts), variance_split(coin, acts)
    assert told["simulator/unexplained_variance"] == 0 and told["simulator/variance"] == pytest.approx(0.25, abs=0.01)
    assert fake["simulator/unexplained_variance"] == pytest.approx(fake["simulator/variance"], abs=0.01)
    assert variance_split([0.0, 1.0], [["x"], ["y"]])["simulator/unexplained_variance"] is None


def test_the_pool_keeps_the_newest_snapshots_in_order_and_the_current_weights_last(library):
    partner = make_partner(library, pool_size=3, cadence=2)
    rollouts = play(library, partner)
    states = {}
    for step in range(1, 9):
        partner.learn(step, rollouts, KEYS)
        states[step] = partner.learner.model.adapter_state()
    assert len(partner.pool.entries) == 3 and partner.pool.entries[-1] is partner.learner.model
    for snapshot, step in zip(partner.pool.snapshots, (6, 8), strict=True):
        assert all(torch.equal(t, states[step][name]) for name, t in snapshot.adapter_state().items())


def test_without_the_present_self_only_past_ones_play_the_start_first(library):
    partner = make_partner(library, pool_size=2, cadence=2, present=False)
    pool, left = partner.pool, []
    pool.leave = left.append
    start = pool.snapshots[0].adapter_state()
    assert len(pool.entries) == 1 and all(torch.equal(t, start[n]) for n, t in pool.current.adapter_state().items())
    rollouts, states = play(library, partner), {}
    for step in range(1, 7):
        assert pool.current not in pool.entries and pool.odds().tolist() == [1 / len(pool.entries)] * len(pool.entries)
        partner.learn(step, rollouts, KEYS)
        states[step] = pool.current.adapter_state()
    assert len(left) == 2 and len(pool.entries) == 2
    for snapshot, step in zip(pool.entries, (4, 6), strict=True):
        assert all(torch.equal(t, states[step][name]) for name, t in snapshot.adapter_state().items())


@pytest.mark.parametrize("draw", ["step", "group", "dialogue"])
def test_one_entry_plays_a_step_a_group_or_a_dialogue(library, draw):
    partner = make_partner(library, pool_size=4, draw=draw)
    partner.pool.snapshots = [partner.learner.model] * 3
    steps = np.stack([partner.pool.draw(RowKeys.grid(0, step, 10, 8)).reshape(10, 8) for step in range(400)])
    assert (steps == steps[:, :1, :1]).all() == (draw == "step")
    assert (steps == steps[:, :, :1]).all() == (draw != "dialogue")
    assert chisquare(np.bincount(steps[:, 0, 0], minlength=4)).pvalue > 1e-3


@pytest.mark.parametrize("sampling", ["uniform", "newest"])
def test_entries_are_drawn_for_each_group_with_the_stated_odds(library, sampling):
    partner = make_partner(library, pool_size=4, cadence=1, pool_sampling=sampling)
    partner.pool.snapshots = [partner.learner.model] * 3
    keys = RowKeys.grid(0, 1, 4000, 2)
    entries = partner.pool.draw(keys)
    assert (entries[::2] == entries[1::2]).all()
    expected = {"uniform": [0.25] * 4, "newest": np.array([1, 2, 4, 8]) / 15}[sampling]
    counts = np.bincount(entries[::2], minlength=4)
    assert chisquare(counts, np.array(expected) * 4000).pvalue > 1e-3


def test_importance_ratio_is_phi_now_over_the_snapshot_that_spoke(library):
    partner = make_partner(library, pool_size=2, cadence=1, learning_rate=5e-3)
    partner.learn(1, play(library, partner), KEYS)  # snapshot 0
    partner.learn(2, play(library, partner), KEYS)  # the current weights move on; snapshot replaced
    push(partner, play(library, partner))
    keys = RowKeys.grid(0, 3, 4, 4)
    rollouts, entries = play(library, partner, keys), partner.pool.draw(keys)
    assert set(entries) == {0, 1}
    batch = collate([r.simulator_transcript for r in rollouts], pad=0)
    with torch.no_grad():
        now, _ = partner.learner.model.token_logprobs(batch)
        spoke = torch.stack([model.token_logprobs(batch)[0] for model in partner.pool.entries])
    expected = spoke[torch.from_numpy(entries)[batch.row], torch.arange(len(batch.row))]
    torch.testing.assert_close(batch.sampled_logprobs, expected, atol=1e-5, rtol=0)
    ratio = (now - batch.sampled_logprobs).exp()
    stale = torch.from_numpy(entries)[batch.row] == 0
    torch.testing.assert_close(ratio[~stale], torch.ones_like(ratio[~stale]), atol=1e-4, rtol=0)
    assert (ratio[stale] - 1).abs().max() > 1e-3
    assert partner.learn(4, rollouts, keys)["simulator/ratio_mean"] == pytest.approx(ratio.mean().item(), abs=1e-5)


def test_with_current_behaviour_the_ratio_is_one_whoever_spoke(library):
    corrected, plain = (
        make_partner(library, pool_size=2, cadence=1, present=False, behaviour=behaviour, learning_rate=5e-3)
        for behaviour in ("sampled", "current")
    )
    for partner in (corrected, plain):
        push(partner, play(library, partner))
    rollouts = play(library, plain)  # the start spoke, and the present self has moved on
    assert plain.learn(1, rollouts, KEYS)["simulator/ratio_mean"] == pytest.approx(1, abs=1e-6)
    assert abs(corrected.learn(1, rollouts, KEYS)["simulator/ratio_mean"] - 1) > 1e-4


def test_a_simulator_can_start_as_a_copy_of_the_policys_base(library):
    partner = make_partner(library, "cotraining", start="policy", sharpness=None, members=["sim-b"])
    model = partner.learner.model
    assert partner.start.model == partner.config.model and model.sharpness == pytest.approx(1 / 0.7)
    assert model.base is library.seat_model(partner.config.model).base
    assert {r.simulator for r in play(library, partner)} == {"copy"}
    assert make_partner(library, "cotraining", start="policy").learner.model.sharpness == 2.0
    member = make_partner(library, "cotraining", sharpness=None, members=["sim-b"])
    assert member.start.name == "sim-b" and member.learner.model.sharpness == 8.0


def test_whoever_trained_with_nobody_of_the_panel_has_seen_nobody(tmp_path):
    settings = {**SMALL, "steps": 1, "eval_every": 1}
    folder = train(method_config("cotraining", **settings, simulator={"start": "policy"}), tmp_path)
    newest = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert "panel/seen/reward" not in newest and "panel/sim-a/reward" in newest


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("method", ["population", "selfplay"])
def test_masks_of_the_two_seats_are_disjoint_and_cover_the_generated_tokens(turns, method):
    library = Library(compile_world(replace(WORLD.spec, horizon=turns)))
    for r in play(library, make_partner(library, method)):
        assert len(r.acts) == len(r.replies) == turns
        policy, simulator = r.policy, r.simulator_transcript
        words = library.seat_model("qwen3-tiny").tokenizer.convert_ids_to_tokens
        spoken = {
            "policy": [w for w, g in zip(words(policy.ids), policy.generated, strict=True) if g],
            "simulator": [w for w, g in zip(words(simulator.ids), simulator.generated, strict=True) if g],
        }
        assert spoken == {"policy": r.acts, "simulator": [*r.replies, r.outcome]}
        assert not set(spoken["policy"]) & set(spoken["simulator"])


def test_self_play_trains_one_adapter_by_either_roles_mask(library):
    partner = make_partner(library, "selfplay")
    assert partner.learner.model is partner.pool.entries[-1]
    rollouts = partner.play(partner.learner.model, KEYS).rollouts
    model = partner.learner.model
    for transcripts in ([r.policy for r in rollouts], [r.simulator_transcript for r in rollouts]):
        batch = collate(transcripts, pad=0)
        generated = torch.zeros_like(batch.attention)
        generated[batch.row, batch.column] = True
        assert generated.tolist() == [
            t.generated + [False] * (generated.shape[1] - len(t.generated)) for t in transcripts
        ]
    before = model.adapter_state()
    partner.learn(1, rollouts, KEYS)
    moved = model.adapter_state()
    assert any(not torch.equal(t, before[name]) for name, t in moved.items())
    assert not [part for part in partner.state() if part == "simulator"]  # the policy's checkpoint holds the weights


def test_sharpness_is_a_users_and_leaves_the_policys_acts_as_they_are(library):
    plain, both = (library.seat_model("qwen3-tiny", s) for s in (1.0, 4.0))
    said = {}
    for name, model in (("plain", plain), ("both", both)):
        seat = ModelSeat(model, KEYS, "policy", ["agent"] * len(KEYS))
        seat.speak(0, "act")
        said[name] = seat.distributions()[0]
    np.testing.assert_array_equal(said["plain"], said["both"])


def test_disagreement_pays_for_what_no_past_self_would_say():
    now = torch.tensor([-1.0, -2.0, -0.5])
    past = torch.tensor([[-1.0, -3.0, -2.5], [-1.0, -5.0, -0.5]])
    torch.testing.assert_close(surprise(now, past, torch.tensor([0, 0, 2]), 3), torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(ScopeError, match="pool_size"):
        method_config("cotraining", simulator={"reward": "disagreement"})


def test_disagreement_is_on_average_the_kl_from_the_past_selves(library):
    partner = make_partner(library, reward="disagreement", pool_size=2, cadence=1, kl_coef=0.0, learning_rate=5e-3)
    rollouts = play(library, partner)
    assert partner.learn(1, rollouts, KEYS)["simulator/reward"] == pytest.approx(0, abs=1e-6)  # nobody differs yet
    push(partner, rollouts)
    keys = RowKeys.grid(0, 2, 100, 4)
    rollouts = [r for r, entry in zip(play(library, partner, keys), partner.pool.draw(keys), strict=True) if entry == 1]
    batch = collate([r.simulator_transcript for r in rollouts], pad=0)
    with torch.no_grad():
        (now, replies), *past = (
            m.token_logprobs(batch) for m in (*partner.pool.entries[::-1], partner.learner.reference)
        )
    gaps = now - (past[0][0] + past[1][0]) / 2
    ratios = (replies - (past[0][1] + past[1][1]) / 2).nan_to_num()  # of every token; those that no reply has are -inf
    kl = (replies.exp() * ratios).sum(-1)
    assert (kl > -1e-5).all() and kl.mean() > 1e-2
    assert abs((gaps - kl).mean()) < 4 * (gaps - kl).std() / len(gaps) ** 0.5, "its expectation is the mean KL"
    by_hand = np.mean([gaps[batch.row == i].mean() for i in range(len(rollouts))])
    paid = partner.learn(2, rollouts, RowKeys.grid(0, 2, len(rollouts) // 4, 4))["simulator/reward"]
    assert paid == pytest.approx(by_hand, rel=1e-4)


def test_a_redundant_snapshot_leaves_the_draw_and_a_distinct_one_stays(library):
    partner = make_partner(library, pool_size=4, cadence=1, pool_sampling="distinct", learning_rate=1e-6)
    rollouts = play(library, partner)
    for step in (1, 2, 3):
        partner.learn(step, rollouts, KEYS)
    assert partner.pool.odds().tolist() == [0, 0, 0, 1]  # it hardly moved: all say the same
    noise = torch.Generator().manual_seed(1)
    moved = {
        n: t + 0.3 * torch.randn(t.shape, generator=noise) for n, t in partner.learner.model.adapter_state().items()
    }
    partner.pool.snapshots[1] = partner.learner.model.snapshot(moved)
    partner.learn(4, rollouts, KEYS)  # the oldest leaves, the odd one is now the first
    assert partner.pool.odds().tolist() == [0.5, 0, 0, 0.5]


def test_answers_are_the_replies_to_the_most_open_question(library):
    answers = make_partner(library, sharpness=1.0).answers()
    exact = BeliefUsers(WORLD, WORLD.prior, 1).reply_probabilities(np.array([WORLD.agent_index["ask"]]))[0]
    assert list(answers) == [f"simulator/answer/{r}" for r in WORLD.spec.user_acts]
    np.testing.assert_allclose(list(answers.values()), exact, atol=0.02)


def test_the_zero_reward_control_stays_where_it_started(library):
    partner = make_partner(library, reward="zero", pool_size=1)
    rollouts = play(library, partner)
    for step in range(3):
        metrics = partner.learn(step, rollouts, KEYS)
    assert metrics["simulator/kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "simulator"),
    [
        ("population", {"pool_sampling": "distinct"}),
        ("population", {"present": False, "draw": "step", "behaviour": "current", "start": "policy"}),
        ("selfplay_population", {"outcome": "world"}),
    ],
)
def test_a_resumed_population_equals_one_that_never_stopped(tmp_path, method, simulator):
    config = method_config(method, **SMALL, simulator={"sharpness": 2.0, "cadence": 1, "pool_size": 3, **simulator})
    whole = train(config, tmp_path / "whole")

    def die(step, steps, metrics):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", on_step=die)
    resumed = train(config, tmp_path / "cut")
    assert (resumed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_with_a_head_start_only_the_simulator_learns_and_then_both(tmp_path, monkeypatch):
    learned, update = [], Learner.update

    def watched(learner, *args, **kwargs):
        before = learner.model.adapter_state()
        metrics = update(learner, *args, **kwargs)
        after = learner.model.adapter_state()
        learned.append(any(not torch.equal(before[name], after[name]) for name in before))
        return metrics

    monkeypatch.setattr(Learner, "update", watched)
    settings = {**SMALL, "steps": 3, "group_size": 16}
    train(method_config("cotraining", **settings, simulator={"sharpness": 1.0, "head_start": 2}), tmp_path)
    policy, simulator = learned[::2], learned[1::2]
    assert policy == [False, False, True] and simulator == [True, True, True]


def test_a_group_of_two_is_refused_for_the_curriculum_which_could_not_tell_them_apart():
    with pytest.raises(ScopeError, match="'curriculum_credit' tells rollouts apart from a group_size of 3 on"):
        method_config("cotraining", group_size=2)
    assert method_config("cotraining", group_size=2, simulator={"reward": "adversarial"}).group_size == 2
