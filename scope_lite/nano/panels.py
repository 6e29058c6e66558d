"""Which simulators make up a world's panel."""

from __future__ import annotations

import numpy as np

from scope_lite.nano.teach import DEFAULT_FAMILY
from scope_lite.simulators import COLLAPSED_SHARPNESS, PanelMember
from scope_lite.worlds import World


def panel_members(world: World) -> list[PanelMember]:
    """The panel of a world: collapsed members with the training mode and with others, broad ones, and outsiders.

    Chosen before any method was run: the prior's shares moved one place on, once for each type.
    """
    types, shares = list(world.spec.prior), list(world.spec.prior.values())
    moved = [dict(zip(types, np.roll(shares, i).tolist(), strict=True)) for i in range(len(types))]
    members = [PanelMember("sim-a", DEFAULT_FAMILY, COLLAPSED_SHARPNESS, "collapsed", moved[0])]
    for i in range(1, len(types)):
        name = f"sim-{chr(ord('a') + i)}"
        members.append(PanelMember(name, name, COLLAPSED_SHARPNESS, "collapsed", moved[i]))
    reversed_tail = dict(zip(types, [shares[0], *shares[:0:-1]], strict=True))
    outside = [z for z in world.spec.real_prior if z not in world.spec.prior]
    outsiders = {z: 0.8 / len(outside) for z in outside} | {types[0]: 0.2}
    members += [
        PanelMember("twin", "twin", COLLAPSED_SHARPNESS, "collapsed", reversed_tail),
        PanelMember("half", "sim-c", 2.0, "broad", moved[2]),
        PanelMember("broad", "broad", 1.0, "broad", {z: 1 / len(types) for z in types}),
        PanelMember("outside", "outside", 2.0, "outside", outsiders),
        PanelMember("reference", None, 1.0, "scripted", dict(world.spec.prior)),
        PanelMember("real", None, 1.0, "scripted", dict(world.spec.real_prior)),
    ]
    return members
