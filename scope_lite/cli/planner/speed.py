"""How fast it can go: rooflines of decoding, reading and training, from a card's bandwidth and bf16 arithmetic.

A roofline is what no program on that card can beat. What is likely is that times an allowance, which is stated and not
measured: every figure is given as both.
"""

from __future__ import annotations

from dataclasses import dataclass

from scope_lite.cli.planner.cards import Card
from scope_lite.cli.planner.memory import Memory, adapter_parameters, weight_bytes
from scope_lite.cli.planner.shapes import ModelShape
from scope_lite.cli.planner.workload import Workload

DECODE_ALLOWANCE = 0.5  # of the roofline, while tokens are drawn one by one
COMPUTE_ALLOWANCE = 0.4  # of the bf16 arithmetic, while whole transcripts are read or trained


@dataclass(frozen=True)
class Speed:
    """Seconds of one training step on the roofline, and as likely; tokens a second follow."""

    rollout_seconds: float
    training_seconds: float
    likely_rollout_seconds: float
    likely_training_seconds: float
    written: int
    """tokens that both seats write in a step"""
    trained: int
    """tokens of all transcripts that are passed through the trainer in a step"""
    at_once: int
    """dialogues that are played at the same time"""
    rereads: bool
    """the KV cache cannot hold both seats of those, so that each turn reads its history again"""

    def tokens_per_second(self, likely: bool = True) -> tuple[float, float]:
        """(tokens written a second of rollouts, transcript tokens a second of training)."""
        if likely:
            return self.written / self.likely_rollout_seconds, self.trained / self.likely_training_seconds
        return self.written / self.rollout_seconds, self.trained / self.training_seconds


def forward_flops(shape: ModelShape, lora: int, tokens: int) -> float:
    """FLOPs of the layers in a forward pass over one sequence, the head aside."""
    return 2.0 * (shape.matrices + lora) * tokens + shape.attention_flops(tokens)


def backward_flops(shape: ModelShape, lora: int, tokens: int) -> float:
    """FLOPs of the backward pass: a frozen matrix passes a gradient on and takes none; an adapter does both."""
    return (2.0 * shape.matrices + 4.0 * lora) * tokens + 2 * shape.attention_flops(tokens)


def training_flops(shape: ModelShape, work: Workload) -> float:
    """FLOPs of one update of one seat on all its transcripts: old log probabilities, then forward and backward."""
    lora = adapter_parameters(shape, work)
    forward = forward_flops(shape, lora, work.context)
    layers = (3 if work.checkpointing else 2) * forward + backward_flops(shape, lora, work.context)
    logits = work.context if work.logits_everywhere else work.written
    return work.dialogues * (layers + 3 * 2.0 * shape.head * logits)


def decode_seconds(shape: ModelShape, card: Card, bits: int, rows: int, length: int) -> float:
    """Seconds to draw a token in each of ``rows`` sequences of ``length`` tokens: the larger of reading and arithmetic.

    An embedding that is not the head is looked up, not read whole.
    """
    read = weight_bytes(shape, bits) - (0 if shape.tied else 2 * shape.head) + rows * shape.kv_bytes(length)
    flops = rows * (2.0 * (shape.matrices + shape.head) + 4.0 * shape.layers * shape.queries * length)
    return max(read / card.bandwidth, flops / card.flops)


def plan_speed(shape: ModelShape, card: Card, work: Workload, memory: Memory) -> Speed:
    """Seconds and tokens of one training step."""
    cache = shape.kv_bytes(work.context)
    rows = max(1, min(work.playing, int(memory.kv_room // cache)))
    rereads = memory.kv_room < 2 * work.playing * cache
    waves = -(-work.dialogues // rows)
    length = work.prompt + work.written  # on average over a dialogue: it grows from the prompt by both sides' words
    # vLLM reads a group's common prompt once; what the other seat said is read in any case
    prompts = work.groups if work.engine == "unsloth" else work.dialogues
    read = 2 * (prompts * work.prompt + work.dialogues * work.written)
    if rereads:
        read += 2 * work.dialogues * work.turns * length
    reading = read * 2.0 * shape.matrices / card.flops
    decoding = waves * 2 * work.written * decode_seconds(shape, card, work.bits, rows, length)
    training = work.adapters * training_flops(shape, work) / card.flops
    return Speed(
        rollout_seconds=decoding + reading,
        training_seconds=training,
        likely_rollout_seconds=decoding / DECODE_ALLOWANCE + reading / COMPUTE_ALLOWANCE,
        likely_training_seconds=training / COMPUTE_ALLOWANCE,
        written=2 * work.dialogues * work.written,
        trained=work.adapters * work.dialogues * work.context,
        at_once=rows,
        rereads=rereads,
    )
