"""A handful of well-known cards: memory, bandwidth and bf16 arithmetic, as their makers publish them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from scope_lite.store.errors import ScopeError

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class Card:
    """One GPU."""

    name: str
    size: int
    """GB, as the card is sold"""
    memory: int
    """bytes that a program can have"""
    bandwidth: float
    """bytes a second between memory and processor"""
    flops: float
    """dense bf16 tensor FLOP/s with fp32 accumulation, without sparsity"""
    like: str = ""
    """the card whose bandwidth and FLOP/s these are, where only a size was asked for"""


def _card(name: str, size: int, mib: int, gigabytes_a_second: float, teraflops: float) -> Card:
    return Card(name, size, mib * MIB, gigabytes_a_second * 1e9, teraflops * 1e12)


# Memory: the total that nvidia-smi reports. Bandwidth and FLOP/s: the maker's data sheet or architecture paper (GA102
# for the 3090, Ada for the 4090, Blackwell for the 5090; data sheets of L4, A10, A6000, L40S, A100, H100 SXM and H200,
# whose bf16 figures "with sparsity" are halved). Of each size, the first is the one that a bare size stands for.
CARDS = (
    _card("RTX 4090", 24, 24_564, 1008, 165.2),
    _card("RTX 3090", 24, 24_576, 936, 71),
    _card("L4", 24, 23_034, 300, 121),
    _card("A10", 24, 23_028, 600, 125),
    _card("RTX 5090", 32, 32_607, 1792, 209.5),
    _card("A100 40GB", 40, 40_960, 1555, 312),
    _card("L40S", 48, 46_068, 864, 362),
    _card("RTX A6000", 48, 49_140, 768, 154.8),
    _card("A100", 80, 81_920, 2039, 312),
    _card("H100", 80, 81_559, 3350, 989),
    _card("H200", 141, 143_771, 4800, 989),
)


def card(text: str) -> Card:
    """A card by name ("RTX 4090", "rtx-4090"), or by size in GB ("24"): the least memory that a card so sold has.

    A size that no card of the table has gets 95 % of itself in GiB, and the speed of the next smaller card.

    Raises:
        ScopeError: if it is neither.
    """
    wanted = re.sub(r"[^a-z0-9]", "", text.lower())
    by_name = {re.sub(r"[^a-z0-9]", "", one.name.lower()): one for one in CARDS}
    if wanted in by_name:
        return by_name[wanted]
    number = re.fullmatch(r"([0-9]{1,5})\s*(gb|gib)?", text.strip().lower())
    if not number or int(number[1]) < 1:
        raise ScopeError(f"unknown GPU {text!r}; give its GB, or one of {', '.join(one.name for one in CARDS)}")
    size = int(number[1])
    same = [one for one in CARDS if one.size == size]
    if same:
        return replace(same[0], name=f"a card of {size} GB", like=same[0].name, memory=min(one.memory for one in same))
    smaller = [one for one in CARDS if one.size < size]
    like = smaller[-1] if smaller else CARDS[0]
    return replace(like, name=f"a card of {size} GB", like=like.name, size=size, memory=round(size * GIB * 0.95))
