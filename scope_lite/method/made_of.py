"""What a run is made of, which is what it is named by: the settings that it reads, and what is in the files it reads.

A setting counts where it differs from its default, so that a new key changes no run's name; a default that changes
needs a new ``config.SCHEMA``. A run's folder keeps every setting that was read, at whatever value, and is held to them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from scope_lite.envs.nano import own_world_content
from scope_lite.method.config import SCHEMA, RunConfig
from scope_lite.models.registry import content_of
from scope_lite.store.contents import digests, panel_models
from scope_lite.store.paths import model_folder, text_panel
from scope_lite.store.plain_yaml import flat

MadeOf = dict[str, dict[str, Any]]
"""``settings`` by dotted key, and the content of ``files``, as digests"""


def made_of(config: RunConfig) -> MadeOf:
    """All that tells this run from another one.

    Raises:
        ScopeError: if a panel cannot be read.
    """
    return {"settings": config.read(), "files": _text_files(config) if config.is_text else _nano_files(config)}


def run_folder(root: Path, config: RunConfig) -> Path:
    """Where the run lies: ``persuasion-single-seed0-1a2b3c4d``, by a hash of what it is made of."""
    made = made_of(config)
    default = flat(type(config)().model_dump(mode="json"))
    differing = {key: value for key, value in made["settings"].items() if value != default[key]}
    content = json.dumps([SCHEMA, differing, made["files"]], sort_keys=True)
    return Path(root) / f"{config.run_name()}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _nano_files(config: RunConfig) -> dict[str, Any]:
    """The world's panel, the models that its members or this run name, and a world of the user's own."""
    folder = model_folder(config.world)
    panel = folder / "panel.yaml"
    models = {config.model, *config.simulator.members, *(panel_models(panel) if panel.exists() else [])}
    return digests(folder, [panel.name, *models]) | own_world_content(config.world)


def _text_files(config: RunConfig) -> dict[str, Any]:
    """The world's panel, and the models that its members or this run name; of CooperBench the repositories, too."""
    panel = text_panel(config.world)
    models = {config.model, config.text.simulator_model, *panel_models(panel)} - {None}
    files: dict[str, Any] = digests(panel.parent, [panel.name]) | {str(m): content_of(str(m)) for m in models}
    if config.world == "cooperbench":
        from scope_lite.envs.cooperbench.dataset import content as pairs  # no other world reads repositories

        files["pairs"] = pairs()
    return files
