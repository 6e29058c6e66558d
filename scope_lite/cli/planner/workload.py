"""What is to be run: dialogues, context, adapters, and the switches that trade memory for time."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from scope_lite.method.config import MOST_ROWS, Settings
from scope_lite.store.errors import ScopeError


class Workload(Settings):
    """One training step at scale ``full``: every dialogue played once, then every trained seat updated once."""

    groups: int = Field(default=8, ge=1, le=MOST_ROWS)
    """groups a step"""
    group_size: int = Field(default=8, ge=2, le=MOST_ROWS)
    """rollouts a group (G in Eq. 2)"""
    context: int = Field(default=4096, ge=2, le=10**7)
    """tokens of a seat's transcript at the dialogue's end: prompt, tools, and both sides' words"""
    turns: int = Field(default=10, ge=1, le=1000)
    """turns of a dialogue (H); each seat speaks once a turn"""
    new_tokens: int = Field(default=96, ge=1, le=100_000)
    """tokens that a seat writes a turn, at most"""
    adapters: int = Field(default=2, ge=1, le=2)
    """trained seats: 1 (frozen simulator), 2 (Co-Training)"""
    lora_rank: int = Field(default=16, ge=1, le=1024)
    bits: Literal[4, 16] = 16
    """of the frozen base's matrices: bf16, or NF4 with double quantisation"""
    engine: Literal["unsloth", "hf"] = "unsloth"
    """unsloth: vLLM beside the trainer, with weights of its own; hf: transformers plays and trains"""
    vllm_share: float | None = Field(default=None, gt=0, lt=1)
    """vLLM's share of the card (gpu_memory_utilization): weights, KV cache and its own work; none: as much as fits"""
    sleep: bool | None = None
    """vLLM gives its weights and KV cache back while the seats train; none: yes, where vLLM plays, as our engine does
    on a GPU"""
    at_once: int | None = Field(default=None, ge=1, le=MOST_ROWS)
    """dialogues that are played at the same time; none: all of a step"""
    micro_batch: int = Field(default=1, ge=1, le=MOST_ROWS)
    """dialogues in one forward and backward pass"""
    checkpointing: bool = True
    """keep only each layer's input in the forward pass, and compute the layer again in the backward pass"""
    logits_everywhere: bool = False
    """logits at every token instead of at trained ones only"""

    @model_validator(mode="after")
    def _fits_together(self) -> Workload:
        if 2 * self.turns * self.new_tokens >= self.context:
            said = f"{self.turns} turns of two times {self.new_tokens} new tokens"
            raise ValueError(f"{said} leave no room for a prompt in a context of {self.context} tokens")
        if self.engine == "hf" and (self.vllm_share or self.sleep):
            raise ValueError("engine hf has no vLLM: leave vllm_share and sleep out")
        return self

    @property
    def sleeps(self) -> bool:
        return self.sleep is not False and self.engine == "unsloth"

    @property
    def dialogues(self) -> int:
        return self.groups * self.group_size

    @property
    def playing(self) -> int:
        """Dialogues that are played at the same time."""
        return min(self.at_once or self.dialogues, self.dialogues)

    @property
    def written(self) -> int:
        """Tokens of a transcript that its seat wrote: those that are trained."""
        return self.turns * self.new_tokens

    @property
    def prompt(self) -> int:
        """Tokens before the first word."""
        return self.context - 2 * self.written


def workload(**values: Any) -> Workload:
    """A checked workload; None stands for a default.

    Raises:
        ScopeError: for a value that is out of range, or values that do not fit together.
    """
    try:
        return Workload(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = "--" + str(first["loc"][0]).replace("_", "-") + ": " if first["loc"] else ""
        told = first["msg"].removeprefix("Value error, ")
        raise ScopeError(f"{where}{told}" + (f" (got {first['input']!r})" if where else "")) from None
