"""CooperBench: what decides how tests run is the base commit's, and the verdict comes from pytest's own outcomes."""

# ruff: noqa: F811  (a fixture is imported, and is a test's argument, under one name)
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scope_lite.envs.cooperbench import PairTask, sandbox
from scope_lite.envs.cooperbench.evaluate import merge
from scope_lite.envs.cooperbench.testing import run_tests, whole_patch
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
    ],
    ids=lambda files: next(iter(files)),
)
def test_a_patch_that_would_decide_how_tests_run_is_no_success_and_named(task: PairTask, files: dict[str, str]) -> None:
    """What lacks the feature fails its tests, whatever files it brings."""
    with sandbox.scratch_folder() as scratch:
        workspace = Workspace(scratch)
        workspace.checkout(task)
        assert merge(workspace, task, (patch({}, files), ""))[0]
        cheat = run_tests(workspace, task.features[0], replace(PYTEST, environment={}))
    assert cheat.why.startswith("its tests fail"), cheat
    assert cheat.tampered and set(cheat.tampered) <= set(files)


def test_the_feature_beside_a_plugin_of_its_own_is_no_success_either(task: PairTask) -> None:
    built = patch({"shop.py": SHOP}, {"shop.py": TWICE} | ENTRY | {"evil.py": EVIL})
    result = judged(task, built, shop(BIG), PYTEST)
    assert not result.success and result.tests[0].tampered == tuple(sorted(ENTRY))
    assert "a patch touches how tests are run: evil-1.dist-info/METADATA" in result.why


def test_settings_that_are_not_about_tests_are_the_patches_to_change(task: PairTask) -> None:
    files = {
        "pyproject.toml": '[project]\nname = "shop"\ndependencies = ["numpy"]\n',
        "setup.cfg": "[metadata]\nname = shop\n",
        "package.json": '{"dependencies": {"left-pad": "1"}}\n',
    }
    result = judged(task, patch({"shop.py": SHOP}, {"shop.py": TWICE} | files), shop(BIG))
    assert result.success and result.tests[0].tampered == ()


@pytest.mark.parametrize(
    "files",
    [{"package.json": '{"scripts": {"test": "true"}}\n'}, {"jest.config.js": "x\n"}, {"web/vitest.config.ts": "x\n"}],
    ids=lambda files: next(iter(files)),
)
def test_what_decides_how_other_languages_tests_run_counts_alike(task: PairTask, files: dict[str, str]) -> None:
    result = judged(task, patch({"shop.py": SHOP}, {"shop.py": TWICE} | files), shop(BIG))
    assert not result.success and result.tests[0].tampered == tuple(files)


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


def test_a_patch_that_ends_in_the_middle_is_not_made_whole() -> None:
    text = shop(TWICE)
    assert whole_patch(text) == text and whole_patch(" \n") == ""
    cut = text[: text.index("+    return 2")]
    assert whole_patch(cut) == cut
