"""What docs/paper_and_code.md says of experiments is what their tables say."""

import numpy as np
import pandas as pd

from scope_lite.experiments.measured import SPAN, UNSEEN, fill, halfway, measured
from scope_lite.store.paths import HOME, RESULTS

PAGE = HOME / "docs" / "paper_and_code.md"


def last(name: str, results=RESULTS) -> pd.DataFrame:
    table = pd.read_csv(results / f"{name}.csv")
    return table[table["step"] == table.groupby("run")["step"].transform("max")]


def test_the_page_is_what_the_tables_make_of_it():
    text = PAGE.read_text(encoding="utf-8")
    assert fill(text) == text, "run 'scope-lite results claims'"
    names = [span[1] for span in SPAN.findall(text)]
    assert {"estimators", "paper_persuasion", "paper_retail", "paper_airline", "recipes"} <= set(names)
    assert len(names) == len(set(names)) == text.count("<!-- measured:") == text.count("<!-- /measured -->")


def test_a_table_that_changes_changes_the_page(tmp_path):
    for name in ("sharpness", "methods"):
        table = pd.read_csv(RESULTS / f"{name}.csv")
        table.loc[table["variant"] == "sharpness=2", UNSEEN] += 0.3
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    before, after = measured("sharpness"), measured("sharpness", tmp_path)
    changed = [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
    assert len(changed) == 1 and "| 0 of 5 |" in changed[0][0] and "| 5 of 5 |" in changed[0][1]
    assert "no table `pool_sizes`" in measured("pool_sizes", tmp_path)


def test_rescues_and_means_by_hand():
    ends = last("methods").groupby("variant")[UNSEEN]
    mark = (ends.mean()["single"] + ends.mean()["unsharpened"]) / 2
    assert np.isclose(halfway("persuasion"), mark)
    values = ends.get_group("cotraining").to_numpy()
    row = next(line for line in measured("methods").splitlines() if line.startswith("| persuasion | cotraining |"))
    assert f"| {values.mean():.2f} [" in row and row.endswith(f"| {(values > mark).sum()} of {len(values)} |")
    assert halfway("coding") is None and "| – |" in measured("cooperation")
