"""One training run on disk: who may write it, what it holds, how it ends.

    runs/persuasion-single-seed0-1a2b3c4d/
        config.yaml provenance.json metrics.jsonl timing.jsonl rollouts.jsonl checkpoints/ status

A lock beside the folder admits one writer. A finished run is never written again: ``fresh`` builds its successor in
``<folder>.fresh`` and swaps the two only when the successor has finished. A run that stops early, for whatever
reason, can be resumed from its last checkpoint by opening it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import yaml
from filelock import FileLock, Timeout

from scope_lite.errors import ScopeError
from scope_lite.runs import checkpoints, provenance
from scope_lite.runs.checkpoints import Checkpoint
from scope_lite.runs.files import append_text, json_line, plain_disk_errors, read_lines, replace_text

if TYPE_CHECKING:
    import torch

RECORDS = ("metrics.jsonl", "timing.jsonl", "rollouts.jsonl")


def folder_path(root: Path, name: str, fingerprint: str) -> Path:
    """Where a run with this name and configuration lives."""
    return Path(root) / f"{name}-{fingerprint[:8]}"


def read_status(path: Path) -> dict[str, Any]:
    """The run's status; its state is "interrupted" when the process that wrote "running" is gone.

    An absent or unreadable file gives state "unknown".
    """
    try:
        status = json.loads((path / "status").read_text())
        state = status["state"]
    except (OSError, ValueError, KeyError, TypeError):
        return {"state": "unknown", "step": 0, "steps": 0, "pid": None, "reason": None}
    if state == "running" and not _alive(status.get("pid")):
        status["state"] = "interrupted"
    return status


def recorded_format(path: Path) -> str:
    """The number format that the run in this folder began in; "auto" where it is not on record."""
    try:
        return str(json.loads((path / "provenance.json").read_text()).get("number_format", "auto"))
    except (OSError, ValueError, AttributeError):
        return "auto"


def is_finished(path: Path) -> bool:
    """Whether the run in this folder came to its end."""
    return read_status(path)["state"] == "finished"


def _alive(pid: Any) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class RunFolder:
    """A run open for writing; use as ``with RunFolder.open(...) as run``.

    ``run.path`` is the folder being written. With ``fresh`` over a finished run it is the successor's folder until
    ``finish()``, and the usual one afterwards.
    """

    def __init__(self, root: Path, config: Mapping[str, Any], name: str, fingerprint: str, fresh: bool) -> None:
        self.final = folder_path(root, name, fingerprint)
        self.path = self.final
        self.name = name
        self.finished = False
        self._config = dict(config)
        self._fingerprint = fingerprint
        self._fresh = fresh
        self._status: dict[str, Any] = {}
        self._lock: FileLock | None = None

    @classmethod
    def open(cls, root: Path, config_dict: Mapping[str, Any], name: str, fingerprint: str, fresh: bool = False) -> Self:
        """Name the run; entering the context takes the lock and makes or resumes the folder.

        A finished run is opened for reading only (``.finished`` is True), without a lock, unless ``fresh``.

        Raises (on entering):
            ScopeError: if another process writes this run, or the folder belongs to another configuration.
        """
        return cls(Path(root), config_dict, name, fingerprint, fresh)

    # -- entering and leaving ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.finished = not self._fresh and is_finished(self.final)
        if self.finished:
            return self
        self._take_lock()
        try:
            self._settle_swap()
            # it may have finished while we waited for the lock
            self.finished = not self._fresh and is_finished(self.final)
            if not self.finished:
                self._prepare()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self.finished:
                # the disk may be full; the trouble that brought us here matters more
                for note in (lambda: self._set_status(state="failed", reason=_reason(exc)), self._end_session):
                    with contextlib.suppress(ScopeError, OSError):
                        note()
        finally:
            self._release()

    def _take_lock(self) -> None:
        # beside the folder, not in it, because the folder itself is swapped
        lock_path = self.final.parent / ".locks" / f"{self.final.name}.lock"
        with plain_disk_errors(lock_path):
            lock_path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(lock_path, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                owners = [read_status(path) for path in (self._fresh_path, self.final)]
                pid = next((owner["pid"] for owner in owners if owner["state"] == "running"), "(just starting)")
                raise ScopeError(
                    f"run folder {self.final} is in use by process {pid}; wait for it or stop it, then run again"
                ) from None
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- making, resuming, swapping ------------------------------------------------------------------------------

    @property
    def _fresh_path(self) -> Path:
        return self.final.with_name(self.final.name + ".fresh")

    @property
    def _old_path(self) -> Path:
        return self.final.with_name(self.final.name + ".old")

    def _settle_swap(self) -> None:
        """Complete or undo a swap in which an earlier process was killed."""
        if is_finished(self._fresh_path):
            self._swap()
        if not self.final.exists() and self._old_path.exists():
            self._old_path.rename(self.final)
        shutil.rmtree(self._old_path, ignore_errors=True)

    def _swap(self) -> None:
        if self.final.exists():
            shutil.rmtree(self._old_path, ignore_errors=True)
            self.final.rename(self._old_path)
        self._fresh_path.rename(self.final)
        shutil.rmtree(self._old_path, ignore_errors=True)

    def _prepare(self) -> None:
        with plain_disk_errors(self.final):
            shutil.rmtree(self._fresh_path, ignore_errors=True)
            if self._fresh and is_finished(self.final):
                self.path = self._fresh_path
            elif self._fresh:
                shutil.rmtree(self.final, ignore_errors=True)
            self.path.mkdir(parents=True, exist_ok=True)
        steps = int(self._config.get("steps") or 0)
        self._status = {"state": "running", "step": read_status(self.path)["step"], "steps": steps}
        self._set_status(pid=os.getpid(), reason=None)
        self._begin_session()
        for name in RECORDS:
            append_text(self.path / name, "")

    def _begin_session(self) -> None:
        facts = provenance.collect()
        path = self.path / "provenance.json"
        try:
            first = json.loads(path.read_text())
        except (OSError, ValueError):
            first = None
        if first is None:
            replace_text(self.path / "config.yaml", yaml.safe_dump(self._config, sort_keys=False))
            first = {"fingerprint": self._fingerprint, **facts, "resumed": []}
        elif first.get("fingerprint") != self._fingerprint:
            raise ScopeError(f"run folder {self.path} belongs to another configuration; use another root with --out")
        else:
            first["resumed"].append(facts)
        replace_text(path, json.dumps(first, indent=1) + "\n")

    def computes_in(self, number_format: str) -> None:
        """Put the number format of this run's models on record."""
        self._must_be_open()
        path = self.path / "provenance.json"
        facts = {**json.loads(path.read_text()), "number_format": number_format}
        replace_text(path, json.dumps(facts, indent=1) + "\n")

    def _end_session(self) -> None:
        path = self.path / "provenance.json"
        facts = json.loads(path.read_text())
        (facts["resumed"] or [facts])[-1]["ended"] = facts["ended"] = provenance.now()
        replace_text(path, json.dumps(facts, indent=1) + "\n")

    # -- what the training loop writes ---------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, Any], timing: Mapping[str, Any]) -> None:
        """Append one step's metrics and timings; both need ``step`` (timing takes it from metrics).

        Floats are written exactly, so equal runs give equal files; None means "not measured".

        Raises:
            ValueError: if a number is NaN or infinite.
            ScopeError: if the disk is full.
        """
        self._must_be_open()
        lines = json_line(metrics, "metrics"), json_line({"step": metrics["step"], **timing}, "timing")
        for name, line in zip(RECORDS, lines, strict=False):
            append_text(self.path / name, line)

    def log_rollouts(self, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Append dialogues to read later, one JSON line each; every one needs ``step``.

        Raises:
            ValueError: if one has no step, without which a resumed run could not drop it.
        """
        self._must_be_open()
        if any("step" not in rollout for rollout in rollouts):
            raise ValueError("every logged rollout needs its step")
        append_text(self.path / "rollouts.jsonl", "".join(json_line(rollout, "rollout") for rollout in rollouts))

    def save_checkpoint(
        self,
        step: int,
        tensors: dict[str, dict[str, torch.Tensor]],
        state: dict[str, Any],
        keep: bool = False,
    ) -> Path:
        """Write ``checkpoints/step_<step>``; the last two stay, and those marked ``keep``."""
        self._must_be_open()
        return checkpoints.save(self.path / "checkpoints", step, tensors, state, keep=keep)

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest readable checkpoint, or None for a start from scratch; later records are dropped.

        After it, metrics, timings and rollouts end at the checkpoint's step, so the loop can simply go on. A finished
        run is only read.
        """
        found = checkpoints.load_newest(self.path / "checkpoints")
        if not self.finished:
            step = found.step if found else None
            for name in RECORDS:
                _truncate(self.path / name, step)
            self._set_status(step=step or 0)
        return found

    def progress(self, step: int, total: int) -> None:
        """Tell onlookers that ``step`` of ``total`` steps are done."""
        self._must_be_open()
        self._set_status(step=step, steps=total)

    def finish(self, summary: Mapping[str, Any] | None = None) -> Path:
        """Mark the run finished; with ``fresh`` it now takes the place of its predecessor.

        Returns:
            The run's folder.
        """
        self._must_be_open()
        self._end_session()
        summary = json.loads(json_line(summary or {}, "summary"))
        self._set_status(state="finished", step=self._status["steps"], reason=None, summary=summary)
        self.finished = True
        if self.path != self.final:
            self._swap()
            self.path = self.final
        return self.path

    def _set_status(self, **changes: Any) -> None:
        self._status.update(changes)
        replace_text(self.path / "status", json.dumps(self._status) + "\n")

    def _must_be_open(self) -> None:
        if self.finished or self._lock is None:
            raise RuntimeError(f"run {self.final} is not open for writing")


def _reason(exc: BaseException | None) -> str:
    if exc is None:
        return "left before finish()"
    if isinstance(exc, KeyboardInterrupt):
        return "interrupted from the keyboard"
    text = str(exc).strip().split("\n")[0]
    return f"{type(exc).__name__}: {text}"


def _truncate(path: Path, step: int | None) -> None:
    """Keep the records up to and with ``step``, none for None."""
    records = read_lines(path) if path.exists() and step is not None else []
    kept = [record for record in records if step is not None and record["step"] <= step]
    replace_text(path, "".join(json_line(record, path.stem) for record in kept))
