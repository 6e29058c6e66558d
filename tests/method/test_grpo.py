"""The loss and the advantages, against hand-computed values and autograd."""

import math

import numpy as np
import pytest
import torch

from scope_lite.method.grpo import (
    clipped_loss,
    counted_advantages,
    counted_metrics,
    group_advantages,
    reward_metrics,
)


def fractions(rewards):
    return {name: value for name, value in reward_metrics(rewards).items() if name.startswith("frac")}


def test_advantages_match_hand_computed_values():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[1, -1, -1, 1], [-1 / math.sqrt(3)] * 3 + [math.sqrt(3)]], dtype=torch.float64)
    torch.testing.assert_close(group_advantages(rewards, eps=0.0), expected)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("z", [[1, -1, -1, 1], [0, 0, 0, 0]]),
        ("centred", [[0.5, -0.5, -0.5, 0.5], [0, 0, 0, 0]]),
        ("raw", [[1, 0, 0, 1], [1, 1, 1, 1]]),
        ("batch", [[0.25, -0.75, -0.75, 0.25], [0.25] * 4]),
    ],
)
def test_each_estimator_by_hand(estimator, expected):
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0] * 4], dtype=torch.float64)
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(group_advantages(rewards, estimator), expected, atol=1e-5, rtol=0)
    # with a rollout more in each group that does not count, the same for the others, and nothing for it
    missing = torch.cat([rewards, torch.full((2, 1), math.nan, dtype=torch.float64)], dim=1)
    found = counted_advantages(missing, estimator)
    torch.testing.assert_close(found[:, :4], expected, atol=1e-5, rtol=0)
    assert (found[:, 4] == 0).all()


def test_where_one_rollout_of_a_group_counts_only_what_is_not_centred_in_it_teaches():
    rewards = torch.tensor([[1.0, math.nan], [0.0, 1.0]])
    assert counted_advantages(rewards, "centred")[0].tolist() == [0, 0]
    assert counted_advantages(rewards, "raw").tolist() == [[1, 0], [0, 1]]
    torch.testing.assert_close(counted_advantages(rewards, "batch"), torch.tensor([[1 / 3, 0], [-2 / 3, 1 / 3]]))


def test_equal_rewards_give_zero_advantage():
    rewards = torch.tensor([[0.1] * 8, [1.0] * 8, [0.0] * 8])  # .1 * 8 is where a mean is off by one ulp
    assert (group_advantages(rewards) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1e-30, 0.1, 1 / 3, 1.0, 7.7e6])
def test_rewards_that_are_equal_up_to_rounding_are_no_signal(value, dtype):
    exact = torch.full((1, 6), value, dtype=torch.float32)
    above = torch.nextafter(torch.nextafter(exact, exact * 2), exact * 2)
    rewards = torch.where(torch.arange(6) % 2 == 0, exact, above).to(dtype)
    assert rewards.unique().numel() == 2
    for estimator in ("z", "centred", "batch"):
        assert (group_advantages(rewards, estimator) == 0).all()
    expected = {
        "frac_reward_zero_std": 1,
        "frac_all_success": float(value >= 1),
        "frac_all_failure": float(value < 1e-9),
    }
    assert fractions(rewards) == expected
    assert fractions(rewards.flip(1)) == expected


def test_sums_of_the_same_parts_in_another_order_are_no_signal():
    tenth = torch.tensor(0.1)
    sums = torch.stack([sum([tenth] * 10), torch.tensor(1.0), 10 * tenth, sum([tenth] * 7) + sum([tenth] * 3)])[None]
    cancelled = torch.tensor([[0.1 + 0.2 - 0.3, 0.0, 0.3 - 0.1 - 0.2]])
    assert sums.unique().numel() > 1 and cancelled.unique().numel() > 1
    assert (group_advantages(sums) == 0).all() and fractions(sums)["frac_all_success"] == 1
    assert fractions(cancelled)["frac_all_failure"] == 1


def test_a_small_difference_that_is_real_stays_a_signal():
    for scale in (1e-6, 1.0, 1e6):
        rewards = scale * torch.tensor([[0.50, 0.50, 0.51, 0.52]])
        old = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-6)
        assert torch.equal(group_advantages(rewards), old)
        assert fractions(rewards)["frac_reward_zero_std"] == 0


def test_centred_advantages_keep_their_size():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(group_advantages(rewards, "centred"), torch.tensor([[0.75, -0.25, -0.25, -0.25]]))


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match="at least two"):
        group_advantages(torch.ones(4, 1))


def test_fractions_tell_all_success_from_all_failure():
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    expected = {"frac_reward_zero_std": 0.75, "frac_all_success": 0.25, "frac_all_failure": 0.25}
    assert fractions(rewards) == expected


def test_clipped_loss_matches_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    new, old = (torch.randn(40, generator=generator, dtype=torch.float64) * 0.3 for _ in range(2))
    row = torch.randint(6, (40,), generator=generator)
    advantages = torch.randn(6, generator=generator, dtype=torch.float64)
    total = 0.0
    for i in range(40):
        ratio, a = math.exp(new[i] - old[i]), advantages[row[i]].item()
        total += min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
    assert clipped_loss(new, old, advantages, row).loss.item() == pytest.approx(-total / 40, abs=1e-12)


def test_the_ratio_may_rise_farther_than_it_may_fall():
    new = torch.tensor([1.27, 1.29, 0.79, 1.29]).log().requires_grad_()
    advantages, row = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.arange(4)
    loss = clipped_loss(new, torch.zeros(4), advantages, row, clip_range=0.2, clip_range_high=0.28)
    loss.loss.backward()
    assert [g != 0 for g in new.grad.tolist()] == [True, False, False, True] and loss.clip_ratio == 0.5


def test_each_dialogue_weighs_the_same_whatever_its_length():
    new = torch.zeros(5, requires_grad=True)
    row = torch.tensor([0, 0, 0, 0, 2])  # of the second there is no token
    for over, share in (("token", [0.2] * 5), ("dialogue", [0.125] * 4 + [0.5])):
        (gradient,) = torch.autograd.grad(
            clipped_loss(new, torch.zeros(5), torch.ones(3), row, loss_mean=over).loss, new
        )
        torch.testing.assert_close(gradient, -torch.tensor(share))


@pytest.mark.parametrize("gradient", ["forward", "reverse"])
def test_the_kl_term_descends_the_divergence_that_it_is_named_by(gradient):
    """The expectation over what the policy says, token by token, against the exact gradient on a small softmax."""
    policy, reference, spoke = torch.randn(3, 6, dtype=torch.float64).unbind()
    logits = policy.requires_grad_()
    p, q = logits.log_softmax(-1), reference.log_softmax(-1)
    exact = {"forward": (q.exp() * (q - p)).sum(), "reverse": (p.exp() * (p - q)).sum()}
    wanted = {name: torch.autograd.grad(value, logits, retain_graph=True)[0] for name, value in exact.items()}
    assert (wanted["forward"] - wanted["reverse"]).abs().max() > 0.05

    def expected(old):
        total = torch.zeros(6, dtype=torch.float64)
        for token in range(6):
            one, row = p[token : token + 1], torch.zeros(1, dtype=torch.long)
            options = dict(kl_coef=1.0, reference_logprobs=q[token : token + 1], kl_gradient=gradient)
            loss = clipped_loss(one, old[token : token + 1].detach(), torch.zeros(1), row, **options)
            total += old[token].exp().item() * torch.autograd.grad(loss.loss, logits, retain_graph=True)[0]
        return total

    torch.testing.assert_close(expected(p), wanted[gradient])
    others = expected(spoke.log_softmax(-1))  # where another spoke, only the weighted one is right
    assert torch.allclose(others, wanted[gradient]) == (gradient == "reverse")


@pytest.mark.parametrize("gradient", ["forward", "reverse"])
def test_the_kl_that_is_logged_estimates_the_policys_from_its_base(gradient):
    reference, policy = torch.randn(2, 6, dtype=torch.float64).log_softmax(-1).unbind()
    kl = sum(
        policy[t].exp().item()
        * clipped_loss(
            policy[t : t + 1], policy[t : t + 1], torch.zeros(1), torch.zeros(1, dtype=torch.long), kl_coef=0.1,
            reference_logprobs=reference[t : t + 1], kl_gradient=gradient,
        ).kl
        for t in range(6)
    )  # fmt: skip
    assert kl == pytest.approx((policy.exp() * (policy - reference)).sum().item())


def test_gradient_of_the_first_update_is_that_of_reinforce():
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    tokens, row = torch.arange(5) % 7, torch.tensor([0, 0, 1, 1, 2])
    advantages = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    logprobs = logits.log_softmax(-1)[torch.arange(5), tokens]
    (gradient,) = torch.autograd.grad(clipped_loss(logprobs, logprobs.detach(), advantages, row).loss, logits)
    score = torch.nn.functional.one_hot(tokens, 7) - logits.softmax(-1)
    torch.testing.assert_close(gradient, -advantages[row][:, None] * score.detach() / 5)


def test_a_token_outside_the_clip_range_gets_no_gradient():
    new = torch.tensor([0.5, 0.0], requires_grad=True)  # ratios 1.65 and 1 with a positive advantage
    loss = clipped_loss(new, torch.zeros(2), torch.ones(1), torch.zeros(2, dtype=torch.long))
    loss.loss.backward()
    assert new.grad is not None and new.grad[0] == 0 and new.grad[1] != 0
    assert loss.clip_ratio == 0.5


def test_a_batch_without_tokens_gives_zero_and_not_nan():
    empty = torch.zeros(0, requires_grad=True)
    loss = clipped_loss(empty, torch.zeros(0), torch.ones(2), torch.zeros(0, dtype=torch.long)).loss
    loss.backward()
    assert loss.item() == 0


def test_equal_rewards_leave_only_the_kl_gradient():
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    reference = torch.tensor([-1.5, -1.0])
    row, zero = torch.tensor([0, 0]), torch.zeros(1)
    clipped_loss(new, new.detach(), zero, row, kl_coef=0.0, reference_logprobs=reference).loss.backward()
    assert (new.grad == 0).all()
    new.grad = None
    clipped_loss(new, new.detach(), zero, row, kl_coef=0.1, reference_logprobs=reference).loss.backward()
    assert (new.grad != 0).all()


def test_what_does_not_count_has_no_advantage_and_leaves_the_others_as_if_it_were_not_there():
    nan = float("nan")
    rewards = torch.tensor([[1.0, nan, 0.0, 0.5], [nan, nan, nan, 1.0], [1.0, 0.0, 0.0, 0.0]])
    found = counted_advantages(rewards)
    torch.testing.assert_close(found[0, [0, 2, 3]], group_advantages(torch.tensor([[1.0, 0.0, 0.5]]))[0])
    assert found[0, 1] == 0 and (found[1] == 0).all()
    torch.testing.assert_close(found[2], group_advantages(rewards[2:])[0])
    metrics = counted_metrics(rewards)
    assert metrics["reward"] == pytest.approx((1.5 + 1 + 1) / 8)
    spread = [np.std([1, 0, 0.5]), 0, np.std([1, 0, 0, 0])]
    assert metrics["reward_std"] == pytest.approx(np.mean(spread))
    assert metrics["frac_all_success"] == pytest.approx(1 / 3)
    assert set(counted_metrics(torch.full((2, 2), nan)).values()) == {None}
