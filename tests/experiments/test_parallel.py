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
from scope_lite.store.errors import ScopeError

HERE = Path(__file__).parent


class FakeConfig:
    """What train_many asks of a configuration."""

    def __init__(self, seed: int, steps: int = 3, do: str = "train"):
        self.seed, self.steps, self.do = seed, steps, do

    def run_name(self) -> str:
        return f"world-{self.do}-seed{self.seed}"

    def fingerprint(self) -> str:
        return f"{self.seed:08x}{self.do}{self.steps}"


def fake_train(fake: FakeConfig, root: Path, fresh: bool) -> None:
    """A training in a worker process: does what the configuration says."""
    with (root / "trained.txt").open("a", encoding="utf-8") as file:
        file.write(f"{fake.seed} {os.getpid()} {torch.get_num_threads()}\n")
    with runs.RunFolder(root, {}, fake.run_name(), fake.fingerprint(), fresh) as run:
        if run.finished:  # in a pool that broke before it could tell: as in the real training, nothing is left to do
            return
        for step in range(1, fake.steps + 1):
            run.log({"step": step, "reward": 0.0}, {})
            run.progress(step, fake.steps)
            if fake.do == "fail":
                raise ValueError("this seed is unlucky\nand more")
            if fake.do == "mistake":
                raise ScopeError("no such world")
            if fake.do == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if fake.do == "sleep":
                time.sleep(0.2)
        print("chatter on standard output belongs to the log")
        run.finish()


def trained(root: Path) -> list[list[str]]:
    return [line.split() for line in (root / "trained.txt").read_text(encoding="utf-8").splitlines()]


def train(configs: list[FakeConfig], root: Path, **options) -> list[Path]:
    return parallel.train_many(configs, root, progress=False, train=fake_train, **options)


def test_every_run_is_trained_once_by_workers_that_live_on(tmp_path):
    configs = [FakeConfig(seed) for seed in (0, 1, 2, 1, 3)]
    folders = train(configs, tmp_path, workers=2)
    assert folders == [runs.folder_path(tmp_path, c.run_name(), c.fingerprint()) for c in configs]
    assert all(runs.is_finished(folder) for folder in folders)
    rows = trained(tmp_path)
    assert sorted(row[0] for row in rows) == ["0", "1", "2", "3"]
    assert len({row[1] for row in rows} - {str(os.getpid())}) in (1, 2) and {row[2] for row in rows} == {"1"}
    logs = [path.read_text(encoding="utf-8") for path in (tmp_path / "logs").iterdir()]
    assert len(logs) == 4 and all("belongs to the log" in log for log in logs)


def test_the_longest_runs_start_first_and_equals_in_the_order_asked_for(tmp_path):
    many = [FakeConfig(0, steps=2), FakeConfig(1, steps=5), FakeConfig(2, steps=2), FakeConfig(3, steps=3)]
    train(many, tmp_path, workers=1)
    assert [seed for seed, *_ in trained(tmp_path)] == ["1", "3", "0", "2"]


def test_one_worker_is_this_process_and_leaves_its_threads_as_they_were(tmp_path, capsys):
    torch.set_num_threads(3)
    try:
        train([FakeConfig(0), FakeConfig(1)], tmp_path, workers=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert {tuple(row[1:]) for row in trained(tmp_path)} == {(str(os.getpid()), "1")}
    assert capsys.readouterr().out == ""


def test_finished_runs_are_reused_without_starting_a_process(tmp_path, monkeypatch):
    folders = train([FakeConfig(0)], tmp_path)

    def never(*args, **kwargs):
        raise AssertionError("a process was started")

    with monkeypatch.context() as patch:
        patch.setattr(parallel, "Parallel", never)
        assert train([FakeConfig(0), FakeConfig(0)], tmp_path) == folders * 2
    train([FakeConfig(0)], tmp_path, fresh=True)
    assert len(trained(tmp_path)) == 2


def test_a_failed_run_and_a_killed_worker_do_not_harm_the_others(tmp_path):
    configs = [FakeConfig(0, do="die"), FakeConfig(1, do="fail"), FakeConfig(2, do="mistake"), FakeConfig(3)]
    with pytest.raises(ScopeError) as caught:
        train([*configs, FakeConfig(4)], tmp_path, workers=2)
    message = str(caught.value)
    assert "3 of 5 runs failed" in message and "\n" not in message
    assert "world-die-seed0-00000000: its process was killed" in message
    assert "ValueError: this seed is unlucky" in message
    assert "world-mistake-seed2-00000002: no such world" in message and str(tmp_path / "logs") in message
    log = next((tmp_path / "logs").glob("world-fail*.log")).read_text(encoding="utf-8")
    assert "Traceback" in log and "this seed is unlucky" in log
    states = runs.list_runs(tmp_path).set_index("name")["state"]
    assert states.filter(like="world-train").tolist() == ["finished", "finished"]
    assert states.filter(like="world-die").tolist() == ["interrupted"]


@pytest.mark.parametrize("place", ["logs", "logs/world-train-seed0-00000000.log"])
def test_a_log_that_cannot_be_written_is_one_line(tmp_path, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(tmp_path / place)
    with pytest.raises(ScopeError, match=r"cannot use .*logs") as caught:
        train([FakeConfig(0)], tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_stops_the_workers_and_leaves_the_runs_resumable(tmp_path, workers):
    configs = [FakeConfig(seed, steps=500, do="sleep") for seed in range(workers)]
    folders = [runs.folder_path(tmp_path, config.run_name(), config.fingerprint()) for config in configs]

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
        with runs.RunFolder(tmp_path, {}, config.run_name(), config.fingerprint()) as run:
            assert not run.finished


def test_workers_stop_when_the_process_that_started_them_is_killed(tmp_path):
    configs = [FakeConfig(seed, steps=500, do="sleep") for seed in (0, 1)]
    folders = [runs.folder_path(tmp_path, config.run_name(), config.fingerprint()) for config in configs]
    # no __main__ guard on purpose: scripts and notebooks have none
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, pathlib; sys.path.insert(0, {str(HERE)!r})\n"
        "from scope_lite.experiments import parallel\nfrom test_parallel import FakeConfig, fake_train\n"
        "configs = [FakeConfig(seed, 500, 'sleep') for seed in (0, 1)]\n"
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
    configs = [FakeConfig(seed, steps=4, do="sleep") for seed in (0, 1)]
    parallel.train_many(configs, tmp_path, workers=1, train=fake_train)
    shown = capsys.readouterr().err
    assert "8/8" in shown and "world-sleep-seed" in shown


def test_a_run_that_is_trained_again_does_not_count_as_done(tmp_path):
    (folder,) = train([FakeConfig(0)], tmp_path)
    assert parallel._steps_done(folder, fresh=False) == 3 and parallel._steps_done(folder, fresh=True) == 0
    successor = folder.with_name(folder.name + ".fresh")
    successor.mkdir()
    (successor / "status").write_text(
        json.dumps({"state": "running", "step": 2, "steps": 3, "pid": os.getpid()}), encoding="utf-8"
    )
    assert parallel._steps_done(folder, fresh=True) == 2
