"""The two folders of an adapter: where it is trained, for one process and one set of settings, and what is shipped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scope_lite.envs.p4g import COMMIT
from scope_lite.models import adapters
from scope_lite.models.pretrained import LoadedModel
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import read_object, remove, replace_text, sweep, take_lock
from scope_lite.store.provenance import collect


@contextmanager
def working(work: Path, settings: Mapping[str, Any], fresh: bool) -> Iterator[Path]:
    """The folder of checkpoints, held by this process alone.

    Args:
        settings: what a run must not change on its way; ``settings.json`` keeps them.
        fresh: forget what ``work`` holds.

    Raises:
        ScopeError: a run with other settings in ``work``, one that is under way there, a full disk.
    """
    lock = take_lock(work / "lock")
    if lock is None:
        raise ScopeError(f"another process trains in {work}: wait for it, or give another --work")
    try:
        sweep(work)
        if fresh:
            remove(work / "checkpoints")
            remove(work / "settings.json")
        _same_settings(work / "settings.json", settings)
        yield work / "checkpoints"
    finally:
        lock.release()


def _same_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the run's settings, or hold them against those that it began with."""
    if path.exists():
        try:
            before = read_object(path, {})
        except (OSError, ValueError) as exc:
            raise ScopeError(f"{path} cannot be read ({exc}): start anew with --fresh") from None
        if changed := [name for name in settings if before.get(name) != settings[name]]:
            raise ScopeError(
                f"{path.parent} holds a run with another {', '.join(changed)}: go on with the same, give another "
                "--work, or start anew with --fresh"
            )
    replace_text(path, json.dumps(settings, indent=1) + "\n")


def write_weights(folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> None:
    """An adapter's two files; half precision keeps 11 bits of a weight, at half the size."""
    save_file({name: t.half().contiguous() for name, t in tensors.items()}, folder / adapters.WEIGHTS)
    replace_text(folder / adapters.CONFIG, json.dumps(settings, indent=1, sort_keys=True) + "\n")


def write_manifest(folder: Path, told: Mapping[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """``manifest.json`` beside the weights: what a trainer tells, and where all of it comes from."""
    facts = collect()
    manifest = {
        **told,
        "p4g_commit": COMMIT,
        "base_fingerprint": loaded.fingerprint,
        "number_format": loaded.number_format,
        "sha256": hashlib.sha256((folder / adapters.WEIGHTS).read_bytes()).hexdigest(),
        **{name: facts[name] for name in ("scope_lite", "git", "python", "packages")},
    }
    replace_text(folder / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    return manifest


def lora_settings(peft: Any, base: str) -> dict[str, Any]:
    """What ``adapter_config.json`` says: plain values only, the base by the name that it was asked for by."""
    lora = peft.peft_config["default"].to_dict()
    # peft itself would name the folder on this machine from which the base was read
    lora |= {"target_modules": sorted(lora["target_modules"]), "base_model_name_or_path": base}
    lora |= {"inference_mode": True}
    return {name: value for name, value in lora.items() if isinstance(value, str | int | float | list | None)}


def require_plain(start: Path) -> None:
    """Refuse, before any work, an adapter that :func:`on_top_of` could not add another one to.

    Raises:
        ScopeError: its scale is not alpha / r everywhere.
    """
    settings = adapters.read_settings(start)
    if odd := [n for n in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern") if settings[n]]:
        raise ScopeError(f"the adapter in {start} uses {odd[0]}: only a plain one can be trained further into one file")


def on_top_of(
    start: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One adapter, and its settings, that adds what the one at ``start`` and a second one (tensors, settings) add."""
    before = json.loads((start / adapters.CONFIG).read_text(encoding="utf-8"))
    parts = [(load_file(start / adapters.WEIGHTS), before), (tensors, settings)]
    scaled = [(part, told["lora_alpha"] / told["r"], told["r"]) for part, told in parts]
    rank = before["r"] + settings["r"]
    modules = sorted({*before["target_modules"], *settings["target_modules"]})
    return stacked(scaled), {**settings, "r": rank, "lora_alpha": rank, "target_modules": modules}


def stacked(parts: Sequence[tuple[Mapping[str, Tensor], float, int]]) -> dict[str, Tensor]:
    """Adapters of (tensors, scale, rank) as one of scale 1, their ranks side by side; zeros for a layer that one lacks.

    W + s BA + s' B'A' = W + [sB s'B'] [A; A'].
    """
    result: dict[str, Tensor] = {}
    for name in sorted({key.removesuffix(".lora_A.weight") for part, *_ in parts for key in part if ".lora_A." in key}):
        down, up = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
        known = next(part for part, *_ in parts if down in part)
        width, height = known[down].shape[1], known[up].shape[0]
        result[down] = torch.cat([part.get(down, torch.zeros(rank, width)).float() for part, _, rank in parts])
        result[up] = torch.cat([s * part.get(up, torch.zeros(height, rank)).float() for part, s, rank in parts], 1)
    return result
