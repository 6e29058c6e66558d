"""A trainable seat: one adapter, one optimizer, one clipped update on a batch of transcripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.method.config import RunConfig
from scope_lite.method.grpo import clipped_loss, sampling_ratios
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Rollout, TokenBatch, Transcript, collate

METRICS = ("loss", "entropy", "kl", "clip_ratio", "grad_norm", "ratio_mean", "sampling/logp_difference")
# of an engine with kernels of its own; transformers samples with the trainer's
ENGINE_METRICS = ("sampling/ratio_mean", "sampling/ratio_outside")
Behaviour = Literal["current", "sampled"]
"""whose log probabilities the clipped ratio is against: the current weights', or the speaker's, as sampled"""


@dataclass
class Part:
    """Some dialogues of a batch, as many as are computed at once."""

    batch: TokenBatch
    advantages: Float[Tensor, " rollouts"]
    reference: Float[Tensor, " n"] | None
    old: Float[Tensor, " n"] | None = None
    """log probabilities under the weights that are being improved on, in nats"""
    told: dict[str, float] = field(default_factory=dict)
    """what was measured under these weights"""


def trainable(rollouts: Sequence[Rollout], seat: Literal["policy", "simulator_transcript"]) -> dict[int, Transcript]:
    """What a seat wrote, by row, where there is something to train: the dialogue counts, and the seat said a word."""
    return {i: t for i, r in enumerate(rollouts) if r.counts and (t := getattr(r, seat)) and t.spoke}


class Learner:
    """Trains one seat's adapter; policy and simulator alike."""

    def __init__(self, model: SeatModel, config: RunConfig, seed: int):
        self.config = config
        self.reference = model.reference()
        model.add_adapter(config.lora_rank, alpha=2 * config.lora_rank, seed=seed)
        self.model = model
        self.parameters = model.trainable()
        self.optimizer = torch.optim.AdamW(self.parameters, lr=config.learning_rate, weight_decay=0.0, fused=True)

    def update(
        self,
        transcripts: list[Transcript],
        advantages: Float[Tensor, " rollouts"],
        behaviour: Behaviour = "current",
        learn: bool = True,
    ) -> dict[str, float]:
        """``updates_per_step`` clipped steps on one batch; returns metrics by TRL's names.

        Old log probabilities are recomputed here, in the precision of training, and how far the sampled ones are from
        them is reported (sampling/logp_difference, nats). Only where other weights may have spoken (a pool of
        snapshots) are the sampled ones the old ones. With ``learn=False`` all is measured and nothing moves.
        """
        parts = self._parts(transcripts, advantages)
        tokens = sum(len(part.batch.row) for part in parts) or 1
        other_engine = self.config.is_text and self.config.text.rollout_engine != "hf"
        names = METRICS + ENGINE_METRICS if other_engine else METRICS
        for _ in range(self.config.updates_per_step):
            self.optimizer.zero_grad(set_to_none=True)
            metrics = dict.fromkeys(names, -0.0)  # a sum that begins with -0.0 is exact, also where its terms are -0.0
            for part in parts:
                share = len(part.batch.row) / tokens  # a mean over the batch's tokens, however the batch is split
                found = self._backward(part, share, behaviour)
                metrics = {name: total + share * found.get(name, 0.0) for name, total in metrics.items()}
            norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
            if learn:
                self.optimizer.step()
            metrics["grad_norm"] = norm.item()
        return metrics

    def _backward(self, part: Part, share: float, behaviour: Behaviour) -> dict[str, float]:
        """Add this part's share of the gradient; what was measured on it."""
        logprobs, entropies = self.model.token_logprobs(part.batch)
        sampled, now = part.batch.sampled_logprobs, logprobs.detach()
        if part.old is None:  # the first pass is the measurement too, which saves one
            part.old = sampled if behaviour == "sampled" else now
            gap = (now - sampled).abs().mean().item() if len(now) else 0.0
            spread = entropies.mean().item() if len(now) else 0.0
            part.told = {"entropy": spread, "sampling/logp_difference": gap, **sampling_ratios(now, sampled)}
        clip, kl = self.config.clip_range, self.config.kl_coef
        result = clipped_loss(logprobs, part.old, part.advantages, part.batch.row, clip, kl, part.reference)
        (result.loss * share).backward()
        return {**result._asdict(), "loss": result.loss.item(), **part.told}

    def batches(self, transcripts: list[Transcript]) -> Iterator[TokenBatch]:
        """The transcripts, as many at once as a gradient takes."""
        size = self.config.text.micro_batch if self.config.is_text else len(transcripts) or 1
        for start in range(0, len(transcripts), size):
            yield collate(transcripts[start : start + size], pad=self.model.tokenizer.pad_token_id)

    @torch.no_grad()
    def _parts(self, transcripts: list[Transcript], advantages: Tensor) -> list[Part]:
        batches = list(self.batches(transcripts))
        reference = [self.reference.token_logprobs(b)[0] if self.config.kl_coef else None for b in batches]
        parts = zip(batches, advantages.split([len(b.ids) for b in batches]), reference, strict=True)
        return [Part(*part) for part in parts]

    def state(self) -> dict[str, Tensor]:
        """Adapter and optimizer, as tensors by name (safetensors keeps nothing else)."""
        state = {f"adapter.{name}": t for name, t in self.model.adapter_state().items()}
        for i, moments in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{i}.{name}": t for name, t in moments.items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        adapter = {n.removeprefix("adapter."): t for n, t in state.items() if n.startswith("adapter.")}
        self.model.load_adapter_state(adapter)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            if name.startswith("optimizer."):
                _, index, moment = name.split(".", 2)
                moments.setdefault(int(index), {})[moment] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
