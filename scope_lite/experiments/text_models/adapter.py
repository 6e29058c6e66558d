"""What both trainings of an adapter share: settings, one loop with its checkpoints, and the files that are shipped.

It is not ``method.train``'s loop, though the learner is: nobody speaks in turn here, there is no partner and no panel,
a run may be asked for more steps later, and what it leaves is an adapter with a manifest and no run folder. To make
``train`` take such runs, each of those would be a case in it; here they cost the thirty lines of :class:`AdapterRun`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from scope_lite.envs.p4g import COMMIT
from scope_lite.method.config import RunConfig, TextConfig
from scope_lite.method.learner import Learner
from scope_lite.models import adapters
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import SMOLLM2, LoadedModel
from scope_lite.store import checkpoints
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import read_object, remove, replace_text, replacing, sweep, take_lock
from scope_lite.store.provenance import collect

Count = Annotated[int, Field(ge=1)]
OnStep = Callable[[int, dict[str, float]], None]
"""called after every step with its number and metrics"""
FORMAT = 2
"""of a run's checkpoints"""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """One adapter; every field but ``steps`` is fixed once a run has begun."""

    model: str = SMOLLM2
    """where it starts: as ``load_model`` takes it, so "smollm2+FOLDER" is an adapter"""
    steps: Count = 60
    """optimizer steps"""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 2e-4
    """AdamW's"""
    rank: Count = 8
    """of the adapter, on all attention and MLP matrices; its scale is 2 (alpha = 2 rank)"""
    checkpoint_every: Count = 2
    """steps between two checkpoints: the most that a kill costs"""
    seed: int = 0
    """of the adapter's start and of all that is drawn"""


class AdapterRun:
    """An adapter under training, and what a checkpoint holds of it besides the learner."""

    def __init__(self, config: AdapterConfig, loaded: LoadedModel, seat: SeatModel, micro_batch: int) -> None:
        text = TextConfig(micro_batch=micro_batch)
        own: dict[str, Any] = {
            "learning_rate": config.learning_rate,
            "lora_rank": config.rank,
            "kl_coef": 0.0,
            "text": text,
        }
        self.loaded = loaded
        self.learner = Learner(seat, RunConfig(world="p4g", model=config.model, **own), config.seed)
        self.metrics: list[dict[str, float]] = []
        """of every step, in order"""
        self.kept: dict[str, dict[str, Tensor]] = {}
        """tensors by part"""

    def step(self) -> dict[str, float]:
        """One step of training; its metrics."""
        raise NotImplementedError

    def train(
        self, config: AdapterConfig, work: Path, content: Mapping[str, str], fresh: bool, on_step: OnStep
    ) -> None:
        """Step until ``config.steps`` are done, from the newest checkpoint in ``work`` on.

        ``content`` says by hash what is learned from; ``fresh`` forgets what ``work`` holds. Raises as :func:`working`.
        """
        settings = {"format": FORMAT, **asdict(config), "base": self.loaded.fingerprint, **content}
        with working(work, settings, fresh) as folder:
            self.resume(folder)
            while (done := len(self.metrics)) < config.steps:
                self.metrics.append(self.step())
                if (done + 1) % config.checkpoint_every == 0 or done + 1 == config.steps:
                    tensors = {"learner": self.learner.state(), **self.kept}
                    checkpoints.save(folder, done + 1, tensors, {"metrics": self.metrics})
                on_step(done + 1, self.metrics[-1])

    def resume(self, folder: Path) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        if (found := checkpoints.load_newest(folder)) is not None:
            self.learner.load_state(found.tensors["learner"])
            self.kept = {name: part for name, part in found.tensors.items() if name != "learner"}
            self.metrics = found.state["metrics"]


def digest(content: Any) -> str:
    """Hash of what is learned from."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


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


def write_adapter(
    out: Path,
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    loaded: LoadedModel,
    told: Callable[[Path], Mapping[str, Any]],
) -> dict[str, Any]:
    """The adapter's two files and ``manifest.json``, in place of what ``out`` held; the manifest.

    Args:
        tensors: kept in half precision, with 11 bits of a weight, at half the size.
        told: what the trainer tells of the adapter, given the folder of its files.
    """
    with replacing(out) as beside:
        save_file({name: t.cpu().half().contiguous() for name, t in tensors.items()}, beside / adapters.WEIGHTS)
        replace_text(beside / adapters.CONFIG, json.dumps(settings, indent=1, sort_keys=True) + "\n")
        facts = collect()
        manifest = {
            **told(beside),
            "p4g_commit": COMMIT,
            "base_fingerprint": loaded.fingerprint,
            "number_format": loaded.number_format,
            "sha256": hashlib.sha256((beside / adapters.WEIGHTS).read_bytes()).hexdigest(),
            **{name: facts[name] for name in ("scope_lite", "git", "python", "packages")},
        }
        replace_text(beside / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        return manifest


def lora_settings(peft: Any, base: str) -> dict[str, Any]:
    """What ``adapter_config.json`` says: plain values only, the base by the name that it was asked for by."""
    lora = peft.peft_config["default"].to_dict()
    # peft itself would name the folder on this machine from which the base was read
    lora |= {"target_modules": sorted(lora["target_modules"]), "base_model_name_or_path": base, "inference_mode": True}
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
    """One adapter of scale 1, and its settings, that adds what the one at ``start`` and a second one add.

    Their ranks stand side by side, zeros for a layer that one lacks: with s = lora_alpha / r,
    W + s BA + s' B'A' = W + [sB s'B'] [A; A'].
    """
    before = json.loads((start / adapters.CONFIG).read_text(encoding="utf-8"))
    parts = (load_file(start / adapters.WEIGHTS), before), (tensors, settings)
    both: dict[str, Tensor] = {}
    for down in sorted({name for part, _ in parts for name in part if ".lora_A." in name}):
        up = down.replace(".lora_A.", ".lora_B.")
        width, height = next((t[down].shape[1], t[up].shape[0]) for t, _ in parts if down in t)
        both[down] = torch.cat([t.get(down, torch.zeros(s["r"], width)).float() for t, s in parts])
        ups = [s["lora_alpha"] / s["r"] * t.get(up, torch.zeros(height, s["r"])).float() for t, s in parts]
        both[up] = torch.cat(ups, 1)
    rank = before["r"] + settings["r"]
    modules = sorted({*before["target_modules"], *settings["target_modules"]})
    return both, {**settings, "r": rank, "lora_alpha": rank, "target_modules": modules}
