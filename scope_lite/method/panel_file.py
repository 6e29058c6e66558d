"""The panel of a world, as its file lists it, for acts and for text; no model is loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import ConfigDict, Field

from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import checked_name, model_folder
from scope_lite.store.plain_yaml import read_yaml
from scope_lite.store.settings import Name, Place, checked

COLLAPSED_SHARPNESS = 8.0
"""gamma of the collapsed members of every panel"""
EXACT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class PanelMember:
    """One simulator of the panel, as ``panel.yaml`` lists it."""

    __pydantic_config__ = EXACT

    name: Name
    model: Name | None
    """folder of its model; None for the world's own: scripted users with a hidden type, or an exact simulator"""
    sharpness: Annotated[float, Field(gt=0)]
    """gamma at every reply and outcome"""
    kind: str
    """collapsed, broad, outside (users that no training simulator knows) or scripted"""
    population: dict[str, Annotated[float, Field(ge=0, le=1)]]
    """shares of the user types that it speaks for"""


@dataclass(frozen=True)
class TextMember:
    """One simulator of a text panel, as its file lists it (the file says what each key means)."""

    __pydantic_config__ = EXACT

    name: Name
    kind: str
    model: Place | None
    temperature: Annotated[float, Field(gt=0)]
    about: str
    personas: bool


M = TypeVar("M", PanelMember, TextMember)


def write_panel(path: Path, members: list[PanelMember]) -> None:
    path.write_text(yaml.safe_dump([asdict(m) for m in members], sort_keys=False), encoding="utf-8")


def read_panel(world_name: str, folder: Path | None = None) -> list[PanelMember]:
    """The panel of a world.

    Raises:
        ScopeError: if the world has no models yet, or its file is no panel.
    """
    checked_name(world_name, "world")
    path = (folder / world_name if folder else model_folder(world_name)) / "panel.yaml"
    if not path.exists():
        raise ScopeError(f"no panel for world {world_name!r}; run 'scope-lite nano build --world {world_name}'")
    return read_members(PanelMember, path)


def read_text_panel(path: Path) -> list[TextMember]:
    """The panel of a text world.

    Raises:
        ScopeError: if its file is no panel.
    """
    return read_members(TextMember, path)


def read_members(kind: type[M], path: Path) -> list[M]:
    """The members that a panel's file lists, each under a name of its own.

    Raises:
        ScopeError: one line on whatever is wrong with the file.
    """
    members: list[M] = checked(list[kind], read_yaml(path), str(path))  # type: ignore[valid-type]
    names = Counter[Any](vars(member)["name"] for member in members)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ScopeError(f"{path}: {twice[0]} is listed twice")
    return members
