"""Starts one command inside limits. A script: ``sandbox.py`` runs it by its path, in a Python of its own.

Nothing of the package is imported here, so that it starts fast and can be read on its own. Linux only. Two ways:

    namespaces   a file tree of its own (system folders read-only, the scratch folder writable, nothing else there),
                 its own processes, no network; the kernel ends whatever is left when the command ends
    landlock     for kernels and containers that allow no namespaces: the same folders by Landlock rules; this process
                 is told of every orphan and stops, then kills, what is left

In both, root becomes a user who owns nothing else, limits are set, and privileges cannot be regained.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from typing import Any, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)

# <sched.h>, <sys/mount.h>, <sys/prctl.h>, <linux/mount.h>, <linux/landlock.h>; the three system calls have the same
# number on every architecture that has them
NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NETWORK = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
ATTR_RDONLY, ATTR_NOSUID = 1, 2
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_MOUNT_SETATTR = 442
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_RULE, SYS_LANDLOCK_RESTRICT = 444, 445, 446
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 38, 36
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
LANDLOCK_READ, LANDLOCK_FILE = 0b1101, 0b1100000000000111  # of a folder or file; what applies to a file at all
LANDLOCK_MINIMUM = 3
"""the first version that keeps existing files from being emptied"""

DEVICES = ("null", "zero", "full", "random", "urandom")
PRIVATE_BYTES = "64m"
"""size of /tmp and of /dev/shm inside, each"""


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def end_with(caller: int) -> None:
    """SIGTERM to this process once its caller has ended; also if it ended before we could ask to be told."""
    checked(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0), "end with the caller")
    if os.getppid() != caller:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> NoReturn:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    report = os.fdopen(spec["report_fd"], "w", encoding="utf-8")
    os.set_inheritable(spec["report_fd"], False)
    try:
        status = in_namespaces(spec) if spec["way"] == "namespaces" else under_landlock(spec)
        print(json.dumps(status), file=report, flush=True)
    except OSError as error:
        print(json.dumps({"error": str(error)}), file=report, flush=True)
    os._exit(0)


# ---- namespaces


def in_namespaces(spec: dict[str, Any]) -> dict[str, Any]:
    uid, gid = os.getuid(), os.getgid()
    flags = NEW_MOUNTS | NEW_PIDS | NEW_NETWORK | NEW_IPC | NEW_HOSTNAME | (NEW_USERS if uid else 0)
    checked(LIBC.unshare(flags), "unshare")
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    return in_first_process(spec)


def in_first_process(spec: dict[str, Any]) -> dict[str, Any]:
    """Process 1 of the namespaces, and its answer.

    It dies with this process, and by SIGTERM to this process; its end is the end of all that ran in there.
    """
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            answer = _first_process(spec)
        except OSError as error:
            answer = {"error": str(error)}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
    end_with(spec["caller"])
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = json.loads(pipe.read() or b"{}")
    os.waitpid(first, 0)
    return dict(answer)


def _first_process(spec: dict[str, Any]) -> dict[str, Any]:
    """Process 1 in there: makes the file tree, starts the command, buries the dead; with it, the kernel ends all."""
    private_tree(spec["scratch"], spec["readable"])
    command = os.fork()
    if command == 0:
        become_command(spec, landlock=False)
    return {"code": bury_until(command)}


def private_tree(scratch: str, readable: list[str]) -> None:
    """A root of only the readable folders (read-only), the scratch folder, /proc, a few devices, and a /tmp."""
    checked(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    links = [path for path in readable if os.path.islink(path)]
    folders = [path for path in readable if path not in links and os.path.exists(path)]
    devices = [f"/dev/{name}" for name in DEVICES]
    # opened now: the new root hides /tmp, and with it perhaps the scratch folder
    sources = {path: os.open(path, os.O_PATH) for path in (*folders, *devices, scratch)}
    root = "/tmp"
    _mount("tmpfs", root, MS_NOSUID, "mode=755,size=1m")
    _mount("tmpfs", _made(f"{root}/tmp"), MS_NOSUID | MS_NODEV, f"mode=1777,size={PRIVATE_BYTES}")
    _mount("tmpfs", _made(f"{root}/dev/shm"), MS_NOSUID | MS_NODEV, f"mode=1777,size={PRIVATE_BYTES}")
    for path in sorted(sources, key=lambda path: path.count("/")):  # outer folders first, so that inner ones stay seen
        _bind(sources[path], path, root, writable=path == scratch or path in devices)
    for path in links:
        target = root + path
        if not os.path.lexists(target):
            _made(os.path.dirname(target))
            os.symlink(os.readlink(path), target)
    _mount("proc", _made(f"{root}/proc"), MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    _set_flags(root, ATTR_RDONLY | ATTR_NOSUID, recursive=False)
    for source in sources.values():
        os.close(source)
    os.chdir(root)
    checked(LIBC.pivot_root(b".", b"."), "pivot_root")
    checked(LIBC.umount2(b".", MNT_DETACH), "leave the old root")
    os.chdir("/")


def _mount(kind: str, target: str, flags: int, data: str | None) -> None:
    options = None if data is None else data.encode()
    checked(LIBC.mount(kind.encode(), target.encode(), kind.encode(), flags, options), f"mount {target}")


def _bind(source: int, path: str, root: str, writable: bool) -> None:
    target = root + path
    if os.path.isdir(f"/proc/self/fd/{source}"):
        _made(target)
    elif not os.path.exists(target):
        _made(os.path.dirname(target))
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    checked(
        LIBC.mount(f"/proc/self/fd/{source}".encode(), target.encode(), None, MS_BIND | MS_REC, None), f"bind {path}"
    )
    _set_flags(target, ATTR_NOSUID | (0 if writable else ATTR_RDONLY), recursive=True)


def _set_flags(target: str, flags: int, recursive: bool) -> None:
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)
    result = LIBC.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE if recursive else 0, attributes, len(attributes)
    )
    checked(result, f"mount flags of {target}")


def _made(folder: str) -> str:
    os.makedirs(folder, mode=0o755, exist_ok=True)
    return folder


# ---- Landlock


def under_landlock(spec: dict[str, Any]) -> dict[str, Any]:
    checked(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "become the parent of orphans")
    signal.signal(signal.SIGTERM, lambda *_: _end_all())
    command = os.fork()
    if command == 0:
        become_command(spec, landlock=True)
    end_with(spec["caller"])
    code = bury_until(command)
    end_descendants()
    return {"code": code}


def _end_all() -> NoReturn:
    end_descendants()
    os._exit(1)


def end_descendants() -> None:
    """Stop every descendant, then kill all, then bury them.

    A stopped process keeps its place within the limit on processes and forks no more, so the first loop ends even
    against a fork bomb. It gives up after some rounds, since processes can wake each other.
    """
    for _ in range(100):
        running = {pid for pid, state in descendants(os.getpid()).items() if state in "RS"}
        if not running:
            break
        for pid in running:
            _signal(pid, signal.SIGSTOP)
    while left := descendants(os.getpid()):
        for pid in left:
            _signal(pid, signal.SIGKILL)
        bury_until(None)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def descendants(ancestor: int) -> dict[int, str]:
    """Process ids below one process, with the kernel's letter for their state."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(parent), []).append(pid)
        states[pid] = state
    found: dict[int, str] = {}
    left = [ancestor]
    while left:
        new = children.get(left.pop(), [])
        found |= {pid: states[pid] for pid in new}
        left += new
    return found


def landlock_version() -> int:
    """Version of Landlock in this kernel; 0 without."""
    return max(0, LIBC.syscall(SYS_LANDLOCK_CREATE, None, 0, 1))


def restrict_by_landlock(scratch: str, readable: list[str]) -> None:
    """From here on, this process and its descendants read the readable folders and write in the scratch folder only,
    open no TCP connection (version 4), and signal nobody outside (version 6)."""
    version = landlock_version()
    if version < LANDLOCK_MINIMUM:
        raise OSError(0, f"Landlock version {version}, {LANDLOCK_MINIMUM} needed")
    everything = (1 << (16 if version >= 5 else 15)) - 1
    attributes = struct.pack("=QQQ", everything, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = checked(LIBC.syscall(SYS_LANDLOCK_CREATE, attributes, size, 0), "Landlock rules")
    allowed = {path: LANDLOCK_READ for path in (*readable, "/proc", "/dev")}
    allowed |= {f"/dev/{name}": everything for name in DEVICES} | {scratch: everything}
    for path, rights in allowed.items():
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH)
        if not os.path.isdir(path):
            rights &= LANDLOCK_FILE & everything
        checked(LIBC.syscall(SYS_LANDLOCK_RULE, rules, 1, struct.pack("=Qi", rights, place), 0), f"Landlock {path}")
        os.close(place)
    checked(LIBC.syscall(SYS_LANDLOCK_RESTRICT, rules, 0), "Landlock")
    os.close(rules)


# ---- both


def bury_until(process: int | None) -> int:
    """Wait for children, orphans among them, until this one has ended (None: until none is left); its exit code."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 0
        if pid == process:
            return os.waitstatus_to_exitcode(status)


def become_command(spec: dict[str, Any], landlock: bool) -> NoReturn:
    """Set the limits, give up all privileges, and turn into the command."""
    try:
        os.setsid()
        limits = dict(spec["limits"])
        if landlock and os.getuid() != 0:  # the kernel counts all processes of the user: leave those that run now
            limits["NPROC"] += tasks_of(os.getuid())
        for name, value in limits.items():
            number = getattr(resource, f"RLIMIT_{name}")
            most = resource.getrlimit(number)[1]
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(number, (value, value))
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(spec["uid"], spec["uid"], spec["uid"])
            os.setresuid(spec["uid"], spec["uid"], spec["uid"])
        LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        checked(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
        if landlock:
            restrict_by_landlock(spec["scratch"], spec["readable"])
        os.chdir(spec["cwd"])
        os.execvpe(spec["command"][0], spec["command"], spec["environment"])
    except OSError as error:
        os.write(spec["report_fd"], (json.dumps({"error": f"{spec['command'][0]}: {error}"}) + "\n").encode())
        os._exit(126)
    raise AssertionError("execvpe does not return")


def tasks_of(uid: int) -> int:
    """Threads of a user's processes, as the kernel counts them against RLIMIT_NPROC."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return count


if __name__ == "__main__":
    main()
