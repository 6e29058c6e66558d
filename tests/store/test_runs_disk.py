"""What a disk refuses, what stands where a folder should be, and who runs: one line each, and nothing lost."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fuzz_runs import Runs, fuzz
from scope_lite import store as runs
from scope_lite.experiments.text_models.adapter import working
from scope_lite.store import files
from scope_lite.store.errors import ScopeError
from scope_lite.store.folder import lock_path
from tests.store.test_runs import finish_run, open_run, snapshot, weights
from tests.store.test_runs_damage import DEEP, no_git, steps_of, stopped_run

__all__ = ["no_git"]  # a fixture for every test here, too


# -- what a disk refuses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [code for codes in files.TROUBLE for code in codes])
def test_whatever_a_disk_refuses_is_one_line_with_the_file_and_what_to_do(tmp_path, monkeypatch, code):
    def refuse(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(ScopeError) as caught:
        files.replace_text(tmp_path / "status", "x")
    assert "status" in str(caught.value) and ";" in str(caught.value) and "\n" not in str(caught.value)


def test_a_limit_on_the_size_of_files_is_told_as_a_full_disk_is_and_costs_nothing(tmp_path):
    folder = stopped_run(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(ScopeError, match="ulimit -f"), open_run(tmp_path, steps=99) as run:
        run.load_checkpoint()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
        try:
            for step in range(7, 99):
                run.log({"step": step, "reward": 0.1}, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert steps_of(folder / "metrics.jsonl")[-1] == step - 1
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 6


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_before_anything_is_written(tmp_path, monkeypatch, code):
    def refuse(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for opened in (lambda: open_run(tmp_path).__enter__(), lambda: working(tmp_path / "work", {}, False).__enter__()):
        with pytest.raises(ScopeError, match=r"keeps no locks.*local disk"):
            opened()
    assert not list(tmp_path.glob("persuasion*")) and not (tmp_path / "work" / "settings.json").exists()


# -- links, and files where folders should be -----------------------------------------------------------------------


def moved(folder: Path, elsewhere: Path) -> Path:
    """The folder on another disk, with a link left behind."""
    target = elsewhere / folder.name
    shutil.move(folder, target)
    folder.symlink_to(target)
    return target


def test_a_run_behind_a_link_is_resumed_and_fresh_begins_anew_beside_what_it_leaves(tmp_path, caplog):
    (tmp_path / "disk").mkdir()
    folder = stopped_run(tmp_path / "runs")
    target = moved(folder, tmp_path / "disk")
    with open_run(tmp_path / "runs", steps=99) as run:
        assert run.load_checkpoint().step == 6
    before = snapshot(target)
    with open_run(tmp_path / "runs", fresh=True, steps=99) as run:
        assert run.load_checkpoint() is None and not folder.is_symlink()
    assert snapshot(target) == before and str(target) in caplog.text


@pytest.mark.parametrize("finished", [True, False])
def test_pruning_a_link_takes_the_link_and_says_what_stays(tmp_path, finished):
    (tmp_path / "disk").mkdir()
    folder = finish_run(tmp_path / "runs") if finished else stopped_run(tmp_path / "runs")
    target = moved(folder, tmp_path / "disk")
    before = snapshot(target)
    for dry_run in (True, False):
        (item,) = runs.prune(tmp_path / "runs", finished=True, dry_run=dry_run)
        assert f"a link, {target} stays" in item.why and item.size == 0
        assert folder.is_symlink() == dry_run and snapshot(target) == before


@pytest.mark.parametrize("kind", ["to nowhere", "to itself", "file"])
@pytest.mark.parametrize("place", [".", "checkpoints"])
def test_what_is_no_folder_is_told_and_fresh_takes_its_place(tmp_path, kind, place):
    folder = stopped_run(tmp_path)
    path = folder / place
    shutil.move(path, tmp_path / "aside")
    path.write_text("x", encoding="utf-8") if kind == "file" else path.symlink_to(
        "nowhere" if kind == "to nowhere" else path
    )
    records = snapshot(folder) if place == "checkpoints" else {}
    with pytest.raises(ScopeError) as caught, open_run(tmp_path, steps=99) as run:
        run.load_checkpoint()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert all((folder / name).read_bytes() == records[name] for name in records if name.endswith(".jsonl"))
    with open_run(tmp_path, fresh=True, steps=99) as run:
        assert run.load_checkpoint() is None
        run.save_checkpoint(1, weights(1), {})


def test_fresh_over_what_may_not_be_removed_is_told_and_not_a_resume(tmp_path, monkeypatch):
    def closed(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    stopped_run(tmp_path)
    monkeypatch.setattr(files.shutil, "rmtree", closed)
    with pytest.raises(ScopeError, match="Permission denied"), open_run(tmp_path, fresh=True, steps=99):
        pass


def test_an_adapters_folder_behind_a_link_is_replaced_and_odd_settings_are_told(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "old").write_text("x", encoding="utf-8")
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    with files.replacing(tmp_path / "out") as beside:
        (beside / "new").write_text("x", encoding="utf-8")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"] and (tmp_path / "disk" / "old").exists()
    for text in ("[]", DEEP, "\0"):
        with working(tmp_path / "work", {"a": 1}, fresh=True):
            pass
        (tmp_path / "work" / "settings.json").write_text(text, encoding="utf-8")
        with pytest.raises(ScopeError, match=r"settings.json cannot be read"), working(tmp_path / "work", {}, False):
            pass


# -- who runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pid", [1, "mine", None])
def test_a_number_of_a_process_does_not_make_a_run_run(tmp_path, pid):
    pid = os.getpid() if pid == "mine" else pid
    folder = stopped_run(tmp_path)
    status = json.loads((folder / "status").read_text(encoding="utf-8"))
    (folder / "status").write_text(
        json.dumps({**status, "state": "running", "pid": pid, "since": 1e9}), encoding="utf-8"
    )
    assert runs.read_status(folder)["state"] == "interrupted"
    assert [item.why for item in runs.prune(tmp_path)] == ["interrupted"]
    lock = files.take_lock(lock_path(folder))
    try:
        assert runs.read_status(folder)["state"] == "running" and runs.prune(tmp_path) == []
        with (
            pytest.raises(ScopeError, match="in use by another process") as caught,
            open_run(tmp_path, steps=99),
        ):
            pass
        # nobody is told to stop whoever has that number now
        assert str(pid) not in str(caught.value).replace(str(folder), "")
    finally:
        lock.release()


def test_looking_whether_a_run_runs_writes_nothing(tmp_path):
    folder = stopped_run(tmp_path / "runs")
    shutil.copytree(folder, tmp_path / "copy" / folder.name)
    status = tmp_path / "copy" / folder.name / "status"
    status.write_text(status.read_text(encoding="utf-8").replace('"failed"', '"running"'), encoding="utf-8")
    assert runs.list_runs(tmp_path / "copy")["state"].tolist() == ["interrupted"]
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [folder.name]


# -- all of it at random --------------------------------------------------------------------------------------------


def test_no_damage_ends_in_a_traceback_or_in_another_run(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("scope_lite"), "disabled", True)
    both = Runs(tmp_path)
    for what in ("checkpoints", "records"):
        seen, failed = fuzz(what, 20, 1, both, tmp_path)
        assert not failed, "\n".join(failed)
        assert len(seen) >= 2  # the damage did something


def test_a_run_killed_at_random_instants_ends_as_the_one_that_was_left_alone():
    command = [sys.executable, "benchmarks/kills.py", "--kills", "3", "--steps", "6"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0 and "0 could not go on, 0 files differ" in done.stdout, done.stdout + done.stderr
