"""The panel of a world, as its file lists it: one format for acts and for text. No model is loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import ConfigDict, Field

from scope_lite.method.config import TEXT_WORLDS
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import checked_name, model_folder, text_panel
from scope_lite.store.plain_yaml import read_yaml
from scope_lite.store.settings import Name, Place, checked

COLLAPSED_SHARPNESS = 8.0
"""gamma of the collapsed members of every nano panel"""


@dataclass(frozen=True)
class PanelMember:
    """One simulator of a panel."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: Name
    model: Place | None
    """its model; None at nano: the world's own, scripted users or an exact simulator; None in text: the run's"""
    sharpness: Annotated[float, Field(gt=0)]
    """gamma at every reply and outcome; in text, replies are sampled at the temperature 1 / gamma"""
    kind: str
    """collapsed, broad, outside (users that no training simulator knows) or scripted"""
    population: dict[str, Annotated[float, Field(ge=0, le=1)]] = field(default_factory=dict)
    """nano: shares of the user types that it speaks for"""
    about: str = ""
    """text: what it is told of the person that it plays"""
    personas: bool = False
    """text: whether it is told of a held-out person instead, another one for each dialogue"""


def write_panel(path: Path, members: list[PanelMember]) -> None:
    """The file of a nano panel."""
    entries = [{k: v for k, v in asdict(m).items() if k not in ("about", "personas")} for m in members]
    path.write_text(yaml.safe_dump(entries, sort_keys=False), encoding="utf-8")


def read_panel(world: str, folder: Path | None = None) -> list[PanelMember]:
    """The panel of a world, each member under a name of its own.

    Args:
        folder: of the nano models, by world; default: those that are shipped, or were made here.

    Raises:
        ScopeError: the world has no models yet, or one line on whatever is wrong with the file.
    """
    home = folder / checked_name(world, "world") if folder else model_folder(checked_name(world, "world"))
    path = text_panel(world) if world in TEXT_WORLDS else home / "panel.yaml"
    if not path.exists():
        raise ScopeError(f"no panel for world {world!r}; run 'scope-lite nano build --world {world}'")
    members: list[PanelMember] = checked(list[PanelMember], read_yaml(path), str(path))
    if twice := [name for name, count in Counter(member.name for member in members).items() if count > 1]:
        raise ScopeError(f"{path}: {twice[0]} is listed twice")
    for member in members if world not in TEXT_WORLDS else ():
        checked_name(member.model or member.name, f"{path}: model")
        if not member.population:
            raise ScopeError(f"{path}: {member.name} has no population")
    return members
