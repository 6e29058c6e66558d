"""One house style: a colour per method, fonts that survive a column, files that only change when data does."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

# Okabe-Ito, which stays apart under the common colour-vision deficiencies; one colour a method, everywhere.
METHOD_COLOURS = {
    "base": "#7f7f7f",
    "single": "#D55E00",
    "persona": "#E69F00",
    "verbalized": "#0072B2",
    "ensemble": "#CC79A7",
    "cotraining": "#56B4E9",
    "population": "#009E73",
    "unsharpened": "#000000",
}
METHOD_LABELS = {
    "base": "Base",
    "single": "RL (Single)",
    "persona": "Persona-Guided",
    "verbalized": "Verbalized Sampling",
    "ensemble": "Ensemble (K=3)",
    "cotraining": "Co-Training",
    "population": "Population Co-Training",
    "unsharpened": "Un-sharpened (control)",
}

ROW_NAME = 22
"""letters of a line of a row's name"""
LONG_NAME = 32
"""letters of a legend's entry from which on two do not stand side by side"""
COLUMN = 9 / 2.54
"""a journal's column, in inches"""
WIDTH = 4.6
"""inches of a figure of the gallery: in a column its smallest letters (6.5 points here) are still 5 points tall"""
LETTERS_AN_INCH = 21
"""of the footnote's size"""

RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
    "svg.hashsalt": "scope_lite",
}


def use_style() -> None:
    """Apply the house style, and nothing of the user's own settings file, to every figure made afterwards."""
    mpl.rcdefaults()
    mpl.rcParams.update(RC)


def panel_grid(n: int, height: float = 2.05, extra: float = 0.7, fill: bool = False) -> tuple[Figure, list[Axes]]:
    """Axes in rows of two, as wide as a figure of the gallery is; with an odd number the last cell stays free.

    Args:
        height: of a row, in inches; ``extra`` is for the legend and the line below.
        fill: the last of an odd number is as wide as two, so that no cell stays free.
    """
    rows = (n + 1) // 2
    fig = plt.figure(figsize=(WIDTH, height * rows + extra))
    cells = fig.add_gridspec(rows, min(n, 2))
    places = [cells[i // 2, i % 2] for i in range(n)]
    if fill and n % 2:
        places[-1] = cells[rows - 1, :]
    return fig, [fig.add_subplot(place) for place in places]


def heat_map(ax: Axes, table: pd.DataFrame, dark: Callable[[float], bool], cmap: str = "cividis") -> None:
    """A row of the map for each column of the table, shares in [0, 1], each written into its cell.

    Args:
        dark: where the colour is so dark that the letters are white.
    """
    ax.imshow(table.to_numpy().T, vmin=0, vmax=1, cmap=cmap, aspect="auto")
    for (i, j), value in np.ndenumerate(table.to_numpy()):
        ax.text(i, j, f"{value:.2f}", ha="center", va="center", fontsize=7, color="w" if dark(value) else "k")
    ax.grid(False)
    ax.tick_params(length=0)


def title_with_legend(ax: Axes, title: str, ncols: int = 1) -> Legend:
    """A panel's title and, below it but above the axes, its own legend: for panels whose lines differ."""
    return ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=ncols, fontsize=7, title=title, title_fontsize=8.5,
        alignment="left", borderaxespad=0.2, borderpad=0, labelspacing=0.25, columnspacing=1.0, handlelength=1.6,
    )  # fmt: skip


def name_rows(axes: Sequence[Axes], names: Sequence[str]) -> None:
    """The same named rows, the first on top, in all axes of a ``panel_grid``; only the left ones say the names."""
    wrapped = [textwrap.fill(name, ROW_NAME) for name in names]
    for i, ax in enumerate(axes):
        ax.set_yticks(range(len(names)), wrapped if i % 2 == 0 else [], fontsize=7.5)
        ax.set_ylim(len(names) - 0.4, -0.6)


def shared_legend(fig: Figure) -> None:
    """One legend for all axes of a ``panel_grid``: in its free cell if there is one, else above them."""
    named: dict[str, Artist] = {}
    for ax in fig.axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    if not named:
        return
    n, longest = len(fig.axes), max(map(len, named))
    if n > 1 and n % 2:
        rows = (n + 1) // 2
        fig.legend(named.values(), named.keys(), loc="center right", bbox_to_anchor=(0.99, 0.53 / rows), fontsize=7)
        return
    columns = 1 if longest > LONG_NAME else 2
    fig.legend(named.values(), named.keys(), loc="outside upper center", ncols=min(len(named), columns), fontsize=7.5)


def footnote(fig: Figure, text: str) -> None:
    """What every figure states below itself, in as many lines as it takes: scale, world, seeds, kind of interval."""
    text = textwrap.fill(text, round(LETTERS_AN_INCH * fig.get_figwidth()))
    fig.supxlabel(text, fontsize=6.5, color="#555555", x=0.99, ha="right")


def save_figure(fig: Figure, name: str, out_dir: Path, svg: bool = False) -> list[Path]:
    """Write ``name`` as PNG (300 dpi) and PDF with no time stamp: same data, same bytes.

    The layout is computed once and then kept, so all formats show the same one (and each is written sooner).

    Args:
        svg: SVG, too. Not by default: the repository keeps its figures, PDF is as sharp, and an SVG is four to seven
            times the size of the PDF (measured on figures 3, 9 and 20).

    Returns:
        The paths written.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    formats: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    }
    if svg:
        formats["svg"] = {"Date": None, "Creator": None}
    paths = []
    for suffix, metadata in formats.items():
        path = out_dir / f"{name}.{suffix}"
        fig.savefig(path, dpi=300, metadata=metadata)
        fig.set_layout_engine("none")
        paths.append(path)
    return paths
