"""Runs pytest on some test files of a foreign tree, and makes a file if all is well: a test passed, and none failed.

A script: ``testing.py`` copies it beside the tree and starts it there, so that nothing of the tree is on the path while
Python, pytest and pytest's plugins load: a ``sitecustomize.py``, a ``pytest`` package or an entry point in there stays
a file like any other. Of scope_lite nothing is imported: its folder need not be seen in there.

Arguments: the file to make, the tree, its folders of code joined by os.pathsep, then the test files.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest


class Report:
    """A plugin: how tests ended, and the tree's code on the path once all plugins are loaded."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.passed = self.failed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        # before installed packages, so that the tree is tested and not a release of it; behind the standard library
        at = next((i for i, place in enumerate(sys.path) if place.endswith("-packages")), len(sys.path))
        sys.path[at:at] = self.code.split(os.pathsep)
        os.environ["PYTHONPATH"] = self.code  # for processes that the tests start

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed += report.failed
        self.passed += report.passed and report.when == "call"


def main(passed: str, tree: str, code: str, *files: str) -> int:
    os.chdir(tree)
    report = Report(code)
    options = ["-q", "-o", "addopts=", "--color=no", "-p", "no:cacheprovider"]
    status = int(pytest.main([*options, *files], plugins=[report]))
    if report.passed and not report.failed:
        open(passed, "xb").close()
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
