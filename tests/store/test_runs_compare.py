"""Two runs side by side, what prune says of sizes, and the export to another viewer."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite import store as runs
from scope_lite.envs.nano import get_world
from scope_lite.figures.training import two_runs
from scope_lite.store.errors import ScopeError


def make_run(root: Path, seed: int = 0, world: str = "persuasion", evil: str = "", **changes: Any) -> Path:
    """A finished run of two steps that kept two dialogues with each of two simulators at each."""
    config = {"method": "single", "world": world, "seed": seed, "model": "tiny", "steps": 2, **changes}
    made_of = {"settings": config, "files": {}}
    with runs.RunFolder(root / f"{world}-single-seed{seed}-{seed}0123456", config, made_of) as run:
        for step in (1, 2):
            numbers = {"reward": 0.1 * step + seed, "entropy": 1.0 / step, "panel/unseen/reward": 0.2, "kl": None}
            run.log({"step": step, **numbers}, {"step_seconds": 0.5})
            run.log_rollouts(
                [
                    {
                        "step": step, "task": "agent", "simulator": name, "group": 1, "member": member,
                        "acts": ["ask", evil or "push"], "replies": ["reveal-heart", "no"], "outcome": "give-0.50",
                        "reward": 0.25 * step + 0.1 * seed, "turns": 2,
                    }
                    for name in ("sim-a", "sim-b") for member in (0, 1)
                ]
            )  # fmt: skip
            run.progress(step, 2)
        return run.finish()


def call(*words: object) -> Any:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


# -- dialogues --------------------------------------------------------------------------------------------------------


def test_dialogues_are_paired_by_simulator_and_member_at_each_runs_last_evaluation(tmp_path: Path) -> None:
    a, b = make_run(tmp_path), make_run(tmp_path, seed=1)
    pairs = runs.paired_dialogues(a, b, 3)
    assert [(x["simulator"], x["member"]) for x, _ in pairs] == [("sim-a", 0), ("sim-b", 0), ("sim-a", 1)]
    assert all((x["simulator"], x["member"]) == (y["simulator"], y["member"]) for x, y in pairs)
    assert {x["step"] for pair in pairs for x in pair} == {2}
    assert [x["reward"] for x in pairs[0]] == [0.5, 0.6]
    assert len(runs.paired_dialogues(a, b, 99)) == 4


def test_a_dialogue_in_words_uses_the_worlds_sentences_and_ends_with_the_outcome() -> None:
    world = get_world("persuasion")
    dialogue = {"acts": ["ask"], "replies": ["reveal-heart"], "outcome": "give-0.50"}
    lines = runs.in_words(world.say, dialogue)
    assert [line[:2] for line in lines] == [
        ("policy", "ask"), ("simulator", "reveal-heart"), ("outcome", "give-0.50"),
    ]  # fmt: skip
    assert lines[0][2] == world.say("ask") != "ask"
    assert [words for _, act, words in runs.in_words(str, dialogue)] == ["ask", "reveal-heart", "give-0.50"]
    unanswered = runs.in_words(str, {**dialogue, "acts": ["ask", "push"]})
    assert [speaker for speaker, *_ in unanswered] == ["policy", "simulator", "policy", "outcome"]


def test_runs_without_dialogues_or_without_a_common_simulator_are_told(tmp_path: Path) -> None:
    a, b = make_run(tmp_path), make_run(tmp_path, seed=1)
    path = b / "rollouts.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("sim-", "other-"), encoding="utf-8")
    with pytest.raises(ScopeError, match="no common simulator"):
        runs.paired_dialogues(a, b, 1)
    path.write_text('{"step": 1}\n', encoding="utf-8")
    with pytest.raises(ScopeError, match="line 1: simulator is missing"):
        runs.kept_dialogues(b)
    path.unlink()
    with pytest.raises(ScopeError, match="has kept no dialogues"):
        runs.paired_dialogues(a, b, 1)
    assert runs.kept_dialogues(b) == []


# -- the command ------------------------------------------------------------------------------------------------------


def test_compare_prints_dialogues_side_by_side_and_draws_both_curves(tmp_path: Path) -> None:
    make_run(tmp_path), make_run(tmp_path, seed=1)
    words = ["runs", "compare", "persuasion-single-seed0", "persuasion-single-seed1", "--out", tmp_path]
    plain = call(*words)
    assert plain.exit_code == 0 and "┃ key " in plain.stdout and "with sim-a" not in plain.stdout
    full = call(*words, "--dialogues", 2, "--figure", tmp_path / "curves.png")
    assert full.exit_code == 0, full.output
    row = next(line for line in full.stdout.splitlines() if "[reveal-heart]" in line)
    assert row.count(get_world("persuasion").say("reveal-heart")) == 2
    assert full.stdout.count("with sim-") == 2 and "reward 0.50" in full.stdout and "reward 0.60" in full.stdout
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_words_of_a_dialogue_are_never_read_as_markup_and_an_unknown_world_shows_its_acts(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path, seed=seed, world="nowhere", evil="[/red][bold]push[link=x]") for seed in (0, 1))
    shown = call("runs", "compare", a.name, b.name, "--dialogues", 1, "--out", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("policy: [/red][bold]push[link=x]") == 2


@pytest.mark.parametrize("name, told", [("curves.xyz", "cannot draw"), ("no/such/folder.png", "cannot use")])
def test_a_figure_that_cannot_be_written_is_told_in_one_line(tmp_path: Path, name: str, told: str) -> None:
    make_run(tmp_path), make_run(tmp_path, seed=1)
    words = ["persuasion-single-seed0", "persuasion-single-seed1", "--out", tmp_path, "--figure", tmp_path / name]
    result = call("runs", "compare", *words)
    assert result.exit_code == 2 and told in result.stderr and result.stderr.count("\n") == 1


def test_the_curves_are_those_of_the_two_runs_with_no_interval(tmp_path: Path) -> None:
    table = runs.load_metrics([make_run(tmp_path), make_run(tmp_path, seed=1)])
    fig = two_runs(table)
    reward = fig.axes[0]
    assert len(fig.axes) == 3  # unseen simulators and entropy beside it; real users were not measured
    assert [text.get_text() for text in fig.legends[0].get_texts()] == list(dict.fromkeys(table["run"]))
    drawn = {tuple(float(y) for y in line.get_ydata()) for line in reward.get_lines()}
    assert drawn == {(0.1, 0.2), (1.1, 1.2)}
    assert not reward.collections  # a band would be an interval over one run
    with pytest.raises(ScopeError, match="two different runs"):
        two_runs(table[table["seed"] == 0])


def test_prune_says_what_each_folder_weighs_and_the_sum(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "weights").write_bytes(bytes(3_000_000))
    told = call("runs", "prune", "--finished", "--out", tmp_path)
    assert f"{folder}  (finished, 3.00 MB)" in told.stdout and "would remove 1, 3.00 MB" in told.stdout
    assert folder.exists()


# -- export -----------------------------------------------------------------------------------------------------------


class Recorder:
    """Stands in for TensorBoard's writer."""

    calls: list[tuple[Any, ...]]

    def __init__(self, folder: str) -> None:
        Recorder.calls = [("folder", folder)]

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.calls.append(("closed",))

    def add_text(self, tag: str, text: str, step: int, walltime: float) -> None:
        self.calls.append(("text", tag, text))

    def add_scalar(self, tag: str, value: float, step: int, walltime: float) -> None:
        self.calls.append((tag, value, step, walltime))


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Recorder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr("scope_lite.store.export.importlib.util.find_spec", lambda name: object())


def test_every_number_is_exported_at_the_time_that_its_step_ended(tmp_path: Path, tensorboard: None) -> None:
    folder = make_run(tmp_path / "runs")
    told = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    (folder / "provenance.json").write_text(
        json.dumps({**told, "started": "2026-01-01T00:00:00+00:00"}), encoding="utf-8"
    )
    done = call("runs", "export", folder.name, tmp_path / "board", "--to", "tensorboard", "--out", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    assert Recorder.calls[0] == ("folder", str(tmp_path / "board" / folder.name))
    scalars = [call for call in Recorder.calls if len(call) == 4]
    start = 1767225600.0
    assert ("reward", 0.1, 1, start + 0.5) in scalars and ("reward", 0.2, 2, start + 1.0) in scalars
    assert ("timing/step_seconds", 0.5, 2, start + 1.0) in scalars
    assert {tag for tag, *_ in scalars} == {"reward", "entropy", "panel/unseen/reward", "timing/step_seconds"}  # no kl
    [text] = [call for call in Recorder.calls if call[0] == "text"]
    assert "    method: single" in text[2]
    assert Recorder.calls[-1] == ("closed",)


def test_an_export_never_mixes_two_runs_in_one_folder(tmp_path: Path, tensorboard: None) -> None:
    folder = make_run(tmp_path / "runs")
    (tmp_path / "board" / folder.name).mkdir(parents=True)
    (tmp_path / "board" / folder.name / "old").touch()
    with pytest.raises(ScopeError, match="is not empty"):
        runs.to_tensorboard(folder, tmp_path / "board")


def test_a_missing_library_an_unknown_viewer_and_a_run_without_metrics_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "runs")
    words = ["runs", "export", folder.name, tmp_path / "board", "--out", tmp_path / "runs"]
    other = call(*words, "--to", "paper")
    assert other.exit_code == 2 and "cannot export to 'paper'" in other.stderr
    monkeypatch.setattr("scope_lite.store.export.importlib.util.find_spec", lambda name: None)
    missing = call(*words)
    assert missing.exit_code == 2 and "pip install tensorboard" in missing.stderr
    assert "pip install trackio" in call(*words, "--to", "trackio").stderr
    monkeypatch.setattr("scope_lite.store.export.importlib.util.find_spec", lambda name: object())
    (folder / "metrics.jsonl").unlink()
    empty = call(*words)
    assert empty.exit_code == 2 and "has no metrics.jsonl" in empty.stderr
    assert not (tmp_path / "board").exists()


def test_the_event_files_are_read_back_by_tensorboard_itself(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no TensorBoard here")
    folder = make_run(tmp_path / "runs")
    events = reader.EventAccumulator(str(runs.to_tensorboard(folder, tmp_path / "board")))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [
        (1, pytest.approx(0.1)), (2, pytest.approx(0.2)),
    ]  # fmt: skip


@pytest.mark.parametrize("library", ["wandb", "trackio"])
def test_a_tracker_gets_the_configuration_and_every_number_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    calls: list[Any] = []
    tracker = ModuleType(library)
    tracker.__spec__ = importlib.machinery.ModuleSpec(library, None)
    vars(tracker).update(
        init=lambda **given: calls.append(given),
        log=lambda numbers, step: calls.append((step, numbers)),
        finish=lambda: calls.append("finished"),
    )
    monkeypatch.setitem(sys.modules, library, tracker)
    folder = make_run(tmp_path / "runs")
    done = call("runs", "export", folder.name, "--to", library, "--out", tmp_path / "runs")
    assert done.exit_code == 0, done.stderr
    assert calls[0]["name"] == folder.name and calls[0]["config"]["method"] == "single"
    assert [step for step, _ in calls[1:-1]] == [1, 2] and calls[1][1]["reward"] == 0.1 and "kl" not in calls[1][1]
    assert calls[-1] == "finished"
