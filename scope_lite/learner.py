"""A trainable seat: one adapter, one optimizer, one clipped update on a batch of transcripts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from scope_lite.config import RunConfig
from scope_lite.engines.hf import SeatModel, entropy
from scope_lite.grpo import clipped_loss
from scope_lite.records import Transcript, collate


class Learner:
    """Trains one seat's adapter; policy and simulator alike."""

    def __init__(self, model: SeatModel, config: RunConfig, seed: int):
        self.config = config
        self.reference = SeatModel(model.model, model.tokenizer)
        self.reference.choice_bias, self.reference.choice_scale = model.choice_bias, model.choice_scale
        model.add_adapter(config.lora_rank, alpha=2 * config.lora_rank, seed=seed)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.trainable(), lr=config.learning_rate, weight_decay=0.0)

    def update(
        self,
        transcripts: list[Transcript],
        advantages: Tensor,
        behaviour: Literal["current", "sampled"] = "current",
        learn: bool = True,
    ) -> dict[str, float]:
        """``updates_per_step`` clipped steps on one batch; returns metrics by TRL's names.

        Old log probabilities are recomputed here, in the precision of training, and how
        far the sampled ones are from them is reported (sampling/logp_difference, nats).
        Only where other weights may have spoken (a pool of snapshots) are the sampled ones
        the old ones: ``behaviour="sampled"``. With ``learn=False`` all is measured and nothing moves.
        """
        batch = collate(transcripts, pad=self.model.tokenizer.pad_token_id)
        old: Tensor | None = None
        reference: Tensor | None = None
        if self.config.kl_coef:
            with torch.no_grad():
                reference, _ = self.reference.token_logprobs(batch)
        for _ in range(self.config.updates_per_step):
            logprobs, log_all = self.model.token_logprobs(batch)
            if old is None:
                recomputed = logprobs.detach()
                old = batch.sampled_logprobs if behaviour == "sampled" else recomputed
                mean_entropy = entropy(log_all.detach()).mean().item()
            result = clipped_loss(
                logprobs, old, advantages, batch.row, self.config.clip_range, self.config.kl_coef, reference
            )
            self.optimizer.zero_grad(set_to_none=True)
            result.loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.trainable(), self.config.max_grad_norm)
            if learn:
                self.optimizer.step()
        assert old is not None
        return {
            "loss": result.loss.item(),
            "entropy": mean_entropy,
            "kl": result.kl,
            "clip_ratio": result.clip_ratio,
            "grad_norm": norm.item(),
            "ratio_mean": result.ratio_mean,
            "sampling/logp_difference": (recomputed - batch.sampled_logprobs).abs().mean().item(),
        }

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
