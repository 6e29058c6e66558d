"""The dialogue itself: two seats take turns, all rows of a batch together, until the outcome."""

from __future__ import annotations

from scope_lite.envs.nano import World
from scope_lite.method.seats import ModelSeat, Seat
from scope_lite.method.simulators import CLOSE
from scope_lite.models.records import Rollout
from scope_lite.models.rng import RowKeys


def run_dialogues(world: World, policy: ModelSeat, simulator: Seat, keys: RowKeys, names: list[str]) -> list[Rollout]:
    """Play every row to its end.

    Args:
        names: the name of the simulator that plays each row.

    Returns:
        One rollout a row, in order; the reward is the world's value of the outcome.
    """
    acts: list[list[str]] = []
    replies: list[list[str]] = []
    for turn in range(world.horizon):
        acts.append(policy.speak(turn, "act"))
        simulator.hear(acts[-1])
        replies.append(simulator.speak(turn, "reply"))
        if turn < world.horizon - 1:  # the last reply has no act after it
            policy.hear(replies[-1])
    simulator.hear([CLOSE] * len(keys))
    outcomes = simulator.speak(world.horizon, "outcome")
    value = dict(zip(world.spec.outcomes, world.spec.rewards, strict=True))
    told = policy.systems
    heard = simulator.transcripts
    spoken = [
        tuple(zip(a, r, strict=True)) for a, r in zip(zip(*acts, strict=True), zip(*replies, strict=True), strict=True)
    ]
    return [
        Rollout(
            task=told[i],
            simulator=names[i],
            group=int(keys.group[i]),
            member=int(keys.member[i]),
            acts=[turn[i] for turn in acts],
            replies=[turn[i] for turn in replies],
            outcome=outcomes[i],
            reward=value[outcomes[i]],
            turns=world.spec.turns(spoken[i]),
            policy=policy.transcripts[i],
            simulator_transcript=heard[i],
        )
        for i in range(len(keys))
    ]
