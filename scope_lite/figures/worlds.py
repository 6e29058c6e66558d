"""Figures of a world and its users, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from scope_lite.figures.style import panel_grid, shared_legend

COLOURS = ("#7f7f7f", "#D55E00", "#0072B2", "#009E73")


def reply_bars(
    distributions: Mapping[float | str, Float[np.ndarray, " R"]], replies: Sequence[str], heard: str
) -> Figure:
    """Reply distributions at one history, side by side; a number as a name is a sharpness γ.

    Replies that are impossible under all of them are left out.
    """
    possible = [i for i in range(len(replies)) if any(p[i] > 1e-6 for p in distributions.values())]
    width = 0.8 / len(distributions)
    fig, (ax,) = panel_grid(1, 2.9, extra=0.3)
    for k, ((name, p), colour) in enumerate(zip(distributions.items(), COLOURS, strict=False)):
        label = name if isinstance(name, str) else f"γ = {name:g}"
        shown = f"{label}  (ε = {1 - p.max():.2f})"
        ax.bar(
            np.arange(len(possible)) + (k - (len(distributions) - 1) / 2) * width,
            p[possible],
            width,
            color=colour,
            label=shown,
        )
    ax.set_xticks(range(len(possible)), [replies[i] for i in possible], rotation=20, ha="right")
    ax.set(ylabel="probability", ylim=(0, 1.02))
    ax.set_title(f"Agent: “{heard}”", loc="center", fontsize=9)
    ax.grid(axis="x", visible=False)
    shared_legend(fig)
    return fig
