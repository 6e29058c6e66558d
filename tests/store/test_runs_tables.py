"""Finished runs as tables: read, listed, found, compared, pruned."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scope_lite import store as runs
from scope_lite.store.errors import ScopeError
from tests.store.test_runs import NAME, finish_run, open_run


def test_metrics_of_many_runs_load_as_one_tidy_table(tmp_path):
    folders = [finish_run(tmp_path, seed=seed) for seed in (0, 1)]
    table = runs.load_metrics(folders)
    assert table.columns.tolist() == ["run", "method", "world", "seed", "model", "step", "reward"]
    assert table.groupby("seed").size().to_dict() == {0: 4, 1: 4}
    assert runs.load_timing(folders)["step_seconds"].tolist() == [0.1] * 8
    assert len(runs.load_rollouts(folders)) == 8
    assert runs.load_metrics([]).empty


def test_a_cut_last_line_is_left_out_and_a_broken_middle_line_is_named(tmp_path, caplog):
    folder = finish_run(tmp_path)
    path = folder / "metrics.jsonl"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + '{"step": 5, "rew', encoding="utf-8")
    assert len(runs.load_metrics([folder])) == 4
    assert "cut off" in caplog.text
    lines = whole.splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-4], *lines[2:]]) + "\n", encoding="utf-8")
    with pytest.raises(ScopeError, match=r"metrics\.jsonl, line 2"):
        runs.load_metrics([folder])


def test_runs_are_listed_and_found_by_the_beginning_of_their_name(tmp_path):
    first, second = finish_run(tmp_path), finish_run(tmp_path, seed=1)
    table = runs.list_runs(tmp_path).set_index("name")
    assert table.loc[first.name, ["state", "step", "steps", "reward"]].tolist() == ["finished", 4, 4, 2.0]
    assert runs.list_runs(tmp_path / "nowhere").empty
    assert runs.find(tmp_path, "persuasion-single-seed1") == second
    assert runs.find(tmp_path, first) == first
    with pytest.raises(ScopeError, match="fits 2 runs"):
        runs.find(tmp_path, "persuasion")
    with pytest.raises(ScopeError, match="did you mean"):
        runs.find(tmp_path, "persuasoin-single-seed1")


def test_comparing_shows_the_settings_that_differ_and_the_ends(tmp_path):
    result = runs.compare(finish_run(tmp_path), finish_run(tmp_path, reward=1.0, seed=1))
    assert result.config.values.tolist() == [["seed", 0, 1]]
    assert result.metrics.set_index("metric").loc["reward", "difference"] == 2.0


def test_pruning_spares_finished_runs_and_removes_nothing_on_a_dry_run(tmp_path):
    finished = finish_run(tmp_path)
    with open_run(tmp_path, seed=1) as unfinished:
        pass
    for dry_run in (True, False):
        assert [item.path for item in runs.prune(tmp_path, dry_run=dry_run)] == [unfinished.path]
        assert finished.exists() and unfinished.path.exists() == dry_run
    runs.prune(tmp_path, checkpoints=True, dry_run=False)
    assert [path.name for path in (finished / "checkpoints").iterdir()] == ["step_000004"]
    assert runs.prune(tmp_path, keep=[NAME], finished=True, dry_run=False) == []
    runs.prune(tmp_path, finished=True, dry_run=False)
    assert not finished.exists()


def test_reading_runs_does_not_import_torch():
    code = "import sys, scope_lite.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0
