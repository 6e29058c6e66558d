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
from collections.abc import Collection, Iterable, Iterator, Mapping
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
def reading(what: str) -> Iterator[None]:
    """Tell whatever fails within in one line that begins with ``what``: each library raises kinds of its own."""
    try:
        with quiet_transformers():
            yield
    except Exception as error:
        raise ScopeError(f"{what}: {first_line(error)}") from error


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence warnings that a reader can do nothing about, and loading bars, which outlive what they measure."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def read_config(folder: Path) -> PreTrainedConfig:
    """A model's configuration.

    Raises:
        ScopeError: it cannot be read, wants code of its own, or misspells a setting, which then had its default.
    """
    from transformers import AutoConfig

    path = folder / "config.json"
    with reading(f"cannot read {path}"):
        told = set(json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_kernels))
        config = AutoConfig.from_pretrained(folder, **AS_DATA)
    known = {field.name for field in dataclasses.fields(config)}
    for name in told - known:
        if meant := difflib.get_close_matches(name, known - told, n=1, cutoff=ALIKE):
            raise ScopeError(f"{path} has {name!r} and no {meant[0]!r}: correct its spelling")
    return config


def _without_kernels(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One mapping of a config; an attention named "OWNER/KERNEL" would be fetched and run as machine code."""
    for name, value in pairs:
        if name.endswith("_implementation") and "/" in str(value):
            raise ScopeError(f"{name} names a kernel, {str(value)[:80]!r}: no code of others is run")
    return dict(pairs)


def read_tokenizer(folder: Path, **options: Any) -> PreTrainedTokenizerBase:
    """A model's tokenizer.

    Raises:
        ScopeError: it cannot be read, or wants code of its own.
    """
    from transformers import AutoTokenizer

    with reading(f"could not load the tokenizer in {folder}"):
        return AutoTokenizer.from_pretrained(folder, **AS_DATA, **options)


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


def load_weights(folder: Path, dtype: torch.dtype, **options: Any) -> PreTrainedModel:
    """Load, and hold what was loaded against what the config asks for.

    Raises:
        ScopeError: a weight is missing, surplus or of another shape, or holds something that is not a finite number.
    """
    from transformers import AutoModelForCausalLM

    with reading(f"could not load the model in {folder}"):
        model, told = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, **AS_DATA, **options
        )
    require_weights(folder, told["missing_keys"], "lacks")
    require_weights(folder, told["unexpected_keys"], "has no place for")
    require_weights(folder, {key for key, *_ in told["mismatched_keys"]}, "has another shape for")
    head = model.get_output_embeddings()
    if model.config.tie_word_embeddings and head and head.weight is not model.get_input_embeddings().weight:
        raise ScopeError(
            f"the model in {folder} has a head of its own, and its config.json says that the embedding is the head: "
            "set tie_word_embeddings to false"
        )
    require_finite({**dict(model.named_parameters()), **dict(model.named_buffers())}, f"the model in {folder}")
    return model.eval()


def require_weights(folder: Path, odd: Collection[str], fault: str) -> None:
    """Refuse a model some of whose weights are at ``fault``.

    Raises:
        ScopeError: names the first one, and how many more there are.
    """
    if odd:
        raise ScopeError(f"the model in {folder} {fault} {_some(odd)}: its weights and its config.json differ")


def _some(names: Collection[str]) -> str:
    return min(names) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def require_finite(tensors: Mapping[str, torch.Tensor], what: str) -> None:
    """Refuse weights with a NaN or an infinity in them.

    Raises:
        ScopeError: names the first one.
    """
    numbers = {name: t for name, t in tensors.items() if t.is_floating_point() and t.element_size() > 1}
    if odd := [name for name, t in numbers.items() if not _is_finite(t)]:
        raise ScopeError(f"{what} holds NaN or infinity in {_some(odd)}: its file is damaged, or its training diverged")


def _is_finite(tensor: torch.Tensor) -> bool:
    # the extremes carry a NaN along, and need no copy of the tensor
    return not tensor.numel() or all(end.isfinite().item() for end in tensor.detach().aminmax())


def require_computing(model: PreTrainedModel, folder: Path) -> None:
    """Refuse a model that loads and cannot compute: settings may be of the right type and make no sense.

    Raises:
        ScopeError: its forward pass fails, or gives something else than finite numbers.
    """
    import torch

    with reading(f"the model in {folder} cannot compute"), torch.inference_mode():
        logits = model(torch.tensor([[0, 1, 2]], device=model.device), use_cache=False).logits
    if not _is_finite(logits):
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
    with reading(f"could not load the model in {folder}"):
        shapes = read_shapes(weight_files(folder), coded=hasattr(config, "quantization_config"))
    side = max((n for shape in shapes.values() for n in shape), default=0)
    for name, bound in {"num_hidden_layers": len(shapes), **dict.fromkeys(SIZES, side)}.items():
        if (getattr(config.get_text_config(), name, None) or 0) > bound:
            raise ScopeError(f"{folder / 'config.json'}: {name} is larger than the weights in {folder} have room for")
    return set(shapes)


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights: one, or those that an index lists."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return [folder / WEIGHTS]
    names = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    if strange := [name for name in names if Path(name).name != name]:
        raise ScopeError(f"{INDEX} names weights outside of its folder: {strange[0]!r}")
    return [folder / name for name in names]


def read_shapes(files: Iterable[Path], coded: bool = False) -> dict[str, list[int]]:
    """Shapes of the weights in some files, by name; nothing but the heads of the files is read.

    Raises:
        ScopeError: no such file, or a weight that is no number and not ``coded`` (by a quantisation) either.
    """
    from safetensors import safe_open

    shapes = {}
    for path in files:
        if not path.is_file():
            raise ScopeError(f"no {path.name}: weights are kept as safetensors")
        with safe_open(path, "pt") as file:
            for name in file.keys():
                part = file.get_slice(name)
                if part.get_dtype() not in NUMBERS and not coded:
                    raise ScopeError(f"{name} is kept as {part.get_dtype()}, no format of weights")
                shapes[name] = part.get_shape()
    return shapes
