"""Figures of cooperation, drawn from a made-up table."""

import numpy as np
import pandas as pd
import pytest

from scope_lite.experiments import runs_of
from scope_lite.figures import cooperation as figures
from scope_lite.figures import gallery
from scope_lite.store.errors import ScopeError

MEMBERS = {"sim-a": 1.0, "sim-b": 0.0, "sim-c": 0.0, "sim-d": 0.2, "twin": 0.6, "real": 0.5, "reference": 0.5}


@pytest.fixture(scope="module")
def table():
    rows = []
    for variant in figures.COLOURS:
        for seed in (0, 1):
            for step in (0,) if variant == "base" else (0, 10, 20):
                panel = {f"panel/{m}/reward": v for m, v in MEMBERS.items()}
                trained = {"reward": 0.5, "entropy": 1.0, "turns": 3.0} if step else {}
                rows.append({"variant": variant, "seed": seed, "step": step, **panel, **trained})
    return pd.DataFrame(rows).assign(world="coding", model="qwen3-tiny")


def test_every_kind_of_partner_has_a_colour_and_a_label():
    variants = {v for name in ("cooperation", "cooperation_small") for v, _ in runs_of(name, seeds=1)}
    assert variants == set(figures.COLOURS) == set(figures.LABELS)


def test_figure_23_evaluates_all_runs_on_partners_that_none_of_them_met(table):
    figure = figures.figure_23(table)
    by_title = {ax.get_title(loc="left"): ax for ax in figure.axes}
    assert list(by_title) == list(figures.PANELS.values())
    unseen = np.concatenate([line.get_ydata() for line in by_title["(b) partners unseen by all"].lines])
    np.testing.assert_allclose(unseen, (0.2 + 0.6) / 2)
    assert {text.get_text() for text in figure.legends[0].texts} == set(figures.LABELS.values())


def test_figure_23_leaves_out_what_a_table_does_not_have(table):
    figure = figures.figure_23(table[table["variant"].isin(["single", "selfplay"])].drop(columns="turns"))
    assert len(figure.legends[0].texts) == 2
    assert not figure.axes[-1].lines


def test_values_are_written_into_their_cells():
    values = pd.DataFrame({"eager": [0.84, 0.48], "steady": [0.0, 0.68]}, index=["exploit", "talk"])
    figure = figures.convention_values(values, pd.DataFrame({"eager": [0.5], "steady": [0.18]}, index=["P"]))
    written = {tuple(map(int, t.get_position())): t.get_text() for t in figure.axes[1].texts}
    assert written == {(0, 0): "0.84", (0, 1): "0.00", (1, 0): "0.48", (1, 1): "0.68"}


def test_what_needs_people_is_left_out_and_what_the_paper_lacks_has_no_number(tmp_path):
    with pytest.raises(ScopeError, match="figure 12 is not drawn: it shows a page of the human-study app"):
        gallery.build(["12"], tmp_path, tmp_path)
    gallery.write_page(tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "*Figure 12:*" in page and "## Figure 12" not in page
    assert "airline" not in page.partition("## Figure 25")[2].partition("## Figure 26")[0]
    assert "## A figure of ours: airline" in page and "Figure airline" not in page
