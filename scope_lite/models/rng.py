"""Random numbers that are a function of where they are used, not of what was drawn before.

Every draw of a rollout is keyed by (run, step, group, member, turn, seat, token). So the
members of a group differ, a batch gives the same dialogues as one row at a
time, and a resumed run continues exactly, with no generator state to save.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

SEATS = {"policy": 1, "simulator": 2, "task": 3, "panel": 4}
ONCE = {"user": 0, "persona": 1, "random reward": 2, "pool entry": 3, "task": 4, "prompt": 5}
"""what is drawn once a dialogue, before it begins; no two of these share a number, or they would be correlated"""


def mix(value: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea, Flood 2014) on unsigned 64-bit integers."""
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class RowKeys:
    """Names every row of a batch: the run and step it belongs to, its group, its place in the group."""

    run: int
    step: int
    group: Int[np.ndarray, " b"]
    member: Int[np.ndarray, " b"]

    @classmethod
    def grid(cls, run: int, step: int, groups: int, group_size: int) -> RowKeys:
        """Rows in order: group 0 member 0, group 0 member 1, ..."""
        rows = np.arange(groups * group_size)
        return cls(run, step, rows // group_size, rows % group_size)

    def __len__(self) -> int:
        return len(self.group)

    def __getitem__(self, rows: np.ndarray) -> RowKeys:
        return RowKeys(self.run, self.step, self.group[rows], self.member[rows])

    @cached_property
    def _rows(self) -> np.ndarray:
        """What the numbers of each row begin with."""
        state = np.zeros(len(self.group), dtype=np.uint64)
        for part in (self.run, self.step, self.group, self.member):
            state = mix(state ^ np.asarray(part, dtype=np.int64).astype(np.uint64))
        return state

    def by_group(self) -> RowKeys:
        """The same rows without their place in the group: what is drawn from these is one for the whole group."""
        return RowKeys(self.run, self.step, self.group, np.zeros_like(self.member))

    def by_step(self) -> RowKeys:
        """The same rows without group and place: what is drawn from these is one for the whole step."""
        return RowKeys(self.run, self.step, np.zeros_like(self.group), np.zeros_like(self.member))

    def once(self, what: str) -> Float[np.ndarray, " b"]:
        """One uniform number a row for what is drawn once a dialogue (a key of :data:`ONCE`)."""
        return self.uniforms(0, "task", token=ONCE[what])[:, 0]

    def uniforms(self, turn: int, seat: str, token: int = 0, n: int = 1) -> Float[np.ndarray, "b n"]:
        """``n`` uniform numbers in [0, 1) for each row at this turn, seat and token."""
        state = self._rows
        for part in (turn, SEATS[seat], token):
            state = mix(state ^ np.uint64(part))
        draws = mix(state[:, None] ^ np.arange(n, dtype=np.uint64)[None, :])
        return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53
