"""LoRA adapters on a local model: how one is named, read and told from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, StringConstraints, ValidationError

from scope_lite.store.errors import ScopeError, first_line
from scope_lite.store.paths import adapter_folder, checked_place, expanded

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Matrix = Annotated[str, StringConstraints(pattern=r"^[\w.]+$")]
"""a matrix by its name; a pattern could take for ever"""
Alpha = Annotated[int | float, Field(ge=-1e6, le=1e6)]


class LoraSettings(BaseModel):
    """The settings that say what an adapter computes, with peft's defaults; other ones must be off."""

    model_config = ConfigDict(strict=True, extra="allow")

    r: PositiveInt
    lora_alpha: Alpha
    target_modules: Annotated[list[Matrix], Field(min_length=1)]
    rank_pattern: dict[Matrix, PositiveInt] = {}
    alpha_pattern: dict[Matrix, Alpha] = {}
    layers_to_transform: int | list[int] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    init_lora_weights: Literal[True, False, "gaussian"] = True
    """other starts change the base's weights"""


REMARKS = {
    "auto_mapping", "base_model_name_or_path", "inference_mode", "loftq_config", "lora_dropout",
    "megatron_core", "peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
}  # fmt: skip
"""settings that say nothing of it once it is trained, or only with others that must be off"""


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
    """The model with the adapter's layers put in and frozen, not merged: merging would round the weights a second time.

    Raises:
        ScopeError: an unreadable adapter, one for another base, or one that is more than low-rank matrices.
    """
    from peft import LoraConfig, get_peft_model
    from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict

    from scope_lite.models.lora import require_state

    settings, tensors = read_adapter(folder)
    try:
        wrapped = get_peft_model(model, LoraConfig(**settings, inference_mode=True))
        base = wrapped.get_base_model()
        own = dict(base.named_parameters())
        # peft saves embedding and head beside an adapter that is on one of them: copies of the base's, or trained
        tensors = {name: t for name, t in tensors.items() if not _is_copy(name, t, own)}
        require_state(tensors, get_peft_model_state_dict(wrapped, save_embedding_layers=False))
        set_peft_model_state_dict(wrapped, tensors)
    except Exception as error:
        # other layers, other shapes: whatever it is, this adapter can't be used on this model
        raise ScopeError(f"could not put the adapter in {folder} on its base model: {first_line(error)}") from error
    return base.eval().requires_grad_(False)


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An adapter's settings (:func:`read_settings`) and its tensors by name, as they are on disk.

    Raises:
        ScopeError: the file is cut or missing, holds something that is no finite number, or is of a smaller rank.
    """
    from safetensors.torch import load_file

    from scope_lite.models.folders import require_finite

    settings = read_settings(folder)
    try:
        tensors = load_file(folder / WEIGHTS)
    except Exception as error:
        # safetensors has errors of its own
        raise ScopeError(f"could not read the adapter in {folder}: {first_line(error)}") from error
    if codes := [name for name, t in tensors.items() if not t.is_floating_point() or t.element_size() < 2]:
        raise ScopeError(
            f"the adapter in {folder}: {codes[0]} is kept as {tensors[codes[0]].dtype}, no format of weights"
        )
    require_finite(tensors, f"the adapter in {folder}")
    held = max((t.shape[0] for name, t in tensors.items() if ".lora_A." in name and t.ndim), default=0)
    if max(settings["r"], *settings["rank_pattern"].values(), 0) > held:
        raise ScopeError(f"the adapter in {folder} has rank {settings['r']} in {CONFIG}, and rank {held} in {WEIGHTS}")
    return settings, tensors


def _is_copy(name: str, tensor: Tensor, own: Mapping[str, Tensor]) -> bool:
    """Whether a tensor of an adapter's file is one of the base model's weights, unchanged."""
    weight = own.get(name.removeprefix("base_model.model."))
    return weight is not None and weight.shape == tensor.shape and bool((tensor.to(weight) == weight).all())


def read_settings(folder: Path) -> dict[str, Any]:
    """An adapter's :class:`LoraSettings`, checked; nothing is run that the file names.

    Raises:
        ScopeError: no adapter's settings, or an adapter of a kind that would not be read as it was meant.
    """
    content = _read_config(folder)
    if content.get("peft_type") != "LORA":
        raise ScopeError(f"the adapter in {folder} is of type {content.get('peft_type')!r}: only LORA can be used")
    try:
        settings = LoraSettings.model_validate(content)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        told = repr(content.get(name))[:60]
        raise ScopeError(f"the adapter in {folder}: {name} is {told} in {CONFIG}, which cannot be used here") from None
    for name, value in (settings.model_extra or {}).items():
        if name not in REMARKS and value not in (None, False, "none", [], {}):
            raise ScopeError(f"the adapter in {folder} uses {name}: only plain LoRA, rsLoRA and DoRA can be used")
    return {name: getattr(settings, name) for name in LoraSettings.model_fields if name != "init_lora_weights"}


def adapter_fingerprint(folder: Path) -> str:
    """Hash of an adapter by its settings and all of its weights."""
    digest = hashlib.sha256((folder / CONFIG).read_bytes())
    digest.update((folder / WEIGHTS).read_bytes())
    return digest.hexdigest()


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    except (OSError, ValueError, RecursionError):
        pass
    raise ScopeError(f"could not read {folder / CONFIG}: it is no adapter's configuration")
