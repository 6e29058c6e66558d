"""Tables of runs in real text."""

from __future__ import annotations

import pytest

from scope_lite.experiments import EXPERIMENTS, frozen_table, runs_of
from scope_lite.figures.training import note


@pytest.mark.parametrize(("name", "model"), [("text_p4g", "smollm2"), ("text_tuned", "smollm2+persuader")])
def test_a_table_in_text_has_its_experiments_runs_and_its_figure_names_the_model(name: str, model: str) -> None:
    table = frozen_table(name)
    assert set(table["variant"]) == {variant for variant, _ in EXPERIMENTS[name].variants()}
    assert note(table).startswith(f"{model} · p4g")
    shipped = set(table["run"])
    assert {config.run_name() for _, config in runs_of(name, 1)} == {run.rpartition("-")[0] for run in shipped}


def test_a_figure_of_nano_runs_says_so() -> None:
    assert note(frozen_table("methods")).startswith("nano · persuasion")


def test_the_twin_in_text_starts_both_seats_from_what_people_said() -> None:
    for variant, config in runs_of("text_tuned", 1):
        assert (config.model, config.text.simulator_model) == ("smollm2+persuader", "smollm2+persuadee"), variant
