"""Fine-tune a LoRA adapter on one seat of real dialogues; a killed run goes on where its last checkpoint left it.

Loss: the mean negative log-likelihood of the spoken tokens of a few dialogues (``data.Example``), each read alone, so
there is no padding. The learning rate is constant after a short warm-up: more steps can be asked for later, and the run
goes on. Kept is the adapter with the lowest perplexity on held-out dialogues.

    runs/small/persuadee/{settings.json, checkpoints/}  ->  data/models/small/persuadee/{adapter_*, manifest.json}
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors.torch import save_file

from scope_lite.engines import adapters
from scope_lite.engines.chat import ChatFormat
from scope_lite.engines.pretrained import LoadedModel, load_model
from scope_lite.errors import ScopeError
from scope_lite.runs.files import plain_disk_errors, replace_text
from scope_lite.runs.provenance import collect
from scope_lite.small.data import Example, encode_splits
from scope_lite.small.training import FinetuneConfig, Progress, Trainer, perplexity
from scope_lite.tasks.p4g import COMMIT, Dialogue


def finetune(
    config: FinetuneConfig,
    dialogues: Sequence[Dialogue],
    work: Path,
    out: Path,
    device: str = "auto",
    fresh: bool = False,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Train, or go on training, and write the best adapter.

    Args:
        config: what to train.
        dialogues: all of them; the split is by name.
        work: the run's own folder, for checkpoints.
        out: the adapter's folder, replaced at the end.
        device: as for ``load_model``.
        fresh: forget what ``work`` holds.
        on_step: called after every step, checkpointed or not.

    Returns:
        What ``manifest.json`` in ``out`` says.

    Raises:
        ScopeError: a run with other settings in ``work``, one that is under way there, too few dialogues, a full disk.
    """
    loaded = load_model(config.model, device)
    splits = encode_splits(dialogues, config.role, ChatFormat(loaded.tokenizer), config.max_tokens)
    with plain_disk_errors(work):
        work.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(str(work / "lock"), timeout=0):
            if fresh:
                shutil.rmtree(work / "checkpoints", ignore_errors=True)
                (work / "settings.json").unlink(missing_ok=True)
            _same_settings(work / "settings.json", config, loaded, splits)
            trainer = Trainer(config, loaded, splits)
            trainer.resume(work / "checkpoints")
            trainer.train(work / "checkpoints", on_step)
            return write_adapter(trainer, out, device)
    except Timeout:
        raise ScopeError(f"another process trains in {work}: wait for it, or give another --work") from None


def _same_settings(path: Path, config: FinetuneConfig, loaded: LoadedModel, splits: dict[str, list[Example]]) -> None:
    """Write the run's settings, or hold them against those that it began with."""
    settings = asdict(config)
    del settings["steps"]
    rows = [[name, e.name, e.ids, e.spoken] for name, examples in splits.items() for e in examples]
    settings |= {"base": loaded.fingerprint, "dialogues": hashlib.sha256(json.dumps(rows).encode()).hexdigest()}
    if path.exists():
        before = json.loads(path.read_text())
        if changed := [name for name in settings if before.get(name) != settings[name]]:
            raise ScopeError(
                f"{path.parent} holds a run with another {', '.join(changed)}: go on with the same, give another "
                "--work, or start anew with --fresh"
            )
    replace_text(path, json.dumps(settings, indent=1) + "\n")


def write_adapter(trainer: Trainer, out: Path, device: str) -> dict[str, Any]:
    """Write the best adapter in half precision and its manifest; the test perplexity is that of the written file."""
    beside = out.with_name(f".{out.name}.writing")
    shutil.rmtree(beside, ignore_errors=True)
    with plain_disk_errors(out):
        beside.mkdir(parents=True)
        # half precision keeps 11 bits of a weight, at half the size
        save_file({name: t.half().contiguous() for name, t in trainer.best.items()}, beside / adapters.WEIGHTS)
        replace_text(beside / adapters.CONFIG, json.dumps(adapter_settings(trainer), indent=1, sort_keys=True) + "\n")
    test = trainer.splits["test"]
    with trainer.peft.disable_adapter():
        base = perplexity(trainer.peft.get_base_model(), test)
    tuned = perplexity(load_model(f"{trainer.config.model}+{beside}", device).model, test)
    manifest = _manifest(trainer, base, tuned, hashlib.sha256((beside / adapters.WEIGHTS).read_bytes()).hexdigest())
    with plain_disk_errors(out):
        replace_text(beside / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        shutil.rmtree(out, ignore_errors=True)
        beside.rename(out)
    return manifest


def adapter_settings(trainer: Trainer) -> dict[str, Any]:
    """What ``adapter_config.json`` says: plain values only, the base by the name that it was asked for by."""
    lora = trainer.peft.peft_config["default"].to_dict()
    # peft itself would name the folder on this machine from which the base was read
    lora |= {"target_modules": sorted(lora["target_modules"]), "base_model_name_or_path": trainer.config.model}
    lora |= {"inference_mode": True}
    return {name: value for name, value in lora.items() if isinstance(value, str | int | float | list | None)}


def _manifest(trainer: Trainer, base: float, tuned: float, digest: str) -> dict[str, Any]:
    config, progress, splits = trainer.config, trainer.progress, trainer.splits
    facts = collect()
    return {
        "command": f"scope-lite small finetune --role {config.role} --steps {config.steps}",
        "config": asdict(config),
        "steps_done": progress.step,
        "best_step": progress.best_step,
        "perplexity": {"valid_by_step": progress.valid, "test_base": base, "test_adapter": tuned},
        "dialogues": {name: len(examples) for name, examples in splits.items()},
        "dialogues_cut_short": sum(e.cut for examples in splits.values() for e in examples),
        "spoken_tokens": {name: sum(sum(e.spoken) for e in examples) for name, examples in splits.items()},
        "p4g_commit": COMMIT,
        "base_fingerprint": trainer.loaded.fingerprint,
        "sha256": digest,
        **{name: facts[name] for name in ("scope_lite", "git", "python", "packages")},
    }
