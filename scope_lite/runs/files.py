"""The few ways in which a run touches the disk: replace a file whole, append one line, read lines back.

A reader never sees half a file: a whole file is written beside its target and renamed over it, and a line that could
not be appended whole is taken back. A full or read-only disk is the user's trouble, not a bug, so it is told in one
line.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scope_lite.errors import ScopeError

log = logging.getLogger("scope_lite")

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextlib.contextmanager
def plain_disk_errors(path: Path) -> Iterator[None]:
    """Turn "no space left" and "not allowed to write" into one line.

    Raises:
        ScopeError: if the disk is full, over quota, read-only or closed to us.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno in FULL:
            raise ScopeError(
                f"the disk is full: could not write {path}; free some space and run again, "
                "finished runs and the last checkpoint are intact"
            ) from exc
        if exc.errno in FORBIDDEN:
            raise ScopeError(f"cannot write {path}: {exc.strerror}; choose another folder with --out") from exc
        raise


def write_synced(path: Path, data: bytes) -> None:
    """Write and flush to the device, so that a rename after it cannot overtake the data."""
    with plain_disk_errors(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_text(path: Path, text: str) -> None:
    """Replace the whole file, or leave it as it was.

    Raises:
        ScopeError: if the disk is full or may not be written to.
    """
    # the pid keeps two writers apart; both end in a rename of a complete file
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(beside, text.encode())
        with plain_disk_errors(path):
            os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
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
        bad = [key for key, value in record.items() if not _is_finite(value)]
        raise ValueError(
            f"{what} at step {record.get('step')}: {', '.join(bad) or 'a value'} is NaN or infinite; "
            "the run diverged or a metric is wrong (None stands for 'not measured')"
        ) from exc


def _is_finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=plain)
    except ValueError:
        return False
    return True


def plain(value: Any) -> Any:
    """What JSON does not know, as something it does: arrays, tensors and their scalars, paths."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


def append_text(path: Path, text: str) -> None:
    """Append whole lines, or nothing.

    Raises:
        ScopeError: if the disk is full or may not be written to.
    """
    size = path.stat().st_size if path.exists() else 0
    try:
        with plain_disk_errors(path), path.open("ab") as file:
            file.write(text.encode())
            file.flush()
    except BaseException:
        # half a line would turn into a broken line in the middle as soon as the run goes on
        with contextlib.suppress(OSError):
            os.truncate(path, size)
        raise


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file that a killed process may have left with half a last line.

    Raises:
        ScopeError: if a line before the last is broken, with file and line number.
    """
    lines = path.read_bytes().decode(errors="replace").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a mapping")
        except ValueError as exc:
            if number == len(lines):
                log.warning("%s: the last line is cut off (its run was stopped while writing); left out", path)
                break
            raise ScopeError(
                f"{path}, line {number}: not a JSON record; the file was damaged, run again with --fresh"
            ) from exc
        records.append(record)
    return records
