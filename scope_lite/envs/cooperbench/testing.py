"""One feature's tests on a merged tree: run as the base commit runs tests, whatever the agents' patches say of that.

What decides how tests run (pytest's settings, a ``sitecustomize.py``, entry points of plugins, a test runner's
configuration) is put back to the base commit before the tests are added. Patches that touch it are named, and are no
success. The verdict comes from pytest's own outcomes (``pytest_report``), not from the words that it prints.
"""

from __future__ import annotations

import configparser
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from scope_lite.envs.cooperbench import pytest_report
from scope_lite.envs.cooperbench.dataset import Feature
from scope_lite.envs.cooperbench.sandbox import Limits, scratch_folder
from scope_lite.envs.cooperbench.workspace import Workspace, needed
from scope_lite.store.errors import ScopeError

SETTINGS = (
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "sitecustomize.py", "usercustomize.py", "*.pth"),
    *("pytest.py", "_pytest.py", "jest.config.*", "vitest.config.*", "vitest.workspace.*", ".mocharc*", "karma.conf.*"),
)
"""names of files that do nothing but decide how tests run"""
PLUGIN_FOLDERS = ("pytest", "_pytest", "pluggy", "*.dist-info", "*.egg-info")
"""folders that would stand in for pytest, or bring it plugins"""
IN_PART = ("pyproject.toml", "setup.cfg", "tox.ini", "package.json")
"""files of which a part decides how tests run (:func:`test_settings`); the rest is a patch's to change"""
TEST_LIMITS = Limits(seconds=300, cpu_seconds=300)
OUTPUT = 4_000
"""characters kept of a test run, from its end"""


@dataclass(frozen=True)
class Suite:
    """How tests are run."""

    python: Path = Path(sys.executable)
    """a Python with pytest and what the repository needs; if it is not this one, name its folders in ``readable``"""
    command: Sequence[str] = ()
    """for what is not Python: the whole command, run in the tree; passed means exit code 0"""
    readable: Sequence[Path] = ()
    environment: Mapping[str, str] | None = None
    limits: Limits = TEST_LIMITS


@dataclass(frozen=True)
class TestRun:
    """What came of one feature's tests."""

    __test__ = False  # pytest takes the name for a class of tests
    why: str
    """why they did not pass, in one line; empty if they did"""
    output: str
    tampered: tuple[str, ...]
    """files of the merged tree that decide how tests run, and differ from the base commit"""


def run_tests(merged: Workspace, feature: Feature, suite: Suite) -> TestRun:
    """One feature's tests on a copy of the merged tree: a suite leaves nothing behind for the next one.

    Raises:
        ScopeError: the tests' patch has no Python test file, and no command was given.
    """
    files = [path for path in files_of(feature.tests) if _is_python_test(path)]
    if not files and not suite.command:
        raise ScopeError(
            f"the tests of feature {feature.number} are not Python: give the command that runs them (Suite)"
        )
    with scratch_folder() as scratch:
        tree, report, script = scratch / "tree", scratch / "report.json", scratch / "pytest_report.py"
        shutil.copytree(merged.tree, tree, symlinks=True)
        shutil.copy(pytest_report.__file__, script)
        workspace = Workspace(scratch, suite.limits, suite.readable, suite.environment)
        workspace.base = merged.base
        tampered = restore_settings(workspace)
        tests = whole_patch(feature.tests)
        applied = workspace.git("apply", "--whitespace=nowarn", "-", stdin=tests)
        if not applied.ok and not workspace.git("apply", "--3way", "-", stdin=tests).ok:
            return TestRun("its tests do not apply to the merged tree", applied.stderr[-OUTPUT:], tampered)
        code = f"{tree}/src:{tree}"
        python = [str(suite.python), str(script), str(report), str(tree), code, *files]
        done = workspace.run(list(suite.command) or python)
        found = None if suite.command else read_report(report)
    if done.ended != "exit":
        why = f"its tests were ended for using too much {done.ended}"
    elif done.code:
        why = f"its tests fail (exit code {done.code})"
    elif found is not None and (found["failed"] or not found["passed"]):
        why = "no test passed"  # exit code 0 alone is cheap: the code under test can end the process
    elif tampered:
        why = f"a patch touches how tests are run: {', '.join(tampered)[:200]}"
    else:
        why = ""
    return TestRun(why, done.stdout[-OUTPUT:], tampered)


def restore_settings(workspace: Workspace) -> tuple[str, ...]:
    """Put back to the base commit what decides how tests run; the files in which that part had been changed."""
    listed = workspace.git("diff", "--name-status", "--no-renames", "-z", workspace.base)
    fields = needed(listed, "list what the patches changed").stdout.split("\0")
    tampered = []
    for state, path in zip(fields[::2], fields[1::2], strict=False):
        if not (in_part := PurePosixPath(path).name in IN_PART) and not decides(path):
            continue
        before = "" if state == "A" else needed(workspace.git("show", f"{workspace.base}:{path}"), "read").stdout
        after = "" if state == "D" else workspace.run(["cat", "--", path]).stdout
        if not in_part or test_settings(path, before) != test_settings(path, after):
            tampered.append(path)
        undo = ["rm", "-rf", "--", path] if state == "A" else ["git", "checkout", "-q", workspace.base, "--", path]
        needed(workspace.run(undo), f"put {path} back")
    return tuple(tampered)


def decides(path: str) -> bool:
    """Whether a file does nothing but decide how tests run."""
    *folders, name = PurePosixPath(path).parts
    return any(fnmatchcase(name, pattern) for pattern in SETTINGS) or any(
        fnmatchcase(folder, pattern) for folder in folders for pattern in PLUGIN_FOLDERS
    )


def test_settings(path: str, text: str) -> object:
    """The part of a settings file that decides how tests run; the whole text where it cannot be read."""
    name = PurePosixPath(path).name
    try:
        if name == "pyproject.toml":
            tools = tomllib.loads(text).get("tool", {})
            return {key: value for key, value in tools.items() if key.startswith("pytest")}
        if name == "package.json":
            content = json.loads(text or "{}")
            return [content.get(key) for key in ("scripts", "jest", "vitest", "mocha")]
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(text)
        return {part: dict(parser[part]) for part in ("pytest", "tool:pytest") if parser.has_section(part)}
    except (ValueError, RecursionError, AttributeError, configparser.Error):
        return text


def read_report(path: Path) -> dict[str, int]:
    """How many tests passed and failed; none where there is no whole report."""
    try:
        outcomes = json.loads(path.read_text(encoding="utf-8"))["outcomes"]
        return {ended: list(outcomes).count(ended) for ended in ("passed", "failed")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {"passed": 0, "failed": 0}


def files_of(patch: str) -> list[str]:
    """The files that a patch adds or changes."""
    return sorted(set(re.findall(r"^\+\+\+ b/([^\t\r\n]+)", patch, re.MULTILINE)))


def whole_patch(patch: str) -> str:
    """A patch with the end that tools like to strip: its last newline, and blank context lines before that."""
    if not patch.strip():
        return ""
    lines = patch.rstrip("\n").split("\n")
    starts = [i for i, line in enumerate(lines) if re.match(r"@@ -\d+(,\d+)? \+\d+(,\d+)? @@", line)]
    if starts:
        hunk = re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", lines[starts[-1]])
        assert hunk
        old, new = (int(count or 1) for count in hunk.groups())
        body = lines[starts[-1] + 1 :]
        old -= sum(line[:1] in (" ", "-", "") for line in body)
        new -= sum(line[:1] in (" ", "+", "") for line in body)
        if old == new and 0 < old <= 3:
            lines += [" "] * old
    return "\n".join(lines) + "\n"


def _is_python_test(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))
