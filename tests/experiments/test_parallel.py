"""Many runs at once: none is trained twice, none takes the others down, and none is left hanging."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from scope_lite import store as runs
from scope_lite.experiments import parallel
from scope_lite.method.config import RunConfig
from scope_lite.method.made_of import made_of, run_folder
from scope_lite.store.errors import ScopeError

HERE = Path(__file__).parent


def fake(seed: int, steps: int = 3, do: str = "train") -> RunConfig:
    """A run whose training does what its method is called."""
    return RunConfig(method=do, seed=seed, steps=steps)


def fake_train(config: RunConfig, root: Path, fresh: bool) -> None:
    """A training in a worker process: does what the configuration says."""
    with (root / "trained.txt").open("a", encoding="utf-8") as file:
        file.write(f"{config.seed} {os.getpid()} {torch.get_num_threads()}\n")
    with opened(config, root, fresh) as run:
        if run.finished:  # in a pool that broke before it could tell: as in the real training, nothing is left to do
            return
        for step in range(1, config.steps + 1):
            run.log({"step": step, "reward": 0.0}, {})
            run.progress(step, config.steps)
            if config.method == "fail":
                raise ValueError("this seed is unlucky\nand more")
            if config.method == "mistake":
                raise ScopeError("no such world")
            if config.method == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if config.method == "sleep":
                time.sleep(0.2)
        print("chatter on standard output belongs to the log")
        run.finish()


def opened(config: RunConfig, root: Path, fresh: bool = False) -> runs.RunFolder:
    return runs.RunFolder(run_folder(root, config), {}, made_of(config), fresh)


def trained(root: Path) -> list[list[str]]:
    return [line.split() for line in (root / "trained.txt").read_text(encoding="utf-8").splitlines()]


def train(configs: list[RunConfig], root: Path, **options) -> list[Path]:
    return parallel.train_many(configs, root, progress=False, train=fake_train, **options)


def test_every_run_is_trained_once_by_workers_that_live_on(tmp_path):
    configs = [fake(seed) for seed in (0, 1, 2, 1, 3)]
    folders = train(configs, tmp_path, workers=2)
    assert folders == [run_folder(tmp_path, c) for c in configs]
    assert all(runs.is_finished(folder) for folder in folders)
    rows = trained(tmp_path)
    assert sorted(row[0] for row in rows) == ["0", "1", "2", "3"]
    assert len({row[1] for row in rows} - {str(os.getpid())}) in (1, 2) and {row[2] for row in rows} == {"1"}
    logs = [path.read_text(encoding="utf-8") for path in (tmp_path / "logs").iterdir()]
    assert len(logs) == 4 and all("belongs to the log" in log for log in logs)


def test_the_longest_runs_start_first_and_equals_in_the_order_asked_for(tmp_path):
    many = [fake(0, steps=2), fake(1, steps=5), fake(2, steps=2), fake(3, steps=3)]
    train(many, tmp_path, workers=1)
    assert [seed for seed, *_ in trained(tmp_path)] == ["1", "3", "0", "2"]


def test_one_worker_is_this_process_and_leaves_its_threads_as_they_were(tmp_path, capsys):
    torch.set_num_threads(3)
    try:
        train([fake(0), fake(1)], tmp_path, workers=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert {tuple(row[1:]) for row in trained(tmp_path)} == {(str(os.getpid()), "1")}
    assert capsys.readouterr().out == ""


def test_finished_runs_are_reused_without_starting_a_process(tmp_path, monkeypatch):
    folders = train([fake(0)], tmp_path)

    def never(*args, **kwargs):
        raise AssertionError("a process was started")

    with monkeypatch.context() as patch:
        patch.setattr(parallel, "Parallel", never)
        assert train([fake(0), fake(0)], tmp_path) == folders * 2
    train([fake(0)], tmp_path, fresh=True)
    assert len(trained(tmp_path)) == 2


def test_a_failed_run_and_a_killed_worker_do_not_harm_the_others(tmp_path):
    configs = [fake(0, do="die"), fake(1, do="fail"), fake(2, do="mistake"), fake(3)]
    with pytest.raises(ScopeError) as caught:
        train([*configs, fake(4)], tmp_path, workers=2)
    message = str(caught.value)
    assert "3 of 5 runs failed" in message and "\n" not in message
    assert f"{run_folder(tmp_path, configs[0]).name}: its process was killed" in message
    assert "ValueError: this seed is unlucky" in message
    assert f"{run_folder(tmp_path, configs[2]).name}: no such world" in message and str(tmp_path / "logs") in message
    log = next((tmp_path / "logs").glob("persuasion-fail*.log")).read_text(encoding="utf-8")
    assert "Traceback" in log and "this seed is unlucky" in log
    states = runs.list_runs(tmp_path).set_index("name")["state"]
    assert states.filter(like="persuasion-train").tolist() == ["finished", "finished"]
    assert states.filter(like="persuasion-die").tolist() == ["interrupted"]


@pytest.mark.parametrize("place", ["logs", f"logs/{run_folder(HERE, fake(0)).name}.log"])
def test_a_log_that_cannot_be_written_is_one_line(tmp_path, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(tmp_path / place)
    with pytest.raises(ScopeError, match=r"cannot use .*logs") as caught:
        train([fake(0)], tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_stops_the_workers_and_leaves_the_runs_resumable(tmp_path, workers):
    configs = [fake(seed, steps=500, do="sleep") for seed in range(workers)]
    folders = [run_folder(tmp_path, config) for config in configs]

    def interrupt_once_running():
        wait_for(lambda: all(runs.read_status(folder)["step"] >= 1 for folder in folders))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_once_running)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        train(configs, tmp_path, workers=workers)
    thread.join()
    wait_for(lambda: all(runs.read_status(folder)["state"] in ("failed", "interrupted") for folder in folders))
    for config in configs:
        with opened(config, tmp_path) as run:
            assert not run.finished


def test_workers_stop_when_the_process_that_started_them_is_killed(tmp_path):
    configs = [fake(seed, steps=500, do="sleep") for seed in (0, 1)]
    folders = [run_folder(tmp_path, config) for config in configs]
    # no __main__ guard on purpose: scripts and notebooks have none
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, pathlib; sys.path.insert(0, {str(HERE)!r})\n"
        "from scope_lite.experiments import parallel\nfrom test_parallel import fake, fake_train\n"
        "configs = [fake(seed, 500, 'sleep') for seed in (0, 1)]\n"
        f"parallel.train_many(configs, pathlib.Path({str(tmp_path)!r}), workers=2, train=fake_train)\n",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE) as process:
        wait_for(lambda: all(runs.read_status(folder)["step"] >= 1 for folder in folders))
        process.kill()
    wait_for(lambda: all(runs.read_status(folder)["state"] == "failed" for folder in folders))


def wait_for(condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_the_bar_counts_steps_over_all_runs_and_names_what_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(parallel, "LOG_SECONDS", 0.05)
    configs = [fake(seed, steps=4, do="sleep") for seed in (0, 1)]
    parallel.train_many(configs, tmp_path, workers=1, train=fake_train)
    shown = capsys.readouterr().err
    assert "8/8" in shown and "persuasion-sleep-seed" in shown


def test_a_run_that_is_trained_again_does_not_count_as_done(tmp_path):
    (folder,) = train([fake(0)], tmp_path)
    assert parallel._steps_done(folder, fresh=False) == 3 and parallel._steps_done(folder, fresh=True) == 0
    successor = folder.with_name(folder.name + ".fresh")
    successor.mkdir()
    (successor / "status").write_text(
        json.dumps({"state": "running", "step": 2, "steps": 3, "pid": os.getpid()}), encoding="utf-8"
    )
    assert parallel._steps_done(folder, fresh=True) == 2
