"""The key-value cache kept across turns against reading the whole dialogue again each turn, same dialogues.

Prints the median CPU seconds of both and their ratio, measured alternately in one process.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from jaxtyping import Int

from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.episode import NanoEpisode
from scope_lite.method.dialogue import run_dialogues
from scope_lite.method.nano import Library
from scope_lite.method.seats import ModelSeat
from scope_lite.models.rng import RowKeys

ROWS, REPEATS = 256, 7


class ForgetfulSeat(ModelSeat):
    """Reads its whole transcript again before it speaks."""

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        self._session = self.model.session(len(self.transcripts))
        self._fed = [0] * len(self.transcripts)
        return super().speak(turn, kind, rows)


def seconds(seat_type: type[ModelSeat], step: int) -> float:
    world = get_world("persuasion")
    library = Library(world)
    keys = RowKeys.grid(0, step, ROWS // 8, 8)
    policy, simulator = library.seat_model("qwen3-tiny"), library.seat_model("qwen3-tiny", 8.0)
    seats = [
        seat_type(model, keys, seat, [system] * ROWS)
        for model, seat, system in ((policy, "policy", "agent"), (simulator, "simulator", "user"))
    ]
    began = time.process_time()
    episodes = [NanoEpisode(world, {"policy": "agent", "simulator": "user"}) for _ in range(ROWS)]
    run_dialogues(episodes, seats[0], seats[1], keys, ["sim-a"] * ROWS)
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {"kept": [], "again": []}
    for step in range(REPEATS + 1):
        for name, seat_type in (("kept", ModelSeat), ("again", ForgetfulSeat)):
            took = seconds(seat_type, step)
            if step:  # the first round warms up
                times[name].append(took)
    ratio = np.array(times["again"]) / np.array(times["kept"])
    kept, again = (statistics.median(times[name]) for name in ("kept", "again"))
    print(f"cache kept {kept:.3f} s, prompt read again {again:.3f} s, {REPEATS} pairs of {ROWS} dialogues")
    print(f"ratio {np.median(ratio):.2f} (from {ratio.min():.2f} to {ratio.max():.2f})")


if __name__ == "__main__":
    main()
