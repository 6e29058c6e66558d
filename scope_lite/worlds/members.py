"""The panel of a world, as its file lists it: names, models, sharpness and populations, and no model loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from scope_lite.errors import ScopeError
from scope_lite.paths import model_folder

COLLAPSED_SHARPNESS = 8.0
"""gamma of the collapsed members of every panel"""


@dataclass(frozen=True)
class PanelMember:
    """One simulator of the panel, as ``panel.yaml`` lists it."""

    name: str
    model: str | None
    """folder of its model; None for the world's own: scripted users with a hidden type, or an exact simulator"""
    sharpness: float
    """gamma at every reply and outcome"""
    kind: str
    """collapsed, broad, outside (users that no training simulator knows) or scripted"""
    population: dict[str, float]
    """shares of the user types that it speaks for"""


def write_panel(path: Path, members: list[PanelMember]) -> None:
    path.write_text(yaml.safe_dump([asdict(m) for m in members], sort_keys=False))


def read_panel(world_name: str, folder: Path | None = None) -> list[PanelMember]:
    """The panel of a world.

    Raises:
        ScopeError: if the world has no models yet.
    """
    path = (folder / world_name if folder else model_folder(world_name)) / "panel.yaml"
    if not path.exists():
        raise ScopeError(f"no panel for world {world_name!r}; run 'scope-lite nano build --world {world_name}'")
    return [PanelMember(**entry) for entry in yaml.safe_load(path.read_text())]
