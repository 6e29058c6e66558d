"""Run folders keep their promises under kills, full disks, damaged files and a second writer."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from scope_lite import store as runs
from scope_lite.store import checkpoints, files
from scope_lite.store.errors import ScopeError

CONFIG = {"method": "single", "world": "persuasion", "seed": 0, "model": "qwen3-nano", "steps": 4}
NAME = "persuasion-single-seed0"
FOLDER = f"{NAME}-00123456"


def made_of(seed: int = 0) -> dict[str, dict[str, object]]:
    return {"settings": {"seed": seed}, "files": {"model": "digest"}}


def open_run(root: Path, fresh: bool = False, **changes) -> runs.RunFolder:
    config = {**CONFIG, **changes}
    seed = config["seed"]
    path = root / f"{config['world']}-{config['method']}-seed{seed}-{seed}0123456"
    return runs.RunFolder(path, config, made_of(seed), fresh=fresh)


def weights(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"policy": {"lora.A": torch.full((2, 3), value)}, "optimizer": {"lora.A.exp_avg": torch.zeros(2, 3)}}


def finish_run(root: Path, reward: float = 0.5, fresh: bool = False, **changes) -> Path:
    with open_run(root, fresh, **changes) as run:
        for step in range(1, 5):
            run.log({"step": step, "reward": reward * step}, {"step_seconds": 0.1})
            run.log_rollouts([{"step": step, "text": "hello"}])
            run.save_checkpoint(step, weights(step), {"rng": step})
            run.progress(step, 4)
        return run.finish()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_python(code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, encoding="utf-8")


def child(root: Path, body: str) -> subprocess.Popen:
    """Another process with the run open, doing ``body``."""
    lines = "\n    ".join(body.splitlines())
    return run_python(
        "import os, signal, sys, time, pathlib, torch\n"
        "from scope_lite import store as runs\nfrom scope_lite.store import checkpoints\n"
        f"with runs.RunFolder(pathlib.Path({str(root / FOLDER)!r}), {CONFIG!r}, {made_of()!r}) as run:\n    {lines}\n"
    )


# -- the folder -----------------------------------------------------------------------------------------------------


def test_a_finished_run_has_every_file_the_design_names(tmp_path):
    folder = finish_run(tmp_path)
    assert folder == tmp_path / FOLDER
    names = {path.name for path in folder.iterdir()}
    expected = {"config.yaml", "provenance.json", "metrics.jsonl", "timing.jsonl", "rollouts.jsonl", "checkpoints"}
    assert names == expected | {"status"}
    assert yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) == CONFIG
    facts = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    assert facts["packages"]["torch"] and facts["started"].endswith("+00:00") and facts["ended"] >= facts["started"]
    assert json.loads((folder / "status").read_text(encoding="utf-8"))["summary"] == {"step": 4, "reward": 2.0}


def test_a_finished_run_is_reused_without_a_lock_and_cannot_be_written(tmp_path):
    before = snapshot(finish_run(tmp_path))
    with open_run(tmp_path) as first, open_run(tmp_path) as second:
        assert first.finished and second.finished
        assert second.load_checkpoint().step == 4
        with pytest.raises(RuntimeError):
            first.log({"step": 5}, {})
    assert snapshot(first.path) == before


def test_floats_come_back_bit_for_bit_and_timings_stay_out_of_the_metrics(tmp_path):
    value = 0.1 + 0.2
    with open_run(tmp_path) as run:
        run.log({"step": 1, "reward": value, "kl": np.float32(0.1), "panel/unseen/reward": None}, {"step_seconds": 1.5})
        line = json.loads((run.path / "metrics.jsonl").read_text(encoding="utf-8"))
        timing = json.loads((run.path / "timing.jsonl").read_text(encoding="utf-8"))
    assert line == {"step": 1, "reward": value, "kl": float(np.float32(0.1)), "panel/unseen/reward": None}
    assert timing == {"step": 1, "step_seconds": 1.5}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan"), torch.tensor([0.0, float("nan")])])
def test_a_nan_metric_is_refused_by_name_and_leaves_no_line(tmp_path, value):
    with open_run(tmp_path) as run:
        with pytest.raises(ValueError, match=r"metrics at step 3: kl is NaN or infinite"):
            run.log({"step": 3, "kl": value}, {})
        assert (run.path / "metrics.jsonl").read_text(encoding="utf-8") == ""


def test_a_rollout_without_its_step_is_refused(tmp_path):
    with open_run(tmp_path) as run, pytest.raises(ValueError, match="step"):
        run.log_rollouts([{"text": "hello"}])


@pytest.mark.parametrize(
    "error, reason",
    [(ValueError("boom\nmore"), "ValueError: boom"), (KeyboardInterrupt(), "interrupted from the keyboard")],
)
def test_an_exception_marks_the_run_failed_with_its_reason_and_resumable(tmp_path, error, reason):
    with pytest.raises(type(error)), open_run(tmp_path) as run:
        run.save_checkpoint(2, weights(2.0), {})
        raise error
    status = runs.read_status(run.path)
    assert (status["state"], status["reason"]) == ("failed", reason)
    with open_run(tmp_path) as again:
        assert again.load_checkpoint().step == 2
        assert runs.read_status(run.path)["state"] == "running"
        again.finish()
    facts = json.loads((run.path / "provenance.json").read_text(encoding="utf-8"))
    assert len(facts["resumed"]) == 1 and facts["ended"]


@pytest.mark.parametrize("done", [False, True])
def test_a_folder_of_another_configuration_is_refused_with_what_differs(tmp_path, done):
    finish_run(tmp_path) if done else open_run(tmp_path).__enter__().__exit__(None, None, None)
    # a key of this version alone is at its default, or the folder had another name; a model that changed is another
    for changed, told in (
        ({"settings": {"seed": 1}}, "seed"), ({"files": {"model": "other"}}, "model"), ({"files": {}}, "model"),
        ({"files": {"model": "digest", "more": "digest"}}, "more"),
    ):  # fmt: skip
        with pytest.raises(ScopeError, match=rf"another configuration \({told} differ\)"):
            runs.RunFolder(tmp_path / FOLDER, CONFIG, {**made_of(), **changed}).__enter__()
    with runs.RunFolder(tmp_path / FOLDER, CONFIG, {**made_of(), "settings": {"seed": 0, "warmup": 0}}) as run:
        assert run.finished == done


@pytest.mark.parametrize("done", [False, True])
def test_a_run_that_an_earlier_version_named_is_told_and_taken_up_under_its_new_name(tmp_path, done):
    earlier = tmp_path / f"{NAME}-ffffffff"
    with open_run(tmp_path) as run:
        run.finish() if done else None
    facts = json.loads((run.path / "provenance.json").read_text(encoding="utf-8"))
    del facts["made_of"]
    (run.path / "provenance.json").write_text(json.dumps({**facts, "fingerprint": "f" * 64}), encoding="utf-8")
    run.path.rename(earlier)
    with pytest.raises(ScopeError, match=rf"{earlier.name} holds this run.*rename the folder to {FOLDER}.*--fresh"):
        open_run(tmp_path).__enter__()
    with open_run(tmp_path, steps=5):
        pass  # other settings are another run
    shutil.rmtree(tmp_path / FOLDER)
    earlier.rename(tmp_path / FOLDER)
    with open_run(tmp_path) as run:
        assert run.finished == done


# -- the lock -------------------------------------------------------------------------------------------------------


def test_a_run_in_use_by_another_process_is_refused_with_folder_and_pid(tmp_path):
    other = child(tmp_path, "print('ready', flush=True)\ntime.sleep(60)")
    try:
        assert other.stdout.readline().strip() == "ready"
        for fresh in (False, True):
            with pytest.raises(ScopeError) as caught, open_run(tmp_path, fresh=fresh):
                pass
            assert str(tmp_path / FOLDER) in str(caught.value)
            assert str(other.pid) in str(caught.value) and "\n" not in str(caught.value)
        assert runs.list_runs(tmp_path)["state"].tolist() == ["running"]
        assert runs.prune(tmp_path, dry_run=False) == []
    finally:
        other.kill()
        other.wait()
    assert runs.list_runs(tmp_path)["state"].tolist() == ["interrupted"]
    with open_run(tmp_path) as run:
        assert not run.finished


# -- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_gives_back_tensors_and_state_exactly(tmp_path):
    state = {"rng": [1, 2, 2**63], "pool": {10: "b", 2: "a"}, "lr": 0.1 + 0.2, "ema": np.float64(0.3)}
    tensors = {"policy": {"a": torch.randn(3, 2).t(), "b": torch.tensor(7)}}
    with open_run(tmp_path) as run:
        run.save_checkpoint(3, tensors, state)
        loaded = run.load_checkpoint()
    assert torch.equal(loaded.tensors["policy"]["a"], tensors["policy"]["a"])
    assert torch.equal(loaded.tensors["policy"]["b"], tensors["policy"]["b"])
    assert loaded.state == {**state, "pool": {"10": "b", "2": "a"}, "ema": 0.3}


def test_the_last_two_checkpoints_stay_by_number_and_not_by_spelling(tmp_path):
    with open_run(tmp_path) as run:
        for step in (40, 999_998, 999_999, 1_000_000, 1_000_001):
            run.save_checkpoint(step, weights(step), {})
        names = [path.name for path in checkpoints.steps_in(run.path / "checkpoints")]
        assert names == ["step_1000000", "step_1000001"] and run.load_checkpoint().step == 1_000_001


@pytest.mark.parametrize("name", ["policy.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog, name, damage):
    with open_run(tmp_path) as run:
        run.save_checkpoint(1, weights(1.0), {"rng": 1})
        path = run.save_checkpoint(2, weights(2.0), {"rng": 2}) / name
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            middle = len(data) // 2
            path.write_bytes(data[:middle] + (b"" if damage == "cut" else b"\x00" + data[middle + 1 :]))
        assert run.load_checkpoint().step == 1
        assert "step_000002" in caplog.text
        # the loop goes on and writes step 2 again over the damaged one
        run.save_checkpoint(2, weights(2.0), {"rng": 2})
        assert run.load_checkpoint().step == 2


def test_without_a_readable_checkpoint_the_run_starts_again_from_nothing(tmp_path):
    with open_run(tmp_path) as run:
        run.log({"step": 1, "reward": 0.0}, {})
        (run.save_checkpoint(1, weights(1.0), {}) / "state.json").write_text("{", encoding="utf-8")
    with open_run(tmp_path) as run:
        assert run.load_checkpoint() is None
        assert (run.path / "metrics.jsonl").read_text(encoding="utf-8") == ""


def test_a_kill_in_the_middle_of_a_checkpoint_leaves_the_one_before(tmp_path):
    body = (
        "run.save_checkpoint(1, {'policy': {'w': torch.ones(2)}}, {})\n"
        "write = checkpoints.write_synced\n"
        "def killed(path, data):\n"
        "    if path.name == 'state.json':\n"
        "        path.write_bytes(data[:20]); os.kill(os.getpid(), signal.SIGKILL)\n"
        "    write(path, data)\n"
        "checkpoints.write_synced = killed\n"
        "run.save_checkpoint(2, {'policy': {'w': torch.zeros(2)}}, {})"
    )
    process = child(tmp_path, body)
    assert process.wait(timeout=60) == -signal.SIGKILL
    folder = tmp_path / FOLDER / "checkpoints"
    assert (folder / ".step_000002").is_dir(), "the kill came too early to prove anything"
    with open_run(tmp_path) as run:
        assert run.load_checkpoint().step == 1
        run.save_checkpoint(2, weights(0.0), {})
        assert sorted(path.name for path in folder.iterdir()) == ["step_000001", "step_000002"]


def test_resuming_drops_what_came_after_the_checkpoint_and_keeps_the_rest_bit_for_bit(tmp_path):
    with pytest.raises(ValueError, match="stop"), open_run(tmp_path) as run:
        for step in range(1, 6):
            run.log({"step": step, "reward": step / 3}, {"step_seconds": 1.0})
            run.log_rollouts([{"step": step, "text": "é"}])
            if step == 3:
                run.save_checkpoint(step, weights(3.0), {})
                before = {name: (run.path / name).read_bytes() for name in runs.folder.RECORDS}
        raise ValueError("stop")
    with (run.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 6, "rew')
    with open_run(tmp_path) as again:
        assert again.load_checkpoint().step == 3
        assert {name: (run.path / name).read_bytes() for name in runs.folder.RECORDS} == before


# -- a full disk ----------------------------------------------------------------------------------------------------


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_while_saving_is_one_line_and_the_last_checkpoint_is_intact(tmp_path, monkeypatch):
    with pytest.raises(ScopeError) as caught, open_run(tmp_path) as run:
        run.log({"step": 1, "reward": 1.0}, {})
        run.save_checkpoint(1, weights(1.0), {})
        monkeypatch.setattr(files.os, "fsync", full)
        run.save_checkpoint(2, weights(2.0), {})
    assert "disk is full" in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.undo()
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step_000001"]
    with open_run(tmp_path) as again:
        assert again.load_checkpoint().step == 1


def test_a_full_disk_in_the_middle_of_a_line_takes_the_half_line_back(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n', encoding="utf-8")
    real_open = Path.open

    def half(self, *args, **kwargs):
        file = real_open(self, *args, **kwargs)
        if args == ("ab",):
            file.write(b'{"st')
            file.flush()
            full()
        return file

    monkeypatch.setattr(Path, "open", half)
    with pytest.raises(ScopeError, match="disk is full"):
        files.append_text(path, '{"step": 2}\n')
    assert path.read_text(encoding="utf-8") == '{"step": 1}\n'


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "status"
    files.replace_text(path, "old")
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ScopeError):
        files.replace_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [path]


def test_a_read_only_place_is_one_line(tmp_path, monkeypatch):
    def closed(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", closed)
    with pytest.raises(ScopeError, match="Permission denied"), open_run(tmp_path / "new"):
        pass


# -- fresh ----------------------------------------------------------------------------------------------------------


def test_fresh_replaces_a_finished_run_only_when_the_new_one_has_finished(tmp_path):
    folder = finish_run(tmp_path)
    before = snapshot(folder)
    with open_run(tmp_path, fresh=True) as run:
        assert not run.finished and run.load_checkpoint() is None
        run.log({"step": 1, "reward": 9.0}, {})
        assert snapshot(folder) == before
        assert run.finish() == folder == run.path
    assert runs.load_metrics([folder])["reward"].tolist() == [9.0]
    assert runs.list_runs(tmp_path)["name"].tolist() == [folder.name]


def test_a_fresh_run_that_fails_never_harms_the_finished_one(tmp_path):
    folder = finish_run(tmp_path)
    before = snapshot(folder)
    for _ in range(2):
        with pytest.raises(ValueError, match="boom"), open_run(tmp_path, fresh=True) as run:
            run.log({"step": 1, "reward": 9.0}, {})
            raise ValueError("boom")
        assert snapshot(folder) == before
    with open_run(tmp_path) as run:
        assert run.finished


def test_fresh_over_an_unfinished_run_starts_from_nothing(tmp_path):
    with open_run(tmp_path) as run:
        run.log({"step": 1, "reward": 1.0}, {})
        run.save_checkpoint(1, weights(1.0), {})
    with open_run(tmp_path, fresh=True) as run:
        assert run.load_checkpoint() is None
        assert (run.path / "metrics.jsonl").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("killed_after", ["finish", "first rename", "second rename"])
def test_a_swap_cut_short_by_a_kill_is_completed_on_the_next_opening(tmp_path, killed_after):
    folder = finish_run(tmp_path)
    successor = finish_run(tmp_path / "elsewhere", reward=9.0)
    if killed_after != "finish":
        folder.rename(tmp_path / f"{folder.name}.old")
    successor.rename(folder if killed_after == "second rename" else tmp_path / f"{folder.name}.fresh")
    with open_run(tmp_path) as run:
        # with the old run still in place it is the one to use until a writer comes
        expected = 2.0 if killed_after == "finish" else 36.0
        assert run.finished and runs.load_metrics([folder])["reward"].iloc[-1] == expected
