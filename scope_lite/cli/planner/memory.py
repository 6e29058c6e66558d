"""Where a GPU's memory goes, in bytes, from a model's shape and a workload.

The formulas for activations, logits and the cache are those of transformers and peft in bf16, counted tensor by tensor
on a CPU (its test counts). Unsloth's fused kernels keep less, so for it they are an upper bound. What only a GPU can
tell is an allowance, named ``..._ALLOWANCE`` here.
"""

from __future__ import annotations

from dataclasses import dataclass

from scope_lite.cli.planner.cards import GIB, Card
from scope_lite.cli.planner.shapes import ModelShape
from scope_lite.cli.planner.workload import Workload

CUDA_ALLOWANCE = 0.6 * GIB  # driver context, cuBLAS workspaces, loaded kernels
VLLM_ALLOWANCE = 0.6 * GIB  # CUDA graphs and the sampler's buffers
SLACK = 0.03  # of the card: what the caching allocator holds in pieces too small to use

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # 4 bits; a byte of scale a block of 64; a float for 256 of those
UNSLOTH_LOGIT_BYTES, HF_LOGIT_BYTES = 12.0, 16.0  # for each token and entry of the vocabulary
LOG_PROBABILITY_BYTES = 4.0  # of those, what stays until the step's end
VLLM_BATCH = 8192  # tokens that vLLM reads at a time (max_num_batched_tokens)
VLLM_ROWS = 256  # sequences that it samples for at a time (max_num_seqs)

PARTS = (
    "weights", "LoRA adapters", "gradients", "optimizer", "activations", "logits", "vLLM's weights", "KV cache",
    "vLLM's own", "CUDA and slack",
)  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Bytes by part, while the dialogues are played and while the seats train."""

    rollouts: dict[str, float]
    training: dict[str, float]
    kv_room: float
    """bytes for the KV cache; a step wants ``kv_wanted``"""
    kv_wanted: float
    pool_short: float = 0.0
    """bytes that vLLM's share lacks for the weights and one dialogue"""

    @property
    def peak(self) -> float:
        return max(sum(self.rollouts.values()), sum(self.training.values()))

    @property
    def phase(self) -> str:
        """The phase of the peak."""
        return "rollouts" if sum(self.rollouts.values()) >= sum(self.training.values()) else "training"


def weight_bytes(shape: ModelShape, bits: int) -> float:
    """The frozen base: bf16, or its layers' matrices in NF4 (embedding, head and norms stay in bf16)."""
    small = NF4_BYTES if bits == 4 else 2
    return small * shape.matrices + 2 * (shape.parameters - shape.matrices)


def adapter_parameters(shape: ModelShape, work: Workload) -> int:
    """Parameters of one adapter: seven matrices a layer, and an untied head with hf (as ``models.hf`` does)."""
    return shape.lora(work.lora_rank, head=not work.unsloth and not shape.tied)


def saved_per_token(shape: ModelShape, rank: int) -> int:
    """Bytes that one layer keeps for the backward pass, for each token, in bf16 under LoRA.

    peft computes its adapters in fp32, so each adapted matrix keeps an fp32 copy of its input (q, k, v, gate and up
    each their own copy of the same); the norms keep fp32 inputs and one inverse deviation.
    """
    d, q, k, f = shape.hidden, shape.queries, shape.keys, shape.intermediate
    adapted = 4 * (5 * d + q + f) + 4 * 7 * rank
    norms = 2 * (4 * d + 4)
    qk_norms = {"none": 0, "head": 4 * (q + k + shape.heads + shape.kv_heads), "full": 4 * (q + k + 2)}[shape.qk_norm]
    attention = 2 * 2 * (q + k) + 4 * shape.heads  # q, k, v, output; log-sum-exp
    mlp = 3 * 2 * f  # gate, its activation, up
    return adapted + norms + qk_norms + attention + mlp


def kept_activations(shape: ModelShape, rank: int, tokens: int, checkpointing: bool) -> float:
    """Bytes that a forward pass over ``tokens`` keeps for the backward pass, logits aside."""
    if checkpointing:
        final_norm = 4 * shape.hidden + 4
        return tokens * (shape.layers * 2 * shape.hidden + final_norm)
    # the final norm takes what the first layer's does not need: the embedding is frozen, no gradient goes there
    return tokens * shape.layers * saved_per_token(shape, rank)


def backward_extra(shape: ModelShape, rank: int, tokens: int, checkpointing: bool) -> float:
    """Bytes that the backward pass through one layer needs on top: the layer computed again, and its gradients."""
    again = saved_per_token(shape, rank) if checkpointing else 0
    gradients = max(20 * shape.hidden, 4 * shape.intermediate, 8 * shape.queries)
    return tokens * (again + gradients)


def logit_bytes(vocabulary: int, tokens: int, unsloth: bool = True) -> float:
    """Bytes at the head's peak: fp32 log probabilities, their gradient, and that of the logits.

    ``models.hf`` has its peak before: logits, their sharpened copy, a row of allowed tokens for each, their sum.
    """
    return (UNSLOTH_LOGIT_BYTES if unsloth else HF_LOGIT_BYTES) * vocabulary * tokens


def reading_per_token(shape: ModelShape) -> int:
    """Bytes for each token of a prompt while transformers reads it: the widest layer's tensors, nothing kept."""
    d = shape.hidden
    return max(12 * shape.intermediate + 14 * d, 10 * shape.queries + 8 * d, 20 * d)


def plan_memory(shape: ModelShape, card: Card, work: Workload) -> Memory:
    """The bytes of both phases.

    The trainer's own peak lies either at the head (all activations kept, logits at their largest) or in the layers
    (log probabilities only, and one layer's backward pass); the larger is shown.
    """
    lora = adapter_parameters(shape, work)
    fixed = {
        "weights": weight_bytes(shape, work.bits),
        "LoRA adapters": 4.0 * lora * work.adapters,  # peft keeps adapters in fp32
        "gradients": 4.0 * lora * work.adapters,
        "optimizer": 8.0 * lora * work.adapters,  # AdamW: two fp32 moments
        "CUDA and slack": CUDA_ALLOWANCE + SLACK * card.memory,
    }
    training = {**fixed, **_training_parts(shape, work)}
    wanted = 2.0 * work.dialogues * shape.kv_bytes(work.context)  # both seats keep theirs across turns
    if work.vllm_share is not None:
        return _with_vllm(shape, work, work.vllm_share * card.memory, wanted, fixed, training)
    playing = {
        "activations": float(work.dialogues * work.prompt * reading_per_token(shape)),
        "logits": 24.0 * work.dialogues * shape.vocabulary,  # float32 twice, and the double-precision softmax
        "KV cache": wanted,
    }
    return Memory({**fixed, **playing}, {**training, "KV cache": wanted}, wanted, wanted)


def _training_parts(shape: ModelShape, work: Workload) -> dict[str, float]:
    tokens, trained = work.micro_batch * work.context, work.micro_batch * work.written
    kept = kept_activations(shape, work.lora_rank, tokens, checkpointing=work.unsloth)
    extra = backward_extra(shape, work.lora_rank, tokens, checkpointing=work.unsloth)
    if work.bits == 4:
        kept += 2 * max(i * o for i, o in shape.linears)  # one matrix at a time is unpacked
    head = logit_bytes(shape.vocabulary, trained, work.unsloth)
    later = LOG_PROBABILITY_BYTES * shape.vocabulary * trained
    if head >= later + extra:
        return {"activations": kept, "logits": head}
    return {"activations": kept + extra, "logits": later}


def _with_vllm(
    shape: ModelShape,
    work: Workload,
    lent: float,
    wanted: float,
    fixed: dict[str, float],
    training: dict[str, float],
) -> Memory:
    """vLLM takes its share once and for all: its copy of the weights, its work, the rest for the KV cache.

    ``models.vllm`` holds the base in 16 bits, whatever the trainer's has. Asleep, while the seats train, it keeps
    neither it nor the cache.
    """
    own = VLLM_ALLOWANCE + 2.0 * adapter_parameters(shape, work) * work.adapters
    own += VLLM_BATCH * 2.0 * (3 * shape.intermediate + 4 * shape.hidden) + 12.0 * VLLM_ROWS * shape.vocabulary
    copied = weight_bytes(shape, 16)
    cache = max(0.0, lent - copied - own)
    return Memory(
        rollouts={**fixed, "vLLM's weights": copied, "KV cache": cache, "vLLM's own": own},
        training={**training, "vLLM's own": own},
        kv_room=cache,
        kv_wanted=wanted,
        pool_short=max(0.0, copied + own + shape.kv_bytes(work.context) - lent),
    )
