"""What each notebook of the series is run with, decided and checked before the first one starts.

A scale is a file ``parameters/<scale>.yaml`` beside the notebooks::

    settings: {execution_timeout: 1200, series: [00_start_here, 03_one_frozen_simulator]}
    all: {seeds: 3}                       # for every notebook that declares it
    03_one_frozen_simulator: {steps: 150}
    remake: {all: {seeds: 10}}            # laid over the rest by --all

``settings.series`` names the notebooks of a plain run (all, if absent); ``--all`` runs every notebook. Those that
``settings.apart`` names run only when they are asked for by name.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import Field

from scope_lite.store.errors import ScopeError
from scope_lite.store.plain_yaml import parse_yaml, read_yaml
from scope_lite.store.settings import Settings, checked, closest

EXECUTION_TIMEOUT, LONGEST_TIMEOUT = 3600, 10**7
TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "list": (list,),
    "tuple": (list, tuple),
    "dict": (dict,),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """One notebook and the values its parameters cell is overridden with."""

    notebook: Path
    scale: str
    parameters: dict[str, Any]
    execution_timeout: int

    @property
    def stem(self) -> str:
        return self.notebook.stem


class ScaleSettings(Settings):
    """The section ``settings`` of a parameter file."""

    execution_timeout: int = Field(default=EXECUTION_TIMEOUT, ge=1, le=LONGEST_TIMEOUT)
    """seconds that a cell may take"""
    series: tuple[str, ...] = ()
    """notebooks of a plain run; all, where none is named"""
    apart: tuple[str, ...] = ()
    """notebooks that run only when they are asked for by name"""
    hours: float | None = Field(default=None, gt=0)
    """what ``--all`` takes"""


@dataclasses.dataclass(frozen=True)
class Scale:
    """A parameter file, as in the module's docstring."""

    name: str
    path: Path
    settings: ScaleSettings
    shared: dict[str, Any]
    own: dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Declared:
    """A parameter as its notebook declares it; ``kind`` is a name such as "int", or None if it cannot be told."""

    name: str
    kind: str | None
    optional: bool
    help: str


# -- notebooks and scales -------------------------------------------------------------------------------------------


def notebooks_in(folder: Path) -> list[Path]:
    """The notebooks of the series, in order: ``00_start_here.ipynb``, ``01_...``."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def select(notebooks: Sequence[Path], only: Sequence[str]) -> list[Path]:
    """The notebooks whose names begin with one of ``only``, such as "03"; all of them for an empty ``only``.

    Raises:
        ScopeError: if one of ``only`` fits none.
    """
    for wish in only:
        if not any(path.stem.startswith(wish.removesuffix(".ipynb")) for path in notebooks):
            raise ScopeError(closest(wish, [path.stem for path in notebooks], "notebook"))
    wishes = tuple(wish.removesuffix(".ipynb") for wish in only)
    return [path for path in notebooks if not wishes or path.stem.startswith(wishes)]


def series_notebooks(folder: Path, scale: str, only: Sequence[str] = (), everything: bool = False) -> list[Path]:
    """What to run: ``only`` if given, every notebook on demand, else what the scale's ``settings.series`` names.

    The notebooks of ``settings.apart`` run only by ``only``.

    Raises:
        ScopeError: for an unknown scale or notebook.
    """
    notebooks = notebooks_in(folder)
    settings = load_scale(folder, scale).settings
    if only:
        return select(notebooks, only)
    chosen = select(notebooks, () if everything else settings.series)
    return [path for path in chosen if path.stem not in settings.apart]


def known_scales(folder: Path) -> list[str]:
    """Names of the parameter files beside the notebooks in ``folder``."""
    return sorted(path.stem for path in (folder / "parameters").glob("*.yaml"))


def load_scale(folder: Path, name: str, remake: bool = False) -> Scale:
    """Read ``parameters/<name>.yaml`` and check its sections.

    Raises:
        ScopeError: for an unknown scale, a file that is no YAML mapping, an unknown section or setting.
    """
    path = folder / "parameters" / f"{name}.yaml"
    if not known_scales(folder):
        raise ScopeError(
            f"there are no parameter files in {folder / 'parameters'}; {name}.yaml may be empty, but is needed"
        )
    if name not in known_scales(folder):
        raise ScopeError(closest(name, known_scales(folder), "scale"))
    usual = _mapping(path, read_yaml(path) or {})
    over = usual.pop("remake", None) or {}
    known = ["settings", "all", *(notebook.stem for notebook in notebooks_in(folder))]
    for layer in (usual, _mapping(path, over)):
        for key, values in layer.items():
            if key not in known:
                raise ScopeError(f"{path}: {closest(str(key), known, 'section')}")
            _mapping(path, values or {})
    layers = (usual, over) if remake else (usual,)
    merged = {key: {k: v for layer in layers for k, v in (layer.get(key) or {}).items()} for key in known}
    settings, shared = checked(ScaleSettings, merged.pop("settings"), f"{path} (settings)"), merged.pop("all")
    return Scale(name, path, settings, shared, merged)


def _mapping(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScopeError(f"{path}: expected 'name: value' pairs, found {value!r}")
    return value


# -- plans ----------------------------------------------------------------------------------------------------------


def make_plans(
    notebooks: Sequence[Path],
    scale: str,
    overrides: Mapping[str, Any],
    remake: bool = False,
    execution_timeout: int | None = None,
) -> list[Plan]:
    """Decide every notebook's parameters: its defaults, then the scale file, then ``overrides``.

    Raises:
        ScopeError: if a value is meant for no notebook, or has the wrong type.
    """
    if not notebooks:
        raise ScopeError("no notebooks to run")
    notebooks = [Path(path).resolve() for path in notebooks]
    scales = {folder: load_scale(folder, scale, remake) for folder in {path.parent for path in notebooks}}
    declared = {path: declared_parameters(path) for path in notebooks}
    _refuse_unknown("--param", overrides, {name for names in declared.values() for name in names})
    for folder, file in scales.items():
        if file.shared:
            everywhere = {name for path in notebooks_in(folder) for name in declared_parameters(path)}
            _refuse_unknown(f"{file.path} (all)", file.shared, everywhere)
    plans = []
    for path in notebooks:
        file, names = scales[path.parent], declared[path]
        own = file.own.get(path.stem, {})
        _refuse_unknown(f"{file.path} ({path.stem})", own, names)
        values = {"scale": scale, **file.shared, **own, **overrides}
        found = {name: checked_value(value, names[name]) for name, value in values.items() if name in names}
        plans.append(Plan(path, scale, found, execution_timeout or file.settings.execution_timeout))
    return plans


def _refuse_unknown(where: str, values: Mapping[str, Any], known: Mapping[str, Any] | set[str]) -> None:
    for name in values:
        if name not in known:
            raise ScopeError(f"{where}: {closest(name, sorted(known), 'parameter')}")


def declared_parameters(notebook: Path) -> dict[str, Declared]:
    """The parameters a notebook declares in its one cell tagged "parameters".

    Raises:
        ScopeError: if the file is no notebook, or has no such cell, or more than one.
    """
    # nbformat's import is not free, and a listing of scales needs none of it
    import nbformat

    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except FileNotFoundError:
        raise ScopeError(f"there is no notebook {notebook}") from None
    except Exception as exc:
        raise ScopeError(f"{notebook} is not a readable notebook: {str(exc).splitlines()[0]}") from exc
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise ScopeError(f"{notebook} has {len(tagged)} cells tagged 'parameters'; it needs exactly one")
    try:
        return _declarations(notebook, tagged[0].source)
    except SyntaxError as exc:
        raise ScopeError(f"{notebook}: the parameters cell, line {exc.lineno}: {exc.msg}") from exc


def _declarations(notebook: Path, source: str) -> dict[str, Declared]:
    # papermill.inspect_notebook overlooks annotations such as "int | None", which would make them unknown here
    found: dict[str, Declared] = {}
    for node in ast.parse(source).body:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if _is_plain(node) else None
        if not isinstance(target, ast.Name) or not isinstance(node, ast.AnnAssign | ast.Assign) or node.value is None:
            continue
        used = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)} & found.keys()
        if used:
            raise ScopeError(
                f"{notebook}: {target.id} is derived from {min(used)} in the parameters cell, where it would ignore "
                "an override; move it to the next cell"
            )
        annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        comment = source.splitlines()[(node.end_lineno or 1) - 1][node.end_col_offset or 0 :].strip(" #;")
        found[target.id] = _declared(target.id, annotation, node.value, comment)
    return found


def _is_plain(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and len(node.targets) == 1


def _declared(name: str, annotation: str, default: ast.expr, comment: str) -> Declared:
    options = [part.strip() for part in annotation.removeprefix("Optional[").split("|")]
    optional = annotation.startswith("Optional[") or "None" in options
    kind = next((part.split("[")[0].strip(" ]") for part in options if part != "None"), "")
    if kind not in TYPES:
        try:
            kind = type(ast.literal_eval(default)).__name__
        except ValueError:
            kind = ""
    return Declared(name, kind if kind in TYPES else None, optional, comment)


def checked_value(value: Any, parameter: Declared) -> Any:
    """The value as the parameter's type; text from the command line is read as YAML unless text is wanted.

    Raises:
        ScopeError: if it has another type.
    """
    where = f"parameter {parameter.name}"
    if parameter.kind is None:
        return parse_yaml(value, where) if isinstance(value, str) else value
    wanted = TYPES[parameter.kind]
    parsed = parse_yaml(value, where) if isinstance(value, str) and parameter.kind != "str" else value
    if parsed is None and parameter.optional:
        return None
    if parameter.kind == "float" and isinstance(parsed, str):  # YAML 1.1 takes 1e-3 for text
        with contextlib.suppress(ValueError):
            parsed = float(parsed)
    about = f" ({parameter.help})" if parameter.help else ""
    # True is an int to Python, not to a reader
    fits = isinstance(parsed, wanted) and (parameter.kind == "bool" or not isinstance(parsed, bool))
    if not fits:
        raise ScopeError(f"{where} takes {parameter.kind}, not {value!r}{about}")
    if parameter.kind != "float":
        return parsed
    if not math.isfinite(parsed):
        raise ScopeError(f"{where} takes a finite number, not {value!r}{about}")
    return float(parsed)
