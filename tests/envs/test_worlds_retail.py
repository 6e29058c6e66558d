"""The service worlds and the harder persuasion: their rules, and exact values by sign and range."""

import numpy as np
import pytest

from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.exact import ask_then_match, optimal_value, policy_value
from scope_lite.envs.nano.persuasion import CHANGING_TASTES, SATED_AFTER, Mood, ask_again
from scope_lite.envs.nano.retail import AIRLINE, RETAIL, confirm_first, look_up_first
from scope_lite.experiments.nano_models import build_tokenizer, panel_members, sample_dialogues

NEW = ("retail", "airline", "persuasion_hard")
CUSTOMERS = {"retail": RETAIL, "airline": AIRLINE}
SERVICE = (("retail", confirm_first), ("airline", look_up_first))


def scripted(*acts):
    """Say these acts in this order, whatever is heard."""
    return lambda history: acts[len(history)] if len(history) < len(acts) else "greet"


def value_with(world, user, policy):
    return policy_value(world, world.prior_vector({user: 1.0}), policy)


def end_state(world, user, *turns):
    """Follows the spec's own step through (act, reply) turns, each of which must be possible."""
    state = world.spec.initial_state
    for act, said in turns:
        assert world.spec.reply(user, state, act).get(said, 0) > 0, f"{user} never says {said} to {act} in {state}"
        state = world.spec.step(user, state, act, said)
    return state


@pytest.mark.parametrize("name", NEW)
def test_every_table_is_a_distribution_and_the_world_is_small(name):
    world = get_world(name)
    spec = world.spec
    np.testing.assert_allclose(world.reply.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(world.outcome.sum(-1), 1, atol=1e-12)
    assert world.reply.shape[1] < 300 and len(spec.user_types) <= 8
    assert len(spec.agent_acts) <= 12 and len(spec.user_acts) <= 14


@pytest.mark.parametrize("name", NEW)
def test_every_act_has_a_sentence_and_a_token_of_its_own(name):
    spec = get_world(name).spec
    words = [*spec.agent_acts, *spec.user_acts, *spec.outcomes, "close"]
    assert all(spec.sentences[word].strip() for word in words)
    tokenizer = build_tokenizer(get_world(name))
    assert len({tokenizer.convert_tokens_to_ids(word) for word in words}) == len(words)


@pytest.mark.parametrize("name", NEW)
def test_some_real_users_are_of_a_type_that_no_simulator_knows(name):
    world = get_world(name)
    strangers = world.real_prior[world.prior == 0].sum()
    assert 0.1 < strangers < 0.5
    assert {m.name for m in panel_members(world)} >= {"sim-a", "sim-c", "outside", "real"}


@pytest.mark.parametrize("name", NEW)
def test_the_exploit_pays_against_the_mode_and_little_elsewhere(name):
    world = get_world(name)
    exploit = scripted(*world.spec.exploit)
    assert len(world.spec.exploit) == world.horizon
    assert (
        policy_value(world, world.prior, exploit, gamma=8.0) > 0.98
    )  # rewards end at 1: no act sequence is better by more than .02
    assert policy_value(world, world.real_prior, exploit) < 0.3
    for user in world.spec.user_types[1:]:
        assert value_with(world, user, exploit) < 0.3


@pytest.mark.parametrize(("name", "robust"), [*SERVICE, ("persuasion_hard", ask_again)])
def test_a_robust_policy_beats_the_exploit_with_real_users_and_loses_against_the_mode(name, robust):
    world = get_world(name)
    exploit = scripted(*world.spec.exploit)
    gap = policy_value(world, world.real_prior, robust) - policy_value(world, world.real_prior, exploit)
    assert gap > 0.2
    assert policy_value(world, world.prior, robust, 8.0) < policy_value(world, world.prior, exploit, 8.0) - 0.2


@pytest.mark.parametrize(("name", "simple"), SERVICE)
def test_a_good_simple_policy_ends_visibly_below_another_with_tact(name, simple):
    """A lower bound of the optimum: greet first, and do not question the hurried twice."""
    world = get_world(name)
    usual = world.spec.exploit[-1]

    def tactful(history):
        hurried = any(said == "hurry" for _, said in history)
        if not history:
            return "greet"
        if not hurried:
            return simple(history)
        heard = [f"write-{said.removeprefix('want-')}" for _, said in history if said.startswith("want-")]
        return "ask-id" if len(history) == 1 else [usual, *heard][-1]

    assert policy_value(world, world.prior, tactful) > policy_value(world, world.prior, simple) + 0.1


@pytest.mark.parametrize(("name", "customers"), CUSTOMERS.items())
def test_users_who_change_their_mind_punish_a_write_before_it_is_read_back(name, customers):
    world, who = get_world(name), customers["changing"]
    for wish in (who.wish, who.final):
        assert value_with(world, "changing", scripted("ask-id", "ask-wish", *[f"write-{wish}"] * 3)) == 0
    late = scripted("ask-id", "ask-wish", "confirm", *[f"write-{who.final}"] * 2)
    assert value_with(world, "changing", late) > 0.7


@pytest.mark.parametrize("name", ["retail", "airline"])
def test_impatient_users_leave_when_asked_too_much(name):
    world = get_world(name)
    write = world.spec.exploit[-1]
    asked_once = value_with(world, "impatient", scripted("ask-id", write, write, write, write))
    asked_twice = value_with(world, "impatient", scripted("ask-id", "ask-wish", write, write, write))
    assert asked_once > 0.9 and asked_twice < 0.2


def test_impatient_users_leave_after_a_wrong_write():
    world = get_world("retail")
    left = end_state(world, "impatient", ("ask-id", "id"), ("write-return", "bye"))
    assert left.phase == "wrong"
    assert world.spec.outcome("impatient", left) == {"failure": 1.0}


@pytest.mark.parametrize("name", ["retail", "airline"])
def test_a_write_before_the_identity_check_fails_unless_the_tool_does(name):
    world = get_world(name)
    for user in world.spec.user_types:
        for act in (a for a in world.spec.agent_acts if a.startswith("write-")):
            assert value_with(world, user, scripted(act, "ask-id", act, act, act)) <= 0.25 + 1e-9
    early = end_state(world, "forthcoming", (f"write-{CUSTOMERS[name]['forthcoming'].wish}", "complaint"))
    assert early.phase == "wrong"


def test_a_reticent_user_tells_its_wish_only_when_asked_again():
    world = get_world("retail")
    assert world.spec.reply("reticent", world.spec.initial_state, "ask-id") == {"want-cancel": 0.0, "id": 1.0}
    asked = end_state(world, "reticent", ("ask-id", "id"), ("ask-wish", "short"))
    assert not asked.told
    assert world.spec.reply("reticent", asked, "ask-wish")["want-cancel"] > 0.5


def test_a_forgetful_user_must_be_asked_for_its_identity_twice():
    world = get_world("retail")
    assert value_with(world, "forgetful", scripted("ask-id", *["write-return"] * 4)) == 0
    assert value_with(world, "forgetful", scripted("ask-id", "ask-id", *["write-return"] * 3)) > 0.9


def test_a_write_that_the_tool_failed_can_be_tried_again_and_a_repeat_is_harmless():
    world = get_world("retail")
    once = value_with(world, "forthcoming", scripted("ask-id", "write-return"))
    again = value_with(world, "forthcoming", scripted("ask-id", *["write-return"] * 4))
    assert 0.6 < once < 0.9 < again
    assert value_with(world, "forthcoming", scripted("ask-id", *["write-return"] * 3, "write-cancel")) < 0.3


@pytest.mark.parametrize("user", ["barred", "pleading"])
def test_in_airline_a_forbidden_request_must_be_refused(user):
    world = get_world("airline")
    for act in (a for a in world.spec.agent_acts if a.startswith("write-")):
        assert value_with(world, user, scripted("ask-id", *[act] * 4)) == 0
    assert value_with(world, user, scripted("ask-id", "refuse")) == pytest.approx(1)
    # the user insists; giving in after all breaks the rule
    given_in = scripted("ask-id", "refuse", *[f"write-{AIRLINE[user].wish}"] * 3)
    assert value_with(world, user, given_in) < 0.05


def test_a_user_whose_forbidden_wish_is_granted_is_pleased_and_the_call_has_failed():
    world = get_world("airline")
    state = end_state(world, "barred", ("ask-id", "id"), ("write-cancel", "thanks"))
    assert world.spec.outcome("barred", state) == {"failure": 1.0}


def test_in_airline_a_refusal_of_what_is_allowed_fails():
    world = get_world("airline")
    for user in (z for z, who in AIRLINE.items() if not who.barred):
        assert value_with(world, user, scripted("ask-id", "refuse", world.spec.exploit[-1])) == 0


def test_the_fare_is_found_only_after_the_identity_check_and_says_whether_to_refuse():
    world = get_world("airline")
    assert world.spec.reply("barred", world.spec.initial_state, "lookup") == {"tool-error": 1.0}
    checked = end_state(world, "barred", ("ask-id", "id"))
    assert world.spec.reply("barred", checked, "lookup").keys() == {"fare-basic", "tool-error"}
    assert world.spec.reply("forthcoming", checked, "lookup").keys() == {"fare-flex", "tool-error"}


def test_the_rule_costs_a_policy_that_never_looks_it_up():
    world = get_world("airline")
    assert (
        policy_value(world, world.real_prior, look_up_first)
        > policy_value(world, world.real_prior, confirm_first) + 0.1
    )


def test_in_persuasion_hard_a_taste_that_was_served_is_over():
    world = get_world("persuasion_hard")
    for user, (first, then) in CHANGING_TASTES.items():
        served = Mood(3.0, SATED_AFTER)
        assert world.spec.step(user, served, f"appeal-{first}", "no")[0] < served[0]
        assert world.spec.step(user, served, f"appeal-{then}", "yes")[0] > served[0]


def test_in_persuasion_hard_who_asks_once_ends_below_who_asks_again():
    world = get_world("persuasion_hard")
    once, again = (policy_value(world, world.prior, p) for p in (ask_then_match, ask_again))
    assert again > once + 0.2
    assert again < 0.75  # asking twice leaves four appeals of six


@pytest.mark.parametrize("name", NEW)
def test_the_agents_of_the_mix_succeed_sometimes_and_are_beaten_by_far(name):
    world = get_world(name)
    dialogues = sample_dialogues(world, world.prior, 1500, np.random.default_rng(0))
    own = world.rewards[dialogues.outcomes[~dialogues.explored]].mean()
    assert 0.05 < own < 0.4


@pytest.mark.parametrize(
    ("name", "robust"), [("retail", confirm_first), ("airline", look_up_first), ("persuasion_hard", ask_again)]
)
def test_a_robust_policy_stays_visibly_below_the_optimum_on_real_users(name, robust):
    world = get_world(name)
    best = optimal_value(world, world.real_prior)
    assert policy_value(world, world.real_prior, robust) < best - 0.15
