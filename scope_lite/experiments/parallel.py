"""Train many runs at once: worker processes that live for the whole batch, and one progress bar over all of them.

Each worker is its own Python process with one torch thread, started as ``python -m scope_lite.experiments.parallel``
and told what to train through its standard input. So it works the same from a script (no ``__main__`` guard needed),
from a Jupyter kernel and under papermill; a worker that is killed closes its pipe and is noticed at once, and when this
process dies the workers see their input end and stop where they can be resumed.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import dataclasses
import importlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scope_lite import store as runs
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import plain_disk_errors

if TYPE_CHECKING:
    from scope_lite.method.config import RunConfig

TARGET = "scope_lite.experiments.parallel:train_one"
POLL_SECONDS = 0.5
STOP_SECONDS = 10
# in a log every redraw of the bar is a new line
LOG_SECONDS = 5


def train_many(
    configs: Sequence[RunConfig],
    root: Path,
    workers: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    target: str = TARGET,
) -> list[Path]:
    """Train each configuration once and reuse what is finished; the folders come back in the order asked for.

    Args:
        workers: processes, each with one torch thread; by default one a core, but no more than unfinished runs.
        fresh: train again what is finished.
        progress: show a bar of steps over all runs, with the time left and what runs now.
        target: ``module:function`` that trains one configuration, called with ``(config as JSON, root, fresh)``.

    Raises:
        ScopeError: when all others have finished, if some failed: which, why, and where their logs are.
    """
    root = Path(root)
    jobs: dict[Path, _Job] = {}
    for config in configs:
        path = runs.folder_path(root, config.run_name(), config.fingerprint())
        jobs.setdefault(path, _Job(path, config.model_dump(mode="json"), config.steps, fresh))
    # the longest go first, so that no worker waits long for the last one
    todo = sorted((job for job in jobs.values() if fresh or not runs.is_finished(job.path)), key=_Job.length)
    if todo:
        count = min(workers or _cores(), len(todo))
        _train(todo, root, max(1, count), progress, target)
    failed = [job for job in todo if job.error]
    if failed:
        told = "; ".join(f"{job.path.name}: {job.error}" for job in failed)
        raise ScopeError(f"{len(failed)} of {len(todo)} runs failed ({told}); logs are in {root / 'logs'}")
    return [runs.folder_path(root, config.run_name(), config.fingerprint()) for config in configs]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclasses.dataclass
class _Job:
    """One run to train, and how far it is."""

    path: Path
    config: dict[str, Any]
    steps: int
    fresh: bool
    started: bool = False
    done: bool = False
    error: str | None = None

    def length(self) -> int:
        """For sorting, longest first: steps, times the seats that learn, and one more for a pool of voices."""
        simulator = self.config.get("simulator", {})
        learns = simulator.get("kind") in ("trained", "self")
        return -self.steps * (1 + learns + (learns and simulator["pool_size"] > 1))

    @property
    def steps_done(self) -> int:
        if self.done and not self.error:
            return self.steps
        successor = runs.read_status(self.path.with_name(self.path.name + ".fresh"))
        if self.fresh:
            if not self.started:
                return 0
            status = runs.read_status(self.path)
            # a finished run that is being trained again has no steps to its credit
            return int(successor["step"] or (0 if status["state"] == "finished" else status["step"]))
        return int(runs.read_status(self.path)["step"])


# -- this process: hand out runs, watch the workers -----------------------------------------------------------------


class _Worker:
    """A training process that takes one run after the other."""

    def __init__(self, log: Path, target: str) -> None:
        self.job: _Job | None = None
        self.log = log
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUTF8": "1",  # its log and our orders, whatever the locale
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        with plain_disk_errors(log), log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scope_lite.experiments.parallel", target],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=env,
                # Ctrl-C reaches only us, so that we stop the workers once and in order
                start_new_session=True,
            )

    def start(self, job: _Job, root: Path) -> None:
        self.job = job
        job.started = True
        log = root / "logs" / f"{job.path.name}.log"
        order = {"config": job.config, "root": str(root), "fresh": job.fresh, "log": str(log)}
        # a worker that died already is noticed when its output ends
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def collect(self) -> bool:
        """Take the answer for the current job; False if the worker died instead of giving one."""
        assert self.process.stdout is not None and self.job is not None
        line = self.process.stdout.readline()
        if line.endswith(b"\n"):
            self.job.error = json.loads(line)["error"]
        else:
            code = self.process.wait()
            why = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}, see {self.log}"
            self.job.error = f"its process {why}"
        self.job.done, self.job = True, None
        return line.endswith(b"\n")

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _train(todo: list[_Job], root: Path, count: int, progress: bool, target: str) -> None:
    with plain_disk_errors(root / "logs"):
        (root / "logs").mkdir(parents=True, exist_ok=True)
    waiting = collections.deque(todo)
    with selectors.DefaultSelector() as selector, _crew() as crew, _bar(todo, progress) as bar:

        def hire() -> None:
            worker = _Worker(root / "logs" / f"worker-{os.getpid()}-{len(crew)}.log", target)
            crew.append(worker)
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            worker.start(waiting.popleft(), root)

        for _ in range(count):
            hire()
        while any(not job.done for job in todo):
            for key, _ in selector.select(timeout=POLL_SECONDS):
                worker: _Worker = key.data
                alive = worker.collect()
                if alive and waiting:
                    worker.start(waiting.popleft(), root)
                    continue
                selector.unregister(key.fileobj)
                if waiting:
                    hire()
            bar.update_from(todo)


@contextlib.contextmanager
def _crew() -> Iterator[list[_Worker]]:
    """Workers that are all gone afterwards, however it ends."""
    crew: list[_Worker] = []
    try:
        yield crew
    finally:
        for worker in crew:
            # all are told first, so that they stop side by side
            with contextlib.suppress(OSError):
                assert worker.process.stdin is not None
                worker.process.stdin.close()
        for worker in crew:
            worker.stop()
            if worker.log.exists() and worker.log.stat().st_size == 0:
                worker.log.unlink()


class _Bar:
    """One bar over the steps of all runs; works in a terminal, in a notebook and in a log file."""

    def __init__(self, todo: list[_Job], show: bool) -> None:
        with warnings.catch_warnings():
            # without ipywidgets tqdm falls back to text, which is just as good
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm

        done = sum(job.steps_done for job in todo)
        total = sum(job.steps for job in todo)
        self._bar = tqdm(total=total, initial=done, unit="step", disable=not show, desc=f"{len(todo)} runs")
        is_live = sys.stderr.isatty() or hasattr(self._bar, "container")
        self._pause, self._drawn = (0.0 if is_live else LOG_SECONDS), float("-inf")

    def update_from(self, todo: list[_Job]) -> None:
        if time.monotonic() - self._drawn < self._pause and not all(job.done for job in todo):
            return
        self._drawn = time.monotonic()
        done = sum(job.steps_done for job in todo)
        running = [job.path.name.rsplit("-", 1)[0] for job in todo if job.started and not job.done]
        self._bar.set_postfix_str(", ".join(running), refresh=False)
        # a worker that goes back to its checkpoint has fewer steps than before
        self._bar.n = done
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


def _bar(todo: list[_Job], show: bool) -> contextlib.closing[_Bar]:
    return contextlib.closing(_Bar(todo, show))


# -- the worker process ---------------------------------------------------------------------------------------------


def train_one(config: dict[str, Any], root: Path, fresh: bool) -> None:
    """Train one run from its configuration as JSON (the default ``target`` of ``train_many``)."""
    from scope_lite.method.config import RunConfig
    from scope_lite.method.train import train

    train(RunConfig.model_validate(config), root, fresh=fresh)


def serve(target: str, orders: IO[str]) -> None:
    """Train what comes in, one JSON order a line, and answer each on the original standard output.

    When the orders end while a run is training, that run is interrupted, and can be resumed.
    """
    # under nohup an interrupt is ignored, and a worker whose parent has died would train on for nobody
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # whatever training prints goes to the log, so that the pipe carries answers only
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy = threading.Event()

    def listen() -> None:
        for line in orders:
            inbox.put(line)
        inbox.put(None)
        if busy.is_set():
            _thread.interrupt_main()

    threading.Thread(target=listen, daemon=True).start()
    module, function = target.split(":")
    train = getattr(importlib.import_module(module), function)
    while (line := inbox.get()) is not None:
        order = json.loads(line)
        busy.set()
        answer: dict[str, str | None] = {"error": None}
        try:
            with plain_disk_errors(Path(order["log"])), open(order["log"], "wb") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            train(order["config"], Path(order["root"]), order["fresh"])
        except Exception as exc:
            with contextlib.suppress(OSError):  # the log may be what filled the disk
                traceback.print_exc()
            text = str(exc).strip().split("\n")[0]
            answer = {"error": text if isinstance(exc, ScopeError) else f"{type(exc).__name__}: {text}"}
        busy.clear()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.argv[1], sys.stdin)
