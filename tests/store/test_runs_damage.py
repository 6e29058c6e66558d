"""What a disk may hold instead of what was written: noticed, told in one line, or mended; never taken for whole."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from scope_lite import store as runs
from scope_lite.cli.notebook_runner.ledger import Ledger
from scope_lite.store import checkpoints, provenance
from scope_lite.store.errors import ScopeError
from tests.store.test_runs import finish_run, open_run, snapshot, weights

DEEP = "[" * 100_000


@pytest.fixture(autouse=True)
def no_git(monkeypatch):
    """Asking git where the code comes from takes most of an opening."""
    monkeypatch.setattr(provenance, "git_state", lambda folder: None)


def stopped_run(root: Path, steps: int = 6) -> Path:
    """A run that stopped after this step of more, with checkpoints at every second step."""
    with open_run(root, steps=99) as run:
        for step in range(steps + 1):
            run.log({"step": step, "reward": step / 7}, {"step_seconds": 0.5})
            run.log_rollouts([{"step": step, "text": str(step)}])
            if step and step % 2 == 0:
                run.save_checkpoint(step, weights(step), {"rng": step})
    return run.path


def steps_of(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


# -- checkpoints ----------------------------------------------------------------------------------------------------


def edit_head(path: Path, change) -> None:
    head = json.loads((path / "state.json").read_text(encoding="utf-8"))
    change(head)
    (path / "state.json").write_text(json.dumps(head), encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.update(step=3),
        lambda head: head["sha256"].pop("policy.safetensors"),
        lambda head: head["records"]["metrics.jsonl"].update(bytes=0),
        lambda head: head.update(records={}),
        lambda head: head.update(format=1),
        lambda head: head.pop("head_sha256"),
        lambda head: head.update(sha256=[]),
        lambda head: head.clear(),
    ],
)
def test_a_change_anywhere_in_a_checkpoints_head_is_damage_as_any_other(tmp_path, caplog, change):
    folder = stopped_run(tmp_path)
    edit_head(folder / "checkpoints" / "step_000006", change)
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 4
    assert "step_000006 cannot be read" in caplog.text and DEEP not in caplog.text


@pytest.mark.parametrize("text", [DEEP, "[]", "null", "9" * 5000, "\0" * 50, '{"format": 2}', ""])
def test_a_head_that_is_something_else_is_passed_over(tmp_path, text):
    folder = stopped_run(tmp_path)
    (folder / "checkpoints" / "step_000006" / "state.json").write_text(text, encoding="utf-8")
    (folder / "checkpoints" / "step_000008").write_text("a file", encoding="utf-8")
    (folder / "checkpoints" / "step_000010").symlink_to("step_000010")
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 4


def test_weights_of_the_format_before_can_be_read_but_no_run_goes_on_from_them(tmp_path):
    def older(head):
        body = json.dumps(head["state"], sort_keys=True)
        del head["head_sha256"], head["records"]
        head.update(format=1, keep=True, state_sha256=hashlib.sha256(body.encode()).hexdigest())

    folder = stopped_run(tmp_path, steps=2)
    edit_head(folder / "checkpoints" / "step_000002", older)
    assert checkpoints.load_newest(folder / "checkpoints").state == {"rng": 2}
    with (
        pytest.raises(ScopeError, match=r"an earlier version wrote them.*--fresh"),
        open_run(tmp_path, steps=99) as run,
    ):
        run.load_checkpoint()


def test_what_a_kill_left_beside_the_checkpoints_is_dropped_at_the_next_resume(tmp_path):
    folder = stopped_run(tmp_path) / "checkpoints"
    shutil.copytree(folder / "step_000004", folder / "step_000001")
    shutil.copytree(folder / "step_000004", folder / ".step_000007")
    (folder.parent / ".status.123.tmp").write_text("{", encoding="utf-8")
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 6
        assert sorted(path.name for path in folder.iterdir()) == ["step_000004", "step_000006"]
        assert not list(run.path.glob(".*"))


def test_a_damaged_later_checkpoint_never_costs_the_one_just_written(tmp_path):
    folder = stopped_run(tmp_path)
    for step in (6, 9):
        shutil.copytree(folder / "checkpoints" / "step_000004", folder / "checkpoints" / f"step_{step:06d}x")
    os.rename(folder / "checkpoints" / "step_000006x", folder / "checkpoints" / "step_000008")
    os.rename(folder / "checkpoints" / "step_000009x", folder / "checkpoints" / "step_000009")
    for step in (6, 8, 9):
        (folder / "checkpoints" / f"step_{step:06d}" / "state.json").write_text("{", encoding="utf-8")
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 4
        run.save_checkpoint(5, weights(5), {})
        assert run.load_checkpoint().step == 5


# -- records --------------------------------------------------------------------------------------------------------


def rewritten(change):
    def damage(path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(change(lines)), encoding="utf-8")

    return damage


DAMAGES = {
    "lost at the end": rewritten(lambda lines: lines[:-3]),
    "a line lost": rewritten(lambda lines: lines[:5] + lines[6:]),
    "a line doubled": rewritten(lambda lines: lines[:6] + lines[5:]),
    "another order": rewritten(lambda lines: [*lines[:5], lines[6], lines[5]]),
    "a digit changed": rewritten(lambda lines: [*lines[:5], lines[5].replace("5", "6"), *lines[6:]]),
    "no step": rewritten(lambda lines: [*lines[:5], '{"reward": 1}\n', *lines[6:]]),
}


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts.jsonl"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_records_lead_back_to_the_checkpoint_before_which_they_are_whole(tmp_path, caplog, name, damage):
    folder = stopped_run(tmp_path)
    before = (folder / name).read_bytes()
    DAMAGES[damage](folder / name)
    with open_run(tmp_path, steps=99) as run:
        # three lost lines leave steps 0 to 3
        if damage == "lost at the end":
            with pytest.raises(ScopeError, match=r"no checkpoint goes with metrics.jsonl and rollouts.jsonl.*--fresh"):
                run.load_checkpoint()
            return
        assert run.load_checkpoint().step == 4
    assert steps_of(folder / name) == list(range(5)) and before.startswith((folder / name).read_bytes())
    assert "step_000006 are not what they were" in caplog.text


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts.jsonl"])
@pytest.mark.parametrize("damage", ["gone", "empty", "doubled"])
def test_records_that_no_checkpoint_fits_are_refused_and_left_as_they_are(tmp_path, name, damage):
    folder = stopped_run(tmp_path)
    text = (folder / name).read_text(encoding="utf-8")
    (folder / name).unlink()
    if damage != "gone":
        (folder / name).write_text(
            "".join(line * 2 for line in text.splitlines(True)) if damage == "doubled" else "", encoding="utf-8"
        )
    kept = snapshot(folder / "checkpoints")
    for _ in range(2):
        with pytest.raises(ScopeError, match="--fresh") as caught, open_run(tmp_path, steps=99) as run:
            run.load_checkpoint()
        assert "\n" not in str(caught.value) and snapshot(folder / "checkpoints") == kept
    (folder / name).write_text(text, encoding="utf-8")
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 6


@pytest.mark.parametrize("damage", [*DAMAGES, "gone", "deep"])
def test_damaged_timings_cost_no_step_and_are_told(tmp_path, caplog, damage):
    path = stopped_run(tmp_path) / "timing.jsonl"
    path.unlink() if damage == "gone" else path.write_text(DEEP, encoding="utf-8") if damage == "deep" else DAMAGES[
        damage
    ](path)
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 6
    steps = steps_of(path)
    assert steps == sorted(set(steps)) and ("times of" in caplog.text) == (len(steps) < 7)


def test_lines_reach_the_device_before_the_checkpoint_that_rests_on_them_is_seen(tmp_path, monkeypatch):
    events = []
    with open_run(tmp_path) as run:
        run.log({"step": 0, "reward": 0.0}, {})
        fsync, rename = os.fsync, Path.rename
        named = {os.stat(run.path / name).st_ino: name for name in runs.folder.RECORDS}
        monkeypatch.setattr(os, "fsync", lambda fd: (events.append(named.get(os.fstat(fd).st_ino)), fsync(fd)))
        monkeypatch.setattr(Path, "rename", lambda a, b: (events.append("seen"), rename(a, b))[1])
        run.save_checkpoint(1, weights(1), {})
    assert set(runs.folder.RECORDS) <= set(events[: events.index("seen")])


def test_a_file_system_that_cannot_flush_a_folder_is_good_enough(tmp_path, monkeypatch):
    def flush(fd, fsync=os.fsync):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", flush)
    assert checkpoints.load_newest(stopped_run(tmp_path) / "checkpoints").step == 6


def test_a_run_killed_after_its_last_step_finishes_with_the_numbers_of_that_step(tmp_path):
    stopped_run(tmp_path)
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 6
        folder = run.finish()
    assert json.loads((folder / "status").read_text(encoding="utf-8"))["summary"] == {"step": 6, "reward": 6 / 7}


# -- status, provenance, configuration ------------------------------------------------------------------------------

SHAPES = ["", "[]", "null", "{}", '{"state": "failed"}', '{"started": 1}', DEEP, "9" * 5000, "\0\0", '"x"', "\xff"]


@pytest.mark.parametrize("name", ["status", "provenance.json", "config.yaml"])
@pytest.mark.parametrize("text", SHAPES)
def test_a_small_file_of_another_shape_is_mended_at_the_next_opening(tmp_path, name, text):
    folder = stopped_run(tmp_path)
    before = (folder / "config.yaml").read_bytes()
    # YAML's reader loses its way in six hundred lists, and takes ever longer to do so in more
    (folder / name).write_bytes(text.encode("latin-1")[: 600 if name == "config.yaml" else None])
    assert len(runs.list_runs(tmp_path)) == 1 and runs.compare(folder, folder).config.empty
    with open_run(tmp_path, steps=99) as run:
        assert run.load_checkpoint().step == 6
        run.finish()
    assert (folder / "config.yaml").read_bytes() == before and runs.is_finished(folder)
    facts = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    assert ("note" in facts) == (name == "provenance.json") and facts["made_of"] and facts["ended"]


@pytest.mark.parametrize("value", [None, "4", -1.5, True, [], 10**30])
def test_a_status_whose_numbers_make_no_sense_is_unknown(tmp_path, value):
    folder = finish_run(tmp_path)
    status = json.loads((folder / "status").read_text(encoding="utf-8"))
    (folder / "status").write_text(json.dumps({**status, "step": value}), encoding="utf-8")
    assert runs.read_status(folder)["state"] == "unknown" and runs.list_runs(tmp_path)["step"].tolist() == [0]


@pytest.mark.parametrize("value", ["[1]", '"high"', "NaN", "Infinity", "1e999", "9" * 400, DEEP, "{}"])
def test_a_metric_that_is_no_number_is_told_with_file_line_and_name(tmp_path, value):
    folder = finish_run(tmp_path)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"reward": 1.0', f'"reward": {value}'), encoding="utf-8")
    with pytest.raises(ScopeError, match=r"metrics.jsonl, line 2: .*; the file was damaged, run again"):
        runs.load_metrics([folder])
    assert runs.list_runs(tmp_path)["reward"].tolist() == [None]


@pytest.mark.parametrize("change", [{"acts": 3}, {"replies": None}, {"step": "2"}, {"outcome": []}, {"simulator": {}}])
def test_a_dialogue_of_another_shape_is_told_with_its_line(tmp_path, change):
    dialogue = {"step": 2, "simulator": "a", "acts": [], "replies": [], "outcome": "no", "reward": 0.5}
    with open_run(tmp_path) as run:
        run.log_rollouts([dialogue, {**dialogue, **change}])
    with pytest.raises(ScopeError, match=f"line 2: {next(iter(change))} is missing or makes no sense"):
        runs.kept_dialogues(run.path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        DEEP,
        '{"notebooks": []}',
        '{"notebooks": {"a": 3}}',
        "{}",
        "\0",
        '{"notebooks": {"a": {"key": "", "inputs": {}, "outputs": {}, "seconds": {"nano": "1"}}}}',
    ],
)
def test_a_damaged_ledger_of_the_notebooks_is_told_and_begun_anew(tmp_path, caplog, text):
    path = tmp_path / "series.json"
    path.write_text(text, encoding="utf-8")
    assert Ledger(path, tmp_path).entries == {}
    assert "every notebook runs again" in caplog.text
