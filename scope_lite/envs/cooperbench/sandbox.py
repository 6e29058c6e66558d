"""Runs one command of foreign code (an agent's, a benchmark's tests) in bubblewrap, bounded.

    writing              scratch folder, a private /tmp and /dev/shm
    reading              system folders, Python, ``readable``, scratch: nothing else of the disk
    network              none at all, not even loopback
    other processes      not seen; what is left behind is ended by the kernel
    fork bomb            RLIMIT_NPROC, for which root becomes a user id that nobody else has
    a hang               killed with all it started after ``Limits.seconds``
    memory               RLIMIT_AS for each process, and the sum is looked at four times a second
    disk                 RLIMIT_FSIZE for each file; all are added up and counted when as much of the disk is gone
    secrets              environment built anew, nothing inherited

Bubblewrap (the Debian package ``bubblewrap``, 0.7 up) needs Linux namespaces: as root, or as a user wherever the kernel
lets users have them. Where it cannot run, foreign code is not run at all.

Not contained: the kernel itself (no system call is filtered, so a hole in the kernel is a way out); CPU caches and
timing; a burst of memory or disk within a quarter second; the machine's processor time within the limits. The results
of foreign code are its own word: a test that shares its process with the code it tests can be fooled by it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from operator import gt
from pathlib import Path
from typing import IO

import psutil

from scope_lite.store.errors import ScopeError

LAUNCH = Path(__file__).with_name("launch.py")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
PATH = "/usr/local/bin:/usr/bin:/bin"
PRIVATE_BYTES = str(64 << 20)
"""size of /tmp and of /dev/shm inside, each"""
FIRST_USER, USERS = 40_000, 20_000
"""root runs foreign code as one of these user ids: no distribution gives them out, every container has them"""
LOOK_EVERY = 0.25
GIT_SETTINGS = "[user]\n\tname = agent\n\temail = agent@localhost\n[safe]\n\tdirectory = *\n"


@dataclass(frozen=True)
class Limits:
    """What one command may use; if it takes more time, memory or disk, it is killed with all that it started."""

    seconds: float = 60.0
    """wall clock"""
    memory_mb: int = 2048
    """address space of each process, and resident memory of all together"""
    processes: int = 64
    """with their threads, at one time"""
    file_mb: int = 256
    """size of one file"""
    disk_mb: int = 2048
    files: int = 100_000
    """size of the scratch folder; files and folders in it"""
    output_bytes: int = 40_000
    """of each stream; the middle of a longer one is left out"""


@dataclass(frozen=True)
class Done:
    """What came of one command."""

    code: int | None
    """exit code, 128 and more for a signal, as a shell has it; None if it was ended for using too much"""
    ended: str
    """"exit"; or what it used too much of: "time", "memory", "disk\""""
    stdout: str
    """bytes that are no UTF-8 as lone surrogates, so that a patch comes back as it was"""
    stderr: str = ""
    """empty if the streams were read together"""
    cut: bool = False
    """True if a stream was longer than its limit"""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def first_line(self) -> str:
        """What it said first, or how it ended."""
        if self.ended != "exit":
            return f"ended for using too much {self.ended}"
        return ((self.stderr or self.stdout).strip().splitlines() or [f"exit code {self.code}"])[0]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for foreign code, with ``home`` and ``tmp`` inside; removed at the end with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix="scope-lite-")).resolve()
    try:
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        (folder / "home" / ".gitconfig").write_text(GIT_SETTINGS, encoding="utf-8")
        yield folder
    finally:
        _system("chmod", "-R", "u+rwX", folder)  # foreign code may have taken its rights
        _system("rm", "-rf", folder)


def _system(*command: str | Path) -> str:
    """What a program of the system prints: these follow no link and mind no depth, whatever foreign code has made."""
    done = subprocess.run(command, env={"PATH": PATH}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode(errors="replace")


@cache
def fault() -> str:
    """Why foreign code cannot be contained here, and what helps; empty where it can."""
    try:
        with scratch_folder() as scratch:
            run(["true"], scratch, limits=Limits(seconds=20))
    except ScopeError as error:
        return str(error)
    return ""


def run(
    command: Sequence[str],
    scratch: Path,
    cwd: Path | None = None,
    limits: Limits | None = None,
    readable: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    together: bool = False,
) -> Done:
    """Run a command that can write only in ``scratch``.

    Args:
        command: program and arguments; no shell reads them.
        scratch: a folder of :func:`scratch_folder`. As root its files are given to the user id that runs the command.
        cwd: where it starts, within ``scratch``; ``readable``: more folders that it may read, such as a repository.
        environment: variables beside PATH, HOME, TMPDIR and a few that keep runs alike.
        together: both streams in ``stdout``, in the order written.

    Raises:
        ScopeError: bubblewrap is not here or cannot contain it, or the program cannot be started.
    """
    limits, scratch = limits or Limits(), scratch.resolve()
    if (bwrap := shutil.which("bwrap")) is None:
        raise ScopeError(
            "CooperBench runs foreign code in bubblewrap only, and there is no `bwrap` here: on Linux, "
            "`apt-get install bubblewrap`"
        )
    user = FIRST_USER + scratch.stat().st_ino % USERS if os.getuid() == 0 else None
    if user is not None and scratch.stat().st_uid != user:
        _system("chown", "-R", "-h", f"{user}:{user}", scratch)
    reader, writer = os.pipe()
    sizes = {"AS": limits.memory_mb << 20, "FSIZE": limits.file_mb << 20}
    how = [writer, user, sizes | {"NPROC": limits.processes, "NOFILE": 512, "CORE": 0}, str(cwd or scratch), [*command]]
    python = [sys.executable, "-I", "-S", "-c", LAUNCH.read_text(encoding="utf-8"), json.dumps(how)]
    try:
        process = _started([bwrap, *_walls(scratch, readable), "--", *python], stdin, together, writer,
                           _environment(scratch) | dict(environment or {}))  # fmt: skip
    finally:
        os.close(writer)
    with os.fdopen(reader, "rb") as report, ThreadPoolExecutor(2) as pool:
        pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe]
        streams = [pool.submit(_ends_of, pipe, limits.output_bytes) for pipe in pipes]
        try:
            ended = _watch(process, limits, scratch)
        finally:
            _end(process)
        (out, out_cut), (err, err_cut) = [stream.result() for stream in streams] + [("", False)] * together
        said = report.read(4096).decode(errors="replace")
    done = Done(process.returncode if ended == "exit" else None, ended, out, err, out_cut or err_cut)
    if ended == "exit" and said != "started":
        why = said.removeprefix("started") or f" {done.first_line}; bubblewrap needs namespaces, which root may make"
        raise ScopeError(f"cannot run {command[0]} contained:{why}")
    return done


def _walls(scratch: Path, readable: Sequence[Path]) -> list[str]:
    """The options of bubblewrap: what the command sees, and that it ends with us."""
    apart = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    rights = ["--cap-drop", "ALL"]
    if os.getuid() == 0:  # ``launch`` becomes another user, for which root must still be root in there
        rights += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        apart.append("--unshare-user")
    private = ["--perms", "1777", "--size", PRIVATE_BYTES, "--tmpfs"]
    seen = ["--dev", "/dev", *private, "/dev/shm", "--proc", "/proc", *private, "/tmp"]
    folders = {*SYSTEM, sys.base_prefix, sys.prefix, str(scratch), *(str(path.resolve()) for path in readable)}
    for path in sorted(folders, key=lambda path: path.count("/")):  # outer ones first, so that inner ones stay seen
        for above in [*reversed(Path(path).parents)][1:]:  # left to itself, bubblewrap closes them to other users
            seen += ["--perms", "755", "--dir", str(above)]
        seen += ["--bind" if path == str(scratch) else "--ro-bind-try", path, path]
    return [*apart, *rights, "--die-with-parent", "--new-session", "--as-pid-1", *seen,
            "--remount-ro", "/dev", "--remount-ro", "/"]  # fmt: skip


def _started(
    command: list[str], stdin: str, together: bool, report: int, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with tempfile.NamedTemporaryFile() as file, open(file.name, "rb") as words:
        file.write(stdin.encode(errors="surrogateescape"))
        file.flush()  # read through a handle of its own: what is given to the command cannot be written to
        os.fchmod(file.fileno(), 0o400)
        errors = subprocess.STDOUT if together else subprocess.PIPE
        return subprocess.Popen(
            command, stdin=words, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd="/", pass_fds=(report,),
            start_new_session=True,
        )  # fmt: skip


def _ends_of(pipe: IO[bytes], limit: int) -> tuple[str, bool]:
    """The first and the last half of what may be kept of a stream, and whether something is left out between them."""
    half, head, tail, left_out = limit // 2, b"", b"", 0
    with pipe:
        while piece := os.read(pipe.fileno(), 65_536):
            room = half - len(head)
            head, tail = head + piece[:room], tail + piece[room:]
            left_out += max(0, len(tail) - half)
            tail = tail[max(0, len(tail) - half) :]
    gap = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
    return (head + gap + tail).decode(errors="surrogateescape"), bool(left_out)


def _watch(process: subprocess.Popen[bytes], limits: Limits, scratch: Path) -> str:
    """Wait until the command has ended ("exit"), or has passed a limit, and say which."""
    deadline, before = time.monotonic() + limits.seconds, os.statvfs(scratch)
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY)
            return "exit"
        if _resident(process.pid) > limits.memory_mb << 20:
            return "memory"
        # others use the disk too, so what is gone from it only says when to add up
        now, most = os.statvfs(scratch), (limits.disk_mb << 20, limits.files)
        gone = ((before.f_bavail - now.f_bavail) * before.f_frsize, before.f_ffree - now.f_ffree)
        if any(map(gt, gone, most)) and any(map(gt, _size(scratch), most)):
            return "disk"
    return "time"


def _resident(pid: int) -> int:
    """Bytes of memory in use by all processes below one; shared pages count for each."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


def _size(folder: Path) -> tuple[int, int]:
    """Bytes on disk of a folder that is being written to, and the files and folders in it."""
    size, count = (int(_system("du", "-s", unit, folder).split()[0]) for unit in ("-B1", "--inodes"))
    return size, count


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command with all that it started, if it has not ended."""
    if process.poll() is None:
        with suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
            for first in psutil.Process(process.pid).children():  # process 1 in there; bubblewrap waits for all to end
                first.kill()
            process.wait(5)
        process.kill()
    process.wait()


def _environment(scratch: Path) -> dict[str, str]:
    same = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    own = {"PATH": f"{sys.prefix}/bin:{PATH}", "HOME": f"{scratch}/home", "TMPDIR": f"{scratch}/tmp"}
    return same | own | {"LANG": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0"}
