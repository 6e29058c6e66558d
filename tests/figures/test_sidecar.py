"""The JSON file beside each figure of the gallery."""

import hashlib
import json

import pandas as pd
import pytest

from scope_lite.figures import gallery
from scope_lite.store.paths import RESULTS


def small_table(runs: int) -> pd.DataFrame:
    worlds = ["persuasion"] * (runs - 1) + ["retail"]
    return pd.DataFrame({"world": worlds, "seed": range(runs), "run": [f"run-{i}" for i in reversed(range(runs))]})


@pytest.fixture
def files(tmp_path):
    table, picture = tmp_path / "methods.csv", tmp_path / "fig.png"
    table.write_bytes(b"table")
    picture.write_bytes(b"picture")
    return table, picture


def test_a_sidecar_says_what_a_figure_was_drawn_from(files):
    table, picture = files
    told = gallery.describe("4", [table], small_table(3), [picture], "95 % t-interval over seeds")
    assert told["tables"] == {"methods.csv": hashlib.sha256(b"table").hexdigest()}
    assert told["worlds"] == ["persuasion", "retail"] and told["seeds"] == {"persuasion": 2, "retail": 1}
    assert told["runs"] == ["run-0", "run-1", "run-2"] and told["scale"] == "nano"
    assert told["command"] == "scope-lite figures --only 4" and "t-interval" in told["interval"]


def test_many_runs_are_told_by_number_and_hash_in_whatever_order_they_stand(files):
    table, picture = files
    rows = small_table(gallery.MAX_RUNS + 1)
    told = gallery.describe("4", [table], rows, [picture], "")["runs"]
    assert told["count"] == 41
    assert told == gallery.describe("4", [table], rows.iloc[::-1], [picture], "")["runs"]
    assert told["sha256"] != gallery.describe("4", [table], rows.replace("run-0", "x"), [picture], "")["runs"]["sha256"]


def test_a_sidecar_tells_only_of_its_own_picture(files):
    table, picture = files
    assert not gallery.tells_of(picture), "there is none yet"
    told = json.dumps(gallery.describe("4", [table], small_table(2), [picture], ""))
    picture.with_suffix(".json").write_text(told, encoding="utf-8")
    assert gallery.tells_of(picture)
    picture.write_bytes(b"drawn by a notebook from other runs")
    assert not gallery.tells_of(picture)
    picture.with_suffix(".json").write_text("{", encoding="utf-8")
    assert not gallery.tells_of(picture)


def test_the_gallery_writes_a_sidecar_and_links_it(tmp_path):
    out = tmp_path / "figures"
    rows = pd.read_csv(RESULTS / "single_by_simulator.csv").query("step < 20")
    rows.to_csv(tmp_path / "single_by_simulator.csv", index=False)
    (path,) = [p for p in gallery.build(["3"], tmp_path, out) if p.suffix == ".json"]
    told = json.loads(path.read_text(encoding="utf-8"))
    assert list(told["tables"]) == ["single_by_simulator.csv"] and told["worlds"] == ["persuasion"]
    assert told["seeds"]["persuasion"] == rows["seed"].nunique()
    assert str(tmp_path) not in path.read_text(encoding="utf-8")
    assert "(fig03_three_simulators.json)" in (out / "README.md").read_text(encoding="utf-8")


def test_a_figure_without_a_table_has_no_runs(tmp_path):
    (path,) = [p for p in gallery.build(["9"], tmp_path, tmp_path) if p.suffix == ".json"]
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["tables"] == {} and told["runs"] == [] and told["interval"] is None and told["scale"] is None
