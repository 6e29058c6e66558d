"""Runs pytest on some test files of a foreign tree and writes what came of each test to a file.

A script: ``testing.py`` copies it beside the tree and starts it there, so that nothing of the tree is on the path while
Python, pytest and pytest's plugins load: a ``sitecustomize.py``, a ``pytest`` package or an entry point in there stays
a file like any other. Of scope_lite nothing is imported: the Python need not have it, and may be an older one.

Arguments: the report's path, the tree, its folders of code joined by os.pathsep, then the test files.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from typing import Any

import pytest


class Report:
    """A plugin: how each test ended, and the tree's code on the path once all plugins are loaded."""

    def __init__(self, code: list[str]) -> None:
        self.code = code
        self.outcomes: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        # before installed packages, so that the tree is tested and not a release of it; behind the standard library
        behind = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(json.__file__)]
        last = max((i for i, place in enumerate(sys.path) if place in behind or "lib-dynload" in place), default=-1)
        sys.path[last + 1 : last + 1] = self.code
        os.environ["PYTHONPATH"] = os.pathsep.join(self.code)  # for processes that the tests start

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test passed if its call did, and neither set-up nor tear-down failed."""
        if report.failed or (report.when == "call" and self.outcomes.get(report.nodeid) != "failed"):
            self.outcomes[report.nodeid] = report.outcome


def main(path: str, tree: str, code: str, *files: str) -> int:
    os.chdir(tree)
    report = Report(code.split(os.pathsep))
    options = ["-q", "-o", "addopts=", "--color=no", "-p", "no:cacheprovider"]
    status = int(pytest.main([*options, *files], plugins=[report]))
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"status": status, "outcomes": list(report.outcomes.values())}, file)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
