"""Every number in README, docs and notebooks' prose is the one that its table, setting or place in the paper says."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scope_lite.experiments.contrasts import UNSEEN
from scope_lite.store.paths import HOME, RESULTS
from tests.experiments.prose import Said, prose, read_sentences, unheld, values_of, wrong

PAGES = [
    "README.md",
    *sorted(f"{folder}/{path.name}" for folder in ("docs", "notebooks") for path in (HOME / folder).glob("*.md")),
    # 01 computes its numbers itself, and its statements have tests of their own
    *sorted(f"notebooks/{path.name}" for path in (HOME / "notebooks").glob("*.ipynb") if path.stem != "01_theory"),
]
SENTENCES = read_sentences(Path(__file__).with_name("prose.txt"))


def complaints(results: Path, entries: list[Said]) -> list[str]:
    """Where pages say something else than the tables in ``results``."""
    made, texts = values_of(results), {page: prose(page) for page in {entry.page for entry in entries}}
    return [told for entry in entries for told in wrong(texts[entry.page], entry, made(entry) if entry.values else ())]


def test_every_page_says_what_the_tables_say() -> None:
    assert {entry.page for entry in SENTENCES} <= set(PAGES)
    assert complaints(RESULTS, SENTENCES) == []


@pytest.mark.parametrize("page", PAGES)
def test_no_number_of_a_page_stands_unheld(page: str) -> None:
    held = [entry for entry in SENTENCES if entry.page == page]
    assert list(unheld(prose(page), held)) == [], "add its words and its values to tests/experiments/prose.txt"


@pytest.mark.parametrize(
    ("name", "arm", "pages"),
    [
        ("methods", "single", {"README.md", "docs/results.md"}),
        ("simulator_rewards", "adversarial", {"README.md", "docs/results.md"}),
        ("pool_lag", "K=2, every step", {"docs/results.md", "docs/experiments.md", "notebooks/05_co_training.ipynb"}),
    ],
)
def test_a_table_that_changes_is_noticed(tmp_path: Path, name: str, arm: str, pages: set[str]) -> None:
    """The mutation: one arm of one shipped table moved, and every page that quotes it is named."""
    for path in RESULTS.iterdir():
        (tmp_path / path.name).symlink_to(path)
    table = pd.read_csv(RESULTS / f"{name}.csv")
    table.loc[table["variant"] == arm, UNSEEN] -= 0.4
    (tmp_path / f"{name}.csv").unlink()
    table.to_csv(tmp_path / f"{name}.csv", index=False)
    quoting = [entry for entry in SENTENCES if f'"{name}"' in entry.values and f'"{arm}"' in entry.values]
    assert complaints(RESULTS, quoting) == []
    assert {told.partition(" says ")[0] for told in complaints(tmp_path, quoting)} == pages


@pytest.mark.parametrize("text", ["earns .42 here", "two of three are saved", "by 5 points", "in 30 %", "a gap of -3"])
def test_a_number_that_looks_measured_has_to_be_held(text: str) -> None:
    assert list(unheld(text, []))


def test_settings_places_and_plain_integers_need_not() -> None:
    assert list(unheld("γ = 1.5 and K = 5 (Table 6, 4.1), Eq. 2, 100 steps, 10 minutes, a 95 % t-interval", [])) == []


@pytest.mark.parametrize(
    ("shown", "value", "right"),
    [(".42", 0.4249, True), (".43", 0.4249, False), ("six", 6, True), ("Two", 3, False), ("93 %", 0.934, True)],
)
def test_a_number_is_compared_at_the_digits_shown(shown: str, value: float, right: bool) -> None:
    assert (wrong(f"says {shown}.", Said("", "says {}."), [value]) == []) == right
    assert wrong("says nothing.", Said("p", "says {}."), [value]) == ["p does not say 'says {}.'"]
