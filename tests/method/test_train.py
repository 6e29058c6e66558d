"""The loop: reproducible to the bit, resumable, honest about bad input."""

import json

import pytest

from scope_lite.envs.nano import get_world
from scope_lite.method.config import METHODS, load_config, method_config
from scope_lite.method.panel_file import read_panel
from scope_lite.method.train import train
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import HOME

SMALL = dict(steps=4, groups=2, group_size=4, eval_every=2, eval_dialogues=2, final_dialogues=4, checkpoint_every=2)


def metrics_of(path):
    return (path / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_trains_and_logs_its_metrics(method, tmp_path):
    config = method_config(method, **{**SMALL, **METHODS[method], "seed": 1})
    path = train(config, tmp_path)
    rows = [json.loads(line) for line in metrics_of(path).splitlines()]
    assert [r["step"] for r in rows] == list(range(config.steps + 1))
    assert 0 <= rows[-1]["panel/real/reward"] <= 1
    assert json.loads((path / "status").read_text(encoding="utf-8"))["state"] == "finished"
    if config.steps:
        assert rows[1]["entropy"] > 0 and rows[1]["sampling/logp_difference"] < 1e-5
        # in self-play nobody of the panel was met in training
        assert ("panel/seen/reward" in rows[-1]) == bool(config.simulator.members)
        assert "panel/unseen/reward" in rows[-1]


def test_same_config_and_seed_give_the_same_bytes(tmp_path):
    config = method_config("single", **SMALL)
    assert metrics_of(train(config, tmp_path / "a")) == metrics_of(train(config, tmp_path / "b"))


def test_seeds_differ(tmp_path):
    paths = [train(method_config("single", **SMALL, seed=s), tmp_path) for s in (0, 1)]
    assert metrics_of(paths[0]) != metrics_of(paths[1])


def test_a_resumed_run_equals_one_that_never_stopped(tmp_path):
    config = method_config("ensemble", **SMALL, kl_coef=0.05, updates_per_step=2)
    whole = train(config, tmp_path / "whole")

    def die(step, steps, metrics):
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", on_step=die)
    assert metrics_of(train(config, tmp_path / "cut")) == metrics_of(whole)


def test_a_finished_run_is_reused(tmp_path):
    config = method_config("single", **SMALL)
    train(config, tmp_path)
    train(config, tmp_path, on_step=lambda *a: pytest.fail("trained again"))


def test_unknown_names_are_told_in_one_line_with_the_nearest():
    with pytest.raises(ScopeError, match="did you mean 'single'"):
        method_config("singel")
    with pytest.raises(ScopeError, match="did you mean 'group_size'"):
        method_config("single", groupsize=4)
    with pytest.raises(ScopeError, match="did you mean 'sharpness'"):
        method_config("single", simulator={"sharpnes": 2})


def test_an_unknown_model_or_simulator_leaves_no_run_folder(tmp_path):
    with pytest.raises(ScopeError, match="did you mean 'qwen3-tiny'"):
        train(method_config("single", **SMALL, model="qwen3-tini"), tmp_path)
    with pytest.raises(ScopeError, match="did you mean 'sim-a'"):
        train(method_config("single", **SMALL, simulator={"members": ["sim_a"]}), tmp_path)
    with pytest.raises(ScopeError, match="lora_rank is 1000, and the model's smallest matrix has rank"):
        train(method_config("single", **SMALL, lora_rank=1000), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_scripted_user_cannot_be_trained_with(tmp_path):
    with pytest.raises(ScopeError, match="scripted user"):
        train(method_config("single", **SMALL, simulator={"members": ["real"]}), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: single\nsteps: minus one\n", "steps"),
        ("method: single\nstepz: 3\n", "did you mean 'steps'"),
        ("version: 0\nmethod: single\n", "config version 0"),
        ("method: !!python/object:os.system single\n", "not plain YAML"),
        ("- a\n- b\n", "expected a mapping"),
        ("method: [unclosed\n", "not plain YAML"),
    ],
)
def test_a_bad_config_gives_one_line(text, message, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScopeError, match=message) as error:
        load_config(path)
    assert "\n" not in str(error.value)


def test_a_short_config_file_is_completed_by_its_methods_preset(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("method: ensemble\nseed: 3\n", encoding="utf-8")
    config = load_config(path)
    assert config.seed == 3 and config.simulator.members == ("sim-a", "sim-b", "sim-c")


def test_a_saved_config_reads_back_as_itself(tmp_path):
    config = method_config("verbalized", **SMALL)
    path = train(config, tmp_path)
    assert load_config(path / "config.yaml") == config


def test_every_logged_metric_is_explained_in_the_reference(tmp_path):
    path = train(method_config("population", **SMALL), tmp_path)
    logged = {key for line in metrics_of(path).splitlines() for key in json.loads(line)}
    timed = {
        key for line in (path / "timing.jsonl").read_text(encoding="utf-8").splitlines() for key in json.loads(line)
    }
    named = {f"panel/{m.name}/reward" for m in read_panel("persuasion")}
    named |= {f"simulator/answer/{reply}" for reply in get_world("persuasion").spec.user_acts}
    page = (HOME / "docs" / "reference.md").read_text(encoding="utf-8")
    assert not [key for key in (logged | timed) - named - {"step"} if f"`{key}`" not in page]
