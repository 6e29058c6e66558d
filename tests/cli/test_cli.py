"""The command line: its exit codes, its one-line errors, and one real training run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from typer.testing import CliRunner

import scope_lite.method.train
from scope_lite import cli
from scope_lite import store as runs
from scope_lite.cli import machine
from scope_lite.experiments import nano_models as nano
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError

TINY = ["--steps", "2", "--set", "groups=2", "--set", "group_size=2", "--set", "eval_every=1",
        "--set", "eval_dialogues=2", "--set", "final_dialogues=2", "--set", "checkpoint_every=1"]  # fmt: skip


def call(*words: str):
    return CliRunner().invoke(cli.app, list(words))


def mistake(*words: str) -> str:
    """The one line that a user's mistake is told in."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("scope-lite: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A project with one notebook, 00_start, that takes ``seeds`` and ``do``."""
    (tmp_path / "notebooks" / "parameters").mkdir(parents=True)
    (tmp_path / "notebooks" / "parameters" / "nano.yaml").write_text(
        "remake: {settings: {hours: 3}}\n", encoding="utf-8"
    )
    declare = v4.new_code_cell("seeds: int = 3\ndo: str = 'pass'", metadata={"tags": ["parameters"]})
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = v4.new_notebook(cells=[declare, v4.new_code_cell("exec(do)")], metadata=kernel)
    nbformat.write(book, tmp_path / "notebooks" / "00_start.ipynb")
    monkeypatch.setattr(paths, "HOME", tmp_path)
    monkeypatch.setattr(paths, "FIGURES", tmp_path / "figures")  # a run ends by writing the gallery page
    return tmp_path


@pytest.fixture
def trained(monkeypatch) -> list:
    """What was asked to be trained, with a stand-in for training."""
    asked: list = []

    def fake(config, root, fresh=False, on_step=None):
        asked.append((config, root, fresh))
        for step in range(1, config.steps + 1):
            on_step(step, config.steps, {"reward": 0.5, "entropy": None, "collapse_alarm": step >= 3})
        return root / "folder"

    monkeypatch.setattr(scope_lite.method.train, "train", fake)
    return asked


# -- speed and help -------------------------------------------------------------------------------------------------


def test_the_command_line_starts_without_the_heavy_libraries():
    heavy = "{'torch', 'transformers', 'papermill', 'pandas', 'matplotlib', 'pydantic'}"
    code = f"import sys, scope_lite.cli; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("words", [[], ["run"], ["train"], ["figures"], ["runs"], ["runs", "prune"], ["nano", "build"]])
def test_every_command_explains_itself(words):
    result = call(*words, "--help")
    assert result.exit_code == 0 and "Usage" in result.stdout


def test_the_version_is_told():
    assert call("--version").stdout.strip() == scope_lite.__version__


def test_python_dash_m_is_the_same_command():
    process = subprocess.run(
        [sys.executable, "-m", "scope_lite", "--version"], capture_output=True, text=True, encoding="utf-8"
    )
    assert process.stdout.strip() == scope_lite.__version__


# -- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, told",
    [
        (["train", "--method", "singel"], "unknown method 'singel'; did you mean 'single'"),
        (["train", "--world", "persuasoin"], "unknown world 'persuasoin'"),
        (["train", "--steps", "-1"], "steps"),
        (["train", "--set", "lora_ranks=4"], "unknown key 'lora_ranks'; did you mean 'lora_rank'"),
        (["train", "--set", "simulator.kk=4"], "'kk'"),
        (["train", "--set", "seed.x=4"], "unknown key 'seed.x'"),
        (["train", "--set", "groups"], "expected name=value"),
        (["train", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["runs", "show", "nothing"], "unknown run"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, words, told):
    if words == ["train", "--set", "seed.x=4"]:
        words, told = [*words, "--seed", "1"], "seed is a single value"
    assert told in mistake(*words, "--out", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text, told",
    [
        ("version: 99\n", "version 99"),
        ("method: single\nlerning_rate: 1\n", "unknown key 'lerning_rate'; did you mean 'learning_rate'"),
        ("method: !!python/object/apply:os.getcwd []\n", "not plain YAML"),
        ("method: [\n", "not plain YAML"),
        ("- 1\n", "expected a mapping"),
    ],
)
def test_a_bad_configuration_file_is_one_line(tmp_path, text, told):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    line = mistake("train", str(path), "--out", str(tmp_path / "runs"))
    assert told in line and str(path) in line and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words, told",
    [
        (["--scale", "nanoo"], "unknown scale 'nanoo'; did you mean 'nano'"),
        (["--only", "07"], "unknown notebook '07'"),
        (["--param", "seedz=3"], "unknown parameter 'seedz'; did you mean 'seeds'"),
        (["--param", "seeds=many"], "parameter seeds takes int"),
        (["--param", "seeds"], "expected name=value"),
    ],
)
def test_a_series_that_cannot_run_is_one_line_and_starts_nothing(home, words, told):
    assert told in mistake("run", *words, "--out", str(home / "out"))
    assert not (home / "out").exists()


def test_a_bug_keeps_its_traceback_and_exits_with_1(trained, monkeypatch, tmp_path):
    def bug(*args, **kwargs):
        return 1 / 0

    monkeypatch.setattr(scope_lite.method.train, "train", bug)
    result = call("train", "--out", str(tmp_path))
    assert result.exit_code == 1 and isinstance(result.exception, ZeroDivisionError)


def test_ctrl_c_exits_with_130(trained, monkeypatch, tmp_path):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(scope_lite.method.train, "train", interrupted)
    result = call("train", "--out", str(tmp_path))
    assert result.exit_code == 130 and "goes on from the last checkpoint" in result.stderr


# -- train ----------------------------------------------------------------------------------------------------------


def test_options_become_the_configuration_and_progress_is_shown(trained, tmp_path):
    result = call("train", "--method", "persona", "--seed", "7", "--set", "simulator.k=3", "--set",
                  "learning_rate=0.5", "--steps", "4", "--out", str(tmp_path), "--fresh")  # fmt: skip
    config, root, fresh = trained[0]
    assert (config.method, config.seed, config.steps, config.learning_rate) == ("persona", 7, 4, 0.5)
    assert (config.simulator.kind, config.simulator.k, root, fresh) == ("persona", 3, tmp_path, True)
    assert "persuasion-persona-seed7: step 4/4  reward 0.500" in result.stdout
    assert result.stdout.count("collapse alarm at step 3") == 1
    assert "trained: " in result.stdout


def test_options_change_a_file_but_not_its_method(trained, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("method: persona\nseed: 1\nsimulator: {k: 4}\n", encoding="utf-8")
    call("train", str(path), "--seed", "2", "--set", "simulator.eta=0.5")
    config = trained[0][0]
    assert (config.method, config.seed) == ("persona", 2)
    assert (config.simulator.kind, config.simulator.k, config.simulator.eta) == ("persona", 4, 0.5)
    assert "says method 'persona'" in mistake("train", str(path), "--method", "single")


def test_a_real_training_run_ends_in_a_finished_folder_and_is_reused(tmp_path):
    words = ["train", "--method", "single", "--out", str(tmp_path), *TINY]
    process = subprocess.run(
        [sys.executable, "-m", "scope_lite", *words], capture_output=True, text=True, encoding="utf-8"
    )
    assert process.returncode == 0, process.stderr
    table = runs.list_runs(tmp_path)
    assert table["state"].tolist() == ["finished"] and table["step"].tolist() == [2]
    folder = runs.find(tmp_path, "persuasion-single")
    metrics = runs.load_metrics([folder])
    assert metrics["step"].tolist() == [0, 1, 2] and metrics["panel/unseen/reward"].notna().all()
    before = (folder / "metrics.jsonl").read_bytes()
    assert "reused" in call(*words).stdout
    # the same again from scratch: bit for bit
    assert call(*words, "--fresh").exit_code == 0
    assert (folder / "metrics.jsonl").read_bytes() == before


# -- the series -----------------------------------------------------------------------------------------------------


def test_the_series_runs_and_a_failing_notebook_exits_with_1(home):
    out = str(home / "out")
    result = call("run", "--seeds", "2", "--all", "--out", out)
    assert result.exit_code == 0, result.output
    assert "about 3 hours" in result.stdout
    assert "seeds = 2" in (home / "out" / "00_start.ipynb").read_text(encoding="utf-8")
    result = call("run", "--param", "do=raise ValueError('no luck')", "--out", out)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "00_start failed in cell 3" in result.stderr and "ValueError: no luck" in result.stderr


def test_ctrl_c_during_a_notebook_exits_with_130_and_takes_the_kernel_along(home):
    pid_file = home / "pid"
    do = f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    words = [sys.executable, "-m", "scope_lite", "run", "--param", f"do={do}", "--out", str(home / "out")]
    env = {**os.environ, "SCOPE_LITE_HOME": str(home)}
    with subprocess.Popen(
        words, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            wait_for(lambda: pid_file.exists() and pid_file.read_text(encoding="utf-8"))
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
        finally:
            process.kill()  # or leaving the block would wait for it for ever
    assert process.returncode == 130 and "stopped" in told and "Traceback" not in told, told
    wait_for(lambda: not alive(int(pid_file.read_text(encoding="utf-8"))))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


# -- the other commands ---------------------------------------------------------------------------------------------


def finished_run(root: Path, seed: int) -> Path:
    config = {"method": "single", "world": "persuasion", "seed": seed, "model": "qwen3-tiny", "steps": 1}
    made_of = {"settings": config, "files": {}}
    with runs.RunFolder(root / f"persuasion-single-seed{seed}-{seed}0000000", config, made_of) as run:
        run.log({"step": 1, "reward": 0.25 * seed}, {})
        run.progress(1, 1)
        return run.finish()


def test_runs_are_listed_shown_compared_and_pruned(tmp_path):
    first, second = (finished_run(tmp_path, seed) for seed in (1, 2))
    out = ["--out", str(tmp_path)]
    listed = call("runs", "list", *out).stdout
    assert first.name in listed and "finished" in listed and "0.25" in listed
    shown = call("runs", "show", first.name, *out).stdout
    assert "state finished" in shown and "seed: 1" in shown and '"torch"' in shown and "0.25" in shown
    compared = call("runs", "compare", first.name, second.name, *out).stdout
    assert "seed" in compared and "0.5" in compared
    assert "would remove 2" in call("runs", "prune", "--finished", *out).stdout and first.exists()
    assert "removed 1" in call("runs", "prune", "--finished", "--keep", first.name, "--yes", *out).stdout
    assert first.exists() and not second.exists()
    assert "nothing" in call("runs", "list", "--out", str(tmp_path / "none")).stdout


def test_figures_hands_its_options_to_the_gallery(tmp_path, monkeypatch):
    asked = []
    gallery = types.ModuleType("scope_lite.figures.gallery")
    gallery.build = lambda *options: asked.append(options) or [tmp_path / "17.png"]
    monkeypatch.setitem(sys.modules, "scope_lite.figures.gallery", gallery)
    folders = "--results", str(tmp_path), "--out", str(tmp_path)
    result = call("figures", "--only", "17", "--only", "3", *folders)
    assert result.exit_code == 0, result.output
    call("figures", "--svg", *folders)
    assert asked == [(["17", "3"], tmp_path, tmp_path, False), (None, tmp_path, tmp_path, True)]
    assert "17.png" in result.stdout


def test_nano_build_hands_its_options_on_and_an_unknown_model_is_one_line(tmp_path, monkeypatch):
    assert "unknown model 'gpt'" in mistake("nano", "build", "--model", "gpt", "--out", str(tmp_path))
    asked = []
    monkeypatch.setattr(nano, "build", lambda *options: asked.append(options))
    call("nano", "build", "--world", "persuasion", "--model", "qwen3-tiny", "--out", str(tmp_path))
    assert asked == [("persuasion", ["qwen3-tiny"], tmp_path)]


@pytest.mark.parametrize("required, code", [(True, 1), (False, 0)])
def test_doctor_tells_the_remedy_and_fails_only_for_what_is_needed(monkeypatch, required, code):
    checks = [machine.Check("python", True, "3.11"), machine.Check("gpu", False, "none", "buy one", required)]
    monkeypatch.setattr(machine, "report", lambda folder: checks)
    result = call("doctor")
    assert result.exit_code == code
    assert "python: 3.11" in result.stdout and "buy one" in result.stdout


def test_scope_errors_are_told_in_one_line_even_if_they_hold_more(trained, monkeypatch, tmp_path):
    def two_lines(*args, **kwargs):
        raise ScopeError(json.dumps({"a": 1}, indent=1))

    monkeypatch.setattr(scope_lite.method.train, "train", two_lines)
    assert '{ "a": 1 }' in mistake("train", "--out", str(tmp_path))
