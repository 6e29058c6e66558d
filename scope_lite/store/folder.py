"""One training run on disk: who may write it, what it holds, how it ends.

    runs/persuasion-single-seed0-1a2b3c4d/
        config.yaml provenance.json metrics.jsonl timing.jsonl rollouts.jsonl checkpoints/ status

A lock beside the folder admits one writer, and is what says whether a run is running. A finished run is never written
again: ``fresh`` builds its successor in ``<folder>.fresh`` and swaps the two only when the successor has finished. A
run that stops early, for whatever reason, can be resumed by opening it again, from its last checkpoint whose metrics
and dialogues are still what they were when it was written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psutil
import yaml
from filelock import FileLock

from scope_lite.store import checkpoints, files, provenance
from scope_lite.store.checkpoints import Checkpoint
from scope_lite.store.errors import ScopeError, first_line
from scope_lite.store.plain_yaml import flat, read_yaml

if TYPE_CHECKING:
    import torch

MadeOf = Mapping[str, Mapping[str, Any]]
RECORDS = ("metrics.jsonl", "timing.jsonl", "rollouts.jsonl")
RESULTS = ("metrics.jsonl", "rollouts.jsonl")  # the records that are the same at every repetition
SPARE_SUFFIXES = (".old", ".fresh")
STATES = ("running", "failed", "finished")
STATUS = {"state": str, "step": int, "steps": int, "pid": int | None, "since": float | None, "reason": str | None}
UNKNOWN: dict[str, Any] = {"state": "unknown", "step": 0, "steps": 0, "pid": None, "since": None, "reason": None}
PROVENANCE = {"started": str, "resumed": list, "made_of": dict | None}


def lock_path(path: Path) -> Path:
    """The lock of a run; beside the folder, not in it, because the folder itself is swapped."""
    name = path.name
    for suffix in SPARE_SUFFIXES:
        name = name.removesuffix(suffix)
    return path.parent / ".locks" / f"{name}.lock"


def read_status(path: Path) -> dict[str, Any]:
    """The run's status; its state is "interrupted" when no process holds the lock of a run that was "running".

    An absent or unreadable file gives state "unknown".
    """
    status = _read(path / "status", STATUS)
    if status.get("state") not in STATES:
        return dict(UNKNOWN)
    if status["state"] == "running" and not files.is_locked(lock_path(path)):
        status["state"] = "interrupted"
    return status


def read_provenance(path: Path) -> dict[str, Any]:
    """Where the run came from; nothing if the file is absent or damaged."""
    return _read(path / "provenance.json", PROVENANCE)


def _read(path: Path, shape: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return files.read_object(path, shape)
    except (OSError, ValueError):
        return {}


def read_config(path: Path) -> dict[str, Any]:
    """The configuration saved in a run folder, empty if it never got that far or is damaged."""
    try:
        config = read_yaml(path / "config.yaml")
    except ScopeError:
        return {}
    return config if isinstance(config, dict) else {}


def changed_since(path: Path, made_of: MadeOf) -> list[str]:
    """Settings, and files that it reads, by which the run in this folder is another one than asked for.

    Nothing where the folder does not tell: an earlier version made it, or its provenance is lost.
    """
    try:
        told = files.check(read_provenance(path).get("made_of"), {"settings": dict, "files": dict})
    except ValueError:
        return []
    changed = [key for key, value in told["settings"].items() if made_of["settings"].get(key, value) != value]
    before, now = told["files"], made_of["files"]
    return changed + [name for name in {**before, **now} if before.get(name) != now.get(name)]


def recorded_format(path: Path) -> str:
    """The number format that the run in this folder began in; "auto" where it is not on record."""
    return str(read_provenance(path).get("number_format", "auto"))


def is_finished(path: Path) -> bool:
    """Whether the run in this folder came to its end."""
    return read_status(path)["state"] == "finished"


def _writer(status: Mapping[str, Any]) -> str:
    """Who wrote this status. An id alone names nobody: ids are given anew, and each container counts its own."""
    with contextlib.suppress(psutil.Error, TypeError, ValueError, OverflowError):
        if abs(psutil.Process(int(status["pid"])).create_time() - status["since"]) < 1:
            return f"process {status['pid']}"
    return "another process (just starting, or in another container)"


class RunFolder:
    """A run open for writing; use as ``with RunFolder(...) as run``.

    Entering takes the lock and makes or resumes the folder. A finished run is opened for reading only (``.finished`` is
    True), without a lock, unless ``fresh``. ``run.path`` is the folder being written: with ``fresh`` over a finished
    run, the successor's until ``finish()``, and the usual one afterwards.

    Raises (on entering):
        ScopeError: if another process writes this run, or the folder belongs to another configuration.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], made_of: MadeOf, fresh: bool = False) -> None:
        """``config`` is kept to be read; ``made_of`` (``settings``, ``files``) is what tells this run from others."""
        self.path = self.final = path
        self._fresh_path, self._old_path = (path.with_name(path.name + end) for end in (".fresh", ".old"))
        self._config, self._made_of, self._fresh = dict(config), made_of, fresh
        self.finished = False
        self._status: dict[str, Any] = {}
        self._provenance: dict[str, Any] = {}
        self._lock: FileLock | None = None

    # -- entering and leaving ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if not self._is_done():
            self._take_lock()
            try:
                self._settle_swap()
                if not self._is_done():  # or it finished while we waited for the lock
                    self._prepare()
            except BaseException:
                self._release()
                raise
        return self

    def _is_done(self) -> bool:
        self.finished = not self._fresh and is_finished(self.final)
        if self.finished:
            self._refuse_another()
        return self.finished

    def _refuse_another(self) -> None:
        if changed := changed_since(self.path, self._made_of):
            told = f"run folder {self.path} belongs to another configuration ({', '.join(changed[:3])} differ)"
            raise ScopeError(f"{told}; use another root with --out")

    def _refuse_named_before(self) -> None:
        """An earlier version gave this run another name; whether its models are the same now, only its owner knows."""
        ours = flat(self._config)
        for path in sorted(self.final.parent.glob(f"{self.final.name.rpartition('-')[0]}-*")):
            told, config = read_provenance(path), flat(read_config(path))
            if told and not told["made_of"] and config and all(ours.get(k, v) == v for k, v in config.items()):
                raise ScopeError(
                    f"{path} holds this run under the name that an earlier version gave it: if its models are still "
                    f"the same, rename the folder to {self.final.name}; else train anew with --fresh"
                )

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
        self._lock = files.take_lock(lock_path(self.final))
        if self._lock is None:
            owners = [read_status(path) for path in (self._fresh_path, self.final)]
            running = next((owner for owner in owners if owner["state"] == "running"), UNKNOWN)
            raise ScopeError(
                f"run folder {self.final} is in use by {_writer(running)}; wait for it or stop it, then run again"
            )

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- making, resuming, swapping ------------------------------------------------------------------------------

    def _settle_swap(self) -> None:
        """Complete or undo a swap in which an earlier process was killed."""
        if is_finished(self._fresh_path):
            files.swap(self._fresh_path, self.final, self._old_path)
        with files.plain_disk_errors(self.final):
            if not self.final.exists() and self._old_path.exists():
                self._old_path.rename(self.final)
        files.remove(self._old_path)

    def _prepare(self) -> None:
        if not self._fresh and not os.path.lexists(self.final):
            self._refuse_named_before()
        files.remove(self._fresh_path)
        if self._fresh and is_finished(self.final):
            self.path = self._fresh_path
        elif self._fresh:
            files.remove(self.final)
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise ScopeError(
                f"{self.path} is no folder, but a file or a link to what is not there: put the folder back, or start "
                "anew with --fresh"
            )
        with files.plain_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._provenance = read_provenance(self.path)
        self._refuse_another()
        files.sweep(self.path)
        steps = int(self._config.get("steps") or 0)
        self._status = {"state": "running", "step": read_status(self.path)["step"], "steps": steps}
        self._set_status(pid=os.getpid(), since=psutil.Process().create_time(), reason=None)
        self._begin_session()
        files.replace_text(self.path / "config.yaml", yaml.safe_dump(self._config, sort_keys=False))
        for name in RECORDS:
            files.append_text(self.path / name, "")

    def _begin_session(self) -> None:
        facts, told = provenance.collect(), self._provenance
        if told:
            told["resumed"] = [session for session in told["resumed"] if isinstance(session, dict)] + [facts]
        else:
            told |= {**facts, "resumed": []}
            if (self.path / "config.yaml").exists():
                told["note"] = "written anew: the file of the sessions before was lost or damaged"
                files.log.warning("%s was lost or damaged; written anew", self.path / "provenance.json")
        told["made_of"] = self._made_of
        self._write_provenance()

    def computes_in(self, number_format: str) -> None:
        """Put the number format of this run's models on record."""
        self._must_be_open()
        self._provenance["number_format"] = number_format
        self._write_provenance()

    def _write_provenance(self) -> None:
        files.replace_text(self.path / "provenance.json", json.dumps(self._provenance, indent=1) + "\n")

    def _end_session(self) -> None:
        told = self._provenance
        (told["resumed"] or [told])[-1]["ended"] = told["ended"] = provenance.now()
        self._write_provenance()

    # -- what the training loop writes ---------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, Any], timing: Mapping[str, Any]) -> None:
        """Append one step's metrics and timings; both need ``step`` (timing takes it from metrics).

        Floats are written exactly, so equal runs give equal files; None means "not measured".

        Raises:
            ValueError: if a number is NaN or infinite.
            ScopeError: if the disk is full.
        """
        self._must_be_open()
        lines = files.json_line(metrics, "metrics"), files.json_line({"step": metrics["step"], **timing}, "timing")
        files.append_text(self.path / "metrics.jsonl", lines[0])
        files.append_text(self.path / "timing.jsonl", lines[1])

    def log_rollouts(self, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Append dialogues to read later, one JSON line each; every one needs ``step``.

        Raises:
            ValueError: if one has no step, without which a resumed run could not drop it.
        """
        self._must_be_open()
        if any("step" not in rollout for rollout in rollouts):
            raise ValueError("every logged rollout needs its step")
        lines = [files.json_line(rollout, "rollout") for rollout in rollouts]
        files.append_text(self.path / "rollouts.jsonl", "".join(lines))

    def save_checkpoint(self, step: int, tensors: dict[str, dict[str, torch.Tensor]], state: dict[str, Any]) -> Path:
        """Write ``checkpoints/step_<step>``, with what the records hold at this moment; the last two stay."""
        self._must_be_open()
        for name in RECORDS:
            files.sync(self.path / name)
        records = {name: _seal((self.path / name).read_bytes()) for name in RESULTS}
        return checkpoints.save(self.path / "checkpoints", step, tensors, state, records)

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint to go on from, or None for a start from scratch; later records are dropped.

        After it, metrics, timings and rollouts end at the checkpoint's step, so the loop can simply go on. A finished
        run is only read.

        Raises:
            ScopeError: if checkpoints can be read, but the records of none are what they were.
        """
        folder = self.path / "checkpoints"
        if self.finished:
            return checkpoints.load_newest(folder)
        found = self._newest_with_records(folder)
        for name in RESULTS:
            with files.plain_disk_errors(self.path / name):
                os.truncate(self.path / name, found.records[name]["bytes"] if found and found.records else 0)
        _truncate_timing(self.path / "timing.jsonl", [r["step"] for r in files.read_lines(self.path / "metrics.jsonl")])
        if found:
            checkpoints.drop_older(folder, found.step)
        self._set_status(step=found.step if found else 0)
        return found

    def _newest_with_records(self, folder: Path) -> Checkpoint | None:
        now, found = {name: (self.path / name).read_bytes() for name in RESULTS}, None
        for found in checkpoints.whole(folder):
            told = found.records
            if told and all(_seal(now[name][: told[name]["bytes"]]) == told[name] for name in RESULTS):
                return found
            files.log.warning(
                "metrics or dialogues before %s are not what they were; trying the one before", found.path
            )
        if found:
            raise ScopeError(
                f"{self.path}: no checkpoint goes with metrics.jsonl and rollouts.jsonl (lines were lost, doubled or "
                "altered, or an earlier version wrote them); put the files back, or run again with --fresh"
            )
        return None

    def progress(self, step: int, total: int) -> None:
        """Tell onlookers that ``step`` of ``total`` steps are done."""
        self._must_be_open()
        self._set_status(step=step, steps=total)

    def finish(self) -> Path:
        """Mark the run finished, its last metrics as its summary; with ``fresh`` it takes its predecessor's place.

        Returns:
            The run's folder.
        """
        self._must_be_open()
        self._end_session()
        # from the file, for a run that was killed after its last step has no numbers at hand
        (summary,) = files.read_lines(self.path / "metrics.jsonl", others=files.Number)[-1:] or [{}]
        self._set_status(state="finished", step=self._status["steps"], reason=None, summary=summary)
        self.finished = True
        if self.path != self.final:
            files.swap(self.path, self.final, self._old_path)
            self.path = self.final
        return self.path

    def _set_status(self, **changes: Any) -> None:
        self._status.update(changes)
        files.replace_text(self.path / "status", json.dumps(self._status) + "\n")

    def _must_be_open(self) -> None:
        if self.finished or self._lock is None:
            raise RuntimeError(f"run {self.final} is not open for writing")


def _reason(exc: BaseException | None) -> str:
    if exc is None:
        return "left before finish()"
    if isinstance(exc, KeyboardInterrupt):
        return "interrupted from the keyboard"
    return f"{type(exc).__name__}: {first_line(exc)}"


def _seal(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _truncate_timing(path: Path, steps: list[int]) -> None:
    """Keep the timings of these steps, one each: no result rests on them, so what is lost is told and left out."""
    records: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(ScopeError):
        records = {record["step"]: record for record in files.read_lines(path, others=files.Number)}
    kept = [records[step] for step in steps if step in records]
    if len(kept) < len(steps):
        files.log.warning("%s was damaged: the times of %d steps are lost", path, len(steps) - len(kept))
    files.replace_text(path, "".join(files.json_line(record, "timing") for record in kept))
