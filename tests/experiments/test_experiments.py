"""Experiments, their tables, and the figures and summaries drawn from them."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from scope_lite import experiments
from scope_lite.envs.nano import get_world
from scope_lite.figures import gallery
from scope_lite.figures.notebook import (
    difference,
    fall_from_peak,
    members_of,
    read_dialogue,
    result_table,
    run_summaries,
)
from scope_lite.figures.tables import PAPER_TABLES
from scope_lite.method.made_of import run_folder
from scope_lite.store import load_rollouts
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import RESULTS

TINY = dict(steps=2, groups=2, group_size=4, eval_every=1, eval_dialogues=2, final_dialogues=4)
named = partial(run_folder, Path())
FEW = {"base", "single", "verbalized", "cotraining"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def table(root):
    return experiments.live_table("methods", seeds=2, root=root, workers=1, variants=sorted(FEW), **TINY)


def test_a_table_has_a_row_for_every_run_and_evaluation(table):
    assert set(table["variant"]) == FEW
    counts = table.groupby(["variant", "seed"]).size().unstack()
    assert (counts.loc["base"] == 1).all() and (counts.drop("base") == 3).all(axis=None)


def test_every_experiment_names_valid_runs_and_shares_what_it_can():
    for name in experiments.EXPERIMENTS:
        configs = [c for _, c in experiments.runs_of(name, seeds=2)]
        assert len({named(c) for c in configs}) == len(configs)
    single = {named(c) for v, c in experiments.runs_of("methods", 1) if v == "single"}
    assert single < {named(c) for _, c in experiments.runs_of("single_by_simulator", 1)}


def test_summaries_and_contrasts_cover_every_run(table):
    summaries = run_summaries(table)
    assert len(summaries) == 3 * 2 * len(FEW)
    assert difference(summaries, "single", "base", "panel/real/reward").n == 2
    assert fall_from_peak(summaries, "single", "panel_mean").mean <= 0
    shown = result_table(summaries, [f"panel/{m}/reward" for m in members_of(table)])
    assert shown.shape == (3 * len(FEW), len(members_of(table)))


def test_every_figure_of_the_gallery_is_drawn_from_shipped_tables(table, tmp_path):
    table.to_csv(tmp_path / "methods.csv", index=False)
    single = table[table["variant"] == "single"].assign(variant="sim-a")
    single.to_csv(tmp_path / "single_by_simulator.csv", index=False)
    written = gallery.build(None, tmp_path, tmp_path / "figures")
    drawn = [e for e in gallery.GALLERY if e.table in ("methods", "single_by_simulator", "")]
    named = {f"{e.name}.{suffix}" for e in drawn for suffix in ("png", "pdf", "json")}
    made = [
        t for t in PAPER_TABLES.values() if t.name not in ("table01_models", "table02")
    ]  # they have none of their runs here
    assert {p.name for p in written} == named | {f"{t.name}.{suffix}" for t in made for suffix in ("md", "tex")}
    first = {p.name: p.read_bytes() for p in written}
    assert {p.name: p.read_bytes() for p in gallery.build(None, tmp_path, tmp_path / "figures")} == first
    page = (tmp_path / "figures/README.md").read_text(encoding="utf-8")
    assert all((f"{e.name}.png" in page) == (e in drawn) for e in gallery.GALLERY)
    assert "Not drawn yet.** First: `scope-lite results build methods_retail`" in page


def test_a_figure_without_its_table_says_which_command_makes_it(tmp_path):
    with pytest.raises(ScopeError, match="scope-lite results build methods"):
        gallery.build(["4"], tmp_path, tmp_path)
    told = {gone.what: str(gone) for gone in gallery.missing(tmp_path)}
    assert "scope-lite results build larger_retail" in told["table01_models"] and "human-study app" in told["figure 10"]
    assert len(told) == 7 + 2 + 2 + sum(bool(e.table) for e in gallery.GALLERY)
    with pytest.raises(ScopeError, match="no figure '99'"):
        gallery.build(["99"], tmp_path, tmp_path)
    with pytest.raises(ScopeError, match="scope-lite results build vs_k"):
        experiments.frozen_table("vs_k", tmp_path)


def test_a_built_table_is_read_back_and_says_where_it_comes_from(root, tmp_path, monkeypatch):
    small = experiments.Experiment([experiments.Variant("base", {"method": "base", "final_dialogues": 4})], seeds=1)
    monkeypatch.setitem(experiments.EXPERIMENTS, "small", small)
    path = experiments.build("small", seeds=1, root=root, results=tmp_path, workers=1)
    assert len(pd.read_csv(path)) == 1
    assert experiments.frozen_table("small", tmp_path)["variant"].tolist() == ["base"]
    assert '"packages"' in path.with_suffix(".json").read_text(encoding="utf-8")


def test_a_table_is_extended_without_the_runs_it_was_made_from(tmp_path, monkeypatch):
    base = {"method": "base"}
    variants = [experiments.Variant(f"n={n}", {**base, "final_dialogues": n}, {"n": n}) for n in (4, 5)]
    small = experiments.Experiment(variants, seeds=2)
    monkeypatch.setitem(experiments.EXPERIMENTS, "small", small)
    results = tmp_path / "results"
    path = experiments.build("small", 1, tmp_path / "first", results, workers=1)
    before = path.read_text(encoding="utf-8")
    elsewhere = tmp_path / "second"
    assert [c.seed for c in experiments.unfinished(["small"], 2, elsewhere, extend=results)] == [1, 1]
    experiments.build("small", 2, elsewhere, results, workers=1, extend=True)
    made = pd.read_csv(path)
    assert path.read_text(encoding="utf-8").startswith(before), "the shipped rows are kept as they were"
    assert made["n"].tolist() == [4, 5, 4, 5]
    assert list(zip(made["seed"], made["variant"], strict=True)) == [(0, "n=4"), (0, "n=5"), (1, "n=4"), (1, "n=5")]
    assert sorted(p.name.rsplit("-", 2)[1] for p in elsewhere.glob("persuasion-base-*")) == ["seed1", "seed1"]
    assert json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["kept"]["runs"] == 2
    other = experiments.Variant("n=4", {**base, "final_dialogues": 6})
    monkeypatch.setitem(experiments.EXPERIMENTS, "small", small._replace(variants=[other]))
    assert len(experiments.unfinished(["small"], 1, elsewhere, extend=results)) == 1, "other content is another run"


@pytest.mark.parametrize("name", ["methods", "methods_hard", "methods_retail", "cooperation", "phases", "pool_sizes"])
def test_the_shipped_tables_hold_the_runs_that_this_code_names(name):
    table = experiments.frozen_table(name)
    seeds = table["seed"].nunique()
    assert not experiments.unfinished([name], seeds, extend=RESULTS), "a change of config orphaned a shipped table"


def test_an_unknown_experiment_is_told_with_the_nearest():
    with pytest.raises(ScopeError, match="did you mean 'methods'"):
        experiments.runs_of("method", 1)


def test_a_kept_dialogue_reads_as_sentences(root, table):
    folder = root / table["run"].iloc[-1]
    text = read_dialogue(get_world("persuasion"), load_rollouts([folder]).iloc[0].to_dict())
    assert text.count("**agent**") == 4 and "I donate" in text
