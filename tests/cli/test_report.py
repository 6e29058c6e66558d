"""The HTML report: what is in it, that nothing from data becomes markup or script, how it behaves in a browser."""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.cli import page as report
from scope_lite.cli.page import HEADS, dialogues_of, gather_figures, gather_runs
from scope_lite.store.errors import ScopeError
from tests.store.test_runs_compare import make_run

EVIL = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


class Page(HTMLParser):
    """The elements of a page, and the text inside each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.cells: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag == "tr":
            self.cells.append([])
        if tag == "td":
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] == "td":
            self.cells[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Runs, a table and figures to report on."""
    for folder in ("runs", "results", "figures"):
        (tmp_path / folder).mkdir()
    for name in ("fig01_overfitting", "another_figure"):
        Image.new("RGB", (3000, 900), "white").save(tmp_path / "figures" / f"{name}.png")
    rows = [
        {"experiment": "methods", "variant": "single", "method": "single", "world": "persuasion", "seed": seed,
         "run": f"run-{seed}", "step": step, "reward": 0.1 * step, "entropy": None if step == 2 else 0.7}
        for seed in (0, 1) for step in (0, 1, 2)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "results" / "methods.csv", index=False)
    pd.DataFrame({"claim": ["C1"]}).to_csv(tmp_path / "results" / "claims.csv", index=False)
    return tmp_path


def write(place: Path, **changes: Any) -> str:
    folders = {name: place / name for name in ("runs", "results", "figures")}
    return report.build(place / "report.html", **{**folders, **changes}).read_text(encoding="utf-8")


# -- what is in it ----------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_small_and_asks_for_nothing_outside(place: Path) -> None:
    make_run(place / "runs"), make_run(place / "runs", seed=1, method="cotraining")
    text = write(place)
    page = Page(text)
    assert page.open == [] and len(text) < 10e6
    addresses = [attrs.get(name) for _, attrs in page.tags for name in ("src", "href") if attrs.get(name)]
    assert addresses and all(address and address.startswith(("data:", "#")) for address in addresses)
    assert "@import" not in text and "url(" not in text
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for attrs in page.all("a") if attrs["href"]} <= set(ids)


def test_the_same_data_give_the_same_bytes(place: Path) -> None:
    make_run(place / "runs")
    assert write(place) == write(place)


def test_run_folders_fill_the_table_with_their_last_values(place: Path) -> None:
    make_run(place / "runs"), make_run(place / "runs", seed=1)
    table = gather_runs(place / "runs", place / "results")
    named = [dict(zip(HEADS, row, strict=True)) for row in table.rows]
    assert [row["seed"] for row in named] == [0, 1] and table.source == "2 run folders"
    assert named[1]["training reward"] == pytest.approx(1.2) and named[0]["unseen simulators"] == 0.2
    assert named[0]["real users"] is None and named[0]["method"] == "RL (Single)" and named[0]["source"] == "finished"
    cells = Page(write(place)).cells
    assert [row[6] for row in cells if row] == ["0.200", "1.200"] and [row[9] for row in cells if row] == ["–", "–"]


def test_without_run_folders_the_shipped_tables_fill_it_and_the_page_says_how_to_get_dialogues(place: Path) -> None:
    table = gather_runs(place / "runs", place / "results")
    named = [dict(zip(HEADS, row, strict=True)) for row in table.rows]
    assert [(row["source"], row["run"], row["step"]) for row in named] == [("methods", f"run-{s}", 2) for s in (0, 1)]
    assert named[0]["training reward"] == pytest.approx(0.2)
    assert named[0]["entropy (nats)"] == 0.7  # the last that was measured
    text = write(place)
    assert "2 runs of 1 experiments" in text and "No run folder has kept dialogues" in text
    assert "scope-lite train --method single" in text
    assert not any(attrs.get("id") == "data" for attrs in Page(text).all("script"))


def test_figures_are_embedded_at_screen_size_the_papers_first_and_missing_ones_named(place: Path) -> None:
    pictures, missing = gather_figures(place / "figures")
    assert [picture["title"] for picture in pictures] == ["Figure 1", "another figure"]
    data = base64.b64decode(pictures[0]["data"].removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.size == (1400, 420)
    assert "3" in {entry.number for entry in missing} and "1" not in {entry.number for entry in missing}
    text = write(place)
    assert (
        "scope-lite results build single_by_simulator" in text
        and pictures[0]["ours"][:40] in text
        and "`" not in pictures[0]["ours"]
    )


def test_dialogues_come_with_the_worlds_sentences_one_run_of_each_method(place: Path) -> None:
    first = make_run(place / "runs")
    make_run(place / "runs", seed=1)
    other = make_run(place / "runs", seed=2, method="ensemble")
    data = dialogues_of(place / "runs")
    assert [run["name"] for run in data["runs"]] == [first.name, other.name] and data["left_out"] == 1
    assert data["sentences"]["persuasion"]["ask"].endswith("?")
    assert len(data["runs"][0]["dialogues"]) == 8
    [chosen] = dialogues_of(place / "runs", ["persuasion-single-seed1"])["runs"]
    assert "seed 1" in chosen["label"]
    page = Page(write(place))
    [embedded] = [text for text in page.scripts if text.startswith("{")]
    assert json.loads(embedded) == data


# -- nothing from data becomes markup ---------------------------------------------------------------------------------


def test_words_from_a_dialogue_cannot_become_script_or_markup(place: Path) -> None:
    make_run(place / "runs")
    plain = Page(write(place))
    shutil.rmtree(place / "runs")
    make_run(place / "runs", world="nowhere", evil=EVIL, model=EVIL, method=EVIL)
    text = write(place)
    page = Page(text)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert "<script>document" not in text and 'onerror="' not in text
    assert any(EVIL in cell for row in page.cells for cell in row)  # shown as what it is
    [embedded] = [script for script in page.scripts if script.startswith("{")]
    assert "<" not in embedded and json.loads(embedded)["runs"][0]["dialogues"][0]["acts"][1] == EVIL


def test_the_pages_policy_allows_its_own_script_and_no_other(place: Path) -> None:
    page = Page(write(place))
    [policy] = [attrs["content"] or "" for attrs in page.all("meta") if "http-equiv" in attrs]
    [script] = [text for text in page.scripts if not text.startswith("{")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy
    assert "innerHTML" not in script and "eval(" not in script
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_bad_input_is_told_in_one_line(place: Path) -> None:
    folder = make_run(place / "runs")
    with pytest.raises(ScopeError, match="is a folder"):
        report.build(place, place / "runs", place / "results", place / "figures")
    with pytest.raises(ScopeError, match="unknown run"):
        write(place, chosen=["nothing"])
    with pytest.raises(ScopeError, match="nothing to report"):
        write(place, runs=place / "no", results=place / "no", figures=place / "no")
    (place / "figures" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ScopeError, match=r"cannot read the figure .*broken\.png"):
        write(place)
    (place / "figures" / "broken.png").unlink()
    (folder / "rollouts.jsonl").write_text('{"step": 1}\n', encoding="utf-8")
    with pytest.raises(ScopeError, match="line 1: simulator is missing"):
        write(place)
    (folder / "rollouts.jsonl").unlink()
    with pytest.raises(ScopeError, match="has kept no dialogues"):
        write(place, chosen=[folder.name])
    shutil.rmtree(place / "runs")
    (place / "results" / "methods.csv").write_text('a,"b\n', encoding="utf-8")
    with pytest.raises(ScopeError, match=r"cannot read .*methods\.csv"):
        write(place)
    assert not (place / "report.html").exists()


def test_the_command_writes_the_page(place: Path) -> None:
    words = [word for name in ("runs", "results", "figures") for word in (f"--{name}", str(place / name))]
    done = CliRunner().invoke(cli.app, ["report", "--out", str(place / "new" / "page.html"), *words])
    assert done.exit_code == 0, done.output
    assert re.search(r"wrote .*page\.html \(\d+\.\d MB\)", done.stdout.replace("\n", ""))
    assert (place / "new" / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.backend("playwright")
def test_in_a_browser_sorting_filtering_and_the_step_slider_work_without_an_error(place: Path) -> None:
    playwright = importlib.import_module("playwright.sync_api")  # no dependency: see the marker
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("no Chromium on the path")
    make_run(place / "runs", evil=EVIL), make_run(place / "runs", seed=1, method="ensemble")
    write(place)
    troubles: list[str] = []
    with playwright.sync_playwright() as started:
        # no sandbox: tests may run as root, and the page is ours
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=120_000)
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda asked: troubles.append(asked.url) if asked.url.startswith("http") else None)
        page.goto((place / "report.html").as_uri())
        seeds = lambda: [cell.inner_text() for cell in page.query_selector_all("#run-table tbody td:nth-child(5)")]  # noqa: E731
        assert seeds() == ["0", "1"]
        page.click("#run-table th:nth-child(5) button")
        page.click("#run-table th:nth-child(5) button")
        assert seeds() == ["1", "0"] and page.get_attribute("#run-table th:nth-child(5)", "aria-sort") == "descending"
        page.fill("#run-filter", "ensemble")
        assert page.inner_text("#run-count") == "1 runs" and page.locator("#run-table tbody tr:visible").count() == 1
        rewards = lambda: [found.inner_text() for found in page.query_selector_all(".reward")]  # noqa: E731
        assert rewards() == ["step 2, reward 0.50", "step 2, reward 0.60"]
        page.eval_on_selector("#step", "slider => { slider.value = 0; slider.dispatchEvent(new Event('input')) }")
        assert page.inner_text("#step-shown") == "step 1"
        assert rewards() == ["step 1, reward 0.25", "step 1, reward 0.35"]
        assert EVIL in page.inner_text(".pane[data-side=left] .lines") and page.title() == "scope_lite report"
        browser.close()
    assert troubles == []
