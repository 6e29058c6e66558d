"""Where the series is: one live line in a terminal, plain lines with a heartbeat anywhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from scope_lite import store as runs

HEARTBEAT_SECONDS = 30
REFRESHES_PER_SECOND = 2


class Display:
    """Shows notebook, cell, training step, time spent and time left.

    Args:
        expected: last duration of each notebook in seconds, None where it never ran.
        runs_dir: where training runs report how far they are.
    """

    def __init__(self, expected: Sequence[float | None], runs_dir: Path, console: Console) -> None:
        self._expected, self._runs_dir, self._console = list(expected), runs_dir, console
        self._index, self._stem, self._cell = 0, "", (0, 0)
        self._start = self._begin = time.monotonic()
        self._live: Live | None = None
        self._stop = threading.Event()
        self._running = False

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._spinner, console=self._console, refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )  # fmt: skip
            self._spin = Spinner("dots")
            self._live.start()
        else:
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._live is not None:
            self._live.stop()
        if kind is None:
            self._say(f"done: {self._index} notebooks in {clock(time.monotonic() - self._begin)}")

    # -- events -----------------------------------------------------------------------------------------------------

    def start(self, stem: str) -> None:
        self._stem, self._cell, self._start, self._running = stem, (0, 0), time.monotonic(), True
        if self._live is None:
            last = self._expected[self._index]
            self._say(f"{self._place} {stem}: started" + (f", took {clock(last)} last time" if last else ""))

    def cell(self, number: int, total: int) -> None:
        self._cell = (number, total)

    def finish(self) -> None:
        self._say(f"{self._place} {self._stem}: done in {clock(time.monotonic() - self._start)}", "green")
        self._next()

    def skip(self, stem: str) -> None:
        self._say(f"{self._place} {stem}: unchanged, figures kept", "dim")
        self._next()

    def fail(self) -> None:
        self._running = False
        self._say(f"{self._place} {self._stem}: stopped in cell {self._cell[0]}", "red")

    def _next(self) -> None:
        self._running = False
        self._index += 1

    # -- words ------------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return f"[{self._index + 1}/{len(self._expected)}]"

    def line(self) -> str:
        """The current state in one line."""
        number, total = self._cell
        parts = [f"{self._place} {self._stem}", f"cell {number}/{total}" if total else "starting a kernel"]
        parts += [training_line(self._runs_dir), clock(time.monotonic() - self._start), self._left()]
        return " · ".join(part for part in parts if part)

    def _left(self) -> str:
        remaining = self._expected[self._index :]
        if not remaining or any(seconds is None for seconds in remaining):
            return ""
        spent = time.monotonic() - self._start
        now, *later = [seconds or 0.0 for seconds in remaining]
        return f"about {clock(max(0.0, now - spent) + sum(later))} left"

    def _spinner(self) -> Spinner | Text:
        if not self._running:
            return Text("")
        self._spin.update(text=self.line())
        return self._spin

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            if self._running:
                self._say(self.line())

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def training_line(runs_dir: Path) -> str:
    """How far the runs are that train now, such as "step 60/150 (persuasion-single-seed0)"; empty if none does."""
    folders = sorted(runs_dir.iterdir()) if runs_dir.is_dir() else []
    found = [(path.name, runs.read_status(path)) for path in folders if (path / "status").is_file()]
    running = [(name, status) for name, status in found if status["state"] == "running"]
    if not running:
        return ""
    done, total = (sum(status[key] for _, status in running) for key in ("step", "steps"))
    names = running[0][0].removesuffix(".fresh").rsplit("-", 1)[0]
    more = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return f"step {done}/{total} ({names}{more})"


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
