"""The verdict on a pair of patches: merged by git, then both features' tests on the merged tree, all of it contained.

As the benchmark's paper has it, a conflict is met by a union merge (both sides' lines are kept); the result says so,
since later versions of the benchmark count only merges without conflict. Changes to tests, and to what decides how
tests run, are left out of the agents' patches, so that nobody passes by rewriting them. The verdict comes from pytest's
own outcomes (``pytest_report``), not from the words that it prints. The tests run in the process of the code they test,
so an agent bent on it could still forge a pass from there; read the patches of surprising winners.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from scope_lite.envs.cooperbench import pytest_report
from scope_lite.envs.cooperbench.dataset import Feature, PairTask
from scope_lite.envs.cooperbench.sandbox import Limits, scratch_folder
from scope_lite.envs.cooperbench.workspace import BRANCH, Workspace, needed
from scope_lite.store.errors import ScopeError

PYTHON_TESTS = ("test_*.py", "*_test.py")
TESTS = (*PYTHON_TESTS, "tests", "conftest.py", "*_test.go", "*.test.ts", "*.test.tsx")
SETTINGS = (
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "setup.cfg", "tox.ini"),
    *("package.json", "jest.config.*", "vitest.config.*", "vitest.workspace.*", ".mocharc*", "karma.conf.*"),
)
PLUGINS = (
    *("sitecustomize.py", "usercustomize.py", "*.pth", "*.dist-info", "*.egg-info"),
    *("pytest", "pytest.py", "_pytest", "_pytest.py", "pluggy"),
)
"""what would run before the tests, or stand in for pytest"""
LEFT_OUT = (*TESTS, *SETTINGS, *PLUGINS, ".gitattributes")
"""files of an agent's patch, and folders with all in them, that do not count: they could change the tests, how tests
run, or how git merges"""
TEST_LIMITS = Limits(seconds=300)


@dataclass(frozen=True)
class Suite:
    """How tests are run: by pytest, on this Python."""

    command: Sequence[str] = ()
    """for what is not Python: the whole command, run in the tree; passed means exit code 0"""
    environment: Mapping[str, str] | None = None
    limits: Limits = TEST_LIMITS


@dataclass(frozen=True)
class PairResult:
    """What came of two patches."""

    merged: bool
    conflict: bool
    """git could not merge them; where they are merged all the same, it was by keeping both sides' lines"""
    why: str
    """why it is no success, in one line; empty for a success"""
    passed: tuple[bool, ...] = ()
    """of each feature, on the merged tree"""

    @property
    def success(self) -> bool:
        return self.merged and all(self.passed)


def evaluate_pair(task: PairTask, patches: tuple[str, str], suite: Suite | None = None) -> PairResult:
    """Merge two patches against the base commit, in the order of ``task.features``, and test both features.

    Raises:
        ScopeError: the repository is not at hand, there are no tests to run, or nothing can contain them here.
    """
    with scratch_folder() as scratch:
        workspace = Workspace(scratch)
        workspace.checkout(task)
        merged, conflict, why = merge(workspace, task, patches)
        if not merged:
            return PairResult(merged, conflict, why)
        whys = [run_tests(workspace, feature, suite or Suite()) for feature in task.features]
    reasons = [f"feature {f.number}: {why}" for f, why in zip(task.features, whys, strict=True) if why]
    return PairResult(merged, conflict, "; ".join(reasons), tuple(not why for why in whys))


def merge(workspace: Workspace, task: PairTask, patches: tuple[str, str]) -> tuple[bool, bool, str]:
    """Merge the patches in a checkout of the base commit.

    Returns:
        Whether they are merged, whether there was a conflict, and why they are not merged.
    """
    touched = [path for feature in task.features for path in files_of(feature.tests)]
    left_out = [part + end for name in LEFT_OUT for part in (name, f"*/{name}") for end in ("", "/*")]
    exclude = [f"--exclude={pattern}" for pattern in (*left_out, *touched)]
    for feature, patch in zip(task.features, patches, strict=True):
        if feature is task.features[1]:
            needed(workspace.git("checkout", "-q", "-b", "second", workspace.base), "make a branch")
        if not patch.strip():
            continue
        if not (done := workspace.apply(patch, "--index", *exclude)).ok:
            return False, False, f"the patch for feature {feature.number} does not apply: {done.first_line}"
        commit = workspace.git("commit", "-q", "--allow-empty", "--no-verify", "-m", f"feature {feature.number}")
        needed(commit, "commit a patch")
    if _merges(workspace):
        return True, False, ""
    needed(workspace.git("merge", "--abort"), "undo a merge")
    attributes = ["tee", str(workspace.tree / ".git" / "info" / "attributes")]
    needed(workspace.run(attributes, stdin="* merge=union\n"), "ask for a union merge")
    if _merges(workspace):
        return True, True, ""
    return False, True, "a conflict that a union merge cannot settle (a file deleted, renamed or binary on one side)"


def _merges(workspace: Workspace) -> bool:
    """Merge the first branch; False for a conflict, which git tells by exit code 1. Any other trouble is ours."""
    done = workspace.git("merge", "-q", "--no-edit", BRANCH)
    return done.code != 1 and needed(done, "merge").ok


def run_tests(merged: Workspace, feature: Feature, suite: Suite) -> str:
    """One feature's tests on a copy of the merged tree: a suite leaves nothing behind for the next one.

    Returns:
        Why they did not pass, in one line; empty if they did.

    Raises:
        ScopeError: the tests' patch has no Python test file, and no command was given.
    """
    files = [path for path in files_of(feature.tests) if is_python_test(path)]
    if not files and not suite.command:
        raise ScopeError(f"the tests of feature {feature.number} are not Python, and Suite has no command for them")
    with scratch_folder() as scratch:
        workspace = Workspace(scratch, suite.limits, suite.environment)
        tree, passed, script = workspace.tree, scratch / "passed", scratch / "pytest_report.py"
        shutil.copytree(merged.tree, tree, symlinks=True)
        shutil.copy(pytest_report.__file__, script)
        if not (workspace.apply(feature.tests).ok or workspace.apply(feature.tests, "--3way").ok):
            return "its tests do not apply to the merged tree"
        python = [sys.executable, str(script), str(passed), str(tree), f"{tree}/src:{tree}", *files]
        done = workspace.run(suite.command or python)
        if done.ended != "exit":
            return f"its tests were ended for using too much {done.ended}"
        if done.code:
            return f"its tests fail (exit code {done.code})"
        # exit code 0 alone is cheap: the code under test can end the process
        return "" if suite.command or passed.exists() else "no test passed"


def is_python_test(path: str) -> bool:
    return any(fnmatchcase(PurePosixPath(path).name, pattern) for pattern in PYTHON_TESTS)


def files_of(patch: str) -> list[str]:
    """The files that a patch adds or changes."""
    return sorted(set(re.findall(r"^\+\+\+ b/([^\t\r\n]+)", patch, re.MULTILINE)))
