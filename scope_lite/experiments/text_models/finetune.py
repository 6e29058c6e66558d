"""Fine-tune a LoRA adapter on one seat of real dialogues; a killed run goes on where its last checkpoint left it.

Loss: the mean negative log-likelihood of the spoken tokens of a few dialogues (``data.Example``), each read alone, so
there is no padding. The learning rate is constant after a short warm-up: more steps can be asked for later, and the run
goes on. Kept is the adapter with the lowest perplexity on held-out dialogues.

    runs/small/persuadee/{settings.json, checkpoints/}  ->  data/models/small/persuadee/{adapter_*, manifest.json}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scope_lite.envs.p4g import Dialogue
from scope_lite.experiments.text_models.data import Example, encode_splits
from scope_lite.experiments.text_models.folders import lora_settings, working, write_manifest, write_weights
from scope_lite.experiments.text_models.training import FinetuneConfig, Progress, Trainer, perplexity
from scope_lite.models.chat import ChatFormat
from scope_lite.models.pretrained import LoadedModel, load_model
from scope_lite.store.files import replacing


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
        dialogues: split by their names; the command leaves out the annotated ones, at which notebook 02 asks.
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
    with working(work, _settings(config, loaded, splits), fresh) as checkpoints:
        trainer = Trainer(config, loaded, splits)
        trainer.resume(checkpoints)
        trainer.train(checkpoints, on_step)
        return write_adapter(trainer, out, device)


def _settings(config: FinetuneConfig, loaded: LoadedModel, splits: dict[str, list[Example]]) -> dict[str, Any]:
    """What must stay as it is when a run goes on."""
    settings = asdict(config)
    del settings["steps"]
    rows = [[name, e.name, e.ids, e.spoken] for name, examples in splits.items() for e in examples]
    return settings | {"base": loaded.fingerprint, "dialogues": hashlib.sha256(json.dumps(rows).encode()).hexdigest()}


def write_adapter(trainer: Trainer, out: Path, device: str) -> dict[str, Any]:
    """Write the best adapter in half precision and its manifest; the test perplexity is that of the written file."""
    with replacing(out) as beside:
        write_weights(beside, trainer.best, lora_settings(trainer.peft, trainer.config.model))
        test = trainer.splits["test"]
        with trainer.peft.disable_adapter():
            base = perplexity(trainer.peft.get_base_model(), test)
        tuned = perplexity(load_model(f"{trainer.config.model}+{beside}", device).model, test)
        return write_manifest(beside, _told(trainer, base, tuned), trainer.loaded)


def _told(trainer: Trainer, base: float, tuned: float) -> dict[str, Any]:
    config, progress, splits = trainer.config, trainer.progress, trainer.splits
    return {
        "command": f"scope-lite small finetune --role {config.role} --steps {config.steps}",
        "config": asdict(config),
        "steps_done": progress.step,
        "best_step": progress.best_step,
        "perplexity": {"valid_by_step": progress.valid, "test_base": base, "test_adapter": tuned},
        "dialogues": {name: len(examples) for name, examples in splits.items()},
        "dialogues_cut_short": sum(e.cut for examples in splits.values() for e in examples),
        "spoken_tokens": {name: sum(sum(e.spoken) for e in examples) for name, examples in splits.items()},
    }
