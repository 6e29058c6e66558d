"""The plan: memory and speed of a run on a card, and what to change where it does not fit.

A roofline is what no program on that card can beat: bandwidth while tokens are drawn, bf16 arithmetic while transcripts
are read or trained. What is likely is that times an allowance, which is stated and not measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scope_lite.cli.planner.cards import CARDS, GIB, Card, card
from scope_lite.cli.planner.memory import PARTS, Memory, adapter_parameters, plan_memory, weight_bytes
from scope_lite.cli.planner.shapes import ModelShape, shape_of
from scope_lite.cli.planner.workload import Workload
from scope_lite.method.config import RunConfig, parse_config
from scope_lite.store.errors import ScopeError
from scope_lite.store.settings import merged

DECODE_ALLOWANCE = 0.5  # of the roofline, while tokens are drawn one by one
COMPUTE_ALLOWANCE = 0.4  # of the bf16 arithmetic, while whole transcripts are read or trained
SMALLEST_CONTEXT, SMALLEST_RANK = 512, 4


@dataclass(frozen=True)
class Plan:
    """A run on a card."""

    config: RunConfig
    shape: ModelShape
    card: Card
    work: Workload
    memory: Memory

    @property
    def short(self) -> float:
        """Bytes that are missing; none: 0."""
        return max(self.memory.peak - self.card.memory, self.memory.pool_short, 0.0)

    def table(self) -> pd.DataFrame:
        """One row a part of memory: ``part``, and ``rollouts`` and ``training`` in GiB."""
        phases = {"rollouts": self.memory.rollouts, "training": self.memory.training}
        columns = {phase: [parts.get(part, 0.0) / GIB for part in PARTS] for phase, parts in phases.items()}
        return pd.DataFrame({"part": PARTS, **columns})

    @property
    def at_once(self) -> int:
        """Dialogues of which the KV cache holds one seat's transcripts."""
        return max(1, min(self.work.dialogues, int(self.memory.kv_room // self.shape.kv_bytes(self.work.context))))

    @property
    def rereads(self) -> bool:
        """Whether the KV cache cannot hold both seats of all dialogues, so that each turn reads its history again."""
        return self.memory.kv_room < self.memory.kv_wanted

    def seconds(self, likely: bool = False) -> tuple[float, float]:
        """Seconds of a step's rollouts and of its training, on the roofline or as likely."""
        decoding, reading = rollout_seconds(self)
        training = self.work.adapters * training_flops(self.shape, self.work) / self.card.flops
        decode, compute = (DECODE_ALLOWANCE, COMPUTE_ALLOWANCE) if likely else (1.0, 1.0)
        return decoding / decode + reading / compute, training / compute

    def speed(self) -> pd.DataFrame:
        """Two rows, the roofline and what is likely: tokens a second (both seats' words; all transcripts), seconds."""
        written = 2 * self.work.dialogues * self.work.written
        trained = self.work.adapters * self.work.dialogues * self.work.context
        rows = []
        for name, likely in (("at most (roofline)", False), ("likely (allowance)", True)):
            play, train = self.seconds(likely)
            rows.append({
                "speed": name, "rollout tokens/s": written / play, "training tokens/s": trained / train,
                "rollouts s": play, "training s": train,
                f"hours of {self.config.steps} steps": self.config.steps * (play + train) / 3600,
            })  # fmt: skip
        return pd.DataFrame(rows)


def plan(config: RunConfig, on: Card) -> Plan:
    """Where the memory goes and how fast it can be, whether or not it fits.

    Raises:
        ScopeError: for a model that is not known, a nano world, or a context that cannot be.
    """
    if not config.is_text:
        raise ScopeError(f"world {config.world} needs no GPU: a plan is for real text (--world p4g)")
    return _planned(config, shape_of(config.model), on)


def _planned(config: RunConfig, shape: ModelShape, on: Card) -> Plan:
    work = Workload.of(config, shape.max_context)
    return Plan(config, shape, on, work, plan_memory(shape, on, work))


# -- speed ----------------------------------------------------------------------------------------------------------


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
    layers = (3 if work.unsloth else 2) * forward + backward_flops(shape, lora, work.context)
    return work.dialogues * (layers + 3 * 2.0 * shape.head * work.written)


def decode_seconds(shape: ModelShape, card: Card, bits: int, rows: int, length: int) -> float:
    """Seconds to draw a token in each of ``rows`` sequences of ``length`` tokens: the larger of reading and arithmetic.

    An embedding that is not the head is looked up, not read whole.
    """
    read = weight_bytes(shape, bits) - (0 if shape.tied else 2 * shape.head) + rows * shape.kv_bytes(length)
    flops = rows * (2.0 * (shape.matrices + shape.head) + 4.0 * shape.layers * shape.queries * length)
    return max(read / card.bandwidth, flops / card.flops)


def rollout_seconds(made: Plan) -> tuple[float, float]:
    """Seconds of a step's rollouts on the roofline: drawing tokens, and reading prompts and what the other said."""
    shape, work = made.shape, made.work
    waves = -(-work.dialogues // made.at_once)
    length = work.prompt + work.written  # on average over a dialogue: it grows from the prompt by both sides' words
    # vLLM reads a group's common prompt once; what the other seat said is read in any case
    prompts = work.groups if work.vllm_share is not None else work.dialogues
    read = 2 * (prompts * work.prompt + work.dialogues * work.written)
    read += 2 * work.dialogues * work.turns * length if made.rereads else 0
    step = decode_seconds(shape, made.card, work.bits, made.at_once, length)
    return waves * 2 * work.written * step, read * 2.0 * shape.matrices / made.card.flops


# -- what does not fit ----------------------------------------------------------------------------------------------


def require_fit(made: Plan) -> None:
    """Refuse a plan that does not fit, naming the settings that would make it fit, the mildest first.

    Raises:
        ScopeError: one line with what is missing, and up to three settings (or the smallest set) with what each frees.
    """
    if not made.short:
        return
    ways = [f"{knob} (frees {_gib(made.short - left)})" for knob, left in remedies(made)][:3]
    size, peak = made.card.memory, made.memory.peak
    told = f"{made.shape.name} needs {_gib(peak)} (in {made.memory.phase}), {made.card.name} has {_gib(size)}"
    if peak <= size:
        share = f"vLLM's share of {made.work.vllm_share:g}"
        told = f"{share} does not hold the weights of {made.shape.name} and one dialogue"
    raise ScopeError(f"{told}: {_gib(made.short)} are missing; to fit: {', or '.join(ways) or 'no setting suffices'}")


def remedies(made: Plan) -> list[tuple[str, float]]:
    """Settings that alone make a plan fit, each at its mildest; else the smallest set in order, or a larger card.

    Returns:
        (what to type, bytes that are then missing: 0 or, with room to spare, less).
    """
    alone = []
    for settings in _knobs(made):
        tried = [(setting, _with(made, setting)) for setting in settings]
        alone += [(_words(setting), one.memory.peak - one.card.memory) for setting, one in tried if not one.short][:1]
    if alone:
        return alone
    together: dict[str, Any] = {}
    now = made
    for settings in _knobs(made):
        for setting in settings:
            tried_on = _with(made, together | setting)
            if not tried_on.short:
                return [(_words(together | setting), tried_on.memory.peak - made.card.memory), *_larger(made)]
        best = min(({**together, **setting} for setting in settings), key=lambda s: _with(made, s).short, default={})
        if best and (then := _with(made, best)).short < now.short:
            together, now = best, then
    return _larger(made)


def _knobs(made: Plan) -> Iterator[list[dict[str, Any]]]:
    """Each setting's values from mild to strong; the settings in the order in which they cost the least."""
    work = made.work
    yield _shares(work)
    yield [{"text.micro_batch": size} for size in _halved(work.micro_batch, 1)]
    yield [{"text.training_engine": "unsloth"}] if not work.unsloth else []
    yield [{"text.four_bit": True}] if work.unsloth and work.bits == 16 else []
    yield [{"groups": groups} for groups in _halved(work.groups, 1)] if work.vllm_share is None else []
    yield [{"lora_rank": rank} for rank in _halved(work.lora_rank, SMALLEST_RANK)]
    lowest = max(SMALLEST_CONTEXT, 2 * work.written + 1)
    yield [{"text.context": tokens} for tokens in range((work.context - 1) // 256 * 256, lowest - 1, -256)]


def _shares(work: Workload) -> list[dict[str, Any]]:
    """Other shares of the card for vLLM, the nearest first."""
    now = work.vllm_share
    shares = [twentieths / 20 for twentieths in range(2, 20)] if now is not None else []
    return [{"text.vllm_share": share} for share in sorted(shares, key=lambda share: abs(share - (now or 0)))]


def _halved(value: int, lowest: int) -> list[int]:
    return list(itertools.takewhile(lambda size: size >= lowest, (value >> step for step in range(1, 32))))


def _with(made: Plan, changes: dict[str, Any], on: Card | None = None) -> Plan:
    """The plan with changed settings, on the same card or another."""
    content = made.config.model_dump()
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        content = merged(content, {section: {name: value}} if section else {name: value})
    return _planned(parse_config(content), made.shape, on or made.card)


def _larger(made: Plan) -> list[tuple[str, float]]:
    """The smallest card that is enough; with another share for vLLM where this one is too large on any."""
    larger = [card(str(size)) for size in sorted({one.size for one in CARDS}) if size > made.card.size]
    unchanged: list[dict[str, Any]] = [{}]
    for settings in (unchanged, _shares(made.work)):
        for one in larger:
            for setting in settings:
                if not _with(made, setting, one).short:
                    # what is missing is counted on the card asked for
                    words = f"{_words(setting)} --gpu {one.size}".strip()
                    return [(words, made.short - (one.memory - made.card.memory))]
    return []


def _words(settings: dict[str, Any]) -> str:
    """Settings as they are typed."""
    return " ".join(f"--set {key}={str(value).lower()}" for key, value in settings.items())


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"
