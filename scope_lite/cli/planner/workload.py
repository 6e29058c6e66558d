"""What a run asks of a GPU: the numbers of its configuration that memory and time follow from."""

from __future__ import annotations

from dataclasses import dataclass

from scope_lite.method.config import RunConfig
from scope_lite.store.errors import ScopeError

USUAL_CONTEXT = 4096
"""tokens that a transcript is planned for where the configuration leaves it to the model"""


@dataclass(frozen=True)
class Workload:
    """One training step: every dialogue played once, then every trained seat updated once."""

    groups: int
    dialogues: int
    context: int
    """tokens of a seat's transcript at the dialogue's end: prompt, tools, and both sides' words"""
    turns: int
    written: int
    """tokens of a transcript that its seat wrote, at most: those that are trained"""
    adapters: int
    lora_rank: int
    micro_batch: int
    """dialogues in one forward and backward pass"""
    bits: int
    """of the frozen base's matrices: 16 (bf16), or 4 (NF4 with double quantisation)"""
    unsloth: bool
    """Unsloth trains, and computes layers again in the backward pass; else transformers, which keeps what they need"""
    vllm_share: float | None
    """the share of the card that vLLM takes beside the trainer, for weights, KV cache and its own work; None:
    transformers plays"""

    @property
    def prompt(self) -> int:
        """Tokens before the first word."""
        return self.context - 2 * self.written

    @classmethod
    def of(cls, config: RunConfig, max_context: int) -> Workload:
        """What a run in text asks for, of a model that reads ``max_context`` tokens.

        Raises:
            ScopeError: for a context that the model cannot read, or one that its own words fill.
        """
        text = config.text
        context = text.context or min(max_context, USUAL_CONTEXT)
        if context > max_context:
            raise ScopeError(f"the model reads {max_context} tokens at most: lower text.context ({context})")
        longest = max(text.max_new_tokens, text.reply_tokens)
        if 2 * text.turns * longest >= context:
            said = f"{text.turns} turns of two times {longest} new tokens"
            raise ScopeError(f"{said} leave no room for a prompt in a text.context of {context} tokens")
        unsloth = text.training_engine == "unsloth"
        return cls(
            groups=config.groups,
            dialogues=config.groups * config.group_size,
            context=context,
            turns=text.turns,
            written=text.turns * longest,
            adapters=config.adapters,
            lora_rank=config.lora_rank,
            micro_batch=text.micro_batch,
            bits=4 if unsloth and text.four_bit else 16,
            unsloth=unsloth,
            vllm_share=text.vllm_share if text.rollout_engine == "vllm" else None,
        )
