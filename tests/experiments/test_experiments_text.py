"""Tables of runs in real text, and what was said in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scope_lite.envs.donation import PAYMENT, read_pledge
from scope_lite.experiments import EXPERIMENTS, as_text, dialogues, frozen_table, runs_of
from scope_lite.experiments.tables import first_and_last, frozen_dialogues
from scope_lite.figures.training import note
from scope_lite.method.panel_file import read_panel
from scope_lite.store.errors import ScopeError

TABLES = ("text_p4g", "text_tuned")


@pytest.mark.parametrize(("name", "model"), list(zip(TABLES, ("smollm2", "smollm2+persuader"), strict=True)))
def test_a_table_in_text_has_its_experiments_runs_and_its_figure_names_the_model(name: str, model: str) -> None:
    table = frozen_table(name)
    assert set(table["variant"]) == {variant.label for variant in EXPERIMENTS[name].variants}
    assert note(table).startswith(f"{model} · p4g")
    shipped = set(table["run"])
    assert {config.run_name() for _, config in runs_of(name, 1)} == {run.rpartition("-")[0] for run in shipped}


def test_a_figure_of_nano_runs_says_so() -> None:
    assert note(frozen_table("methods")).startswith("nano · persuasion")


def test_the_twin_in_text_starts_both_seats_from_what_people_said() -> None:
    for variant, config in runs_of("text_tuned", 1):
        assert (config.model, config.text.simulator_model) == ("smollm2+persuader", "smollm2+persuadee"), variant


EARNED = {("p4g-cotraining-seed0-b9cc025a", 20, "sim-c"): 1.0}
"""What a shipped dialogue earned where the words state another amount: "10 percent of my 2 dollars" was read as 2."""


@pytest.mark.parametrize("name", TABLES)
def test_the_shipped_dialogues_earned_what_their_words_state(name: str) -> None:
    said, table = dialogues(name, "frozen", 1), frozen_table(name)
    members = [member.name for member in read_panel("p4g")]
    for (variant, _), run in said.groupby(["variant", "run"]):
        steps = table.loc[table["variant"] == variant, "step"]
        assert set(run["step"]) == {steps.min(), steps.max()}
        assert all(list(rows["simulator"].unique()) == members for _, rows in run.groupby("step"))
    assert set(said["run"]) == set(table["run"])
    for place, one in said.groupby(["run", "step", "simulator"]):
        stated = read_pledge(one.loc[one["speaker"] == "simulator", "words"])
        assert one["reward"].iloc[0] == pytest.approx(EARNED.get(place, (stated or 0) / PAYMENT))
        assert one["outcome"].iloc[0] == ("unread" if stated is None else "given" if stated else "nothing")


def test_a_dialogue_is_read_as_it_was_spoken_and_printed_without_what_a_terminal_must_not_get(tmp_path: Path) -> None:
    spoken = {"task": "p4g", "group": 1, "outcome": "given", "reward": 0.5, "turns": 1}
    lines = [
        {"step": step, "simulator": simulator, "member": member, "acts": ["Hi\n\x1b[2J there"], "replies": ["NA", "$1"]}
        for step in (0, 5, 10) for simulator in ("plain", "sim-a") for member in (0, 1)
    ]  # fmt: skip
    (tmp_path / "rollouts.jsonl").write_text(
        "".join(json.dumps(spoken | line) + "\n" for line in lines), encoding="utf-8"
    )
    said = first_and_last([("single", tmp_path)])
    assert len(said) == 2 * 2 * 3 and set(said["step"]) == {0, 10}
    assert said["words"].tolist() == ["Hi\n\x1b[2J there", "NA", "$1"] * 4
    said.to_csv(tmp_path / "text_dialogues.csv", index=False)
    assert frozen_dialogues("text", tmp_path).equals(said)
    assert (
        as_text(said[:3])
        == "with plain: given, reward 0.50\n  policy: Hi\\n\\x1b[2J there\n  simulator: NA\n  simulator: $1"
    )
    with pytest.raises(ScopeError, match=r"no other_dialogues\.csv.*results build other"):
        frozen_dialogues("other", tmp_path)
