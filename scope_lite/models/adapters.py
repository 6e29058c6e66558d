"""LoRA adapters on a local model: how one is named, read from its folder, put on a model, trained and folded in.

A folder's settings are data: nothing runs that they name, and what peft would take otherwise than it was meant is
refused. A fresh adapter is put on every matrix of every layer, and nothing else is trained. peft, which is slow to
import, comes with the first adapter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, StringConstraints, ValidationError

from scope_lite.models.folders import read_shapes, reading, require_finite
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import read_object
from scope_lite.store.paths import adapter_folder, checked_place, expanded

if TYPE_CHECKING:
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer
    from torch import Tensor, nn
    from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "gate_up_proj")
"""what some models (Phi-3) hold in one matrix; an adapter of rank r on it has r directions for all of its parts"""
Matrix = Annotated[str, StringConstraints(pattern=r"^[\w.]+$")]
"""a matrix by its name; a pattern could take for ever"""
Alpha = Annotated[int | float, Field(ge=-1e6, le=1e6)]


class LoraSettings(BaseModel):
    """The settings that say what an adapter computes, with peft's defaults; other ones must be off."""

    model_config = ConfigDict(strict=True, extra="allow")

    peft_type: Literal["LORA"]
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
    "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
}  # fmt: skip
"""settings that say nothing of it once it is trained, or only with others that must be off"""

# -- in a folder ------------------------------------------------------------------------------------------------------


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
        base = _content(folder).get("base_model_name_or_path")
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


def _content(folder: Path) -> dict[str, Any]:
    with reading(f"could not read {folder / CONFIG}"):
        return read_object(folder / CONFIG, {})


def read_settings(folder: Path) -> dict[str, Any]:
    """An adapter's :class:`LoraSettings`, checked.

    Raises:
        ScopeError: no adapter's settings, or an adapter of a kind that would not be read as it was meant.
    """
    content = _content(folder)
    try:
        settings = LoraSettings.model_validate(content)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        told = repr(content.get(name))[:60]
        raise ScopeError(f"the adapter in {folder}: {name} is {told} in {CONFIG}, which cannot be used here") from None
    for name, value in (settings.model_extra or {}).items():
        if name not in REMARKS and value not in (None, False, "none", [], {}):
            raise ScopeError(f"the adapter in {folder} uses {name}: only plain LoRA, rsLoRA and DoRA can be used")
    return settings.model_dump(include=set(LoraSettings.model_fields) - {"init_lora_weights", "peft_type"})


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An adapter's settings (:func:`read_settings`) and its tensors by name, as they are on disk.

    Raises:
        ScopeError: the file is cut or missing, holds something that is no finite number, or is of a smaller rank.
    """
    from safetensors.torch import load_file

    settings = read_settings(folder)
    with reading(f"could not read the adapter in {folder}"):
        shapes = read_shapes([folder / WEIGHTS])
        tensors = load_file(folder / WEIGHTS)
    require_finite(tensors, f"the adapter in {folder}")
    held = max((shape[0] for name, shape in shapes.items() if ".lora_A." in name and shape), default=0)
    if max(settings["r"], *settings["rank_pattern"].values(), 0) > held:
        raise ScopeError(f"the adapter in {folder} has rank {settings['r']} in {CONFIG}, and rank {held} in {WEIGHTS}")
    return settings, tensors


def adapter_fingerprint(folder: Path) -> str:
    """Hash of an adapter by its settings and all of its weights."""
    return hashlib.sha256((folder / CONFIG).read_bytes() + (folder / WEIGHTS).read_bytes()).hexdigest()


# -- on a model -------------------------------------------------------------------------------------------------------


def with_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model with a folder's adapter put in and frozen, not merged: merging would round the weights a second time.

    Raises:
        ScopeError: an unreadable adapter, one for another base, or one that is more than low-rank matrices.
    """
    from peft import LoraConfig, get_peft_model

    settings, tensors = read_adapter(folder)
    # other layers, other shapes: whatever it is, this adapter can't be used on this model
    with reading(f"could not put the adapter in {folder} on its base model"):
        wrapped = get_peft_model(model, LoraConfig(**settings, inference_mode=True))
        base = wrapped.get_base_model()
        own = {f"base_model.model.{name}": weight for name, weight in base.named_parameters()}
        # peft saves embedding and head beside an adapter that is on one of them: copies of the base's, or trained
        copies = {name for name, t in tensors.items() if name in own and t.to(own[name]).equal(own[name])}
        set_state(wrapped, "default", {name: t for name, t in tensors.items() if name not in copies})
    return base.eval().requires_grad_(False)


def state_of(peft: PeftModel, adapter: str) -> dict[str, Tensor]:
    """An adapter's tensors by peft's names for them."""
    from peft.utils import get_peft_model_state_dict

    return get_peft_model_state_dict(peft, adapter_name=adapter, save_embedding_layers=False)


def set_state(peft: PeftModel, adapter: str, state: Mapping[str, Tensor]) -> None:
    """Give an adapter the tensors of ``state``.

    Raises:
        ScopeError: names a tensor that is missing, surplus, or of another shape.
    """
    from peft.utils import set_peft_model_state_dict

    shapes, own = ({name: t.shape for name, t in part.items()} for part in (state, state_of(peft, adapter)))
    if odd := sorted(name for name in shapes.keys() | own if shapes.get(name) != own.get(name)):
        fault = (
            "lacks" if odd[0] not in shapes else "has no place for" if odd[0] not in own else "has another shape for"
        )
        raise ScopeError(f"it {fault} {odd[0]}")
    set_peft_model_state_dict(peft, dict(state), adapter_name=adapter)


def lora_layers(model: PreTrainedModel) -> Iterator[tuple[str, LoraLayer]]:
    """The modules that carry an adapter, by name."""
    from peft.tuners.lora import LoraLayer

    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def fold_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its adapters added into the weights, so that it can carry a new one; itself if it has none.

    In float32, and in place: with 16 bits the sum would round the adapter away.
    """
    import torch

    if not hasattr(model, "peft_config"):
        return model
    del model.peft_config  # or peft takes it for a model that still has one
    model.float()
    with torch.no_grad():
        for name, layer in list(lora_layers(model)):
            layer.merge()
            above, _, last = name.rpartition(".")
            setattr(model.get_submodule(above), last, layer.get_base_layer())
    return model


# -- to be trained ----------------------------------------------------------------------------------------------------


def add_lora(model: PreTrainedModel, rank: int, alpha: int, seed: int, head: bool = False) -> PeftModel:
    """The model with a fresh trainable adapter, as peft wraps it; the global random state stays as it is.

    Raises:
        ScopeError: as :func:`lora_matrices` and :func:`require_trained`.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    matrices = lora_matrices(model, rank, head)
    config = LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=kinds_of(matrices), task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft = get_peft_model(model, config)
    require_trained(peft.get_base_model(), matrices)
    return peft


def lora_matrices(model: PreTrainedModel, rank: int, head: bool = False) -> list[str]:
    """The modules that an adapter is put on: every matrix between embedding and head, and the head if asked for.

    Raises:
        ScopeError: a matrix of another kind, which would be left out without a word, or a rank above a matrix's own.
    """
    from torch import nn

    if hasattr(model, "peft_config"):
        raise ScopeError("this model has an adapter already: name its plain base")
    ends = {model.get_input_embeddings(): False, model.get_output_embeddings(): head}
    found: dict[str, nn.Linear] = {}
    for name, module in model.named_modules():
        wanted = ends.get(module, any(p.ndim > 1 for p in module.parameters(recurse=False)))
        named = module in ends or name.rpartition(".")[2] in LORA_TARGETS + FUSED
        if wanted and not (named and isinstance(module, nn.Linear)):
            raise ScopeError(
                f"cannot train an adapter on this {model.config.model_type}: {name} is none of the matrices that it "
                f"can be put on ({', '.join(LORA_TARGETS + FUSED)}); choose another model"
            )
        if wanted:
            found[name] = module
    least = min((min(m.in_features, m.out_features) for m in found.values()), default=0)
    if not 1 <= rank <= least:
        raise ScopeError(f"lora_rank is {rank}, and the model's smallest matrix has rank {least}: take no more")
    return list(found)


def kinds_of(matrices: Iterable[str]) -> list[str]:
    """The last parts of their names, each once, by which peft finds them."""
    return sorted({name.rpartition(".")[2] for name in matrices})


def require_trained(model: nn.Module, matrices: Iterable[str], adapter: str = "default") -> None:
    """Refuse to train more, or less, than one adapter's two factors on each of ``matrices``.

    Raises:
        ScopeError: names a parameter that is trained and should not be, or the other way round.
    """
    wanted = {f"{name}.lora_{factor}.{adapter}.weight" for name in matrices for factor in "AB"}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    if odd := sorted(wanted ^ trained):
        fault = "would be trained beside the adapter" if odd[0] in trained else "of the adapter would not be trained"
        raise ScopeError(f"{odd[0]} {fault}: train on a plain base, or choose another model")
