"""Train many runs at once: joblib's worker processes, one thread each, and one progress bar over the steps of all runs.

A run that fails, or whose process is killed, does not stop the others; after Ctrl-C all can be resumed.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

from joblib import Parallel, cpu_count, delayed, parallel_config

from scope_lite.method.config import RunConfig
from scope_lite.method.made_of import run_folder
from scope_lite.store.errors import ScopeError, first_line
from scope_lite.store.files import plain_disk_errors
from scope_lite.store.folder import is_finished, read_status

Train = Callable[[RunConfig, Path, bool], object]
Jobs = dict[Path, RunConfig]
"""the folder of each run, and what is trained there"""
LOOK_SECONDS, LOG_SECONDS = 0.5, 5
"""between two looks at the runs; in a log file every redraw of the bar is a new line"""
STOP_SECONDS = 10


def train_run(config: RunConfig, root: Path, fresh: bool) -> None:
    """Train one run: what ``train_many`` does for each, unless it is given something else."""
    from scope_lite.method.train import train

    train(config, root, fresh=fresh)


def train_many(
    configs: Sequence[RunConfig],
    root: Path,
    workers: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    train: Train = train_run,
) -> list[Path]:
    """Train each configuration once and reuse what is finished; the folders come back in the order asked for.

    Args:
        workers: processes; by default one a core, and never more than unfinished runs. One: this process.
        fresh: train again what is finished.
        progress: show a bar of steps over all runs, with the time left and what runs now.

    Raises:
        ScopeError: when all others have finished, if some failed: which, why, and where their logs are.
    """
    root = Path(root)
    folders = [run_folder(root, config) for config in configs]
    jobs = {path: config for path, config in zip(folders, configs, strict=True) if fresh or not is_finished(path)}
    # the longest go first, so that no worker waits long for the last one
    jobs = dict(sorted(jobs.items(), key=lambda job: -job[1].steps))
    if not jobs:
        return folders
    with plain_disk_errors(root / "logs"):
        (root / "logs").mkdir(parents=True, exist_ok=True)
    ended: dict[Path, str | None] = {}
    with _bar(jobs, ended, fresh, progress), parallel_config(backend="loky", inner_max_num_threads=1):
        for path, error in _outcomes(jobs, min(workers or cpu_count(), len(jobs)), root, fresh, train):
            ended[path] = error
    if failed := [f"{path.name}: {error}" for path, error in ended.items() if error]:
        told = "; ".join(failed)
        raise ScopeError(f"{len(failed)} of {len(jobs)} runs failed ({told}); logs are in {root / 'logs'}")
    return folders


def _outcomes(jobs: Jobs, workers: int, root: Path, fresh: bool, train: Train) -> Iterator[tuple[Path, str | None]]:
    """The folder of each run as it ends, and what went wrong.

    When a process is killed, joblib stops its neighbours, too, and does not say which run it was. So those that were
    under way are tried again one by one, each in a pool of its own, and then the others go on.
    """
    left = dict(jobs)
    tasks = (delayed(_attempt)(config, path, root, fresh, train, os.getpid()) for path, config in jobs.items())
    try:
        for path, error in Parallel(workers, return_as="generator_unordered", batch_size=1)(tasks):
            del left[path]
            yield path, error
    except BrokenProcessPool:
        if len(jobs) == 1:
            yield next(iter(jobs)), "its process was killed or crashed, for want of memory perhaps"
            return
        begun = [path for path in left if (root / "logs" / f"{path.name}.log").exists()]
        for path in begun or list(left):
            yield from _outcomes({path: left.pop(path)}, workers, root, fresh, train)
        yield from _outcomes(left, workers, root, fresh, train)


def _attempt(
    config: RunConfig, path: Path, root: Path, fresh: bool, train: Train, parent: int
) -> tuple[Path, str | None]:
    """Train one run, with all that it prints in its log; its folder, and in one line what went wrong."""
    import torch

    threads, log = torch.get_num_threads(), root / "logs" / f"{path.name}.log"
    torch.set_num_threads(1)
    if parent != os.getpid():
        _end_with(parent)
    try:
        with plain_disk_errors(log):
            file = log.open("w", encoding="utf-8")
        with file, redirect_stdout(file), redirect_stderr(file):
            try:
                train(config, root, fresh)
            except Exception:
                traceback.print_exc()
                raise
    except Exception as exc:
        return path, first_line(exc) if isinstance(exc, ScopeError) else f"{type(exc).__name__}: {first_line(exc)}"
    finally:
        torch.set_num_threads(threads)
    return path, None


@cache
def _end_with(parent: int) -> None:
    """Interrupt this worker when the process that started it is gone: it would train on for nobody."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        _thread.interrupt_main()
        time.sleep(STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _bar(jobs: Jobs, ended: dict[Path, str | None], fresh: bool, show: bool) -> Iterator[None]:
    """A bar over the steps of all runs, drawn from their status files; for a terminal, a notebook and a log file."""
    with warnings.catch_warnings():
        # without ipywidgets tqdm falls back to text, which is just as good
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

    def steps_done() -> int:
        # a worker that goes back to its checkpoint has fewer steps than before
        return sum(c.steps if p in ended and not ended[p] else _steps_done(p, fresh) for p, c in jobs.items())

    def draw() -> None:
        running = [path.name.rsplit("-", 1)[0] for path in jobs if read_status(path)["state"] == "running"]
        bar.set_postfix_str(", ".join(running), refresh=False)
        bar.n = steps_done()
        bar.refresh()

    def watch() -> None:
        while not over.wait(LOOK_SECONDS if sys.stderr.isatty() or hasattr(bar, "container") else LOG_SECONDS):
            draw()

    total, over = sum(config.steps for config in jobs.values()), threading.Event()
    about = f"{len(jobs)} runs"
    with tqdm(total=total, initial=steps_done(), unit="step", disable=not show, desc=about) as bar:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            draw()


def _steps_done(path: Path, fresh: bool) -> int:
    """Steps that a run has to its credit: one that is trained again over a finished one begins with none."""
    status = read_status(path)
    if fresh and status["state"] == "finished":
        status = read_status(path.with_name(path.name + ".fresh"))
    return int(status["step"] or 0)
