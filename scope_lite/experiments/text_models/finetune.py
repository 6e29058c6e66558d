"""Fine-tune a LoRA adapter on one seat of real dialogues; a killed run goes on where its last checkpoint left it.

Loss: the mean negative log-likelihood of the spoken tokens of a few dialogues (``data.Example``), each read alone, so
there is no padding. It is the update of the project's own :class:`~scope_lite.method.learner.Learner` with advantage 1:
a first clipped step has ratio 1, and its gradient is that of the mean log-likelihood. The learning rate is constant
after a short warm-up: more steps can be asked for later, and the run goes on. Kept is the adapter with the lowest
perplexity on held-out dialogues.

    runs/small/persuadee/{settings.json, checkpoints/}  ->  data/models/small/persuadee/{adapter_*, manifest.json}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from scope_lite.envs.p4g import Dialogue
from scope_lite.experiments.text_models.adapter import (
    AdapterConfig,
    AdapterRun,
    Count,
    OnStep,
    digest,
    lora_settings,
    write_adapter,
)
from scope_lite.experiments.text_models.data import Example, batch_of, encode_splits
from scope_lite.models.adapters import fold_adapters
from scope_lite.models.chat import ChatFormat
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import LoadedModel, load_model
from scope_lite.models.records import collate


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(AdapterConfig):
    """One fine-tuning."""

    role: Literal["persuadee", "persuader"]
    """the reference user in text, or the base policy"""
    steps: Count = 400
    dialogues_per_step: Count = 4
    """dialogues whose spoken tokens are averaged in a step"""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 5e-4
    """AdamW's, reached after the warm-up"""
    warmup_steps: int = 10
    max_tokens: int = 1024
    """a longer dialogue loses its last exchanges"""
    evaluate_every: Count = 50
    """steps between two held-out perplexities"""
    checkpoint_every: Count = 10
    valid_dialogues: Count = 32
    """held-out dialogues by which the best adapter is chosen"""


def finetune(
    config: FinetuneConfig,
    dialogues: Sequence[Dialogue],
    work: Path,
    out: Path,
    device: str = "auto",
    fresh: bool = False,
    on_step: OnStep = lambda step, metrics: None,
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
    rows = [[s, e.name, e.transcript.ids, e.transcript.generated] for s, examples in splits.items() for e in examples]
    trainer = Trainer(config, loaded, splits)
    trainer.train(config, work, {"dialogues": digest(rows)}, fresh, on_step)
    lora = lora_settings(trainer.learner.model.peft, config.model)
    return write_adapter(out, trainer.kept["best"], lora, loaded, lambda written: trainer.told(written, device))


class Trainer(AdapterRun):
    """The adapter under training, and the dialogues."""

    def __init__(self, config: FinetuneConfig, loaded: LoadedModel, splits: dict[str, list[Example]]) -> None:
        super().__init__(config, loaded, SeatModel(fold_adapters(loaded.model), loaded.tokenizer), micro_batch=1)
        self.config, self.splits = config, splits
        self.kept = {"best": self.learner.model.adapter_state()}

    @property
    def valid(self) -> list[tuple[int, float]]:
        """(step, held-out perplexity), in order."""
        start = [(0, row["valid_at_start"]) for row in self.metrics[:1]]
        return start + [
            (i, row["valid_perplexity"]) for i, row in enumerate(self.metrics, 1) if "valid_perplexity" in row
        ]

    def step(self) -> dict[str, float]:
        number, best = len(self.metrics) + 1, min((value for _, value in self.valid), default=math.inf)
        found = {} if self.metrics else {"valid_at_start": (best := self._held_out())}
        found["loss"] = self.learn(self.batch(number - 1))
        if number % self.config.evaluate_every == 0 or number == self.config.steps:
            found["valid_perplexity"] = value = self._held_out()
            if value < best:
                self.kept["best"] = self.learner.model.adapter_state()
        return found

    def batch(self, step: int) -> list[Example]:
        """The dialogues of a step."""
        return batch_of(self.splits["train"], step, self.config.dialogues_per_step, self.config.seed)

    def _held_out(self) -> float:
        return perplexity(self.learner.model, self.splits["valid"][: self.config.valid_dialogues])

    def learn(self, batch: list[Example]) -> float:
        """One update on these dialogues; their loss, nats a token."""
        warm = min(1.0, (len(self.metrics) + 1) / max(1, self.config.warmup_steps))
        for group in self.learner.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * warm
        update = self.learner.update([example.transcript for example in batch], torch.ones(len(batch)))
        # a transcript of what people said has log probability 0 a token, so the distance from it is the loss
        return update["sampling/logp_difference"]

    def told(self, written: Path, device: str) -> dict[str, Any]:
        """Of the manifest; the test perplexity is that of the written file."""
        config, splits = self.config, self.splits
        tuned = load_model(f"{config.model}+{written}", device)
        return {
            "command": f"scope-lite small finetune --role {config.role} --steps {config.steps}",
            "config": asdict(config),
            "steps_done": len(self.metrics),
            "best_step": min(self.valid, key=lambda pair: pair[1])[0],
            "perplexity": {
                "valid_by_step": self.valid,
                "test_base": perplexity(self.learner.reference, splits["test"]),
                "test_adapter": perplexity(SeatModel(tuned.model, tuned.tokenizer), splits["test"]),
            },
            "dialogues": {name: len(examples) for name, examples in splits.items()},
            "dialogues_cut_short": sum(e.cut for examples in splits.values() for e in examples),
            "spoken_tokens": {name: sum(sum(e.transcript.generated) for e in part) for name, part in splits.items()},
        }


@torch.no_grad()
def perplexity(seat: SeatModel, examples: Sequence[Example]) -> float:
    """exp of the mean negative log-likelihood of the spoken tokens, all dialogues together."""
    found = [log_likelihoods(seat, example) for example in examples]
    return math.exp(-sum(float(x.sum()) for x in found) / sum(map(len, found)))


def log_likelihoods(seat: SeatModel, example: Example) -> Tensor:
    """Log-likelihood of each token that the seat speaks, in nats."""
    return seat.token_logprobs(collate([example.transcript], pad=0))[0]
