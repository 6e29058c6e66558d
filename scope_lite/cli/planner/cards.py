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


# Memory: the total that nvidia-smi reports, MiB. Bandwidth (GB/s) and TFLOP/s: the maker's data sheet or architecture
# paper (GA102 for the 3090, Ada for the 4090, Blackwell for the 5090; data sheets of L4, A10, A6000, L40S, A100, H100
# SXM and H200, whose bf16 figures "with sparsity" are halved). Of each size, the first stands for a bare size.
CARDS = tuple(
    Card(name, size, mib * MIB, bandwidth * 1e9, teraflops * 1e12)
    for name, size, mib, bandwidth, teraflops in (
        ("RTX 4090", 24, 24_564, 1008, 165.2),
        ("RTX 3090", 24, 24_576, 936, 71),
        ("L4", 24, 23_034, 300, 121),
        ("A10", 24, 23_028, 600, 125),
        ("RTX 5090", 32, 32_607, 1792, 209.5),
        ("A100 40GB", 40, 40_960, 1555, 312),
        ("L40S", 48, 46_068, 864, 362),
        ("RTX A6000", 48, 49_140, 768, 154.8),
        ("A100", 80, 81_920, 2039, 312),
        ("H100", 80, 81_559, 3350, 989),
        ("H200", 141, 143_771, 4800, 989),
    )
)


def card(text: str) -> Card:
    """A card by name ("RTX 4090", "rtx-4090"), or by size in GB ("24"): the least memory that a card so sold has.

    A size that no card of the table has gets 95 % of itself in GiB, and the speed of the next smaller card.

    Raises:
        ScopeError: if it is neither.
    """

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    named = [one for one in CARDS if plain(one.name) == plain(text)]
    if named:
        return named[0]
    number = re.fullmatch(r"([0-9]{1,5})\s*(gb|gib)?", text.strip().lower())
    if not number or int(number[1]) < 1:
        raise ScopeError(f"unknown GPU {text!r}; give its GB, or one of {', '.join(one.name for one in CARDS)}")
    size = int(number[1])
    same = [one for one in CARDS if one.size == size]
    like = same[0] if same else ([one for one in CARDS if one.size < size] or CARDS[:1])[-1]
    memory = min((one.memory for one in same), default=round(size * GIB * 0.95))
    return replace(like, name=f"a card of {size} GB", like=like.name, size=size, memory=memory)
