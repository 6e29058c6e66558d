"""Tables of runs in real text."""

from __future__ import annotations

from scope_lite.experiments import TEXT_METHODS, frozen_table
from scope_lite.figures.training import note


def test_a_figure_of_runs_in_text_names_the_model_and_no_nano_scale() -> None:
    table = frozen_table("text_p4g")
    assert set(table["variant"]) <= set(TEXT_METHODS) and {"base", "single"} <= set(table["variant"])
    assert note(table).startswith("smollm2 · p4g")
    assert note(frozen_table("methods")).startswith("nano · persuasion")
