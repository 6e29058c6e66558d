"""The one exception a user may see: what was wrong, and what to do about it."""

from __future__ import annotations

import difflib


class ScopeError(Exception):
    """A user's mistake or a missing part, told in one line.

    The command line prints the message without a traceback and exits with 2;
    every other exception is a bug of ours and keeps its traceback.
    """


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def closest(word: str, known: list[str], what: str) -> str:
    """The one-line message for a name that is not known."""
    near = difflib.get_close_matches(word, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    listed = ", ".join(known[:25]) + (f", ... ({len(known)} in all)" if len(known) > 25 else "")
    return f"unknown {what} {word!r}{hint} Known: {listed}"
