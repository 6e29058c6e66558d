"""The shape of the package: who may import whom, where torch must not go, and how long a file or a function may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "scope_lite"

# The reading order. A module imports only what stands earlier; a sub-package counts as one.
ORDER = (
    "errors escaping paths plain_yaml settings rng worlds contents config records stats contrasts theory grpo "
    "tasks prompts sampling gate engines verbalized episodes seats simulators nano rewards rollouts panel collapse "
    "health referee humans yardstick runs alarm learner cotraining scenes train small parallel experiments figures notebook "
    "claims series doctor chat planner gpu_check report cli __main__"
).split()

WITHOUT_TORCH = ("worlds", "tasks", "figures", "stats", "claims")
# A figure is drawn from a table, so a figure that needs one of these computes something it should have been given.
NO_MODELS = {"torch", "transformers", "peft", "accelerate", "safetensors"}
NO_LOOP = {"engines", "verbalized", "seats", "simulators", "nano", "rollouts", "panel", "learner", "train", "parallel"}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
LONG_AND_FLAT = {"train.py:train"}  # the training loop: one story, read from top to bottom


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def stage(path: Path) -> str:
    """The module or sub-package that a file belongs to: "train" for train.py, "worlds" for worlds/spec.py."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_names(text: str, package: str = "scope_lite") -> Iterator[str]:
    """Absolute dotted names that a source text imports anywhere, lazy and type-checking imports too.

    `from a import b` gives "a.b", since b may be a module. `package` is what a leading dot stands for.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_of(path: Path) -> set[str]:
    package = ".".join(("scope_lite", *path.relative_to(PACKAGE).parts[:-1]))
    return set(imported_names(path.read_text(encoding="utf-8"), package))


def stages_imported(names: set[str]) -> set[str]:
    """The stages among imported names; scope_lite's own attributes (its version) are none."""
    parts = [name.split(".") for name in names]
    modules = {part[1] for part in parts if part[0] == "scope_lite" and len(part) > 1}
    return {name for name in modules if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()}


def too_late(stage_name: str, imported: set[str]) -> set[str]:
    """The imported stages that do not stand before `stage_name` in ORDER."""
    place = ORDER.index(stage_name)
    return {name for name in imported - {stage_name} if ORDER.index(name) > place}


def function_lengths(text: str) -> dict[str, int]:
    """Lines of each function from its `def` to its end, by name."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """Every call in the package: its file, the last part of what is called, the call."""
    found = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                found.append((str(path.relative_to(PACKAGE)), name, node))
    return found


def test_the_reader_of_imports_sees_lazy_relative_and_plain_imports() -> None:
    text = (
        "import torch.nn\ndef f():\n    from scope_lite import runs\n    from . import spec\n    from ..errors import E"
    )
    assert set(imported_names(text, "scope_lite.worlds")) == {
        "torch.nn",
        "scope_lite.runs",
        "scope_lite.worlds.spec",
        "scope_lite.errors.E",
    }


def test_an_import_against_the_order_is_found() -> None:
    assert too_late("worlds", {"errors", "worlds", "train"}) == {"train"}


def test_every_module_has_a_place_in_the_order() -> None:
    stages = {stage(path) for path in sources()} - {"__init__"}
    assert stages - set(ORDER) == set(), "a new module needs a place in ORDER (tests/test_imports.py)"


def test_a_module_imports_only_what_stands_earlier() -> None:
    wrong = {
        str(path.relative_to(PACKAGE)): late
        for path in sources()
        if stage(path) in ORDER and (late := too_late(stage(path), stages_imported(imports_of(path)) & set(ORDER)))
    }
    assert wrong == {}


def test_the_package_itself_imports_nothing_of_its_own_but_errors() -> None:
    assert stages_imported(imports_of(PACKAGE / "__init__.py")) <= {"errors"}


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_torch_is_not_named_where_it_must_not_go(name: str) -> None:
    naming = [path.name for path in sources() if stage(path) == name and named(imports_of(path), {"torch"})]
    assert naming == []


def test_figures_never_import_models() -> None:
    for path in (path for path in sources() if stage(path) == "figures"):
        names = imports_of(path)
        assert not named(names, NO_MODELS) and not stages_imported(names) & NO_LOOP, path.name


def named(names: set[str], packages: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] in packages}


def test_importing_worlds_tasks_figures_and_stats_leaves_torch_out() -> None:
    files = [path.relative_to(PACKAGE.parent).with_suffix("") for path in sources() if stage(path) in WITHOUT_TORCH]
    modules = [".".join(file.parts).removesuffix(".__init__") for file in files]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} brings in {sorted(heavy)}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8").count("\n") for path in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{path.relative_to(PACKAGE)}:{name}": lines
        for path in sources()
        for name, lines in function_lengths(path.read_text(encoding="utf-8")).items()
        if lines > MAX_FUNCTION_LINES
    }
    assert {name: lines for name, lines in long.items() if name not in LONG_AND_FLAT} == {}


def test_every_module_opens_with_a_docstring() -> None:
    silent = [str(path.relative_to(PACKAGE)) for path in sources() if path.read_text(encoding="utf-8").strip()]
    silent = [name for name in silent if not ast.get_docstring(ast.parse((PACKAGE / name).read_text(encoding="utf-8")))]
    assert silent == []


def test_one_function_reads_every_yaml_file() -> None:
    reader = re.compile(r"yaml\.(safe_|full_|unsafe_)?(load|load_all|parse|compose)\(")
    reading = {where for where, _, call in calls() if reader.match(ast.unparse(call))}
    assert reading == {"plain_yaml.py"}


def test_variables_of_this_package_are_read_in_one_place() -> None:
    asking = re.compile(r"environ(\.get\(|\[[^]]+\](?! =))|getenv\(")
    reading = {str(path.relative_to(PACKAGE)) for path in sources() if asking.search(path.read_text(encoding="utf-8"))}
    assert reading == {"paths.py", "engines/endpoint.py"}  # an endpoint's key lies in a variable of the user's choice


def test_every_text_file_and_pipe_is_utf_8() -> None:
    others = ("os", "Image", "self.task", "scene.task", "RunFolder")  # an open() that opens no text
    wrong = set()
    for where, name, call in calls():
        given = {keyword.arg for keyword in call.keywords}
        modes = [part.value for part in call.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        is_open = name == "fdopen" or (name == "open" and ast.unparse(call.func).rpartition(".")[0] not in others)
        is_text = is_open and not any(re.fullmatch("[rwax]b", mode) for mode in modes)
        is_pipe = name in ("run", "Popen", "check_output") and given & {"text", "universal_newlines"}
        if (is_text or is_pipe or name in ("read_text", "write_text")) and "encoding" not in given:
            wrong.add(where)
    assert wrong == set()
