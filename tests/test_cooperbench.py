"""CooperBench: the dataset folder, the merge and its verdict, two agents on a task, and hostile code kept in bounds."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scope_lite.episodes import WrittenSeat, run_episodes
from scope_lite.errors import ScopeError
from scope_lite.rng import RowKeys
from scope_lite.tasks.cooperbench import PairResult, PairTask, Suite, evaluate_pair, jail, load_pairs, sandbox
from scope_lite.tasks.cooperbench.agents import BEGIN, PairEpisode, open_episode
from scope_lite.tasks.cooperbench.evaluate import files_of
from scope_lite.tasks.cooperbench.sandbox import Done, Limits, Way, run, scratch_folder
from scope_lite.tasks.tau2.tools import ToolCall

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="foreign code is contained on Linux only")

SHOP = "def price(x):\n    return x\n\n\nRATE = 1\n\n\ndef name():\n    return 'shop'\n"
TWICE = SHOP.replace("return x", "return 2 * x")
BIG = SHOP.replace("'shop'", "'big shop'")
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
"""for attacks, which need the standard library only: one that any user id can reach"""
PYTEST = Suite(environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, limits=Limits(seconds=60))
CALL = "import glob, runpy\nfor path in glob.glob('tests/*.py'):\n    runpy.run_path(path)['test_it']()"
PLAIN = Suite(command=(PYTHON, "-c", CALL), environment={"PYTHONPATH": "."}, limits=Limits(seconds=60))
"""runs the same tests without pytest, which takes long to start"""


def patch(old: dict[str, str], new: dict[str, str]) -> str:
    """What git would print, near enough for git to take it."""
    parts = []
    for name in sorted(old | new):
        before, after = f"a/{name}" if name in old else "/dev/null", f"b/{name}" if name in new else "/dev/null"
        lines = [files.get(name, "").splitlines(keepends=True) for files in (old, new)]
        body = "".join(difflib.unified_diff(*lines, before, after))
        kind = {(False, True): "new file mode 100644\n", (True, False): "deleted file mode 100644\n"}
        if body:
            parts.append(f"diff --git a/{name} b/{name}\n{kind.get((name in old, name in new), '')}{body}")
    return "".join(parts)


def shop(text: str) -> str:
    return patch({"shop.py": SHOP}, {"shop.py": text})


def expects(expression: str, value: str) -> str:
    return f"import shop\n\n\ndef test_it():\n    assert {expression} == {value}\n"


PRICE_TEST = patch({}, {"tests/test_price.py": expects("shop.price(2)", "4")})
NAME_TEST = patch({}, {"tests/test_name.py": expects("shop.name()", "'big shop'")})


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user id can reach, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folders(place: Path) -> tuple[Path, Path]:
    """A dataset folder and a folder with the one repository that it is about, two commits long."""
    dataset, repository = place / "dataset", place / "repositories" / "small" / "shop"
    repository.mkdir(parents=True)
    (repository / "shop.py").write_text(SHOP)

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
        return subprocess.run(["git", *who, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "base")
    commit = git("rev-parse", "HEAD")
    (repository / "shop.py").write_text("later = True\n")
    git("commit", "-q", "-a", "-m", "later")
    task = dataset / "shop_task" / "task7"
    for number, (text, tests, solved) in enumerate(
        [("Twice the price.", PRICE_TEST, TWICE), ("A bigger name.", NAME_TEST, BIG), ("Neither.", NAME_TEST, SHOP)], 1
    ):
        feature = task / f"feature{number}"
        feature.mkdir(parents=True)
        (feature / "feature.md").write_text(f"{text}\n")
        (feature / "tests.patch").write_text(tests)
        (feature / "feature.patch").write_text(shop(solved))
    clone = "git clone https://example.org/small/shop.git repo"
    (task / "Dockerfile").write_text(f"FROM python\nRUN {clone} && \\\n    cd repo && git checkout {commit}\n")
    (dataset / "subsets").mkdir()
    pairs = {"tasks": [{"repo": "shop_task", "task_id": 7, "pairs": [[2, 1]]}]}
    (dataset / "subsets" / "lite.json").write_text(json.dumps(pairs))
    return dataset, place / "repositories"


@pytest.fixture
def task(folders: tuple[Path, Path]) -> PairTask:
    return load_pairs(*folders, subset="lite")[0]


# ---- the dataset


def test_every_two_features_of_a_task_are_a_pair(folders: tuple[Path, Path]) -> None:
    pairs = load_pairs(*folders)
    assert [pair.name.rpartition("/")[2] for pair in pairs] == ["f1_f2", "f1_f3", "f2_f3"]
    first = pairs[0]
    assert (first.name, first.repository) == ("shop_task/task7/f1_f2", "small/shop") and len(first.commit) == 40
    assert first.features[0].description == "Twice the price." and first.features[0].gold == shop(TWICE)


def test_a_subset_names_its_pairs_in_either_order(folders: tuple[Path, Path]) -> None:
    assert [pair.name for pair in load_pairs(*folders, subset="lite")] == ["shop_task/task7/f1_f2"]


@pytest.mark.parametrize(
    "gone", ["", "shop_task", "shop_task/task7/Dockerfile", "shop_task/task7/feature2/tests.patch"]
)
def test_what_is_missing_in_a_dataset_is_said_in_one_line(folders: tuple[Path, Path], gone: str) -> None:
    path = folders[0] / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ScopeError) as error:
        load_pairs(*folders)
    assert "\n" not in str(error.value) and str(folders[0]) in str(error.value)


def test_a_missing_repository_or_subset_is_named(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ScopeError, match="it has lite"):
        load_pairs(*folders, subset="flash")
    shutil.rmtree(folders[1] / "small")
    with pytest.raises(ScopeError, match="clones of small/shop"):
        load_pairs(*folders)


def test_a_commit_that_the_clone_lacks_is_the_users_mistake(task: PairTask) -> None:
    with pytest.raises(ScopeError, match="cannot find commit"):
        evaluate_pair(replace(task, commit="0" * 40), ("", ""))


# ---- merge and verdict


def judged(task: PairTask, first: str, second: str, suite: Suite = PLAIN) -> PairResult:
    return evaluate_pair(task, (first, second), suite)


def test_two_patches_that_fit_merge_and_pass(task: PairTask) -> None:
    result = judged(task, task.features[0].gold, task.features[1].gold, PYTEST)
    assert (result.merged, result.conflict, result.union, result.passed) == (True, False, False, (True, True))
    assert result.success and result.why == "" and result.containment
    assert result.containment.user != 0


def test_a_plain_tree_serves_as_a_repository(task: PairTask, place: Path) -> None:
    (place / "plain").mkdir()
    (place / "plain" / "shop.py").write_text(SHOP)
    result = judged(replace(task, source=place / "plain"), shop(TWICE), "")
    assert result.merged and result.passed == (True, False)
    assert result.why == "feature 2: its tests fail (exit code 1)"


def test_lines_added_at_one_place_conflict_and_a_union_keeps_both(task: PairTask) -> None:
    first, second = (shop(f"{SHOP}\n\n{line}\n") for line in ("price = lambda x: 2 * x", "name = lambda: 'big shop'"))
    result = judged(task, first, second)
    assert (result.merged, result.conflict, result.union, result.passed) == (True, True, True, (True, True))
    assert result.success


def test_a_union_of_contradicting_lines_merges_and_fails_its_tests(task: PairTask) -> None:
    result = judged(task, shop(TWICE), shop(BIG.replace("return x", "return 3 * x")))
    assert (result.merged, result.union, result.passed) == (True, True, (False, True))
    assert not result.success and result.why == "feature 1: its tests fail (exit code 1)"


def test_a_file_deleted_by_one_and_changed_by_the_other_cannot_be_merged(task: PairTask) -> None:
    result = judged(task, patch({"shop.py": SHOP}, {}), shop(BIG))
    assert (result.merged, result.conflict, result.union, result.passed) == (False, True, False, (False, False))
    assert "union merge cannot settle" in result.why and result.containment is None


def test_a_patch_that_does_not_apply_is_the_agents_failure(task: PairTask) -> None:
    result = judged(task, patch({"shop.py": "other\n"}, {"shop.py": "text\n"}), shop(BIG))
    assert not result.merged and not result.conflict
    assert result.why.startswith("the patch for feature 1 does not apply: error: ")


def test_a_pass_is_not_won_by_changing_the_tests(task: PairTask) -> None:
    """An agent's own tests, a conftest.py that skips all, and a union of its choice are left out."""
    tricks = {
        "tests/test_price.py": "def test_it():\n    pass\n",
        "conftest.py": "import os\n\nos._exit(0)\n",
        ".gitattributes": "* merge=union\n",
    }
    first = patch({"shop.py": SHOP}, tricks | {"shop.py": SHOP.replace("return x", "return 5")})
    result = judged(task, first, shop(BIG), PYTEST)
    assert result.merged and result.passed == (False, True)


def test_exit_code_0_without_a_passed_test_is_no_pass(task: PairTask) -> None:
    result = judged(task, shop(f"import os\n\n{SHOP}\nos._exit(0)\n"), "", PYTEST)
    assert result.passed == (False, False) and "no test passed" in result.why


def test_tests_that_hang_are_ended_and_said_to_be(task: PairTask) -> None:
    suite = replace(PLAIN, limits=Limits(seconds=2))
    result = judged(task, shop(f"{SHOP}\nwhile True:\n    pass\n"), "", suite)
    assert result.merged and result.passed == (False, False)
    assert "too much time" in result.why


def test_files_of_a_patch_are_those_it_leaves() -> None:
    assert files_of(patch({"a.py": "1\n", "b.py": "1\n"}, {"a.py": "2\n", "c/d.py": "1\n"})) == ["a.py", "c/d.py"]


# ---- hostile code


@pytest.fixture(params=["namespaces", "landlock"])
def way(request: pytest.FixtureRequest) -> Way:
    """Each way of containment that works on this machine."""
    if request.param == "namespaces" and sandbox.best_way() != "namespaces":
        pytest.skip("no namespaces for this user here")
    if request.param == "landlock" and jail.landlock_version() < jail.LANDLOCK_MINIMUM:
        pytest.skip("no Landlock here")
    return "namespaces" if request.param == "namespaces" else "landlock"


@pytest.fixture
def scratch() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


@pytest.fixture
def mark() -> Iterator[str]:
    """A word on the command line of every process of a test; none of them may be left at its end."""
    word = f"mark-{uuid.uuid4().hex}"
    yield word
    assert [process.pid for process in psutil.process_iter() if word in arguments_of(process)] == []


def arguments_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


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
    (folder / "victim").write_text("whole")
    for path in (folder, folder / "victim"):
        path.chmod(0o777)
    return folder


def attack(outside: Path, scratch: Path, place: Path, word: str) -> list[str]:
    (place / "secret").write_text("my secret")
    return [PYTHON, "-c", ATTACK, str(outside), str(scratch / "own"), str(place / "secret"), word]


def test_hostile_code_writes_in_its_scratch_folder_only(
    way: Way, outside: Path, scratch: Path, place: Path, mark: str
) -> None:
    done = run(attack(outside, scratch, place, mark), scratch, way=way, together=True)
    assert done.ok and "inside written" in done.stdout, done.stdout
    assert sorted(path.name for path in outside.iterdir()) == ["victim"]
    assert (outside / "victim").read_text() == "whole"
    assert "my secret" not in done.stdout
    assert not any((Path(folder) / mark).exists() for folder in COMMON)
    assert (scratch / "own" / "mine").read_text() == "written"


def test_the_same_attack_succeeds_where_nothing_contains_it(outside: Path, place: Path, mark: str) -> None:
    """So that the test above can fail."""
    done = subprocess.run(attack(outside, place, place, mark), capture_output=True, text=True, check=True)
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


def test_a_fork_bomb_stops_at_the_limit_and_nothing_of_it_is_left(way: Way, scratch: Path, mark: str) -> None:
    done = run([PYTHON, "-c", BOMB, mark], scratch, way=way, limits=Limits(seconds=60, processes=20))
    assert done.ok, done.stderr
    made = int(done.stdout.split()[0])
    # without a user id or a namespace of its own, what the user starts or ends meanwhile shifts the count a little
    assert made == 19 if way == "namespaces" or os.getuid() == 0 else 0 < made < 100


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


def test_a_hang_ends_with_all_that_left_the_process_group(way: Way, scratch: Path, mark: str) -> None:
    done = run([PYTHON, "-c", HANG, mark], scratch, way=way, limits=Limits(seconds=3))
    assert (done.ended, done.code, done.ok) == ("time", None, False)


def test_what_a_command_leaves_behind_ends_with_it(way: Way, scratch: Path, mark: str) -> None:
    script = f"setsid {PYTHON} -c 'import time; time.sleep(100)' {mark} >/dev/null 2>&1 & echo started"
    done = run(["bash", "-c", script], scratch, way=way, limits=Limits(seconds=60))
    assert done.ok and done.stdout == "started\n"


def test_hostile_code_cannot_signal_us(way: Way, scratch: Path) -> None:
    if not sandbox.containment(scratch, way).signals:
        pytest.skip("Landlock before version 6 lets signals through")
    with subprocess.Popen(["sleep", "100"]) as bystander:
        kill = f"import os\nfor pid in ({os.getpid()}, {bystander.pid}):\n    os.kill(pid, 9)"
        done = run([PYTHON, "-c", kill], scratch, way=way)
        alive = bystander.poll() is None
        bystander.kill()
    assert alive and done.code == 1 and ("PermissionError" in done.stderr or "ProcessLookupError" in done.stderr)


def test_there_is_no_network(way: Way, scratch: Path) -> None:
    if sandbox.containment(scratch, way).network == "open":
        pytest.skip("Landlock before version 4 does not know the network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = (
            f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5); print('through')"
        )
        done = run([PYTHON, "-c", connect], scratch, way=way)
        free = subprocess.run([PYTHON, "-c", connect], capture_output=True, text=True)
    assert free.stdout == "through\n"  # the test can fail
    assert done.code == 1 and "through" not in done.stdout


def test_no_secret_of_the_environment_comes_through(way: Way, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "my secret")
    look = "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
    with subprocess.Popen(["sleep", "100"]) as holder:
        done = run(["bash", "-c", look], scratch, way=way, environment={"GIVEN": "yes"})
        free = subprocess.run(["bash", "-c", look], capture_output=True, text=True, errors="replace")
        holder.kill()
    assert "my secret" in free.stdout
    assert "my secret" not in done.stdout and "GIVEN=yes" in done.stdout
    assert f"HOME={scratch}/home" in done.stdout and f"TMPDIR={scratch}/tmp" in done.stdout


def test_memory_of_one_and_of_all_together_is_bounded(way: Way, scratch: Path, mark: str) -> None:
    one = run([PYTHON, "-c", "bytearray(1 << 29)"], scratch, way=way, limits=Limits(memory_mb=256))
    assert one.code == 1 and "MemoryError" in one.stderr
    many = "import os, time; [os.fork() for _ in range(2)]; x = bytearray(60 << 20); time.sleep(100)"
    limits = Limits(seconds=60, memory_mb=150)
    done = run([PYTHON, "-c", many, mark], scratch, way=way, limits=limits)
    assert (done.ended, done.code) == ("memory", None)


def test_file_size_is_bounded_and_free_disk_is_watched(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = "open('big', 'wb').write(bytes(2 << 20))"
    assert not run([PYTHON, "-c", write], scratch, limits=Limits(file_mb=1)).ok
    assert (scratch / "big").stat().st_size == 1 << 20
    free = iter([9 << 30, 8 << 30])
    monkeypatch.setattr(sandbox.shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free, 1 << 30)))
    done = run(["sleep", "100"], scratch, limits=Limits(disk_mb=4096))
    assert done.ended == "disk"


def test_long_output_keeps_its_ends(scratch: Path) -> None:
    done = run([PYTHON, "-c", "print('first' + 'x' * 100_000 + 'last')"], scratch, limits=Limits(output_bytes=1000))
    assert done.cut and len(done.stdout) < 1100 and "bytes left out" in done.stdout
    assert done.stdout.startswith("firstx") and done.stdout.endswith("xlast\n")


def test_arguments_are_no_shell_and_input_and_errors_come_apart(way: Way, scratch: Path) -> None:
    done = run(["/bin/echo", "$(id)", "; `id` > file"], scratch, way=way)
    assert done.stdout == "$(id) ; `id` > file\n"
    done = run(["bash", "-c", "cat; echo wrong >&2; exit 3"], scratch, way=way, stdin="caf\udcff\n")
    assert (done.stdout, done.stderr, done.code) == ("caf\udcff\n", "wrong\n", 3)


def test_a_program_that_is_not_there_is_named(way: Way, scratch: Path) -> None:
    with pytest.raises(ScopeError, match="cannot run nonesuch contained"):
        run(["nonesuch"], scratch, way=way)


def test_without_namespaces_and_landlock_nothing_is_run(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "landlock_version", lambda: 2)
    monkeypatch.setattr(sandbox, "best_way", lambda: "landlock")
    with pytest.raises(ScopeError, match="neither by namespaces nor by Landlock"):
        run(["touch", "file"], scratch)
    assert not (scratch / "file").exists()


def test_a_folder_that_foreign_code_has_locked_is_still_removed() -> None:
    with scratch_folder() as folder:
        assert run(["bash", "-c", "mkdir -p a/b; touch a/b/c; chmod 0 a/b a"], folder).ok
    assert not folder.exists()


# ---- the agents


class PaperWorkspace:
    """A workspace that runs nothing."""

    limits = Limits(seconds=5)

    def __init__(self) -> None:
        self.commands: list[str] = []

    def run(self, command: list[str]) -> Done:
        self.commands.append(command[-1])
        held = sandbox.Containment("namespaces", "none", True, 1)
        return Done(3, "exit", f"ran {command[-1]}\n", "", False, 0.0, held)

    def patch(self) -> str:
        return f"patch after {len(self.commands)}"


def bash(command: str) -> str:
    return ToolCall("bash", {"command": command}).as_message()


def tell(text: str) -> str:
    return ToolCall("message", {"text": text}).as_message()


SUBMIT = ToolCall("submit", {}).as_message()


@pytest.fixture
def paper(task: PairTask) -> PairEpisode:
    asked: list[tuple[str, str]] = []
    spaces = (PaperWorkspace(), PaperWorkspace())
    return PairEpisode(task, spaces, lambda patches: asked.append(patches) or 0.5, max_turns=4)  # type: ignore[arg-type, func-returns-value]


def test_each_agent_knows_its_own_feature_only(paper: PairEpisode) -> None:
    assert "Twice the price." in paper.systems["policy"] and "A bigger name." not in paper.systems["policy"]
    assert "A bigger name." in paper.systems["simulator"] and "5 seconds" in paper.systems["simulator"]


def test_a_message_is_read_at_the_partners_next_turn_and_once(paper: PairEpisode) -> None:
    assert (paper.next_seat, paper.hears) == ("policy", BEGIN)
    paper.take(tell("I take price."))
    assert paper.next_seat == "simulator" and paper.hears == f"{BEGIN}\n\nYour partner writes: I take price."
    paper.take(bash("ls"))
    assert "Sent." in (paper.hears or "") and "I take price." not in (paper.hears or "")
    paper.take(bash("pwd"))
    assert paper.hears == "<tool_response>\nran ls\n[exit code 3]\n</tool_response>"
    assert paper.sent == [("policy", "I take price.")]


def test_who_has_submitted_is_silent_and_both_patches_are_judged(paper: PairEpisode) -> None:
    paper.take(SUBMIT)
    paper.take(tell("Are you there?"))
    assert paper.next_seat == "simulator" and "reads no more" in (paper.hears or "")
    paper.take(bash("ls"))
    with pytest.raises(RuntimeError, match="not over"):
        assert paper.reward
    paper.take(SUBMIT)
    assert (paper.next_seat, paper.hears, paper.outcome, paper.turns) == (None, None, "submitted", 1)
    assert paper.patches == {"policy": "patch after 0", "simulator": "patch after 1"} and paper.reward == 0.5


def test_what_is_no_call_is_answered_and_counted(paper: PairEpisode) -> None:
    for message, answer in [
        ("Hello!", "every message is one tool call"),
        (ToolCall("rm", {}).as_message(), "there is no tool rm"),
        (ToolCall("bash", {"cmd": "ls"}).as_message(), "bash takes one argument, command"),
        (ToolCall("submit", {"now": 1}).as_message(), "submit takes no argument"),
    ]:
        paper.take(message)
        paper.take(bash("ls"))
        assert answer in paper._answers["policy"]
    assert (paper.next_seat, paper.outcome, paper.turns) == (None, "max-turns", 4)
    assert paper.patches == {"policy": "patch after 0", "simulator": "patch after 4"} and paper.reward == 0.5


def test_a_stopped_episode_earns_nothing(paper: PairEpisode) -> None:
    paper.take(SUBMIT)
    paper.stop("context")
    assert (paper.next_seat, paper.outcome, paper.reward) == (None, "context", 0.0)


def test_two_agents_work_in_their_own_checkouts_and_the_loop_pays_the_merge(task: PairTask) -> None:
    """Gold on both seats earns 1; where one hands in nothing, 0."""
    doubled = bash("sed -i 's/return x/return 2 * x/' shop.py && git diff --stat")
    named = bash("sed -i 's/.shop.$/\"big shop\"/' shop.py; cat shop.py")
    with open_episode(task, PLAIN) as gold, open_episode(task, PLAIN) as lazy:
        policy = WrittenSeat([[tell("price is mine"), doubled, SUBMIT], [doubled, SUBMIT]])
        simulator = WrittenSeat([[named, SUBMIT], [SUBMIT]])
        rollouts = run_episodes([gold, lazy], policy, simulator, RowKeys.grid(0, 0, 1, 2), ["gold", "lazy"])
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
    assert [(rollout.outcome, rollout.turns) for rollout in rollouts] == [("submitted", 3), ("submitted", 2)]
    # each saw its own change, and not the other's
    assert "1 file changed" in gold._answers["policy"] or gold.patches["policy"].count("\n+") == 2
    assert "2 * x" in gold.patches["policy"] and "big shop" not in gold.patches["policy"]
    assert "big shop" in gold.patches["simulator"] and lazy.patches["simulator"] == ""
