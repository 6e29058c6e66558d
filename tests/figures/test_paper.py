"""The paper's published numbers: they parse, they are marked as the paper's, and no result of ours reads them."""

import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from scope_lite.figures import cotraining, paper
from scope_lite.figures.gallery import write_page
from scope_lite.method.config import RunConfig
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import HOME, RESULTS
from scope_lite.store.plain_yaml import flat

READERS = {"paper.py", "gallery.py", "cotraining.py", "tables.py", "verdicts.py"}
"""in figures/: what reads the numbers; page, tables and matrix that show them; the figure that has the same quantity"""
TEXTS = {"Table 4", "Table 5", "Table 7", "Table 9", "4.1"}
"""places whose values are words"""
K = ("Figure 17", "best pool size K")


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_every_number_has_a_place_in_the_paper_and_stands_there_once():
    numbers = paper.paper_numbers()
    assert (numbers[["where", "quantity", "value"]] != "").all(axis=None)
    assert (numbers["source"] == paper.VERSION.replace("arXiv ", "arXiv:")).all()
    assert not numbers.duplicated(["where", "benchmark", "model", "method", "quantity"]).any()
    assert numbers["where"].str.fullmatch(r"abstract|\d\.\d|[A-F]\.\d+|(Table|Figure) \d+").all()
    assert set(numbers["key"].str.split().sum()) <= {*flat(RunConfig().model_dump()), "seeds"}
    text = numbers["where"].isin(TEXTS) | numbers["value"].str.contains("K")
    assert pd.to_numeric(numbers[~text & (numbers["where"] != "Table 6")]["value"]).ge(0).all()
    tables = {f"Table {n}" for n in range(1, 10)} | {"F.3", "F.7", "F.8", "F.10"}
    assert tables <= set(numbers["where"])


def test_what_the_paper_says_in_two_places_agrees():
    """Section 4.2 quotes differences that are made from Table 1; its arithmetic finds a slip of ours in typing."""

    def cell(method, benchmark, model="Qwen3-4B-Instruct-2507"):
        quantity = "reward, best checkpoint" if benchmark == "Persuasion for Good" else "success, best checkpoint"
        return paper.paper_value("Table 1", quantity, method=method, benchmark=benchmark, model=model)

    retail, airline, p4g = "τ²-bench retail", "τ²-bench airline", "Persuasion for Good"
    gains = {
        (method, benchmark): cell(method, benchmark) - cell("RL (Single)", benchmark)
        for method in ("Persona-Guided", "Verbalized Sampling", "Co-Training")
        for benchmark in (retail, airline)
    }
    assert gains["Persona-Guided", retail] == pytest.approx(3.1)
    assert int(max(v for k, v in gains.items() if k[0] == "Verbalized Sampling")) == 9  # the abstract's
    assert int(max(v for k, v in gains.items() if k[0] == "Co-Training")) == 14
    population = [
        cell("Population Co-Training", b, m) >= cell("Co-Training", b, m)
        for b in (retail, airline, p4g)
        for m in ("Qwen3-4B-Instruct-2507", "Qwen3-8B")
    ]
    assert all(population), "claim C4"
    assert cell("Verbalized Sampling", p4g) > cell("Co-Training", p4g), "claim C3 on P4G"


def test_no_result_of_ours_reads_them():
    sources = [p for p in (HOME / "scope_lite").rglob("*.py") if p.parent.name != "figures" or p.name not in READERS]
    texts = {p: p.read_text(encoding="utf-8") for p in [*sources, *(HOME / "notebooks").glob("*.ipynb")]}
    assert len(texts) > 50
    assert [p.name for p, text in texts.items() if re.search(r"paper_numbers\(|figures\.paper\b", text)] == []
    assert [p.name for p in RESULTS.glob("*.csv") if "quantity" in pd.read_csv(p, nrows=0).columns] == []


def test_one_number_is_named_exactly():
    assert paper.paper_value(*K, benchmark="τ²-bench retail") == 5
    with pytest.raises(ScopeError, match="2 numbers of the paper"):
        paper.paper_value(*K)
    with pytest.raises(ScopeError, match="0 numbers"):
        paper.paper_value("Table 1", "regret")


def test_a_table_of_the_paper_keeps_its_order_and_its_spreads():
    table = paper.paper_table("Table 1", ["model", "method"], ["benchmark"])
    assert table.shape == (14, 3) and table.index[1] == ("Qwen3-4B-Instruct-2507", "RL (Single)")
    assert table.loc[("Qwen3-8B", "Persona-Guided")].tolist() == ["–", "55.7 ± 3.1", "37.4 ± 3.0"]
    assert paper.paper_table("Table 2", ["method"], ["model"]).loc["Self-play"].tolist() == ["32.8 ± 6.0", "61.7 ± 5.5"]


def test_a_mark_is_dashed_labelled_as_the_papers_and_only_where_the_axis_has_its_place():
    _, ax = plt.subplots()
    which = {"benchmark": "Persuasion for Good"}
    paper.mark_paper_value(ax, {1.0: 0, 3.0: 1}, *K, **which)
    assert not ax.lines and not ax.texts
    paper.mark_paper_value(ax, {1.0: 0, 3.0: 1, 5.0: 2}, *K, **which)
    assert ax.lines[0].get_linestyle() == "--" and list(ax.lines[0].get_xdata()) == [2, 2]
    assert "the paper's" in ax.texts[0].get_text() and "other models" in ax.texts[0].get_text()


def test_figure_17_marks_the_papers_k_and_our_runs_stay_as_they_are():
    fig = cotraining.figure_17(pd.read_csv(RESULTS / "pool_sizes.csv"))
    pay, mode = fig.axes
    assert "the paper's" in pay.texts[0].get_text() and not mode.texts
    levels = [float(t.get_text()) for t in pay.get_xticklabels()]
    (mark,) = [line for line in pay.lines if line.get_linestyle() == "--"]
    assert levels[int(mark.get_xdata()[0])] == 5
    assert pay.get_legend_handles_labels()[1] == [cotraining.named(c) for c in (cotraining.UNSEEN, cotraining.REAL)]


def test_the_page_lists_those_of_no_table_apart_from_ours(tmp_path):
    write_page(tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    _, _, listed = page.partition("## The paper's own numbers, other models and tasks")
    apart = [row for row in paper.paper_numbers().to_dict("records") if not row["where"].startswith("Table")]
    assert len(apart) > 40 and all(f"| {row['value']} {row['unit']}".strip() in listed for row in apart)
    assert "Not results of ours" in listed
