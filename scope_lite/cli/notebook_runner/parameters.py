"""What each notebook is run with, decided and checked before the first one starts.

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
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from scope_lite.store.errors import ScopeError, closest, first_line
from scope_lite.store.plain_yaml import parse_yaml, read_yaml
from scope_lite.store.settings import Settings, checked

TYPES = {kind.__name__: kind for kind in (int, float, str, bool, list, tuple, dict)}


@dataclass(frozen=True)
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

    execution_timeout: int = Field(default=3600, ge=1, le=10**7)
    """seconds that a cell may take"""
    series: tuple[str, ...] = ()
    """notebooks of a plain run; all, where none is named"""
    apart: tuple[str, ...] = ()
    """notebooks that run only when they are asked for by name"""
    hours: float | None = Field(default=None, gt=0)
    """what ``--all`` takes"""


@dataclass(frozen=True)
class Scale:
    """A parameter file, as in the module's docstring; ``sections`` are ``all`` and one for each notebook."""

    path: Path
    settings: ScaleSettings
    sections: dict[str, dict[str, Any]]


# -- notebooks and scales -------------------------------------------------------------------------------------------


def notebooks_in(folder: Path) -> list[Path]:
    """The notebooks, in order: ``00_start_here.ipynb``, ``01_...``."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def chosen_notebooks(folder: Path, scale: str, only: Sequence[str] = (), everything: bool = False) -> list[Path]:
    """What to run: names that begin with one of ``only``, or every notebook, or what ``settings.series`` names.

    The notebooks of ``settings.apart`` run only by ``only``.

    Raises:
        ScopeError: for an unknown scale or notebook.
    """
    notebooks, settings = notebooks_in(folder), load_scale(folder, scale).settings
    wishes = tuple(wish.removesuffix(".ipynb") for wish in only or (() if everything else settings.series))
    for wish in wishes:
        if not any(path.stem.startswith(wish) for path in notebooks):
            raise ScopeError(closest(wish, [path.stem for path in notebooks], "notebook"))
    chosen = [path for path in notebooks if not wishes or path.stem.startswith(wishes)]
    return [path for path in chosen if only or path.stem not in settings.apart]


def load_scale(folder: Path, name: str, remake: bool = False) -> Scale:
    """Read ``parameters/<name>.yaml`` and check its sections.

    Raises:
        ScopeError: for an unknown scale, a file that is no YAML mapping, an unknown section or setting.
    """
    path = folder / "parameters" / f"{name}.yaml"
    known = sorted(path.stem for path in path.parent.glob("*.yaml"))
    if not known:
        raise ScopeError(f"there are no parameter files in {path.parent}; {name}.yaml may be empty, but is needed")
    if name not in known:
        raise ScopeError(closest(name, known, "scale"))
    sections: dict[str, dict[str, Any]] = {"settings": {}, "all": {}}
    sections |= {notebook.stem: {} for notebook in notebooks_in(folder)}
    usual = _mapping(path, read_yaml(path))
    over = _mapping(path, usual.pop("remake", None))
    for layer in (usual, over):
        for key, values in layer.items():
            if key not in sections:
                raise ScopeError(f"{path}: {closest(str(key), list(sections), 'section')}")
            own = _mapping(path, values)
            sections[key] |= own if layer is usual or remake else {}
    return Scale(path, checked(ScaleSettings, sections.pop("settings"), f"{path} (settings)"), sections)


def _mapping(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value or {}, dict):
        raise ScopeError(f"{path}: expected 'name: value' pairs, found {value!r}")
    return value or {}


# -- plans ----------------------------------------------------------------------------------------------------------


def make_plans(
    notebooks: Sequence[Path],
    scale: str,
    overrides: Mapping[str, Any],
    remake: bool = False,
    execution_timeout: int | None = None,
) -> list[Plan]:
    """Decide the parameters of notebooks in one folder: their defaults, then the scale file, then ``overrides``.

    Args:
        remake: lay the file's ``remake`` section (full seeds) over its usual values.
        execution_timeout: seconds a cell may take; by default the file's.

    Raises:
        ScopeError: for an unknown scale, if a value is meant for no notebook, or has the wrong type.
    """
    folder = notebooks[0].resolve().parent
    file = load_scale(folder, scale, remake)
    shared = file.sections["all"]
    declared = {path.stem: declared_parameters(path) for path in notebooks}
    _refuse_unknown("--param", overrides, {name for names in declared.values() for name in names})
    if shared:
        everywhere = {name for path in notebooks_in(folder) for name in declared_parameters(path)}
        _refuse_unknown(f"{file.path} (all)", shared, everywhere)
    plans = []
    for stem, names in declared.items():
        own = file.sections[stem]
        _refuse_unknown(f"{file.path} ({stem})", own, names)
        values = {"scale": scale, **shared, **own, **overrides}
        found = {name: checked_value(name, value, names[name]) for name, value in values.items() if name in names}
        timeout = execution_timeout or file.settings.execution_timeout
        plans.append(Plan(folder / f"{stem}.ipynb", scale, found, timeout))
    return plans


def _refuse_unknown(where: str, values: Mapping[str, Any], known: Collection[str]) -> None:
    for name in values:
        if name not in known:
            raise ScopeError(f"{where}: {closest(name, sorted(known), 'parameter')}")


def declared_parameters(notebook: Path) -> dict[str, Any]:
    """The parameters that a notebook declares in its one cell tagged "parameters", and their types; Any if unknown.

    Raises:
        ScopeError: if the file is no notebook, has not one such cell, or derives one parameter from another there.
    """
    # nbformat's import is not free, and a listing of scales needs none of it
    import nbformat

    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except Exception as exc:
        raise ScopeError(f"{notebook} is not a readable notebook: {first_line(exc)}") from exc
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise ScopeError(f"{notebook} has {len(tagged)} cells tagged 'parameters'; it needs exactly one")
    try:
        statements = ast.parse(tagged[0].source).body
    except SyntaxError as exc:
        raise ScopeError(f"{notebook}: the parameters cell, line {exc.lineno}: {exc.msg}") from exc
    # papermill.inspect_notebook overlooks annotations such as "int | None", which would make them unknown here
    found: dict[str, Any] = {}
    for statement in statements:
        match statement:
            case ast.AnnAssign(ast.Name(name), annotation, ast.expr() as value):
                declared = ast.unparse(annotation)
            case ast.Assign([ast.Name(name)], value):
                declared = ""
            case _:
                continue
        used = {part.id for part in ast.walk(value) if isinstance(part, ast.Name)} & found.keys()
        if used:
            raise ScopeError(
                f"{notebook}: {name} is derived from {min(used)} in the parameters cell, where it would ignore an "
                "override; move it to the next cell"
            )
        try:
            found[name] = eval(declared, {"__builtins__": TYPES}) if declared else type(ast.literal_eval(value))
        except (NameError, TypeError, ValueError):
            found[name] = Any
    return found


def checked_value(name: str, value: Any, kind: Any) -> Any:
    """The value as the parameter's type; text from the command line is read as YAML unless text is wanted.

    Raises:
        ScopeError: if it has another type.
    """
    given = parse_yaml(value, f"parameter {name}") if isinstance(value, str) and kind is not str else value
    # True is an int to Python, not to a reader; but YAML 1.1 takes 1e-3 for text
    strict = not isinstance(given, str)
    try:
        return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False)).validate_json(json.dumps(given), strict=strict)
    except ValidationError:
        raise ScopeError(f"parameter {name} takes {getattr(kind, '__name__', kind)}, not {value!r}") from None
