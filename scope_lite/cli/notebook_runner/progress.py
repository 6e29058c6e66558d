"""Where the notebooks are: one live line in a terminal, plain lines with a heartbeat anywhere else."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.text import Text

from scope_lite import store
from scope_lite.cli.base import clock

HEARTBEAT_SECONDS, REFRESH_SECONDS = 30.0, 0.5
"""between two lines of a log, and between two states of a terminal's live line"""


class Progress:
    """Shows notebook, cell, training step, time spent and time left.

    Args:
        expected: last duration of each notebook in seconds, None where it never ran.
        runs_dir: where training runs report how far they are.
    """

    def __init__(self, expected: Sequence[float | None], runs_dir: Path, console: Console) -> None:
        self._expected, self._runs_dir, self._console = list(expected), runs_dir, console
        self._status = console.status("") if console.is_terminal else None
        self._index, self._stem, self._cell = 0, "", (0, 0)
        self._start = self._begin = time.monotonic()
        self._stop, self._running = threading.Event(), False

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._stop.set()
        if self._status:
            self._status.stop()
        if kind is None:
            self._say(f"done: {self._index} notebooks in {clock(time.monotonic() - self._begin)}")

    @contextlib.contextmanager
    def running(self, stem: str) -> Iterator[None]:
        """A notebook runs inside."""
        self._stem, self._cell, self._start, self._running = stem, (0, 0), time.monotonic(), True
        last = self._expected[self._index]
        if not self._status:
            self._say(f"{self._place}: started" + (f", took {clock(last)} last time" if last else ""))
        try:
            yield
            self._say(f"{self._place}: done in {clock(time.monotonic() - self._start)}", "green")
        except BaseException:
            self._say(f"{self._place}: stopped in cell {self._cell[0]}", "red")
            raise
        finally:
            self._running = False
        self._index += 1

    def cell(self, number: int, total: int) -> None:
        self._cell = (number, total)

    def skip(self, stem: str) -> None:
        self._stem = stem
        self._say(f"{self._place}: unchanged, figures kept", "dim")
        self._index += 1

    @property
    def _place(self) -> str:
        return f"[{self._index + 1}/{len(self._expected)}] {self._stem}"

    def line(self) -> str:
        """The current state in one line."""
        (number, total), spent = self._cell, time.monotonic() - self._start
        parts = [self._place, f"cell {number}/{total}" if total else "starting a kernel"]
        parts += [training_line(self._runs_dir), clock(spent)]
        now, *later = self._expected[self._index :]
        if now is not None and None not in later:
            parts.append(f"about {clock(max(0.0, now - spent) + sum(filter(None, later)))} left")
        return " · ".join(part for part in parts if part)

    def _beat(self) -> None:
        while not self._stop.wait(REFRESH_SECONDS if self._status else HEARTBEAT_SECONDS):
            if self._running and self._status:
                self._status.update(Text(self.line()))
            elif self._running:
                self._say(self.line())

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def training_line(runs_dir: Path) -> str:
    """How far the runs are that train now, such as "step 60/150 (persuasion-single-seed0)"; empty if none does."""
    folders = sorted(runs_dir.iterdir()) if runs_dir.is_dir() else []
    found = [(path.name, store.read_status(path)) for path in folders if (path / "status").is_file()]
    running = [(name, status) for name, status in found if status["state"] == "running"]
    if not running:
        return ""
    done, total = (sum(status[key] for _, status in running) for key in ("step", "steps"))
    name = running[0][0].removesuffix(".fresh").rsplit("-", 1)[0]
    more = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return f"step {done}/{total} ({name}{more})"
