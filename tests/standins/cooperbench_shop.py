"""A repository of one file, two features in it, and their tests, as CooperBench lays them out."""

from __future__ import annotations

import difflib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scope_lite.envs.cooperbench import PairResult, PairTask, Suite, evaluate_pair, load_pairs
from scope_lite.envs.cooperbench.sandbox import Limits

SHOP = "def price(x):\n    return x\n\n\nRATE = 1\n\n\ndef name():\n    return 'shop'\n"
TWICE = SHOP.replace("return x", "return 2 * x")
BIG = SHOP.replace("'shop'", "'big shop'")
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
"""one that any user id can reach"""
PYTEST = Suite(environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, limits=Limits(seconds=300))
CALL = "import glob, runpy\nfor path in glob.glob('tests/*.py'):\n    runpy.run_path(path)['test_it']()"
PLAIN = Suite(command=(PYTHON, "-c", CALL), environment={"PYTHONPATH": "."}, limits=Limits(seconds=300))
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
    (repository / "shop.py").write_text(SHOP, encoding="utf-8")

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
        return subprocess.run(
            ["git", *who, *arguments], check=True, capture_output=True, text=True, encoding="utf-8"
        ).stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "base")
    commit = git("rev-parse", "HEAD")
    (repository / "shop.py").write_text("later = True\n", encoding="utf-8")
    git("commit", "-q", "-a", "-m", "later")
    task = dataset / "shop_task" / "task7"
    for number, (text, tests, solved) in enumerate(
        [("Twice the price.", PRICE_TEST, TWICE), ("A bigger name.", NAME_TEST, BIG), ("Neither.", NAME_TEST, SHOP)], 1
    ):
        feature = task / f"feature{number}"
        feature.mkdir(parents=True)
        (feature / "feature.md").write_text(f"{text}\n", encoding="utf-8")
        (feature / "tests.patch").write_text(tests, encoding="utf-8")
        (feature / "feature.patch").write_text(shop(solved), encoding="utf-8")
    clone = "git clone https://example.org/small/shop.git repo"
    (task / "Dockerfile").write_text(
        f"FROM python\nRUN {clone} && \\\n    cd repo && git checkout {commit}\n", encoding="utf-8"
    )
    return dataset, place / "repositories"


@pytest.fixture
def task(folders: tuple[Path, Path]) -> PairTask:
    return load_pairs(*folders)[0]


def judged(task: PairTask, first: str, second: str, suite: Suite = PLAIN) -> PairResult:
    return evaluate_pair(task, (first, second), suite)
