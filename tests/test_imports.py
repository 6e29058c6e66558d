"""The shape of the package: which room imports which, where torch must not go, how long a file may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "scope_lite"

ROOMS = {
    "store": "",
    "theory": "store",
    "envs": "store",
    "models": "store",
    "method": "store envs models",
    "measure": "store envs models method",
    "experiments": "store envs models method measure theory",
    "figures": "store envs models method measure theory experiments",
    "cli": "store envs models method measure theory experiments figures",
}
"""what each room may import beside itself; beside the rooms stand ``__init__`` and ``__main__`` alone"""

WITHOUT_TORCH = ("envs", "figures", "measure/stats.py", "experiments/claims.py")
# A figure is drawn from a table, so a figure that needs one of these computes something it should have been given.
NO_MODELS = {"torch", "transformers", "peft", "accelerate", "safetensors"}
NO_LOOP = {"models.hf", "models.generate", "models.verbalized", "models.unsloth", "models.vllm", "models.api",
           "method.seats", "method.nano", "method.scene", "method.panel", "method.learner", "method.train",
           "experiments.nano_models", "experiments.parallel"}  # fmt: skip

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
LONG_AND_FLAT = {"method/train.py:train"}  # the training loop: one story, read from top to bottom


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    """The room that a file belongs to: "envs" for envs/nano/spec.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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


def inside(names: set[str]) -> set[str]:
    """What is imported of this package, without its name: "envs.nano.World"."""
    return {name.removeprefix("scope_lite.") for name in names if name.startswith("scope_lite.")}


def against_the_order(where: str, names: set[str]) -> set[str]:
    """The imported rooms that a room may not import."""
    return ({name.split(".")[0] for name in inside(names)} & set(ROOMS)) - {where, *ROOMS[where].split()}


def in_places(places: Sequence[str]) -> list[Path]:
    """The files that lie in one of these files or folders."""
    return [path for path in sources() if any(path.is_relative_to(PACKAGE / place) for place in places)]


def function_lengths(text: str) -> dict[str, int]:
    """Lines of each function from its `def` to its end, by name."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}


@cache
def calls(folder: Path = PACKAGE) -> list[tuple[str, str, ast.Call]]:
    """Every call in the package: its file, the last part of what is called, the call."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                found.append((str(path.relative_to(folder)), name, node))
    return found


def test_the_reader_of_imports_sees_lazy_relative_and_plain_imports() -> None:
    text = "import torch.nn\ndef f():\n    from scope_lite import x\n    from . import spec\n    from ..y import E"
    found = {"torch.nn", "scope_lite.x", "scope_lite.one.two.spec", "scope_lite.one.y.E"}
    assert set(imported_names(text, "scope_lite.one.two")) == found


def test_an_import_against_the_order_is_found() -> None:
    names = {"scope_lite.store.errors.ScopeError", "scope_lite.method.train", "torch", "scope_lite.envs.nano"}
    assert against_the_order("envs", names) == {"method"}


def test_there_are_nine_rooms_and_nothing_stands_beside_them() -> None:
    assert {room(path) for path in sources()} == {*ROOMS, "__init__", "__main__"}


def test_a_room_imports_only_those_before_it() -> None:
    wrong = {
        str(path.relative_to(PACKAGE)): rooms
        for path in sources()
        if room(path) in ROOMS and (rooms := against_the_order(room(path), imports_of(path)))
    }
    assert wrong == {}


def test_the_package_itself_imports_nothing_of_its_own() -> None:
    assert inside(imports_of(PACKAGE / "__init__.py")) == set()


def test_the_files_of_the_method_import_one_way() -> None:
    """Lazy imports and those for types count, too: static_order raises CycleError, with the circle."""
    graph = {
        f"method.{path.stem}": {".".join(name.split(".")[:2]) for name in inside(imports_of(path))}
        for path in in_places(["method"])
    }
    assert "method.train" == list(TopologicalSorter(graph).static_order())[-1]


def test_torch_is_not_named_where_it_must_not_go() -> None:
    assert [path.name for path in in_places(WITHOUT_TORCH) if named(imports_of(path), {"torch"})] == []


def test_figures_never_import_models() -> None:
    for path in in_places(["figures"]):
        names = imports_of(path)
        loop = {name for name in inside(names) if any(f"{name}.".startswith(f"{part}.") for part in NO_LOOP)}
        assert not named(names, NO_MODELS) and not loop, path.name


def test_importing_the_loop_brings_its_own_rooms_and_the_nano_worlds_and_no_pictures() -> None:
    loaded = loaded_by("train", "nano")
    assert not named(loaded, {"peft"})
    assert {name.split(".")[0] for name in inside(loaded)} <= {"method", "envs", "models", "store"}
    assert {name.split(".")[1] for name in inside(loaded) if name.startswith("envs.")} <= {"nano", "prompts", "turns"}
    for modules in (loaded, loaded_by(*(path.stem for path in in_places(["method"])))):
        assert not named(modules, {"matplotlib", "IPython", "seaborn", "pandas"})


def loaded_by(*modules: str) -> set[str]:
    """What is loaded when these modules of the method are; transformers loads scikit-learn where it is, with pandas."""
    code = "import sys, importlib; sys.modules['sklearn'] = None; "
    code += f"[importlib.import_module('scope_lite.method.' + name) for name in {modules!r}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    return set(done.stdout.split())


def named(names: set[str], packages: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] in packages}


def test_importing_worlds_figures_and_statistics_leaves_torch_out() -> None:
    files = [path.relative_to(PACKAGE.parent).with_suffix("") for path in in_places(WITHOUT_TORCH)]
    modules = [".".join(file.parts).removesuffix(".__init__") for file in files]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} brings in {sorted(heavy)}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, cwd=PACKAGE.parent, encoding="utf-8"
    )
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
    assert reading == {"store/plain_yaml.py"}


def test_variables_of_this_package_are_read_in_one_place() -> None:
    asking = re.compile(r"environ(\.get\(|\[[^]]+\](?! =))|getenv\(")
    reading = {str(path.relative_to(PACKAGE)) for path in sources() if asking.search(path.read_text(encoding="utf-8"))}
    # an endpoint's key lies in a variable of the user's choice
    assert reading == {"store/paths.py", "models/client.py"}


@pytest.mark.parametrize(
    "folder", [PACKAGE, PACKAGE.parent / "tests", PACKAGE.parent / "benchmarks"], ids=lambda p: p.name
)
def test_every_text_file_and_pipe_is_utf_8(folder: str) -> None:
    others = (
        "os",
        "self",
        "task",
        "Image",
        "webbrowser",
        "self.task",
        "scene.task",
    )  # an open() that opens no text
    wrong = set()
    for where, name, call in calls(PACKAGE.parent / folder):
        given = {keyword.arg for keyword in call.keywords}
        modes = [part.value for part in call.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        is_open = name == "fdopen" or (name == "open" and ast.unparse(call.func).rpartition(".")[0] not in others)
        is_text = is_open and not any(re.fullmatch("[rwax]b", mode) for mode in modes)
        is_pipe = name in ("run", "Popen", "check_output") and given & {"text", "universal_newlines"}
        if (is_text or is_pipe or name in ("read_text", "write_text")) and "encoding" not in given:
            wrong.add(f"{where}: {ast.unparse(call)}")
    assert wrong == set()
