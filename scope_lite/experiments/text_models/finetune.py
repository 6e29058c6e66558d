"""Fine-tune a LoRA adapter on one seat of real dialogues; a killed run goes on where its last checkpoint left it.

Loss: the mean negative log-likelihood of the spoken tokens of a few dialogues (``data.Example``), each read alone, so
there is no padding. It is the update of the project's own :class:`~scope_lite.method.learner.Learner` with advantage 1:
a first clipped step has ratio 1, and its gradient is that of the mean log-likelihood. The learning rate is constant
after a short warm-up: more steps can be asked for later, and the run goes on. Kept is the adapter with the lowest
perplexity on held-out dialogues.

    runs/small/persuadee/{settings.json, checkpoints/}  ->  data/models/small/persuadee/{adapter_*, manifest.json}
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scope_lite.envs.p4g import Dialogue
from scope_lite.experiments.text_models.data import Example, batch_of, encode_splits
from scope_lite.experiments.text_models.folders import (
    lora_settings,
    require_at_least,
    working,
    write_manifest,
    write_weights,
)
from scope_lite.method.config import RunConfig, TextConfig
from scope_lite.method.learner import Learner
from scope_lite.models.adapters import fold_adapters
from scope_lite.models.chat import ChatFormat
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import SMOLLM2, LoadedModel, load_model
from scope_lite.models.records import collate
from scope_lite.store import checkpoints
from scope_lite.store.files import replacing


@dataclass(frozen=True)
class FinetuneConfig:
    """One adapter; every field but ``steps`` is fixed once a run has begun."""

    role: str
    """"persuadee" (the reference user in text) or "persuader" (the base policy)"""
    model: str = SMOLLM2
    """what is adapted: as ``load_model`` takes it"""
    steps: int = 400
    """optimizer steps"""
    dialogues_per_step: int = 4
    """dialogues whose spoken tokens are averaged in a step"""
    learning_rate: float = 5e-4
    """AdamW's, reached after the warm-up"""
    warmup_steps: int = 10
    rank: int = 8
    """of the adapter, on all attention and MLP matrices; its scale is 2 (alpha = 2 rank)"""
    max_tokens: int = 1024
    """a longer dialogue loses its last exchanges"""
    evaluate_every: int = 50
    """steps between two held-out perplexities"""
    checkpoint_every: int = 10
    """steps between two checkpoints: the most that a kill costs"""
    valid_dialogues: int = 32
    """held-out dialogues by which the best adapter is chosen"""
    seed: int = 0
    """of the adapter's start and the order of the dialogues"""

    def __post_init__(self) -> None:
        require_at_least(1, self, "steps", "dialogues_per_step", "rank", "evaluate_every", "checkpoint_every")
        require_at_least(1, self, "valid_dialogues")

    def run(self) -> RunConfig:
        """What the learner reads; a dialogue is read alone."""
        text = TextConfig(micro_batch=1)
        return RunConfig(
            world="p4g", model=self.model, learning_rate=self.learning_rate, lora_rank=self.rank, kl_coef=0.0, text=text
        )


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
    rows = [[name, e.name, e.ids, e.spoken] for name, examples in splits.items() for e in examples]
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    with working(work, asdict(config) | {"base": loaded.fingerprint, "dialogues": digest}, fresh) as folder:
        trainer = Trainer(config, loaded, splits)
        trainer.resume(folder)
        trainer.train(folder, on_step)
        return write_adapter(trainer, out, device)


@dataclass
class Progress:
    """What a run knows of itself besides tensors; saved with every checkpoint."""

    step: int = 0
    best: float = math.inf
    """lowest held-out perplexity so far"""
    best_step: int = 0
    valid: list[tuple[int, float]] = field(default_factory=list)
    """(step, held-out perplexity)"""
    losses: list[float] = field(default_factory=list)
    """training loss of every step, nats a token"""


class Trainer:
    """The adapter under training, its optimizer, and the dialogues."""

    def __init__(self, config: FinetuneConfig, loaded: LoadedModel, splits: dict[str, list[Example]]) -> None:
        self.config, self.loaded, self.splits = config, loaded, splits
        seat = SeatModel(fold_adapters(loaded.model), loaded.tokenizer)
        self.learner = Learner(seat, config.run(), config.seed)
        self.best = self.learner.model.adapter_state()
        self.progress = Progress()

    def train(self, folder: Path, on_step: Callable[[Progress], None]) -> None:
        """Step until ``config.steps`` are done."""
        config, progress = self.config, self.progress
        if not progress.valid:
            self._evaluate()
        while progress.step < config.steps:
            progress.losses.append(self._step(self.batch(progress.step)))
            progress.step += 1
            last = progress.step == config.steps
            if progress.step % config.evaluate_every == 0 or last:
                self._evaluate()
            if progress.step % config.checkpoint_every == 0 or last:
                tensors = {"learner": self.learner.state(), "best": self.best}
                checkpoints.save(folder, progress.step, tensors, asdict(progress))
            on_step(progress)

    def resume(self, folder: Path) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        found = checkpoints.load_newest(folder)
        if found is not None:
            self.learner.load_state(found.tensors["learner"])
            self.best = found.tensors["best"]
            self.progress = Progress(**{**found.state, "valid": [tuple(pair) for pair in found.state["valid"]]})

    def batch(self, step: int) -> list[Example]:
        """The dialogues of a step."""
        return batch_of(self.splits["train"], step, self.config.dialogues_per_step, self.config.seed)

    def _evaluate(self) -> None:
        progress, held_out = self.progress, self.splits["valid"][: self.config.valid_dialogues]
        value = perplexity(self.learner.model, held_out)
        # asked for more steps later, the last step of before was evaluated out of turn: once is enough
        if not progress.valid or progress.valid[-1][0] != progress.step:
            progress.valid.append((progress.step, value))
        if value < progress.best:
            progress.best, progress.best_step, self.best = value, progress.step, self.learner.model.adapter_state()

    def _step(self, batch: list[Example]) -> float:
        warm = min(1.0, (self.progress.step + 1) / max(1, self.config.warmup_steps))
        for group in self.learner.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * warm
        update = self.learner.update([example.transcript() for example in batch], torch.ones(len(batch)))
        # a transcript of what people said has log probability 0 a token, so the distance from it is the loss
        return update["sampling/logp_difference"]


@torch.no_grad()
def perplexity(seat: SeatModel, examples: Sequence[Example]) -> float:
    """exp of the mean negative log-likelihood of the spoken tokens, all dialogues together."""
    found = [log_likelihoods(seat, example) for example in examples]
    return math.exp(-sum(float(x.sum()) for x in found) / sum(map(len, found)))


def log_likelihoods(seat: SeatModel, example: Example) -> Tensor:
    """Log-likelihood of each token that the seat speaks, in nats."""
    return seat.token_logprobs(collate([example.transcript()], pad=0))[0]


def write_adapter(trainer: Trainer, out: Path, device: str) -> dict[str, Any]:
    """Write the best adapter in half precision and its manifest; the test perplexity is that of the written file."""
    config, progress, splits, learner = trainer.config, trainer.progress, trainer.splits, trainer.learner
    with replacing(out) as beside:
        write_weights(beside, trainer.best, lora_settings(learner.model.peft, config.model))
        base = perplexity(learner.reference, splits["test"])
        written = load_model(f"{config.model}+{beside}", device)
        told = {
            "command": f"scope-lite small finetune --role {config.role} --steps {config.steps}",
            "config": asdict(config),
            "steps_done": progress.step,
            "best_step": progress.best_step,
            "perplexity": {
                "valid_by_step": progress.valid,
                "test_base": base,
                "test_adapter": perplexity(SeatModel(written.model, written.tokenizer), splits["test"]),
            },
            "dialogues": {name: len(examples) for name, examples in splits.items()},
            "dialogues_cut_short": sum(e.cut for examples in splits.values() for e in examples),
            "spoken_tokens": {name: sum(sum(e.spoken) for e in examples) for name, examples in splits.items()},
        }
        return write_manifest(beside, told, trainer.loaded)
