"""The paper's published numbers: they parse, they are marked as the paper's, and nothing of ours reads them."""

import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from scope_lite.figures import cotraining, paper
from scope_lite.figures.gallery import write_page
from scope_lite.store.paths import HOME, RESULTS

READERS = {"paper.py", "gallery.py", "cotraining.py"}
"""in figures/: what reads the numbers, the page that lists them, and the one figure that has the same quantity"""


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_every_number_has_a_unit_a_place_in_the_paper_and_a_source():
    numbers = paper.paper_numbers()
    assert list(numbers.columns) == ["quantity", "value", "unit", "where", "source"]
    assert numbers.notna().all(axis=None) and (numbers["value"] > 0).all()
    assert numbers["quantity"].is_unique and set(numbers["unit"]) <= {"points", "per cent", "checkpoints"}
    assert sorted(numbers["value"]) == [5, 9, 14, 40.4, 46.1], "only what is published"


def test_nothing_of_ours_reads_them():
    sources = [p for p in (HOME / "scope_lite").rglob("*.py") if p.parent.name != "figures" or p.name not in READERS]
    texts = {p: p.read_text(encoding="utf-8") for p in [*sources, *(HOME / "notebooks").glob("*.ipynb")]}
    assert len(texts) > 50
    assert [p.name for p, text in texts.items() if re.search(r"paper_numbers|figures\.paper\b", text)] == []
    assert [p.name for p in RESULTS.glob("*.csv") if "quantity" in pd.read_csv(p, nrows=0).columns] == []


def test_a_mark_is_dashed_labelled_as_the_papers_and_only_where_the_axis_has_its_place():
    _, ax = plt.subplots()
    paper.mark_paper_value(ax, paper.POOL_SIZE, {1.0: 0, 3.0: 1})
    assert not ax.lines and not ax.texts
    paper.mark_paper_value(ax, paper.POOL_SIZE, {1.0: 0, 3.0: 1, 5.0: 2})
    assert ax.lines[0].get_linestyle() == "--" and list(ax.lines[0].get_xdata()) == [2, 2]
    assert "the paper's" in ax.texts[0].get_text() and "other models" in ax.texts[0].get_text()
    with pytest.raises(KeyError):
        paper.mark_paper_value(ax, "regret", {})


def test_figure_17_marks_the_papers_k_and_our_runs_stay_as_they_are():
    fig = cotraining.figure_17(pd.read_csv(RESULTS / "pool_sizes.csv"))
    pay, mode = fig.axes
    assert "the paper's" in pay.texts[0].get_text() and not mode.texts
    levels = [float(t.get_text()) for t in pay.get_xticklabels()]
    (mark,) = [line for line in pay.lines if line.get_linestyle() == "--"]
    assert levels[int(mark.get_xdata()[0])] == 5
    assert pay.get_legend_handles_labels()[1] == [cotraining.named(c) for c in (cotraining.UNSEEN, cotraining.REAL)]


def test_the_page_lists_them_apart_from_ours(tmp_path):
    write_page(tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    _, _, listed = page.partition("## The paper's own numbers, other models and tasks")
    assert all(f"{value:g}" in listed for value in paper.paper_numbers()["value"])
    assert "Not results of ours" in listed
