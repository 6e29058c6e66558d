"""Runs one command of foreign code (an agent's, a benchmark's tests) bounded, and says what held it.

What holds, by what the system allows (``jail.py`` does it; :func:`containment` says which way is in force):

                         namespaces                          landlock (version 3 up, Linux 6.2)
    writing              scratch folder and a private /tmp   scratch folder
    reading              system folders, Python, ``readable``, scratch: nothing else of the disk
    network              none at all, not even loopback      no TCP (version 4 up); UDP and local sockets open
    other processes      not seen                            seen; not to be signalled (version 6 up)
    what is left behind  ended by the kernel                 found, stopped and killed
    fork bomb            RLIMIT_NPROC, for which root becomes a user id that nobody else has
    a hang               killed with all it started after ``Limits.seconds``
    memory               RLIMIT_AS for each process, and the sum is looked at four times a second
    disk                 RLIMIT_FSIZE for each file; all are added up when the disk's free space falls by as much,
                         and counted when as many of its file entries are gone
    secrets              environment built anew, nothing inherited

Namespaces work as root, and as a user wherever the kernel lets users have them. Debian does; Ubuntu since 23.10 and
Docker's default profile do not, and then Landlock holds. Where neither is to be had (macOS, Windows, an old kernel in a
container) foreign code is not run at all.

Not contained in any way: the kernel itself (no system call is filtered, so a hole in the kernel is a way out); CPU
caches and timing; a burst of memory or disk within a quarter second; the machine's processor time within the limits.
Under Landlock also: metadata (mode, owner, times) of files that the user owns; below version 6, a user's own processes
can be signalled, this one too, and what outlives a killed watcher stays; UDP. The results of foreign code are its own
word: a test that shares its process with the code it tests can be fooled by it.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal

import psutil

from scope_lite.envs.cooperbench import jail
from scope_lite.envs.cooperbench.scratch import give_to, scratch_folder
from scope_lite.store.errors import ScopeError

Way = Literal["namespaces", "landlock"]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
FIRST_USER, USERS = 40_000, 20_000
"""root runs foreign code as one of these user ids: no distribution gives them out, every container has them"""
LOOK_EVERY = 0.25


@dataclass(frozen=True)
class Limits:
    """What one command may use."""

    seconds: float = 60.0
    """wall clock; then it is killed with all that it started"""
    cpu_seconds: int = 60
    """processor time of each process"""
    memory_mb: int = 2048
    """address space of each process, and resident memory of all together"""
    processes: int = 64
    """processes and threads at one time"""
    file_mb: int = 256
    """size of one file"""
    disk_mb: int = 2048
    """size of the scratch folder"""
    files: int = 100_000
    """files and folders in the scratch folder"""
    output_bytes: int = 40_000
    """of each stream; the middle of a longer one is left out"""

    def rlimits(self) -> dict[str, int]:
        """What the kernel holds each process to, by the names of ``resource``."""
        return {
            "CPU": self.cpu_seconds,
            "AS": self.memory_mb << 20,
            "FSIZE": self.file_mb << 20,
            "NPROC": self.processes,
            "NOFILE": 512,
            "CORE": 0,
        }


@dataclass(frozen=True)
class Containment:
    """What was in force."""

    way: Way
    network: Literal["none", "no TCP", "open"]
    signals: bool
    """True: processes outside cannot be signalled"""
    user: int
    """user id that the command ran as"""


@dataclass(frozen=True)
class Done:
    """What came of one command."""

    code: int | None
    """exit code, negative for a signal; None if it was ended for using too much"""
    ended: Literal["exit", "time", "memory", "disk"]
    stdout: str
    """bytes that are no UTF-8 as lone surrogates, so that a patch comes back as it was"""
    stderr: str
    """empty if the streams were read together"""
    cut: bool
    """True if a stream was longer than its limit"""
    seconds: float
    containment: Containment

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.ended == "exit"


def run(
    command: Sequence[str],
    scratch: Path,
    cwd: Path | None = None,
    limits: Limits | None = None,
    readable: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    together: bool = False,
    way: Way | None = None,
) -> Done:
    """Run a command that can write only in ``scratch``.

    Args:
        command: program and arguments; no shell reads them.
        scratch: a folder of :func:`scratch_folder`. As root its files are given to the user id that runs the command.
        cwd: where it starts, within ``scratch``; ``readable``: more folders that it may read, such as a repository.
        environment: variables beside PATH, HOME, TMPDIR and a few that keep runs alike.
        together: both streams in ``stdout``, in the order written.
        way: None takes the better one that works here.

    Raises:
        ScopeError: the system cannot contain it, or the program cannot be started.
    """
    limits, scratch, began = limits or Limits(), scratch.resolve(), time.monotonic()
    held = containment(scratch, way)
    if os.getuid() == 0:
        give_to(scratch, held.user)
    specification = {
        "way": held.way,
        "command": list(command),
        "scratch": str(scratch),
        "cwd": str((cwd or scratch).resolve()),
        "readable": [*SYSTEM, sys.base_prefix, sys.prefix, *(str(path.resolve()) for path in readable)],
        "environment": _environment(scratch) | dict(environment or {}),
        "limits": limits.rlimits(),
        "uid": held.user,
    }
    process, report = _start(specification, stdin, together)
    streams = [_Stream(pipe, limits.output_bytes) for pipe in (process.stdout, process.stderr) if pipe]
    with report:
        try:
            ended = _watch(process, streams, limits, scratch)
        finally:
            _end(process)
            for stream in streams:
                stream.pipe.close()
        answer = json.loads(report.readline() or b"{}")
    if "error" in answer:
        why = answer["error"] + _closed_to(command[0], held)
        raise ScopeError(f"cannot run {command[0]} contained ({held.way}): {why}")
    return Done(
        code=answer.get("code") if ended == "exit" else None,
        ended=ended,
        stdout=streams[0].text(),
        stderr="" if together else streams[1].text(),
        cut=any(stream.left_out for stream in streams),
        seconds=time.monotonic() - began,
        containment=held,
    )


def _closed_to(program: str, held: Containment) -> str:
    """Why the user id that runs foreign code cannot reach a program, if its folder is the reason."""
    above = Path(shutil.which(program) or program).resolve().parents
    closed = next((folder for folder in reversed(above) if folder.exists() and not folder.stat().st_mode & 1), None)
    if held.way == "namespaces" or closed is None or os.getuid() != 0:
        return ""
    return f"; user id {held.user}, as which it runs, may not enter {closed}: use a program that lies elsewhere"


def containment(scratch: Path, way: Way | None = None) -> Containment:
    """What would be in force for a command in ``scratch``.

    Raises:
        ScopeError: nothing would, or not the way asked for.
    """
    way = way or best_way()
    user = FIRST_USER + scratch.stat().st_ino % USERS if os.getuid() == 0 else os.getuid()
    if way == "namespaces":
        return Containment(way, "none", True, user)
    version = jail.landlock_version() if sys.platform == "linux" else 0
    if version < jail.LANDLOCK_MINIMUM:
        raise ScopeError(
            "this system can contain foreign code neither by namespaces nor by Landlock (Linux 6.2 up), so CooperBench "
            "is not run here: use a Linux machine, or a container that is allowed one of them"
        )
    return Containment(way, "no TCP" if version >= 4 else "open", version >= 6, user)


@cache
def best_way() -> Way:
    """Namespaces where they work, tried once by running a command in them; else Landlock."""
    if sys.platform != "linux":
        return "landlock"  # refused by ``containment``, with the reason
    with scratch_folder() as scratch:
        try:
            run(["/bin/true"], scratch, way="namespaces", limits=Limits(seconds=20))
        except ScopeError:
            return "landlock"
    return "namespaces"


def _start(
    specification: Mapping[str, object], stdin: str, together: bool
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """The jail's process, and the pipe on which it reports."""
    reader, writer = os.pipe()
    argument = json.dumps({**specification, "report_fd": writer, "caller": os.getpid()})
    try:
        with tempfile.NamedTemporaryFile() as file, open(file.name, "rb") as words:
            file.write(stdin.encode(errors="surrogateescape"))
            file.flush()  # read through a handle of its own: what is given to the command cannot be written to
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(jail.__file__).resolve()), argument],
                stdin=words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if together else subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=(writer,),
                start_new_session=True,
            )
    finally:
        os.close(writer)
    return process, os.fdopen(reader, "rb")


class _Stream:
    """One output pipe: the first and the last half of what may be kept."""

    def __init__(self, pipe: IO[bytes], limit: int):
        self.pipe, self.half = pipe, limit // 2
        self.head, self.tail, self.left_out = bytearray(), bytearray(), 0
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Take what is there; False at the end."""
        try:
            piece = os.read(self.pipe.fileno(), 65_536)
        except BlockingIOError:
            return True
        room = self.half - len(self.head)
        self.head += piece[:room]
        self.tail += piece[room:]
        if (extra := len(self.tail) - self.half) > 0:
            del self.tail[:extra]
            self.left_out += extra
        return bool(piece)

    def text(self) -> str:
        gap = f"\n[{self.left_out} bytes left out]\n".encode() if self.left_out else b""
        return (self.head + gap + self.tail).decode(errors="surrogateescape")


def _watch(
    process: subprocess.Popen[bytes], streams: list[_Stream], limits: Limits, scratch: Path
) -> Literal["exit", "time", "memory", "disk"]:
    """Read the output until the streams end, or until a limit is passed."""
    deadline = time.monotonic() + limits.seconds
    before = os.statvfs(scratch)
    next_look = time.monotonic() + LOOK_EVERY
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.pipe, selectors.EVENT_READ, stream)
        while selector.get_map():
            now = time.monotonic()
            if now >= deadline:
                return "time"
            if now >= next_look:
                if _resident(process.pid) > limits.memory_mb << 20:
                    return "memory"
                # others use the disk too, so what is gone from it only says when to add up
                most, now_free = limits.disk_mb << 20, os.statvfs(scratch)
                gone = (before.f_bavail - now_free.f_bavail) * before.f_frsize, before.f_ffree - now_free.f_ffree
                if gone[0] > most or gone[1] > limits.files:
                    size, files = _size(scratch)
                    if size > most or files > limits.files:
                        return "disk"
                next_look = now + LOOK_EVERY
            for key, _ in selector.select(min(deadline, next_look) - now):
                if not key.data.read():
                    selector.unregister(key.fileobj)
    try:  # it may close its streams and go on
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "time"
    return "exit"


def _resident(pid: int) -> int:
    """Bytes of memory in use by a process and all below it; shared pages count for each."""
    total = 0
    try:
        for process in psutil.Process(pid).children(recursive=True):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        return 0
    return total


def _size(folder: Path) -> tuple[int, int]:
    """Bytes on disk of a folder that is being written to, and the files and folders in it."""
    total = count = 0
    for place, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total, count


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command with all that it started, if it has not ended."""
    if process.poll() is None:
        process.terminate()  # it ends when they have ended
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(scratch: Path) -> dict[str, str]:
    return {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
