"""Read a model's folder as data: nothing is fetched, none of its code runs, and what is loaded is what it holds.

Left to itself, transformers asks on standard input whether a folder's code may run, draws a weight that is missing at
random, passes over one that is surplus, and takes NaN for a number. Everything that comes from a folder comes through
here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_lite.store.errors import ScopeError, first_line

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

AS_DATA: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""for every call that reads a folder; without the second, transformers asks whether the folder's code may run"""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NUMBERS = ("F64", "F32", "F16", "BF16")
"""number formats of a weight, by safetensors' names; others are codes of numbers that a quantisation kept elsewhere"""
ALIKE = 0.87
"""likeness of two names (difflib's) from which on one is the other misspelt: one letter in eight"""
SIZES = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence loading bars and warnings that a reader can do nothing about, and restore the levels afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def read_config(folder: Path) -> PreTrainedConfig:
    """A model's configuration.

    Raises:
        ScopeError: it cannot be read, wants code of its own, or misspells a setting, which then had its default.
    """
    from transformers import AutoConfig

    try:
        told = set(json.loads((folder / "config.json").read_text(encoding="utf-8"), object_pairs_hook=_without_kernels))
        config = AutoConfig.from_pretrained(folder, **AS_DATA)
    except Exception as error:
        # JSON, encoding, validation and recursion errors alike mean: this is no model's config
        raise ScopeError(f"cannot read {folder / 'config.json'}: {first_line(error)}") from error
    known = {field.name for field in dataclasses.fields(config)}
    for name in told - known:
        if meant := difflib.get_close_matches(name, known - told, n=1, cutoff=ALIKE):
            raise ScopeError(f"{folder / 'config.json'} has {name!r} and no {meant[0]!r}: correct its spelling")
    return config


def _without_kernels(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One mapping of a config; an attention named "OWNER/KERNEL" would be fetched and run as machine code."""
    for name, value in pairs:
        if name.endswith("_implementation") and "/" in str(value):
            raise ScopeError(f"{name} names a kernel, {str(value)[:80]!r}: no code of others is run")
    return dict(pairs)


@quiet_transformers()
def read_tokenizer(folder: Path, **options: Any) -> PreTrainedTokenizerBase:
    """A model's tokenizer.

    Raises:
        ScopeError: it cannot be read, or wants code of its own.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, **AS_DATA, **options)
    except Exception as error:
        raise ScopeError(f"could not load the tokenizer in {folder}: {first_line(error)}") from error


def read_model(folder: Path, dtype: torch.dtype, **options: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal language model, in eval mode, from the safetensors files of a folder, and its tokenizer.

    Raises:
        ScopeError: it cannot be read, wants code of its own, its weights are not those that its config asks for, or the
            tokenizer has ordinary tokens that the model has no embedding for.
    """
    tokenizer = read_tokenizer(folder)
    check_files(folder, read_config(folder))
    model = load_weights(folder, dtype, use_safetensors=True, **options)
    rows, added = model.get_input_embeddings().num_embeddings, tokenizer.added_tokens_decoder
    if over := [token for token, i in tokenizer.get_vocab().items() if i >= rows and i not in added]:
        raise ScopeError(f"the tokenizer in {folder} is another model's: {len(over)} tokens have no embedding")
    return model, tokenizer


@quiet_transformers()
def load_weights(folder: Path, dtype: torch.dtype, **options: Any) -> PreTrainedModel:
    """Load, and hold what was loaded against what the config asks for.

    Raises:
        ScopeError: a weight is missing, surplus or of another shape, or holds something that is not a finite number.
    """
    from transformers import AutoModelForCausalLM

    try:
        model, told = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, **AS_DATA, **options
        )
    except ImportError as error:
        raise ScopeError(f"reading the model in {folder} needs one more package: {first_line(error)}") from error
    except Exception as error:
        # safetensors, json and OS errors, shapes that do not fit: this folder does not hold a whole model
        raise ScopeError(f"could not load the model in {folder}: {first_line(error)}") from error
    for keys, fault in (
        (told["missing_keys"], "lacks"),
        (told["unexpected_keys"], "has no place for"),
        ({key for key, *_ in told["mismatched_keys"]}, "has another shape for"),
    ):
        if keys:
            raise ScopeError(f"the model in {folder} {fault} {_some(keys)}: its weights and its config.json differ")
    head = model.get_output_embeddings()
    if model.config.tie_word_embeddings and head and head.weight is not model.get_input_embeddings().weight:
        raise ScopeError(
            f"the model in {folder} has a head of its own, and its config.json says that the embedding is the head: "
            "set tie_word_embeddings to false"
        )
    require_finite({**dict(model.named_parameters()), **dict(model.named_buffers())}, f"the model in {folder}")
    return model.eval()


def require_finite(tensors: dict[str, torch.Tensor], what: str) -> None:
    """Refuse weights with a NaN or an infinity in them.

    Raises:
        ScopeError: names the first ones.
    """
    numbers = {name: t for name, t in tensors.items() if t.is_floating_point() and t.element_size() > 1}
    # the extremes carry a NaN along, and need no copy of the tensor
    odd = [name for name, t in numbers.items() if not _finite_ends(t)]
    if odd:
        raise ScopeError(f"{what} holds NaN or infinity in {_some(odd)}: its file is damaged, or its training diverged")


def _finite_ends(tensor: torch.Tensor) -> bool:
    import torch

    return not tensor.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(tensor.detach()))).all())


def require_computing(model: PreTrainedModel, folder: Path) -> None:
    """Refuse a model that loads and cannot compute: settings may be of the right type and make no sense.

    Raises:
        ScopeError: its forward pass fails, or gives something else than finite numbers.
    """
    import torch

    try:
        with torch.inference_mode():
            logits = model(torch.tensor([[0, 1, 2]], device=model.device), use_cache=False).logits
    except Exception as error:
        # an unknown attention, shapes that do not meet: each in its own way
        raise ScopeError(f"the model in {folder} cannot compute: {first_line(error)}") from error
    if not _finite_ends(logits):
        raise ScopeError(f"the model in {folder} computes NaN or infinity: see the numbers in its config.json")


def check_files(folder: Path, config: PreTrainedConfig) -> set[str]:
    """The names of a folder's weights, from the heads of its files; before anything of the config's sizes is allocated.

    Raises:
        ScopeError: the files cannot be read, lie elsewhere, hold no numbers, or are smaller than the config's sizes.
    """
    if (folder / "adapter_config.json").exists():
        raise ScopeError(f"{folder} holds a model and an adapter: give each a folder, and write BASE+ADAPTER")
    if getattr(config, "transformers_weights", None):
        raise ScopeError(f"{folder / 'config.json'} names its weights by transformers_weights: they are {WEIGHTS}")
    try:
        shapes, kinds = _heads(folder)
    except ScopeError:
        raise
    except Exception as error:
        # safetensors has an error of its own, and an index may be any JSON
        raise ScopeError(f"could not load the model in {folder}: {first_line(error)}") from error
    if odd := [] if hasattr(config, "quantization_config") else [n for n, kind in kinds.items() if kind not in NUMBERS]:
        raise ScopeError(f"the model in {folder} keeps {_some(odd)} as {kinds[odd[0]]}, which is no format of weights")
    side = max((n for shape in shapes.values() for n in shape), default=0)
    for name, bound in {"num_hidden_layers": len(shapes), **dict.fromkeys(SIZES, side)}.items():
        if (getattr(config.get_text_config(), name, None) or 0) > bound:
            raise ScopeError(f"{folder / 'config.json'}: {name} is larger than the weights in {folder} have room for")
    return set(shapes)


def _heads(folder: Path) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Shapes and number formats of a folder's weights; nothing but the heads of the files is read."""
    from safetensors import safe_open

    files = [WEIGHTS]
    if not (folder / WEIGHTS).exists() and (folder / INDEX).exists():
        files = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    if strange := [name for name in files if Path(name).name != name]:
        raise ScopeError(f"{folder / INDEX} names weights outside of its folder: {strange[0]!r}")
    shapes, kinds = {}, {}
    for name in files:
        if not (folder / name).is_file():
            raise ScopeError(f"no {name} in {folder}: the folder of a model holds its weights as safetensors")
        with safe_open(folder / name, "pt") as file:
            for key in file.keys():
                part = file.get_slice(key)
                shapes[key], kinds[key] = part.get_shape(), part.get_dtype()
    return shapes, kinds


def require_whole(model: PreTrainedModel, names: set[str], folder: Path) -> None:
    """For a loader that does not tell: refuse parameters that the folder's files did not have.

    Raises:
        ScopeError: names the first ones.
    """
    if missing := {name for name, _ in model.named_parameters()} - names:
        raise ScopeError(f"the model in {folder} lacks {_some(missing)}: its weights and its config.json differ")


def _some(names: Any) -> str:
    """The first of some names, and how many more there are."""
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else str(first)
