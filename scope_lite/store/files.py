"""The few ways in which a run touches the disk: replace a file whole, append one line, read lines back, hold a lock.

A reader never sees half a file: a whole file is written beside its target and renamed over it, and a line that could
not be appended whole is taken back. A full or read-only disk is the user's trouble, not a bug, so it is told in one
line; so is a file that does not hold what it should.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from scope_lite.store.errors import ScopeError

log = logging.getLogger("scope_lite")

Number = int | float | None  # a metric or a timing; None is "not measured", a bool is an int
LOCK_SECONDS = 0.5  # whoever looks whether a lock is held (is_locked) holds it for a moment
LARGEST = 2**53  # no count or measurement of ours is larger, and a float still holds it
INTACT = "and run again, finished runs and the last checkpoint are intact"
TROUBLE = {
    (errno.ENOSPC, errno.EDQUOT): f"the disk is full: could not write {{path}}; free some space {INTACT}",
    (errno.EFBIG,): f"could not write {{path}}: it grew beyond the limit on files; raise it (ulimit -f) {INTACT}",
    (errno.EMFILE, errno.ENFILE): f"could not open {{path}}: {{why}}; raise the limit (ulimit -n) {INTACT}",
    (errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.ETIMEDOUT, errno.ENOTCONN): (
        f"the disk of {{path}} fails ({{why}}); see to it {INTACT}"
    ),
    (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP): (
        "the file system of {path} keeps no locks ({why}), and without them two processes could write one run; choose "
        "a folder on a local disk with --out"
    ),
    (
        errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT, errno.ENOTDIR,
        errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY,
    ): "cannot use {path}: {why}; see what is there, or choose another folder with --out",
}  # fmt: skip


@contextlib.contextmanager
def plain_disk_errors(path: Path) -> Iterator[None]:
    """Tell what a disk refuses in one line.

    Raises:
        ScopeError: if the disk is full, over quota, read-only, failing or closed to us, or a folder is not one.
    """
    try:
        yield
    except OSError as exc:
        for codes, line in TROUBLE.items():
            if exc.errno in codes:
                raise ScopeError(line.format(path=path, why=exc.strerror)) from exc
        raise


# -- writing --------------------------------------------------------------------------------------------------------


def write_synced(path: Path, data: bytes) -> None:
    """Write and flush to the device, so that a rename after it cannot overtake the data."""
    with plain_disk_errors(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flush to the device what was written to a file before, or the names in a folder."""
    with plain_disk_errors(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError:
            if not path.is_dir():  # some file systems cannot flush a folder, and lose at most its newest name
                raise
        finally:
            os.close(handle)


def replace_text(path: Path, text: str) -> None:
    """Replace the whole file, or leave it as it was.

    Raises:
        ScopeError: if the disk is full or may not be written to.
    """
    # process and thread keep two writers apart; both end in a rename of a complete file
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        write_synced(beside, text.encode())
        with plain_disk_errors(path):
            os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):  # gone, if all went well
            beside.unlink()


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder`` to write into, which takes its place when all is on the device.

    Raises:
        ScopeError: if the disk is full or may not be written to; what stood there stays.
    """
    beside, old = (folder.with_name(f".{folder.name}{suffix}") for suffix in ("", ".old"))
    remove(beside)
    try:
        with plain_disk_errors(folder):
            beside.mkdir(parents=True)
            yield beside
            sync(beside)
            swap(beside, folder, old)
    except BaseException:
        with contextlib.suppress(ScopeError, OSError):
            remove(beside)
        raise


def swap(new: Path, folder: Path, old: Path) -> None:
    """``new`` in the place of ``folder``; cut short by a kill, what stood there is at ``old``, and ``new`` is whole.

    Raises:
        ScopeError: if it may not be renamed or removed.
    """
    with plain_disk_errors(folder):
        if os.path.lexists(folder):
            remove(old)
            folder.rename(old)
        new.rename(folder)
        sync(folder.parent)
    remove(old)


def sweep(folder: Path) -> None:
    """Remove what killed writers left of ``replace_text``; only for who holds the folder's lock."""
    for stale in folder.glob(".*.tmp"):
        remove(stale)


def remove(path: Path) -> None:
    """Remove a file, a folder with all in it, or a link, but not what it points to; nothing if nothing is there.

    Raises:
        ScopeError: if it may not be removed.
    """
    with plain_disk_errors(path):
        if path.is_symlink():
            log.warning("%s was a link; %s, to which it led, stays", path, os.readlink(path))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def append_text(path: Path, text: str) -> None:
    """Append whole lines, or nothing.

    Raises:
        ScopeError: if the disk is full or may not be written to.
    """
    with plain_disk_errors(path):
        size = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as file:
                file.write(text.encode())
                file.flush()
        except BaseException:
            # half a line would turn into a broken line in the middle as soon as the run goes on
            with contextlib.suppress(OSError):
                os.truncate(path, size)
            raise


def json_line(record: Mapping[str, Any], what: str) -> str:
    """One record as one JSON line; floats in their shortest exact form, so equal numbers give equal bytes.

    Args:
        record: plain values, or NumPy and torch scalars. None means "not measured" and is written as null.
        what: name of the record for the error message, such as "metrics".

    Raises:
        ValueError: if a number is NaN or infinite. That is a bug or a run that diverged, never a measurement.
    """
    try:
        return json.dumps(dict(record), allow_nan=False, default=plain) + "\n"
    except ValueError as exc:
        bad = [key for key, value in record.items() if re.search("NaN|Infinity", json.dumps(value, default=plain))]
        raise ValueError(
            f"{what} at step {record.get('step')}: {', '.join(bad) or 'a value'} is NaN or infinite; "
            "the run diverged or a metric is wrong (None stands for 'not measured')"
        ) from exc


def plain(value: Any) -> Any:
    """What JSON does not know, as something it does: arrays, tensors and their scalars, paths."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


# -- reading --------------------------------------------------------------------------------------------------------


def read_object(path: Path, shape: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON file that holds one mapping, whose values have the types of ``shape``.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is anything else than such a mapping, in one line.
    """
    return check(_parsed(path.read_bytes()), shape)


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep to be read") from None


def check(record: Any, shape: Mapping[str, Any], others: Any = object) -> dict[str, Any]:
    """A mapping with values of these types (as for ``isinstance``), and no number beyond all measure.

    What is missing becomes None; ``others`` is the type of what ``shape`` does not name.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(record, dict):
        raise ValueError("not a mapping")
    for name in shape:
        record.setdefault(name, None)
    for name, value in record.items():
        kind = shape.get(name, others)
        if kind is object:
            continue
        # JSON's own reader takes NaN and a number of a thousand digits
        number = isinstance(value, int | float) and not isinstance(value, bool)
        wild = number and not -LARGEST < value < LARGEST
        if wild or not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise ValueError(f"{name} is missing or makes no sense")
    return record


def read_lines(path: Path, shape: Mapping[str, Any] | None = None, others: Any = object) -> list[dict[str, Any]]:
    """Read a JSON-lines file that a killed process may have left with half a last line.

    Args:
        shape: as for ``check``; ``step`` is asked for in any case.
        others: the type of every value that ``shape`` does not name.

    Raises:
        ScopeError: if a line is no such record (the last may be cut off), with file and line number.
    """
    with plain_disk_errors(path):
        lines = path.read_bytes().decode(errors="replace").rstrip().split("\n")
    records = []
    for number, line in enumerate(lines if lines != [""] else [], start=1):
        try:
            records.append(check(_parsed(line), {"step": int, **(shape or {})}, others))
        except ValueError as exc:
            broken = isinstance(exc, json.JSONDecodeError)
            if broken and number == len(lines):
                log.warning("%s: the last line is cut off (its run was stopped while writing); left out", path)
                break
            why = "not a JSON record" if broken else str(exc)
            raise ScopeError(f"{path}, line {number}: {why}; the file was damaged, run again with --fresh") from exc
    return records


# -- locks ----------------------------------------------------------------------------------------------------------


def take_lock(path: Path) -> FileLock | None:
    """The lock, held (``release()`` it); None if another process holds it.

    Raises:
        ScopeError: if the folder may not be written to, or its file system keeps no locks.
    """
    with plain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # the library's way out where there are no locks is a file that outlives a killed process
        lock = FileLock(path, timeout=LOCK_SECONDS, fallback_to_soft=False)
        with contextlib.suppress(Timeout):
            lock.acquire()
            return lock
    return None


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock; nothing is written."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
