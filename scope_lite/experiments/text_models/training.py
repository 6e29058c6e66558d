"""Training of one adapter: batches, steps, held-out perplexity, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor

from scope_lite.experiments.text_models.data import Example, batch_of
from scope_lite.models.lora import add_lora
from scope_lite.models.pretrained import SMOLLM2, LoadedModel
from scope_lite.store import checkpoints
from scope_lite.store.errors import ScopeError


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
        for name in ("steps", "dialogues_per_step", "rank", "evaluate_every", "checkpoint_every", "valid_dialogues"):
            if getattr(self, name) < 1:
                raise ScopeError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate < 1:
            raise ScopeError(f"learning_rate must be between 0 and 1, got {self.learning_rate}")


@dataclass
class Progress:
    """What a run knows of itself besides tensors; saved with every checkpoint."""

    step: int
    best: float
    """lowest held-out perplexity so far"""
    best_step: int
    valid: list[tuple[int, float]]
    """(step, held-out perplexity)"""
    losses: list[float]
    """training loss of every step, nats a token"""


class Trainer:
    """The adapter under training, its optimizer, and the dialogues."""

    def __init__(self, config: FinetuneConfig, loaded: LoadedModel, splits: dict[str, list[Example]]) -> None:
        self.config, self.loaded, self.splits = config, loaded, splits
        self.peft = add_lora(loaded.model, config.rank, 2 * config.rank, config.seed)
        self.parameters = [p for p in self.peft.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=config.learning_rate, weight_decay=0.0)
        self.best = self.adapter()
        self.progress = Progress(0, math.inf, 0, [], [])

    def adapter(self) -> dict[str, Tensor]:
        """Copies of the adapter's tensors."""
        return {name: t.detach().cpu().clone() for name, t in get_peft_model_state_dict(self.peft).items()}

    def train(self, folder: Path, on_step: Callable[[Progress], None]) -> None:
        """Step until ``config.steps`` are done."""
        config, progress = self.config, self.progress
        if not progress.valid:
            self._evaluate()
        while progress.step < config.steps:
            progress.losses.append(self._step(self._batch(progress.step)))
            progress.step += 1
            if progress.step % config.evaluate_every == 0 or progress.step == config.steps:
                self._evaluate()
            if progress.step % config.checkpoint_every == 0 or progress.step == config.steps:
                self._save(folder)
            on_step(progress)

    def resume(self, folder: Path) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        found = checkpoints.load_newest(folder)
        if found is None:
            return
        set_peft_model_state_dict(self.peft, found.tensors["adapter"])
        self.best = found.tensors["best"]
        moments = found.tensors.get("optimizer", {})
        if moments:
            names = ("exp_avg", "exp_avg_sq", "step")
            state = {i: {name: moments[f"{i}.{name}"] for name in names} for i in range(len(self.parameters))}
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        kept = found.state
        valid = [(int(step), float(value)) for step, value in kept["valid"]]
        self.progress = Progress(found.step, kept["best"], kept["best_step"], valid, kept["losses"])

    def _evaluate(self) -> None:
        progress, held_out = self.progress, self.splits["valid"][: self.config.valid_dialogues]
        value = perplexity(self.peft.get_base_model(), held_out)
        # asked for more steps later, the last step of before was evaluated out of turn: once is enough
        if not progress.valid or progress.valid[-1][0] != progress.step:
            progress.valid.append((progress.step, value))
        if value < progress.best:
            progress.best, progress.best_step, self.best = value, progress.step, self.adapter()

    def _batch(self, step: int) -> list[Example]:
        return batch_of(self.splits["train"], step, self.config.dialogues_per_step, self.config.seed)

    def _step(self, batch: list[Example]) -> float:
        config = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (self.progress.step + 1) / max(1, config.warmup_steps))
        tokens, total = sum(sum(example.spoken) for example in batch), 0.0
        self.optimizer.zero_grad()
        for example in batch:
            # mean over tokens of the batch, not over dialogues: a token counts the same in a long one
            loss = spoken_nll(self.peft.get_base_model(), example) / tokens
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return total

    def _save(self, folder: Path) -> None:
        state = self.optimizer.state_dict()["state"]
        moments = {f"{i}.{name}": value for i, values in state.items() for name, value in values.items()}
        progress = asdict(self.progress)
        tensors = {"adapter": self.adapter(), "best": self.best, "optimizer": moments}
        checkpoints.save(folder, progress.pop("step"), tensors, progress)


@torch.inference_mode()
def perplexity(model: Any, examples: Sequence[Example]) -> float:
    """exp of the mean negative log-likelihood of the spoken tokens, all dialogues together."""
    total = sum(float(spoken_nll(model, example)) for example in examples)
    return math.exp(total / sum(sum(example.spoken) for example in examples))


def spoken_nll(model: Any, example: Example) -> Float[Tensor, ""]:
    """Summed negative log-likelihood of the tokens that the seat speaks, in nats; the head runs only before those."""
    device = next(model.parameters()).device
    ids = torch.tensor(example.ids, device=device)
    targets = torch.tensor(example.spoken, device=device).nonzero()[:, 0]
    hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0, targets - 1]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden).float(), ids[targets], reduction="sum")
