"""Where a GPU's memory goes: one bar a phase, stacked by part, against what the card has."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from scope_lite.figures.style import footnote, panel_grid

COLOURS = {
    "weights": "#0072B2",
    "LoRA adapters": "#56B4E9",
    "gradients": "#009E73",
    "optimizer": "#8FD3BC",
    "activations": "#E69F00",
    "logits": "#F0E442",
    "vLLM's weights": "#8C4B1F",
    "KV cache": "#CC79A7",
    "vLLM's own": "#D55E00",
    "CUDA and slack": "#999999",
}


def memory_bars(table: pd.DataFrame, capacity: float, title: str, note: str = "planned, not measured") -> Figure:
    """Two stacked bars, rollouts and training, and a line at the card's memory.

    Args:
        table: columns ``part``, ``rollouts`` and ``training``, in GiB (``Plan.table``).
        capacity: the card's memory in GiB.
        title: model and card.
        note: what the footnote says.
    """
    fig, (ax,) = panel_grid(1, 2.9, extra=0)
    for row, phase in enumerate(("training", "rollouts")):
        left = 0.0
        for part, size in zip(table["part"], table[phase], strict=True):
            ax.barh(row, size, left=left, color=COLOURS[part], height=0.62, label=part if row == 0 else None)
            if size > 0.09 * capacity:
                ink = "k" if part in ("logits", "optimizer", "activations", "LoRA adapters") else "w"
                ax.text(left + size / 2, row, f"{size:.1f}", ha="center", va="center", fontsize=7.5, color=ink)
            left += size
        ax.text(left + 0.018 * capacity, row, f"{left:.1f}", ha="left", va="center", fontsize=8, fontweight="bold")
    ax.axvline(capacity, color="k", lw=1.2, ls="--")
    widest = max(capacity, table["rollouts"].sum(), table["training"].sum())
    ax.text(capacity, 1.52, f"the card: {capacity:.1f} GiB ", ha="right", va="center", fontsize=8)
    ax.set(
        xlim=(0, 1.14 * widest), ylim=(-0.5, 1.75), xlabel="GiB", yticks=(0, 1), yticklabels=("training", "rollouts")
    )
    ax.set_title(title, fontsize=9)
    ax.grid(False, axis="y")
    ax.set_axisbelow(True)
    fig.legend(loc="outside upper center", ncols=3, fontsize=7.5)
    footnote(fig, note)
    return fig
