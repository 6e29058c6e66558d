"""Text of models and endpoints in other programs: nothing is obeyed, and what is read back is what was written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from scope_lite.cli.base import print_table
from scope_lite.cli.chat import _show
from scope_lite.cli.conversation import Message
from scope_lite.figures import tables
from scope_lite.measure.replies import read_replies, write_replies
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_csv, for_markdown, for_terminal

HOSTILE = "a\x1b[2Jb\u202ec\rd\u200be\x9bf\x07"
"""Clears the screen, turns the direction of writing, goes back to the line's beginning, hides, and rings."""
FORMULAS = [
    "=HYPERLINK(1)",
    "+1",
    "-1",
    "@a",
    "\tx",
    "\rx",
    "a\rb",
    "a\r\nb",
    "a\nb",
    "'=x",
    '"q"',
    "a,b\r",
    "",
    "None",
    "NA",
]


def obeyed(text: str) -> set[str]:
    return {c for c in text if not c.isprintable() and c != "\n"}


@given(st.text())
def test_no_text_holds_what_a_terminal_would_obey(text: str) -> None:
    shown = for_terminal(text)
    assert "\n" not in shown and obeyed(shown) <= {"\u200d"}
    assert for_terminal(text, "\n").count("\n") == text.count("\n")


def test_what_is_hidden_is_shown_as_its_escape_and_words_of_any_script_are_left() -> None:
    assert for_terminal(HOSTILE) == r"a\x1b[2Jb\u202ec\rd\u200be\x9bf\x07"
    assert for_terminal("half \ud83d a\u00a0line\n") == r"half \ud83d a line\n"
    for words in ("né à Zürich, 50 ¢", "नमस्ते", "你好", "👩\u200d👩\u200d👧 ❤️"):
        assert for_terminal(words) == words


def test_tables_and_messages_are_printed_without_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(pd.DataFrame({f"run{HOSTILE}": [HOSTILE], "reward": [0.5]}), f"runs in {HOSTILE}")
    print_table(pd.DataFrame(), HOSTILE)
    reply = f"{HOSTILE}\nreward 1.00"
    talk = SimpleNamespace(heading=lambda message: "", sentence=lambda said: said)
    _show(talk, Message("sim-a", HOSTILE, reply, 0.5, {HOSTILE: 0.5}), Console(width=200))  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert not obeyed(shown) and shown.count(r"\x1b[2J") == 8
    assert not any(line.startswith("reward 1.00") for line in shown.splitlines()), "a reply cannot write a line of ours"


def test_a_mistake_is_told_without_what_a_terminal_would_obey(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from scope_lite import cli
    from scope_lite import store as runs

    def refuse(*_: object) -> None:
        raise ScopeError(f"no such run: {HOSTILE}")

    monkeypatch.setattr(runs, "list_runs", refuse)
    told = CliRunner().invoke(cli.app, ["runs", "list"])
    assert told.exit_code == 2 and not obeyed(told.output) and r"\x1b[2J" in told.output


def test_a_cell_of_markdown_is_one_line_in_one_cell_and_no_tag() -> None:
    assert for_markdown("a\nb | c\u2028<script>\\|") == "a b \\| c &lt;script>\\\\\\|"
    page = tables.to_markdown(pd.DataFrame({"a|b": ["x\r\ny", "<b>|"]}, index=pd.Index(["1\n2", "3"], name="n|m")))
    assert page.splitlines() == ["| n\\|m | a\\|b |", "| --- | --- |", "| 1 2 | x y |", "| 3 | &lt;b>\\| |"]


def test_a_latex_label_holds_nothing_that_latex_would_run() -> None:
    frame = pd.DataFrame({"a": ["1"]})
    assert r"\label{tab:table06_methods}" in tables.to_latex(frame, "table06_methods", "c")
    assert r"\label{tab:a-input-x-y}" in tables.to_latex(frame, "a}\\input{x%\ny", "c")


def test_replies_come_back_from_csv_as_they_were_even_as_formulas_and_across_lines(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"task": "p4g", "history": "h", "after": "x", "text": FORMULAS, "raw": FORMULAS, "failure": ""}
    )
    table["first_token_epsilon"] = 0.25
    write_replies(table, tmp_path / "replies.csv")
    again = read_replies(tmp_path / "replies.csv")
    assert again["text"].tolist() == FORMULAS and again["raw"].tolist() == FORMULAS


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
def test_any_cell_comes_back_from_csv(cells: list[str]) -> None:
    from io import StringIO

    text = for_csv(pd.DataFrame({"n": range(len(cells)), "words": cells}))
    again = pd.read_csv(StringIO(text, newline=""), keep_default_na=False, dtype={"words": str})
    assert again["words"].tolist() == cells


def test_csv_without_carriage_returns_is_what_pandas_writes() -> None:
    table = pd.DataFrame({"a": [0.1234567, float("nan")], "b": ['x "y"\nz', "p,q"]})
    assert for_csv(table, "%.6g") == table.to_csv(index=False, lineterminator="\n", float_format="%.6g")
