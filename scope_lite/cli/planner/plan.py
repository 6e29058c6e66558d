"""The plan: the memory of a run on a card, and what to change where it does not fit.

What only a GPU can tell is an allowance, named ``..._ALLOWANCE`` here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from scope_lite.cli.planner.shapes import ModelShape, shape_of
from scope_lite.method.config import RunConfig, parse_config
from scope_lite.store.errors import ScopeError
from scope_lite.store.settings import merged

GIB = 2**30
CUDA_ALLOWANCE = 0.6 * GIB  # driver context, cuBLAS workspaces, loaded kernels
VLLM_ALLOWANCE = 0.6 * GIB  # CUDA graphs and the sampler's buffers
SLACK = 0.03  # of the card: what the caching allocator holds in pieces too small to use
VLLM_BATCH = 8192  # tokens that vLLM reads at a time (max_num_batched_tokens)
VLLM_ROWS = 256  # sequences that it samples for at a time (max_num_seqs)
SMALLEST_CONTEXT, SMALLEST_RANK = 512, 4
USUAL_CONTEXT = 4096
"""tokens that a transcript is planned for where the configuration leaves it to the model"""
PARTS = (
    "weights", "LoRA adapters", "gradients", "optimizer", "activations", "logits", "vLLM's weights", "KV cache",
    "vLLM's own", "CUDA and slack",
)  # fmt: skip


class Card(NamedTuple):
    """One GPU."""

    name: str
    size: int
    """GB, as the card is sold"""
    memory: int
    """bytes that a program can have"""


# a few well-known cards, with the total that nvidia-smi reports, MiB
CARDS = tuple(
    Card(name, size, mib * 2**20)
    for name, size, mib in (
        ("RTX 4090", 24, 24_564), ("RTX 3090", 24, 24_576), ("L4", 24, 23_034), ("A10", 24, 23_028),
        ("RTX 5090", 32, 32_607), ("A100 40GB", 40, 40_960), ("L40S", 48, 46_068), ("RTX A6000", 48, 49_140),
        ("A100", 80, 81_920), ("H100", 80, 81_559), ("H200", 141, 143_771),
    )
)  # fmt: skip


def card(text: str) -> Card:
    """A card by name ("RTX 4090", "rtx-4090"), or by size in GB ("24"): the least memory that a card so sold has.

    A size that no card of the table has gets 95 % of itself in GiB.

    Raises:
        ScopeError: if it is neither.
    """

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    named = [one for one in CARDS if plain(one.name) == plain(text)]
    if named:
        return named[0]
    number = re.fullmatch(r"([1-9][0-9]{0,4})\s*(gb|gib)?", text.strip().lower())
    if not number:
        raise ScopeError(f"unknown GPU {text!r}; give its GB, or one of {', '.join(one.name for one in CARDS)}")
    size = int(number[1])
    memory = min((one.memory for one in CARDS if one.size == size), default=round(size * GIB * 0.95))
    return Card(f"a card of {size} GB", size, memory)


@dataclass(frozen=True)
class Plan:
    """A run on a card: bytes by part, while the dialogues are played and while the seats train."""

    config: RunConfig
    shape: ModelShape
    card: Card

    def __post_init__(self) -> None:
        most, text = self.shape.config.max_position_embeddings, self.config.text
        if self.context > most:
            raise ScopeError(f"the model reads {most} tokens at most: lower text.context ({self.context})")
        if 2 * self.written >= self.context:
            said = f"{text.turns} turns of two times {self.written // text.turns} new tokens"
            raise ScopeError(f"{said} leave no room for a prompt in a text.context of {self.context} tokens")

    @property
    def dialogues(self) -> int:
        """Of one step."""
        return self.config.groups * self.config.group_size

    @property
    def context(self) -> int:
        """Tokens of a seat's transcript at the dialogue's end: prompt, tools, and both sides' words."""
        return self.config.text.context or min(self.shape.config.max_position_embeddings, USUAL_CONTEXT)

    @property
    def written(self) -> int:
        """Tokens of a transcript that its seat wrote, at most: those that are trained."""
        text = self.config.text
        return text.turns * max(text.max_new_tokens, text.reply_tokens)

    @property
    def unsloth(self) -> bool:
        """Unsloth trains, and computes layers again in the backward pass; transformers keeps what they need."""
        return self.config.text.training_engine == "unsloth"

    @property
    def bits(self) -> int:
        """Of the frozen base's matrices: 16 (bf16), or 4 (NF4 with double quantisation)."""
        return 4 if self.unsloth and self.config.text.four_bit else 16

    @property
    def adapter(self) -> int:
        """Parameters of one adapter: seven matrices a layer, and an untied head with hf (as ``models.hf`` does)."""
        return self.shape.lora(self.config.lora_rank, not self.unsloth and not self.shape.config.tie_word_embeddings)

    @cached_property
    def training(self) -> dict[str, float]:
        """The trainer's own peak: at the head (all activations kept, logits at their largest) or in the layers (log
        probabilities only, and one layer's backward pass), whichever is larger."""
        shape, rank, size = self.shape, self.config.lora_rank, self.config.text.micro_batch
        tokens, trained = size * self.context, size * self.written
        kept = shape.kept_activations(rank, tokens, checkpointing=self.unsloth)
        if self.bits == 4:
            kept += 2 * shape.largest_matrix  # one matrix at a time is unpacked
        head = shape.logit_bytes(trained, self.unsloth)
        later = 4.0 * shape.config.vocab_size * trained  # log probabilities stay until the step's end
        extra = shape.backward_extra(rank, tokens, checkpointing=self.unsloth)
        at_head = head >= later + extra
        own = {"activations": kept, "logits": head} if at_head else {"activations": kept + extra, "logits": later}
        resting = "vLLM's own" if self.config.text.rollout_engine == "vllm" else "KV cache"
        return {**self._fixed, **own, resting: self.rollouts[resting]}

    @cached_property
    def rollouts(self) -> dict[str, float]:
        """vLLM takes its share once and for all: its copy of the weights (in 16 bits, whatever the trainer's has), its
        own work, the rest for the KV cache. Asleep, while the seats train, it keeps neither weights nor cache."""
        shape, config = self.shape, self.shape.config
        if self.config.text.rollout_engine == "vllm":
            copied = shape.weight_bytes(16)
            own = VLLM_ALLOWANCE + 2.0 * self.adapter * self.config.adapters + 12.0 * VLLM_ROWS * config.vocab_size
            own += VLLM_BATCH * 2.0 * (3 * config.intermediate_size + 4 * config.hidden_size)
            cache = max(0.0, self.config.text.vllm_share * self.card.memory - copied - own)
            return {**self._fixed, "vLLM's weights": copied, "KV cache": cache, "vLLM's own": own}
        prompts = self.dialogues * (self.context - 2 * self.written)
        return {
            **self._fixed,
            "activations": float(prompts * shape.reading_per_token()),
            "logits": 24.0 * self.dialogues * config.vocab_size,  # float32 twice, and the double-precision softmax
            "KV cache": 2.0 * self.dialogues * shape.kv_bytes(self.context),  # both seats keep theirs across turns
        }

    @property
    def _fixed(self) -> dict[str, float]:
        trained = 4.0 * self.adapter * self.config.adapters  # peft keeps adapters in fp32
        return {
            "weights": self.shape.weight_bytes(self.bits),
            "LoRA adapters": trained,
            "gradients": trained,
            "optimizer": 2 * trained,  # AdamW: two fp32 moments
            "CUDA and slack": CUDA_ALLOWANCE + SLACK * self.card.memory,
        }

    @property
    def peak(self) -> float:
        return max(sum(self.rollouts.values()), sum(self.training.values()))

    @property
    def pool_short(self) -> float:
        """Bytes that vLLM's share lacks for the weights and one dialogue."""
        if self.config.text.rollout_engine != "vllm":
            return 0.0
        parts, share = self.rollouts, self.config.text.vllm_share * self.card.memory
        return max(0.0, parts["vLLM's weights"] + parts["vLLM's own"] + self.shape.kv_bytes(self.context) - share)

    @property
    def short(self) -> float:
        """Bytes that are missing; none: 0."""
        return max(self.peak - self.card.memory, self.pool_short, 0.0)

    def table(self) -> pd.DataFrame:
        """One row a part of memory: ``part``, and ``rollouts`` and ``training`` in GiB."""
        phases = {"rollouts": self.rollouts, "training": self.training}
        columns = {phase: [parts.get(part, 0.0) / GIB for part in PARTS] for phase, parts in phases.items()}
        return pd.DataFrame({"part": PARTS, **columns})


def plan(config: RunConfig, on: Card) -> Plan:
    """Where the memory goes, whether or not it fits.

    Raises:
        ScopeError: for a model that is not known, a nano world, or a context that cannot be.
    """
    if not config.is_text:
        raise ScopeError(f"world {config.world} needs no GPU: a plan is for real text (--world p4g)")
    return Plan(config, shape_of(config.model), on)


# -- what does not fit ------------------------------------------------------------------------------------------------


def require_fit(made: Plan) -> None:
    """Refuse a plan that does not fit, naming the settings that would make it fit, the mildest first.

    Raises:
        ScopeError: one line with what is missing, and up to three settings (or the smallest set).
    """
    if not made.short:
        return
    if made.peak > made.card.memory:
        phase = "rollouts" if sum(made.rollouts.values()) == made.peak else "training"
        told = f"{made.shape.name} needs {_gib(made.peak)} (in {phase}), {made.card.name} has {_gib(made.card.memory)}"
    else:
        share = f"vLLM's share of {made.config.text.vllm_share:g}"
        told = f"{share} does not hold the weights of {made.shape.name} and one dialogue"
    ways = ", or ".join(remedies(made)[:3]) or "no setting suffices"
    raise ScopeError(f"{told}: {_gib(made.short)} are missing; to fit: {ways}")


def remedies(made: Plan) -> list[str]:
    """Settings that alone make a plan fit, each at its mildest; else the smallest set in order, or a larger card."""
    knobs = _knobs(made)
    alone = [next((one for one in settings if not _with(made, one).short), None) for settings in knobs]
    if any(alone):
        return [_words(settings) for settings in alone if settings]
    together: dict[str, Any] = {}
    for settings in knobs:  # one that saves nothing is left out
        together = min(
            [together, *({**together, **one} for one in settings)], key=lambda tried: _with(made, tried).short
        )
        if not _with(made, together).short:
            return [_words(together), *_larger(made)]
    return _larger(made)


def _knobs(made: Plan) -> list[list[dict[str, Any]]]:
    """Each setting's values from mild to strong; the settings in the order in which they cost the least."""
    text, on_vllm = made.config.text, made.config.text.rollout_engine == "vllm"
    lowest = max(SMALLEST_CONTEXT, 2 * made.written + 1)
    shares = sorted((twentieths / 20 for twentieths in range(2, 20)), key=lambda share: abs(share - text.vllm_share))
    values: list[tuple[str, Iterable[Any]]] = [
        ("text.vllm_share", shares if on_vllm else []),
        ("text.micro_batch", _halved(text.micro_batch, 1)),
        ("text.training_engine", [] if made.unsloth else ["unsloth"]),
        ("text.four_bit", [True] if made.unsloth and made.bits == 16 else []),
        ("groups", [] if on_vllm else _halved(made.config.groups, 1)),
        ("lora_rank", _halved(made.config.lora_rank, SMALLEST_RANK)),
        ("text.context", range((made.context - 1) // 256 * 256, lowest - 1, -256)),
    ]
    return [[{name: value} for value in mild_to_strong] for name, mild_to_strong in values]


def _halved(value: int, lowest: int) -> list[int]:
    return [size for step in range(1, 32) if (size := value >> step) >= lowest]


def _with(made: Plan, changes: dict[str, Any], on: Card | None = None) -> Plan:
    """The plan with changed settings, on the same card or another."""
    content = made.config.model_dump()
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        content = merged(content, {section: {name: value}} if section else {name: value})
    return Plan(parse_config(content), made.shape, on or made.card)


def _larger(made: Plan) -> list[str]:
    """The smallest card that is enough; with another share for vLLM where this one is too large on any."""
    cards = [card(str(size)) for size in sorted({one.size for one in CARDS}) if size > made.card.size]
    unchanged: list[dict[str, Any]] = [{}]
    ways = [(on, changes) for values in (unchanged, _knobs(made)[0]) for on in cards for changes in values]
    enough = (
        f"{_words(changes)} --gpu {on.size}".strip() for on, changes in ways if not _with(made, changes, on).short
    )
    return [way for way in [next(enough, "")] if way]


def _words(settings: dict[str, Any]) -> str:
    """Settings as they are typed."""
    return " ".join(f"--set {key}={str(value).lower()}" for key, value in settings.items())


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"
