"""The two folders of an adapter: where it is trained, for one process and one set of settings, and what is shipped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
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


def require_at_least(least: int, config: Any, *names: str) -> None:
    """Refuse a config with a field below ``least``, or a ``learning_rate`` that is none (ScopeError, with its name)."""
    for name in names:
        if getattr(config, name) < least:
            raise ScopeError(f"{name} must be at least {least}, got {getattr(config, name)}")
    if not 0 < config.learning_rate < 1:
        raise ScopeError(f"learning_rate must be between 0 and 1, got {config.learning_rate}")


@contextmanager
def working(work: Path, settings: Mapping[str, Any], fresh: bool) -> Iterator[Path]:
    """The folder of checkpoints, held by this process alone.

    Args:
        settings: what a run must not change on its way, but for ``steps``; ``settings.json`` keeps them.
        fresh: forget what ``work`` holds.

    Raises:
        ScopeError: a run with other settings in ``work``, one that is under way there, a full disk.
    """
    settings = {name: value for name, value in settings.items() if name != "steps"}
    lock, path = take_lock(work / "lock"), work / "settings.json"
    if lock is None:
        raise ScopeError(f"another process trains in {work}: wait for it, or give another --work")
    try:
        sweep(work)
        if fresh:
            remove(work / "checkpoints")
            remove(path)
        try:
            before = read_object(path, {}) if path.exists() else settings
        except (OSError, ValueError) as exc:
            raise ScopeError(f"{path} cannot be read ({exc}): start anew with --fresh") from None
        if changed := [name for name in settings if before.get(name) != settings[name]]:
            raise ScopeError(
                f"{work} holds a run with another {', '.join(changed)}: go on with the same, give another --work, or "
                "start anew with --fresh"
            )
        replace_text(path, json.dumps(settings, indent=1) + "\n")
        yield work / "checkpoints"
    finally:
        lock.release()


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
    both = stacked((load_file(start / adapters.WEIGHTS), before), (tensors, settings))
    rank = before["r"] + settings["r"]
    modules = sorted({*before["target_modules"], *settings["target_modules"]})
    return both, {**settings, "r": rank, "lora_alpha": rank, "target_modules": modules}


def stacked(*parts: tuple[Mapping[str, Tensor], Mapping[str, Any]]) -> dict[str, Tensor]:
    """Adapters of (tensors, settings) as one of scale 1, their ranks side by side; zeros for a layer that one lacks.

    W + s BA + s' B'A' = W + [sB s'B'] [A; A'], with s = lora_alpha / r.
    """
    result: dict[str, Tensor] = {}
    for down in sorted({name for tensors, _ in parts for name in tensors if ".lora_A." in name}):
        up = down.replace(".lora_A.", ".lora_B.")
        width, height = next((t[down].shape[1], t[up].shape[0]) for t, _ in parts if down in t)
        result[down] = torch.cat([t.get(down, torch.zeros(s["r"], width)).float() for t, s in parts])
        ups = [s["lora_alpha"] / s["r"] * t.get(up, torch.zeros(height, s["r"])).float() for t, s in parts]
        result[up] = torch.cat(ups, 1)
    return result
