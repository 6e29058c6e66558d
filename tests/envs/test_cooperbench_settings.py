"""CooperBench: what decides how tests run is the base commit's, and the verdict comes from pytest's own outcomes."""

# ruff: noqa: F811  (a fixture is imported, and is a test's argument, under one name)
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scope_lite.envs.cooperbench import PairTask, sandbox
from scope_lite.envs.cooperbench.testing import merge, run_tests
from scope_lite.envs.cooperbench.workspace import Workspace
from tests.standins.cooperbench_shop import BIG, PYTEST, SHOP, TWICE, folders, judged, patch, place, shop, task  # noqa: F401

pytestmark = pytest.mark.sandbox

EVIL = "import os, pytest\n\n\ndef pytest_runtest_call(item):\n    item.obj = lambda: None\n"
SITE = "import builtins, sys\nbuiltins.evil = True\nprint('1 passed')\nsys.exit(0)\n"
FORGED = "def main(*a, **k):\n    print('1 passed')\n    return 0\n\n\nmain()\n"
ENTRY = {"evil-1.dist-info/METADATA": "Name: evil\n", "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n"}


@pytest.mark.parametrize(
    "files",
    [
        {"tox.ini": "[pytest]\naddopts = -p evil\n", "evil.py": EVIL},
        {"setup.cfg": "[tool:pytest]\naddopts = -p evil\n", "evil.py": EVIL},
        {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p evil"\n', "evil.py": EVIL},
        {"pytest.toml": '[pytest]\naddopts = ["-p", "evil"]\n', "evil.py": EVIL},
        {"tests/pytest.ini": "[pytest]\npython_functions = nothing\n", "sub/.pytest.ini": "[pytest]\n"},
        ENTRY | {"evil.py": EVIL},
        {"src/evil.egg-info/entry_points.txt": ENTRY["evil-1.dist-info/entry_points.txt"], "src/evil.py": EVIL},
        {"pytest.py": FORGED},
        {"src/pytest/__init__.py": "", "src/pytest/__main__.py": FORGED},
        {"_pytest/__init__.py": FORGED},
        {"sitecustomize.py": SITE},
        {"src/usercustomize.py": SITE},
        {"web/package.json": '{"scripts": {"test": "true"}}\n', "jest.config.js": "x\n", "web/vitest.config.ts": "x\n"},
    ],
    ids=lambda files: next(iter(files)),
)
def test_what_a_patch_brings_to_decide_how_tests_run_does_not_count(task: PairTask, files: dict[str, str]) -> None:
    """What lacks the feature fails its tests, whatever files it brings; what has it passes them as they were."""
    first, second = (patch({"shop.py": SHOP}, {"shop.py": text, "new.py": "x\n"} | files) for text in (SHOP, BIG))
    with sandbox.scratch_folder() as scratch:
        workspace = Workspace(scratch)
        workspace.checkout(task)
        assert merge(workspace, task, (first, second))[0]
        added = {"evil.py", "src/evil.py"} & set(files)
        assert set(workspace.git("ls-files").stdout.split()) == {"shop.py", "new.py"} | added
        whys = [run_tests(workspace, feature, replace(PYTEST, environment={})) for feature in task.features]
    assert whys[0].startswith("its tests fail") and whys[1] == ""


def test_the_base_commits_own_settings_hold_but_for_its_addopts(task: PairTask, place: Path) -> None:
    """Colour and a broken option in addopts say nothing of the code; its other settings (here: a path) are needed."""
    base = {
        "lib/shop.py": SHOP,
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-ra --color=yes --nonesuch"\npythonpath = ["lib"]\n',
    }
    for name, text in base.items():
        (place / "plain" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "plain" / name).write_text(text, encoding="utf-8")
    first, second = (patch({"lib/shop.py": SHOP}, {"lib/shop.py": text}) for text in (TWICE, BIG))
    coloured = replace(PYTEST, environment=dict(PYTEST.environment or {}) | {"FORCE_COLOR": "1", "PY_COLORS": "1"})
    result = judged(replace(task, source=place / "plain"), first, second, coloured)
    assert result.success, result


@pytest.mark.parametrize("strip", ["\n", None], ids=["newline", "blank context"])
def test_a_patch_that_lost_its_last_lines_still_applies(task: PairTask, strip: str | None) -> None:
    """Data sets and agents strip what they copy; the end of a patch is a newline, perhaps behind blank context."""
    features = tuple(replace(feature, tests=feature.tests.rstrip(strip)) for feature in task.features)
    blank = shop(SHOP.replace("(x):\n", "(x):\n    x = 2 * x\n"))
    assert blank.endswith(" \n")
    result = judged(replace(task, features=features), blank.rstrip(strip), shop(BIG).rstrip(strip))
    assert result.success, result.why
