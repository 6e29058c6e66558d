"""The plan: memory and speed of a workload on a card, and what to change where it does not fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from scope_lite.cli.planner.cards import CARDS, GIB, Card
from scope_lite.cli.planner.memory import PARTS, Memory, plan_memory
from scope_lite.cli.planner.shapes import ModelShape
from scope_lite.cli.planner.speed import Speed, plan_speed
from scope_lite.cli.planner.workload import Workload
from scope_lite.store.errors import ScopeError

SMALLEST_CONTEXT = 512


@dataclass(frozen=True)
class Plan:
    """A workload of a model on a card."""

    shape: ModelShape
    card: Card
    work: Workload
    memory: Memory
    speed: Speed

    @property
    def short(self) -> float:
        """Bytes that are missing; none: 0."""
        return max(self.memory.peak - self.card.memory, self.memory.pool_short, 0.0)

    def table(self) -> pd.DataFrame:
        """One row a part of memory: ``part``, and ``rollouts`` and ``training`` in GiB."""
        phases = {"rollouts": self.memory.rollouts, "training": self.memory.training}
        columns = {phase: [parts.get(part, 0.0) / GIB for part in PARTS] for phase, parts in phases.items()}
        return pd.DataFrame({"part": PARTS, **columns})


def plan(shape: ModelShape, card: Card, work: Workload) -> Plan:
    """Where the memory goes and how fast it can be, whether or not it fits.

    Raises:
        ScopeError: if the context is longer than the model can read.
    """
    if work.context > shape.max_context:
        raise ScopeError(f"{shape.name} reads {shape.max_context} tokens at most: lower --context {work.context}")
    memory = plan_memory(shape, card, work)
    return Plan(shape, card, work, memory, plan_speed(shape, card, work, memory))


def require_fit(made: Plan) -> None:
    """Refuse a plan that does not fit, naming the knobs that would make it fit, the mildest first.

    Raises:
        ScopeError: one line with what is missing, and up to three knobs (or the smallest set) with what each frees.
    """
    if not made.short:
        return
    ways = [f"{knob} (frees {_gib(made.short - left)})" for knob, left in remedies(made)][:3]
    size, peak = made.card.memory, made.memory.peak
    told = f"{made.shape.name} needs {_gib(peak)} (in {made.memory.phase}), {made.card.name} has {_gib(size)}"
    if peak <= size:
        told = f"vLLM's share of {made.memory.share:g} does not hold the weights of {made.shape.name} and one dialogue"
    raise ScopeError(f"{told}: {_gib(made.short)} are missing; to fit: {', or '.join(ways) or 'no knob suffices'}")


def remedies(made: Plan) -> list[tuple[str, float]]:
    """Knobs that alone make a plan fit, each at its mildest setting; else the smallest set in order, or a larger card.

    Returns:
        (what to type, bytes that are then missing: 0 or, with room to spare, less).
    """
    alone = []
    for settings in _knobs(made.work):
        for setting in settings:
            tried = _with(made, setting)
            if tried and not tried.short:
                alone.append((_words(setting), tried.memory.peak - tried.card.memory))
                break
    if alone:
        return alone
    together: dict[str, Any] = {}
    for settings in _knobs(made.work):
        changed = [(setting, tried) for setting in settings if (tried := _with(made, {**together, **setting}))]
        for setting, tried in changed:
            if not tried.short:
                together |= setting
                return [(_words(together), tried.memory.peak - tried.card.memory), *_larger(made)]
        now = _with(made, together)
        if changed and now and changed[-1][1].short < now.short:
            together |= changed[-1][0]
    return _larger(made)


def _knobs(work: Workload) -> Iterator[list[dict[str, Any]]]:
    """Each knob's settings from mild to strong; the knobs in the order in which they cost the least."""
    vllm = work.engine == "unsloth"
    yield [{"vllm_share": None}] if vllm and work.vllm_share else []
    yield [{"logits_everywhere": False}] if work.logits_everywhere else []
    yield [{"micro_batch": size} for size in _halved(work.micro_batch, 1)]
    yield [{"at_once": rows} for rows in _halved(work.playing, 1)] if not vllm else []
    yield [{"sleep": True}] if vllm and not work.sleeps else []
    yield [{"checkpointing": True}] if not work.checkpointing else []
    yield [{"bits": 4}] if work.bits == 16 else []
    yield [{"lora_rank": rank} for rank in _halved(work.lora_rank, 4)]
    lowest = max(SMALLEST_CONTEXT, 2 * work.written + 1)
    yield [{"context": tokens} for tokens in range((work.context - 1) // 256 * 256, lowest - 1, -256)]


def _halved(value: int, lowest: int) -> list[int]:
    halves = itertools.takewhile(lambda size: size >= lowest, (value >> step for step in range(1, 32)))
    return list(halves)


def _with(made: Plan, changes: dict[str, Any]) -> Plan | None:
    """The plan with changes, on the same card; None if they contradict each other."""
    try:
        return plan(made.shape, made.card, Workload.model_validate({**made.work.model_dump(), **changes}))
    except ValueError:
        return None


def _larger(made: Plan) -> list[tuple[str, float]]:
    """The smallest card that is enough; with vLLM's share left open where a fixed one would not do on any."""
    for setting in ({}, {"vllm_share": None}) if made.work.vllm_share else ({},):
        for card in sorted(CARDS, key=lambda card: card.memory):
            tried = _with(replace(made, card=card), setting)
            if card.memory > made.card.memory and tried and not tried.short:
                words = [_words(setting)] if setting else []
                # what is missing is counted on the card asked for
                left = made.short - (card.memory - made.card.memory)
                return [(" and ".join([*words, f"--gpu {card.size} ({card.name})"]), left)]
    return []


def _words(setting: dict[str, Any]) -> str:
    """Settings as they are typed."""
    words = []
    for name, value in setting.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            words.append(f"without {option}")
        else:
            words.append(option if value is True else f"{option} {value}")
    return " and ".join(words)


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"
