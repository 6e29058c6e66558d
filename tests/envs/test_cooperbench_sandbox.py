"""Hostile code in the sandbox of CooperBench: what it can write, read, reach and use up."""

# ruff: noqa: F811  (a fixture is imported, and is a test's argument, under one name)
from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scope_lite.envs.cooperbench import sandbox
from scope_lite.envs.cooperbench.sandbox import Limits, run, scratch_folder
from scope_lite.store.errors import ScopeError
from tests.standins.cooperbench_shop import PYTHON, place  # noqa: F401

pytestmark = pytest.mark.sandbox


@pytest.fixture
def scratch() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


@pytest.fixture
def mark() -> Iterator[str]:
    """A word on the command line of every process of a test; none of them may be left at its end."""
    word = f"mark-{uuid.uuid4().hex}"
    yield word
    assert processes_with(word) == []


def processes_with(word: str) -> list[list[str]]:
    """The command lines that have a word anywhere in them."""
    found = []
    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
        except psutil.Error:
            continue
        if any(word in argument for argument in arguments):
            found.append(arguments)
    return found


ATTACK = """
import os, sys
outside, scratch, secret, word = sys.argv[1:]
os.makedirs(scratch, exist_ok=True)

def attempt(name, do):
    try:
        do()
    except OSError as error:
        print(name, "refused:", type(error).__name__)
    else:
        print(name, "DONE")

def through_a_link():
    os.symlink(outside, scratch + "/link")
    open(scratch + "/link/linked", "w").close()

attempt("new file", lambda: open(outside + "/new", "w").close())
attempt("change", lambda: open(outside + "/victim", "a").write("changed"))
attempt("empty", lambda: os.truncate(outside + "/victim", 0))
attempt("delete", lambda: os.unlink(outside + "/victim"))
attempt("folder", lambda: os.mkdir(outside + "/folder"))
attempt("link", through_a_link)
attempt("secret", lambda: print(open(secret).read()))
for folder in ("/tmp", "/dev/shm", "/var/tmp"):
    attempt(folder, lambda: open(folder + "/" + word, "w").close())
open(scratch + "/mine", "w").write("written")
print("inside", open(scratch + "/mine").read())
"""
COMMON = ("/tmp", "/dev/shm", "/var/tmp")


@pytest.fixture
def outside(place: Path) -> Path:
    """A folder where anyone may write, so that only the containment stands in the way."""
    folder = place / "outside"
    folder.mkdir()
    (folder / "victim").write_text("whole", encoding="utf-8")
    for path in (folder, folder / "victim"):
        path.chmod(0o777)
    return folder


def attack(outside: Path, scratch: Path, place: Path, word: str) -> list[str]:
    (place / "secret").write_text("my secret", encoding="utf-8")
    return [PYTHON, "-c", ATTACK, str(outside), str(scratch / "own"), str(place / "secret"), word]


def test_hostile_code_writes_in_its_scratch_folder_only(outside: Path, scratch: Path, place: Path, mark: str) -> None:
    done = run(attack(outside, scratch, place, mark), scratch, together=True)
    assert done.ok and "inside written" in done.stdout, done.stdout
    assert sorted(path.name for path in outside.iterdir()) == ["victim"]
    assert (outside / "victim").read_text(encoding="utf-8") == "whole"
    assert "my secret" not in done.stdout
    assert not any((Path(folder) / mark).exists() for folder in COMMON)
    assert (scratch / "own" / "mine").read_text(encoding="utf-8") == "written"


def test_the_same_attack_succeeds_where_nothing_contains_it(outside: Path, place: Path, mark: str) -> None:
    """So that the test above can fail."""
    done = subprocess.run(
        attack(outside, place, place, mark), capture_output=True, text=True, check=True, encoding="utf-8"
    )
    for folder in COMMON:
        (Path(folder) / mark).unlink(missing_ok=True)
    assert sorted(path.name for path in outside.iterdir()) == ["folder", "linked", "new"]
    assert "my secret" in done.stdout


# The bomb counts itself: it never makes more than 200 processes, and none if no limit is in force.
BOMB = """
import os, resource, time
assert os.getuid() != 0 and resource.getrlimit(resource.RLIMIT_NPROC)[0] != resource.RLIM_INFINITY, "nothing holds me"
made = 0
for _ in range(200):
    try:
        pid = os.fork()
    except BlockingIOError:
        break
    if pid == 0:
        os.setsid()
        time.sleep(100)
        os._exit(0)
    made += 1
print(made, "made")
"""


def test_a_fork_bomb_stops_at_the_limit_and_nothing_of_it_is_left(scratch: Path, mark: str) -> None:
    done = run([PYTHON, "-c", BOMB, mark], scratch, limits=Limits(seconds=60, processes=20))
    assert done.ok, done.stderr
    made = int(done.stdout.split()[0])
    assert 16 <= made <= 19  # for a user, the limit counts the processes that watch over the command too


HANG = """
import os, signal, sys, time
for number in range(1, signal.NSIG):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()  # out of the group; and again, so that nobody is its parent
        if os.fork():
            os._exit(0)
print("here", flush=True)
while True:
    time.sleep(1)
"""


def test_a_hang_ends_with_all_that_left_the_process_group(scratch: Path, mark: str) -> None:
    done = run([PYTHON, "-c", HANG, mark], scratch, limits=Limits(seconds=3))
    assert (done.ended, done.code, done.ok) == ("time", None, False)


def test_what_a_command_leaves_behind_ends_with_it(scratch: Path, mark: str) -> None:
    script = f"setsid {PYTHON} -c 'import time; time.sleep(100)' {mark} >/dev/null 2>&1 & echo started"
    done = run(["bash", "-c", script], scratch, limits=Limits(seconds=60))
    assert done.ok and done.stdout == "started\n"


def test_what_runs_ends_when_its_caller_is_killed(mark: str) -> None:
    call = (
        "import sys\nfrom scope_lite.envs.cooperbench.sandbox import run, scratch_folder\n"
        "with scratch_folder() as folder:\n    print(folder, flush=True)\n"
        f"    run(['{PYTHON}', '-c', 'import time; time.sleep(100)', sys.argv[1]], folder)"
    )
    command = [sys.executable, "-c", call, mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as caller:
        assert caller.stdout
        folder = caller.stdout.readline().strip()
        # it runs: the word is an argument of the caller and of the command, and a part of one of the jail's
        wait_for(lambda: sum(mark in arguments for arguments in processes_with(mark)) == 2)
        caller.kill()
    wait_for(lambda: not processes_with(mark))
    shutil.rmtree(folder)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def test_hostile_code_cannot_signal_us(scratch: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as bystander:
        kill = f"import os\nfor pid in ({os.getpid()}, {bystander.pid}):\n    os.kill(pid, 9)"
        done = run([PYTHON, "-c", kill], scratch)
        alive = bystander.poll() is None
        bystander.kill()
    assert alive and done.code == 1 and ("PermissionError" in done.stderr or "ProcessLookupError" in done.stderr)


def test_there_is_no_network(scratch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = (
            f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5); print('through')"
        )
        done = run([PYTHON, "-c", connect], scratch)
        free = subprocess.run([PYTHON, "-c", connect], capture_output=True, text=True, encoding="utf-8")
    assert free.stdout == "through\n"  # the test can fail
    assert done.code == 1 and "through" not in done.stdout


def test_no_secret_of_the_environment_comes_through(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "my secret")
    look = "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
    with subprocess.Popen(["sleep", "100"]) as holder:
        done = run(["bash", "-c", look], scratch, environment={"GIVEN": "yes"})
        free = subprocess.run(["bash", "-c", look], capture_output=True, text=True, errors="replace", encoding="utf-8")
        holder.kill()
    assert "my secret" in free.stdout
    assert "my secret" not in done.stdout and "GIVEN=yes" in done.stdout
    assert f"HOME={scratch}/home" in done.stdout and f"TMPDIR={scratch}/tmp" in done.stdout


def test_memory_of_one_and_of_all_together_is_bounded(scratch: Path, mark: str) -> None:
    one = run([PYTHON, "-c", "bytearray(1 << 29)"], scratch, limits=Limits(memory_mb=256))
    assert one.code == 1 and "MemoryError" in one.stderr
    many = "import os, time; [os.fork() for _ in range(2)]; x = bytearray(60 << 20); time.sleep(100)"
    limits = Limits(seconds=60, memory_mb=150)
    done = run([PYTHON, "-c", many, mark], scratch, limits=limits)
    assert (done.ended, done.code) == ("memory", None)


def fills(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk seems to lose a terabyte and a million file entries a second."""
    monkeypatch.setattr(
        sandbox.os,
        "statvfs",
        lambda _: SimpleNamespace(f_bavail=-time.monotonic() * (1 << 40), f_frsize=1, f_ffree=-time.monotonic() * 1e6),
    )


def test_file_size_is_bounded_and_the_folder_is_added_up_when_the_disk_fills(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = "open('big', 'wb').write(bytes(2 << 20))"
    assert not run([PYTHON, "-c", write], scratch, limits=Limits(file_mb=1)).ok
    assert (scratch / "big").stat().st_size == 1 << 20
    fills(monkeypatch)
    assert run(["sleep", "1"], scratch, limits=Limits(disk_mb=64)).ok  # somebody else's files
    assert run(["sleep", "100"], scratch, limits=Limits(disk_mb=1)).ended == "disk"


@pytest.mark.parametrize("make", ["open(f'{i}', 'w').close()", "os.mkdir(f'{i}')", "os.symlink('/', f'{i}')"])
def test_files_that_hold_nothing_are_counted_too(scratch: Path, monkeypatch: pytest.MonkeyPatch, make: str) -> None:
    fills(monkeypatch)
    many = f"import os, time\nfor i in range(200): {make}\ntime.sleep(100)"
    assert run([PYTHON, "-c", many], scratch, limits=Limits(files=100)).ended == "disk"


def test_the_input_of_a_command_cannot_be_written_to(scratch: Path) -> None:
    for write in ("os.write(0, b'x')", "os.truncate(0, 1 << 20)", "os.open('/proc/self/fd/0', os.O_WRONLY)"):
        done = run([PYTHON, "-c", f"import os\n{write}"], scratch, stdin="words")
        assert done.code == 1 and "Error" in done.stderr, write


def test_long_output_keeps_its_ends(scratch: Path) -> None:
    done = run([PYTHON, "-c", "print('first' + 'x' * 100_000 + 'last')"], scratch, limits=Limits(output_bytes=1000))
    assert done.cut and len(done.stdout) < 1100 and "bytes left out" in done.stdout
    assert done.stdout.startswith("firstx") and done.stdout.endswith("xlast\n")


def test_arguments_are_no_shell_and_input_and_errors_come_apart(scratch: Path) -> None:
    done = run(["/bin/echo", "$(id)", "; `id` > file"], scratch)
    assert done.stdout == "$(id) ; `id` > file\n"
    done = run(["bash", "-c", "cat; echo wrong >&2; exit 3"], scratch, stdin="caf\udcff\n")
    assert (done.stdout, done.stderr, done.code) == ("caf\udcff\n", "wrong\n", 3)


def test_a_program_that_is_not_there_is_named(scratch: Path) -> None:
    with pytest.raises(ScopeError, match="cannot run nonesuch contained"):
        run(["nonesuch"], scratch)


BROKEN = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"


@pytest.mark.parametrize(
    ("bwrap", "said"), [(None, "apt-get install bubblewrap"), (BROKEN, "No permissions to create.*needs namespaces")]
)
def test_where_bubblewrap_cannot_hold_it_nothing_is_run(
    scratch: Path, place: Path, monkeypatch: pytest.MonkeyPatch, bwrap: str | None, said: str
) -> None:
    if bwrap:
        (place / "bwrap").write_text(bwrap, encoding="utf-8")
        (place / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(ScopeError, match=said) as error:
        run(["touch", "file"], scratch)
    assert "\n" not in str(error.value) and not (scratch / "file").exists()


def test_a_folder_that_foreign_code_has_locked_is_still_removed() -> None:
    with scratch_folder() as folder:
        assert run(["bash", "-c", "mkdir -p a/b; touch a/b/c; chmod 0 a/b a"], folder).ok
    assert not folder.exists()
