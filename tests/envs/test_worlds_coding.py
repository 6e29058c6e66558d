"""The coding world: what its partners do, what becomes of the work, exact values by sign and range, and training."""

import json

import numpy as np
import pytest
import yaml

from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.coding import ACTS, CONVENTIONS, SLIP, Work, divide_first, turns, write_right
from scope_lite.envs.nano.episode import NanoEpisode
from scope_lite.envs.nano.exact import optimal_value, policy_value
from scope_lite.experiments.nano_models import Renderer, build_tokenizer, panel_members, sample_dialogues
from scope_lite.method.config import method_config
from scope_lite.method.dialogue import run_dialogues
from scope_lite.method.nano import Library, choice_sets, draw_prompts, seat_simulator
from scope_lite.method.panel_file import PanelMember
from scope_lite.method.scene import draw_tasks
from scope_lite.method.seats import ModelSeat
from scope_lite.method.train import train
from scope_lite.models.rng import RowKeys
from scope_lite.store.paths import NANO_MODELS

WORLD = get_world("coding")
SPEC = WORLD.spec
SMALL = dict(world="coding", steps=2, groups=2, group_size=4, eval_every=2, eval_dialogues=2, final_dialogues=2)


def value_with(convention, policy, gamma=1.0):
    shares = {f"{convention}-1": 0.5, f"{convention}-2": 0.5}
    return policy_value(WORLD, WORLD.prior_vector(shares), policy, gamma)


def usual_replies(partner, *acts):
    """What the partner says to these acts if it never lets a turn pass, its first choice at every turn."""
    work, said = Work(1), []
    for act in acts:
        replies = dict(SPEC.reply(partner, work, act))
        replies["wait"] -= SLIP  # what is left of it, it says by choice
        said.append(max(replies, key=replies.get))
        work = SPEC.step(partner, work, act, said[-1])
    return said


def judged(mine, theirs, spoken):
    """What becomes of the work, told slowly: the files, and who wrote what against which version."""
    files = {"agent": [], "partner": []}
    good = {}
    for turn in spoken:
        for who, said, version in (("agent", turn[0], theirs), ("partner", turn[1], mine)):
            if said == "write-both":
                files[who] += ["left", "right"]
            elif said.startswith("write-"):
                files[who].append(said.split("-")[1])
                good.setdefault(who, said.endswith(str(version)))
        shared = set(files["agent"]) & set(files["partner"])
        if shared or any(len(set(written)) == 2 for written in files.values()):
            return "conflict"
        if len(good) == 2:
            return "merged" if all(good.values()) else "broken"
    return "unfinished"


def random_words(rng):
    """A dialogue in which both say anything, writes more often than not."""
    odds = np.array([2.0 if act.startswith("write-") and act != "write-both" else 1.0 for act in ACTS])
    return [tuple(rng.choice(ACTS, size=2, p=odds / odds.sum())) for _ in range(WORLD.horizon)]


def relabelled(word):
    """The same word with versions 1 and 2 exchanged."""
    return str(word).translate(str.maketrans("12", "21"))


def test_the_world_is_small_and_both_agents_use_the_same_words():
    assert len(SPEC.user_types) <= 16 and WORLD.reply.shape[1] <= 1500
    assert SPEC.agent_acts == SPEC.user_acts and WORLD.tasks == WORLD.prompts
    tokens = choice_sets(WORLD, build_tokenizer(WORLD))
    assert tokens["act"] == tokens["reply"] and len(set(tokens["act"])) == len(ACTS)
    assert all(SPEC.sentences[word].strip() for word in (*ACTS, *SPEC.outcomes, *WORLD.tasks, "close"))


def test_the_outcome_is_that_of_the_words_and_the_two_versions_alone():
    rng, seen = np.random.default_rng(0), set()
    for _ in range(300):
        spoken = random_words(rng)
        for mine, task in enumerate(WORLD.tasks, 1):
            for partner in SPEC.user_types:
                work = SPEC.tasks[task]
                for act, said in spoken:
                    work = SPEC.step(partner, work, act, said)
                expected = judged(mine, int(partner[-1]), spoken)
                assert SPEC.outcome(partner, work) == {expected: 1.0}, (spoken, partner, mine)
                seen.add(expected)
    assert seen == set(SPEC.outcomes)


def test_a_partner_knows_the_agents_version_only_if_it_was_told():
    rng = np.random.default_rng(1)
    for _ in range(50):
        spoken, last = random_words(rng), str(rng.choice(ACTS))
        for partner in SPEC.user_types:
            works = list(SPEC.tasks.values())
            for act, said in spoken:
                works = [SPEC.step(partner, work, act, said) for work in works]
            first, second = (SPEC.reply(partner, work, last) for work in works)
            assert first == second


def test_versions_are_only_names():
    rng = np.random.default_rng(2)
    for _ in range(50):
        spoken, last = random_words(rng), str(rng.choice(ACTS))
        for partner in SPEC.user_types:
            work, twin = Work(1), Work(2)
            for act, said in spoken:
                work = SPEC.step(partner, work, act, said)
                twin = SPEC.step(relabelled(partner), twin, relabelled(act), relabelled(said))
            replies = SPEC.reply(relabelled(partner), twin, relabelled(last))
            expected = {relabelled(said): p for said, p in SPEC.reply(partner, work, last).items()}
            assert {r: p for r, p in replies.items() if p} == pytest.approx({r: p for r, p in expected.items() if p})


def test_the_favourite_tells_unasked_takes_left_and_does_it_all_if_one_talks_on():
    assert usual_replies("eager-2", "mine-1", "write-right-2") == ["mine-2", "write-left-1"]
    for talk in ("ask", "take-right", "wait", "mine-1"):
        said = usual_replies("eager-2", "mine-1", talk)
        assert said == ["mine-2", "mine-2" if talk == "ask" else "write-both"]


def test_conventions_of_the_other_partners():
    assert usual_replies("steady-1", "mine-1", "take-right", "write-left-1") == [
        "mine-1",
        "take-right",
        "write-right-1",
    ]
    assert usual_replies("yielding-1", "take-left", "mine-2")[0] == "take-right"
    assert usual_replies("yielding-1", "mine-2", "write-right-1")[1] == "wait"  # where? nobody took a file
    assert usual_replies("leading-1", "mine-2")[0] in ("take-left", "take-right")
    said = usual_replies("quiet-1", "mine-2", "take-left", "ask", "write-left-1")
    assert said == ["wait", "wait", "mine-1", "write-right-2"]
    assert usual_replies("copying-1", "take-right", "mine-1")[0] == "take-right"
    assert usual_replies("hasty-1", "mine-1", "ask") == ["mine-2", "mine-1"]  # wrong unasked, right when asked


def test_no_partner_writes_before_it_was_told_against_which_version():
    for partner in SPEC.user_types:
        for act in ("take-left", "wait", "write-right-1"):
            replies = SPEC.reply(partner, Work(1), act)
            assert not any(p for said, p in replies.items() if said.startswith("write-"))


def test_the_exploit_pays_against_the_mode_and_little_elsewhere():
    assert policy_value(WORLD, WORLD.prior, write_right, gamma=8.0) > 0.97
    assert policy_value(WORLD, WORLD.real_prior, write_right) < 0.25
    values = {name: value_with(name, write_right) for name in CONVENTIONS}
    assert values.pop("eager") > 0.7
    assert max(values.values()) < 0.3


def test_the_robust_policy_fits_most_partners_and_loses_against_the_mode():
    real, mode = (
        [policy_value(WORLD, prior, policy, gamma) for policy in (divide_first, write_right)]
        for prior, gamma in ((WORLD.real_prior, 1.0), (WORLD.prior, 8.0))
    )
    assert real[0] > real[1] + 0.4 and mode[0] < mode[1] - 0.5
    assert min(value_with(name, divide_first) for name in CONVENTIONS if name != "eager") > 0.5


def test_the_robust_policy_stays_visibly_below_the_optimum_on_real_partners():
    best = optimal_value(WORLD, WORLD.real_prior)
    assert policy_value(WORLD, WORLD.real_prior, divide_first) < best - 0.1


def test_turns_are_counted_until_both_have_written():
    told = ("", "half-1")
    talk, early, late = ("ask", "wait"), ("write-left-1", "ask"), ("wait", "write-right-1")
    assert turns((told, talk, early, late, talk)) == 3 == turns((talk, early, late, talk))
    assert turns((("write-left-1", "write-right-1"), talk)) == 1
    assert turns((early, early, talk, talk)) == 4 == turns((talk,) * 4)


def test_agents_of_the_mix_play_the_conventions_from_their_own_seat():
    rng = np.random.default_rng(3)
    assert sum(h.weight for h in SPEC.habits) == pytest.approx(1)
    habits = {h.name: h.act for h in SPEC.habits}

    def often(name, *history):
        said = [habits[name]((("", "half-2"), *history), rng) for _ in range(80)]
        return max(set(said), key=said.count)

    assert often("eager") == "mine-2"
    assert often("leading") in ("take-left", "take-right")
    assert often("steady", ("mine-2", "mine-1")) == "write-right-1"
    assert often("yielding", ("mine-2", "mine-1"), ("wait", "take-left")) == "take-right"
    assert often("adapts", ("mine-2", "wait")) == "ask"


def test_the_agents_of_the_mix_succeed_sometimes_and_are_beaten_by_far():
    dialogues = sample_dialogues(WORLD, WORLD.prior, 1500, np.random.default_rng(0))
    own = WORLD.rewards[dialogues.outcomes[~dialogues.explored]].mean()
    assert 0.05 < own < 0.35


def test_the_two_seats_are_told_apart_by_who_speaks_first():
    tokenizer = build_tokenizer(WORLD)
    dialogues, render = sample_dialogues(WORLD, WORLD.prior, 40, np.random.default_rng(4)), Renderer(WORLD, tokenizer)
    partner, agent = render.user(dialogues), render.agent(dialogues)
    for batch, first in ((partner, "<|user|>"), (agent, "<|assistant|>")):
        words = [tokenizer.convert_ids_to_tokens(row) for row in batch.ids.tolist()]
        assert {row[1] for row in words} == set(WORLD.tasks) and {row[2] for row in words} == {first}
        assert batch.taught.sum(1).unique().tolist() == [WORLD.horizon]  # nobody is taught an outcome
    told = [WORLD.prompts[i] for i in dialogues.prompts]
    assert [tokenizer.convert_ids_to_tokens(row)[1] for row in partner.ids.tolist()] == told


def test_members_of_the_panel_differ_in_conventions_and_not_in_versions():
    members = panel_members(WORLD)
    for member in members:
        np.testing.assert_allclose(WORLD.knows @ WORLD.prior_vector(member.population), 0.5)
    modes = {max(m.population, key=m.population.get).split("-")[0] for m in members if m.kind == "collapsed"}
    assert modes == {z.split("-")[0] for z in SPEC.prior}


@pytest.mark.parametrize("path", sorted(NANO_MODELS.glob("*/panel.yaml")), ids=lambda p: p.parent.name)
def test_every_shipped_panel_is_the_one_that_would_be_made_today(path):
    shipped = [PanelMember(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]
    assert shipped == panel_members(get_world(path.parent.name))


def test_the_outcome_of_a_dialogue_of_models_is_judged_by_their_words_and_their_private_halves():
    library, keys = Library(WORLD), RowKeys.grid(0, 1, 16, 4)
    model, population = library.seat_model("qwen3-tiny"), dict(SPEC.prior)
    tasks, prompts = draw_tasks(len(WORLD.tasks), keys.by_group()), draw_prompts(WORLD, WORLD.prior, keys.by_group())
    policy = ModelSeat(model, keys, "policy", [WORLD.tasks[t] for t in tasks])
    partner = seat_simulator(WORLD, model, population, keys, keys.by_group(), "world")
    episodes = [NanoEpisode(WORLD, {"policy": system, "simulator": ""}) for system in policy.systems]
    rollouts = run_dialogues(episodes, policy, partner, keys, ["self"] * len(keys))
    for rollout, mine, theirs in zip(rollouts, tasks + 1, prompts + 1, strict=True):
        spoken = list(zip(rollout.acts, rollout.replies, strict=True))
        assert rollout.outcome == judged(mine, theirs, spoken)
        assert rollout.turns == turns(tuple(spoken))
        assert rollout.reward == float(rollout.outcome == "merged")
    assert {(m, t) for m, t in zip(tasks, prompts, strict=True)} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len({r.outcome for r in rollouts}) >= 3


@pytest.mark.parametrize("method", ["single", "ensemble", "selfplay", "selfplay_population"])
def test_the_methods_of_cooperation_train(method, tmp_path):
    path = train(method_config(method, **SMALL), tmp_path)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [r["step"] for r in rows] == [0, 1, 2]
    assert 1 <= rows[1]["turns"] <= WORLD.horizon and rows[1]["odds_exploit"] is None
    assert 0 <= rows[-1]["panel/real/reward"] <= 1 and rows[1]["sampling/logp_difference"] < 1e-5
