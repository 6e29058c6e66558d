"""LoRA adapters on a local model: how one is named, read and told from another."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from scope_lite.errors import ScopeError
from scope_lite.paths import adapter_folder, checked_place, expanded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def split_adapter(model: str | Path) -> tuple[str | Path, Path | None]:
    """The base model and the adapter's folder (None if there is none) of a model's name.

    ``"BASE+FOLDER"`` names both, ``"BASE+NAME"`` a shipped adapter (``paths.adapter_folder``); a folder with an adapter
    alone names its base in ``adapter_config.json``.

    Raises:
        ScopeError: a name that no folder has, a folder that holds no adapter, or one that does not say its base.
    """
    folder = expanded(checked_place(str(model), "model"))
    if (folder / "config.json").is_file():
        return model, None
    if (folder / CONFIG).is_file():
        base = _read_config(folder).get("base_model_name_or_path")
        if not base:
            raise ScopeError(f"the adapter in {folder} does not name its base model: write BASE+{folder}")
        return str(base), folder
    base, plus, adapter = str(model).partition("+")
    if not plus:
        return model, None
    folder = adapter_folder(adapter)
    if not base or not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise ScopeError(
            f"no adapter in {adapter!r}: write BASE+FOLDER, a folder that holds {CONFIG} and {WEIGHTS}, or BASE+NAME "
            "of one that is shipped"
        )
    return base, folder


def with_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model with the adapter's layers put in, not merged: merging would round the weights a second time.

    Raises:
        ScopeError: an unreadable adapter, or one for another base.
    """
    from peft import PeftModel

    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            wrapped = PeftModel.from_pretrained(model, str(folder), local_files_only=True)
    except Exception as error:
        # missing keys, other shapes, cut files: whatever it is, this adapter can't be used on this model
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ScopeError(f"could not put the adapter in {folder} on its base model: {reason}") from error
    if any("missing adapter keys" in str(warning.message) for warning in told):
        raise ScopeError(f"the adapter in {folder} lacks layers of its base model: it was made for another one")
    return wrapped.get_base_model()


def adapter_fingerprint(folder: Path) -> str:
    """Hash of an adapter by its settings and all of its weights."""
    digest = hashlib.sha256((folder / CONFIG).read_bytes())
    digest.update((folder / WEIGHTS).read_bytes())
    return digest.hexdigest()


def _read_config(folder: Path) -> dict[str, object]:
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    except (OSError, ValueError):
        pass
    raise ScopeError(f"could not read {folder / CONFIG}: it is no adapter's configuration")
