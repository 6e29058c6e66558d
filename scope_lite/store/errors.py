"""The one exception a user may see: what was wrong, and what to do about it."""


class ScopeError(Exception):
    """A user's mistake or a missing part, told in one line.

    The command line prints the message without a traceback and exits with 2;
    every other exception is a bug of ours and keeps its traceback.
    """


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
