"""Which simulators make up a world's panel."""

from __future__ import annotations

import numpy as np

from scope_lite.envs.nano import World
from scope_lite.envs.nano.spec import USER
from scope_lite.experiments.nano_models.teach import DEFAULT_FAMILY
from scope_lite.method.panel_file import COLLAPSED_SHARPNESS, PanelMember


def panel_members(world: World) -> list[PanelMember]:
    """The panel of a world: collapsed members with the training mode and with others, broad ones, and outsiders.

    Chosen before any method was run: the prior's shares moved one place on, once for each type
    (in a world whose users are told things: for each type that a user with a given prompt may be of).
    """
    spec = world.spec
    # types that differ only in what they are told change places in step, so that what is told stays as frequent
    told = [[z for z in spec.prior if spec.told.get(z, USER) == prompt] for prompt in world.prompts]

    n = len(told[0])

    def population(order: list[int]) -> dict[str, float]:
        return {z: spec.prior[types[k]] for types in told for z, k in zip(types, order, strict=True)}

    moved = [population(np.roll(range(n), i).tolist()) for i in range(n)]
    members = [PanelMember("sim-a", DEFAULT_FAMILY, COLLAPSED_SHARPNESS, "collapsed", moved[0])]
    for i in range(1, n):
        name = f"sim-{chr(ord('a') + i)}"
        members.append(PanelMember(name, name, COLLAPSED_SHARPNESS, "collapsed", moved[i]))
    reversed_tail = population([0, *range(n - 1, 0, -1)])
    outside = [z for z in spec.real_prior if z not in spec.prior]
    outsiders = {z: 0.8 / len(outside) for z in outside} | {types[0]: 0.2 / len(told) for types in told}
    members += [
        PanelMember("twin", "twin", COLLAPSED_SHARPNESS, "collapsed", reversed_tail),
        PanelMember("half", "sim-c", 2.0, "broad", moved[2]),
        PanelMember("broad", "broad", 1.0, "broad", {z: 1 / len(spec.prior) for z in spec.prior}),
        PanelMember("outside", "outside", 2.0, "outside", outsiders),
        PanelMember("reference", None, 1.0, "scripted", dict(spec.prior)),
        PanelMember("real", None, 1.0, "scripted", dict(spec.real_prior)),
    ]
    return members
