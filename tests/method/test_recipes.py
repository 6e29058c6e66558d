"""The paper's recipes by one key: their numbers, how they differ by method and benchmark, and that they run."""

import json
from pathlib import Path

import pytest

from scope_lite import cli
from scope_lite.figures.paper import paper_settings
from scope_lite.method.config import METHODS, TEXT_DEFAULTS, RunConfig, load_config, method_config
from scope_lite.method.made_of import run_folder
from scope_lite.method.recipes import RECIPES
from scope_lite.method.train import train
from scope_lite.store.errors import ScopeError
from scope_lite.store.plain_yaml import flat
from tests.method.test_text_training import config_of, model, panel, rows_of, scripted  # noqa: F401  (fixtures)

TINY = dict(steps=2, groups=2, group_size=4, eval_every=2, eval_dialogues=2, final_dialogues=2)
LAUNCHED = {  # method: steps, rate as a multiple, KL of the policy, KL of the simulator
    "single": (1000, 0.5, 0.01, None),
    "persona": (1000, 1, 0.01, None),
    "ensemble": (100, 1, 0.01, None),
    "verbalized": (100, 1, 0.01, None),
    "cotraining": (500, 1, 0.005, 0.005),
    "population": (100, 1, 0, 0.01),
}


def test_what_is_stated_is_what_the_table_of_the_papers_numbers_has():
    stated, known = flat(RECIPES["stated"]["all"]), paper_settings()
    numbers = {key: value for key, value in known.items() if key in stated}
    numbers |= {"simulator.learning_rate": "1", "learning_rate": "1"}  # of the default, which stands for the 1e-6
    assert {key: float(value) for key, value in numbers.items() if key != "advantages"} == {
        key: stated[key] for key in numbers if key != "advantages"
    }
    assert len(numbers) >= 14
    pool = flat(RECIPES["stated"]["methods"]["population"])
    for key in ("simulator.pool_size", "simulator.cadence"):
        assert str(pool[key]) == known[key].split()[0]


def test_the_launchers_differ_by_method_and_the_text_does_not():
    for method, (steps, rate, kl, simulator_kl) in LAUNCHED.items():
        run = method_config(method, recipe="launched")
        assert (run.steps, run.learning_rate / RunConfig().learning_rate, run.kl_coef) == (steps, rate, kl)
        assert simulator_kl is None or run.simulator.kl_coef == simulator_kl
        assert run.advantages == "raw" and run.loss_mean == "dialogue" and run.simulator.vs_draw == "uniform"
        stated = method_config(method, recipe="stated")
        assert (stated.steps, stated.learning_rate, stated.kl_coef) == (250, RunConfig().learning_rate, 0.005)
        assert stated.simulator.kl_coef == 0.005 and stated.simulator.vs_draw == "stated"
    pool = method_config("population", recipe="launched").simulator
    assert (pool.pool_size, pool.cadence, pool.draw, pool.behaviour) == (10, 16, "step", "current")
    assert method_config("base", recipe="launched").steps == method_config("base", recipe="stated").steps == 0


@pytest.mark.parametrize(
    ("recipe", "world", "method", "reward", "estimator"),
    [
        ("stated", "persuasion_hard", "population", "adversarial", "z"),
        ("stated", "retail", "cotraining", "curriculum_group", "batch"),
        ("stated", "coding", "selfplay", "cooperative", "z"),
        ("launched", "persuasion", "population", "adversarial", "raw"),
        ("launched", "airline", "cotraining", "curriculum_group", "raw"),
        ("launched", "retail", "population", "cooperative", "raw"),
        ("launched", "p4g", "cotraining", "adversarial", "raw"),
    ],
)
def test_the_simulator_is_paid_as_on_the_benchmark_that_the_world_follows(recipe, world, method, reward, estimator):
    run = method_config(method, world=world, recipe=recipe)
    assert (run.simulator.reward, run.simulator_advantages) == (reward, estimator)
    assert run.simulator.start == "policy"


def test_in_text_rates_are_multiples_of_the_rates_there_and_turns_are_the_benchmarks():
    run = method_config("single", world="p4g", recipe="launched")
    assert run.learning_rate == TEXT_DEFAULTS["learning_rate"] / 2 and run.text.turns == 5
    assert method_config("single", world="tau2-retail", recipe="stated").text.turns == 30


def test_what_a_config_says_itself_stands_above_its_recipe(tmp_path):
    run = method_config("population", recipe="stated", steps=7, simulator={"pool_size": 3})
    assert (run.steps, run.simulator.pool_size, run.simulator.cadence, run.kl_coef) == (7, 3, 4, 0.005)
    path = tmp_path / "run.yaml"
    path.write_text("{method: population, recipe: stated, steps: 7, simulator: {pool_size: 3}}", encoding="utf-8")
    assert load_config(path) == run
    whole = tmp_path / "whole.yaml"
    whole.write_text(json.dumps(run.model_dump(mode="json")), encoding="utf-8")
    assert load_config(whole) == run, "a run's own config has it written out"
    with pytest.raises(ScopeError, match="write the recipe into"):
        cli.base.make_config(path, None, recipe="launched")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"recipe": "launch"}, "unknown recipe 'launch'; did you mean 'launched'"),
        ({"recipe": 3}, "unknown recipe '3'"),
        ({"recipe": "stated", "world": "bakery"}, "follows none of the paper's benchmarks"),
        ({"recipe": "launched", "world": "coding", "method": "selfplay"}, "no public launcher runs 'selfplay'"),
    ],
)
def test_a_recipe_that_is_not_there_is_told_in_one_line(settings, told):
    with pytest.raises(ScopeError, match=told):
        method_config(settings.pop("method", "single"), **settings)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_a_valid_run_of_every_method_and_benchmark_that_it_has(recipe):
    names = set()
    for world, benchmark in (("persuasion", "p4g"), ("retail", "tau2"), ("coding", "cooperbench")):
        lacking = RECIPES[recipe].get("lacks", {}).get(benchmark, ())
        names |= {run_folder(Path(), method_config(m, world=world, recipe=recipe)) for m in METHODS if m not in lacking}
    assert len(names) == 3 * len(METHODS) - sum(map(len, RECIPES[recipe].get("lacks", {}).values()))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("world", "method"), [("persuasion", "population"), ("retail", "cotraining")])
def test_a_recipe_runs_by_one_key_at_nano(recipe, world, method, tmp_path):
    options = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    named = ["--method", method, "--world", world, "--recipe", recipe]
    with pytest.raises(SystemExit) as left:
        cli.app(["train", *named, *options, "--out", str(tmp_path / "runs")])
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    assert not left.value.code and len(rows_of(metrics.parent)) == 3
    config = metrics.with_name("config.yaml").read_text(encoding="utf-8")
    assert f"advantages: {'z' if recipe == 'stated' else 'raw'}" in config


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("method", ["verbalized", "population"])
def test_a_recipe_runs_in_text(recipe, method, model, scripted, tmp_path):  # noqa: F811
    scripted(json.dumps([{"text": text, "probability": 0.5} for text in ("I will donate $1.", "No.")]))
    config = config_of(model, method, recipe=recipe, simulator={"k": 2}, text={"reply_tokens": 12})
    rows = rows_of(train(config, tmp_path))
    assert config.steps == 2 and config.temperature == 0.7 and config.eval_temperature == (recipe == "launched") * 0.7
    assert len(rows) == 3 and rows[-1]["kl"] >= 0 and "panel/unseen/reward" in rows[-1]
