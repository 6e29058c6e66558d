"""Text of models, endpoints and folders on its way into other programs: a terminal, a Markdown table, a CSV file.

What a reader shall see is kept, what the program would take for a command is not. (LaTeX: ``figures.tables``; the web:
``html.escape``.)
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

JOINER = "\u200d"
"""Joins emoji into one; no other character that cannot be seen may pass."""


def for_terminal(text: str, line_feed: str = r"\n") -> str:
    """The text with every character that a terminal would obey, or not show, as its escape: ESC is ``\\x1b``.

    ``line_feed``: what stands for one. Where lines of ours follow, a line of a reply must not look like them.
    """
    return "".join(line_feed if c == "\n" else c if c.isprintable() or c == JOINER else _escape(c) for c in text)


def _escape(character: str) -> str:
    return " " if unicodedata.category(character) == "Zs" else character.encode("unicode_escape").decode()


def for_markdown(text: object) -> str:
    """The text as a cell of a table in Markdown: one line, in which bars are no edges and ``<`` opens no tag."""
    return " ".join(str(text).split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def for_csv(table: pd.DataFrame, float_format: str | None = None) -> str:
    """The table as CSV without its index; each cell reads back as it was, one with a carriage return in it, too.

    Cells are written as they are: one that begins with ``=`` is a formula to a spreadsheet that is not told to import
    it as text.
    """
    # the writer puts in quotation marks what holds a line's end, so both characters are one while it writes
    text = table.to_csv(index=False, lineterminator="\r\n", float_format=float_format)
    return re.sub(r'("(?:[^"]|"")*")|\r\n', lambda found: found[1] or "\n", text)
