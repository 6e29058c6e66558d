"""The GPU check without a GPU: what it selects, how it tells a failure, and one check run for real on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scope_lite.cli import app
from scope_lite.cli.gpu_check import CHECKS, Check, Result, measure, run_check
from tests.method.test_text_training import model  # noqa: F401  (a fixture: a tiny random chat model)

MODULE: Any = sys.modules["scope_lite.cli.gpu_check"]


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "has_gpu", lambda: False)
    done = CliRunner().invoke(app, ["gpu-check"])
    assert done.exit_code == 1
    assert done.output.strip() == "gpu-check: no CUDA device here; --cpu runs the parts that need none"


def test_every_engine_is_checked_on_a_gpu_and_what_can_run_on_a_cpu() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    gpu, cpu = ([check.config("smollm2", on_cpu) for check in CHECKS] for on_cpu in (False, True))
    engines = [{(c.text.training_engine, c.text.rollout_engine) for c in configs} for configs in (gpu, cpu)]
    assert engines[0] == {("hf", "hf"), ("unsloth", "vllm"), ("hf", "vllm")}
    assert engines[1] == {("hf", "hf"), ("unsloth", "hf"), ("hf", "vllm")}
    assert {c.text.device for c in gpu} == {"auto"} and {c.text.device for c in cpu} == {"cpu"}
    assert {c.method for c in gpu} == {"single", "verbalized", "cotraining", "population"}


def test_a_missing_package_is_no_failure_and_a_dead_process_tells_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MODULE.importlib.util, "find_spec", lambda name: None)
    assert run_check(Check("x", text={"rollout_engine": "vllm"}), "smollm2", True).ok is None

    def dies(command: list[str], **options: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nCUDA out of memory\n")

    monkeypatch.setattr(MODULE.subprocess, "run", dies)
    assert run_check(CHECKS[0], "smollm2", True) == Result(CHECKS[0].name, False, "CUDA out of memory")

    def hangs(command: list[str], **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(MODULE.subprocess, "run", hangs)
    assert run_check(CHECKS[0], "smollm2", True, limit=3).detail == "took longer than 3 s"


def test_the_table_shows_each_result_and_a_failure_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [Result("a", True, "fine", 123.4, 1.5, 1.4), Result("b", None, "vllm is not installed")]
    monkeypatch.setattr(MODULE, "CHECKS", [Check(r.name) for r in told])
    monkeypatch.setattr(MODULE, "run_check", lambda check, *_: next(r for r in told if r.name == check.name))
    done = CliRunner().invoke(app, ["gpu-check", "--cpu"])
    assert done.exit_code == 0 and all(word in done.stdout for word in ("pass", "123", "1.5", "1.4", "not here"))
    told[1] = Result("b", False, "broken")
    assert CliRunner().invoke(app, ["gpu-check", "--cpu"]).exit_code == 1
    assert json.loads(json.dumps(asdict(told[0])))["tokens_per_second"] == 123.4


def test_a_check_runs_two_real_steps_and_measures_them(model: Path) -> None:  # noqa: F811
    (stopped,) = [check for check in CHECKS if check.stopped]
    result = measure(stopped, str(model), on_cpu=True)
    assert result.ok and result.tokens_per_second and result.tokens_per_second > 0
    assert result.peak_gib and 0.1 < result.peak_gib < 8 and result.planned_gib is None
