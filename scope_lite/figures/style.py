"""One house style (style.yaml): a colour per method, panels two in a row, files that only change when data does."""

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

from scope_lite.measure.stats import t_interval
from scope_lite.store.plain_yaml import read_yaml

STYLE = read_yaml(Path(__file__).with_name("style.yaml"))
LABELS: dict[str, str] = STYLE["metrics"]
METHOD_COLOURS, METHOD_LABELS = ({name: line[i] for name, line in STYLE["lines"]["methods"].items()} for i in (0, 1))

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


def use_style() -> None:
    """Apply the house style, and nothing of the user's own settings file, to every figure made afterwards."""
    mpl.rcdefaults()
    mpl.rcParams.update(STYLE["rc"])


def named(key: object) -> str:
    """What readers call a method or a metric; anything else has its own name."""
    return {**METHOD_LABELS, **LABELS}.get(str(key), str(key))


# -- a figure's frame -------------------------------------------------------------------------------------------------


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


def finish(fig: Figure, note: str = "", ylabel: str = "") -> Figure:
    """The frame of a ``panel_grid``: the label of its left axes, one legend for all, the line below; returns it."""
    for ax in fig.axes[::2] if ylabel else ():
        ax.set_ylabel(ylabel)
    shared_legend(fig)
    return footnote(fig, note) if note else fig


def shared_legend(fig: Figure) -> None:
    """One legend for all axes of a ``panel_grid``: in its free cell if there is one, else above them."""
    handles: dict[str, Artist] = {}
    for ax in fig.axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if not handles:
        return
    n = len(fig.axes)
    if n > 1 and n % 2:
        place: dict[str, Any] = {"loc": "center right", "bbox_to_anchor": (0.99, 0.53 / ((n + 1) // 2)), "fontsize": 7}
    else:
        columns = 1 if max(map(len, handles)) > LONG_NAME else 2
        place = {"loc": "outside upper center", "ncols": min(len(handles), columns), "fontsize": 7.5}
    fig.legend(handles.values(), handles.keys(), **place)


def footnote(fig: Figure, text: str) -> Figure:
    """Below every figure, in as many lines as it takes: scale, world, seeds, kind of interval; returns the figure."""
    text = textwrap.fill(text, round(LETTERS_AN_INCH * fig.get_figwidth()))
    fig.supxlabel(text, fontsize=6.5, color="#555555", x=0.99, ha="right")
    return fig


def title_with_legend(ax: Axes, title: str, ncols: int = 1) -> Legend:
    """A panel's title and, below it but above the axes, its own legend: for panels whose lines differ."""
    return ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=ncols, fontsize=7, title=title, title_fontsize=8.5,
        alignment="left", borderaxespad=0.2, borderpad=0, labelspacing=0.25, columnspacing=1.0, handlelength=1.6,
    )  # fmt: skip


def name_rows(axes: Sequence[Axes], names: Sequence[str], top: float = 0.6) -> None:
    """The same named rows, the first (``top`` from the edge) on top, in all axes; only the left ones say the names."""
    wrapped = [textwrap.fill(name, ROW_NAME) for name in names]
    for i, ax in enumerate(axes):
        ax.set_yticks(range(len(names)), wrapped if i % 2 == 0 else [], fontsize=7.5)
        ax.set_ylim(len(names) - (1 - top), -top)


def fit_y(ax: Axes, values: pd.Series, pad: float, more: float = 0.0) -> None:
    """The data set the scale, with ``pad`` of their range (and ``more``) free above and below.

    The interval of few seeds can be many times as wide as they lie apart, and reach beyond what is possible.
    """
    low, high = values.min(), values.max()
    ax.set_ylim(low - pad * (high - low) - more, high + pad * (high - low) + more)


# -- what stands in a panel -------------------------------------------------------------------------------------------


def dots(
    ax: Axes,
    x: pd.Series | float,
    y: pd.Series | float,
    colour: Any,
    label: str | None = None,
    marker: str = "o",
    *,
    sizes: tuple[float, float] = (3, 5),
    alpha: float = 0.4,
    shift: float = 0.0,
    **bar: Any,
) -> None:
    """Runs as small points, and their mean, larger, with its 95 % t-interval across or up (both ways for two series).

    Args:
        x, y: a value a run, or the one place of all.
        sizes: of a run's point and of the mean's.
        shift: how far above the mean the runs stand.
        bar: of the mean with its interval; by default ``fmt`` is the marker, ``lw`` 1.2 and ``capsize`` 2.
    """
    xs, ys = np.broadcast_arrays(x, y)
    ax.plot(xs, ys + shift if shift else ys, marker, ms=sizes[0], mew=0, color=colour, alpha=alpha)
    (across, xerr), (up, yerr) = (
        (place, None) if np.isscalar(place) else (mean.mean, mean.half)
        for place, mean in ((x, t_interval(xs)), (y, t_interval(ys)))
    )
    look: dict[str, Any] = {"fmt": marker, "lw": 1.2, "capsize": 2, **bar}
    ax.errorbar(across, up, yerr, xerr, ms=sizes[1], color=colour, label=label, **look)


def doses(ax: Axes, dose: pd.Series, values: pd.Series, colour: str, label: str, shift: float) -> None:
    """A point a run, and a line through the mean with its 95 % t-interval a dose; doses are evenly spaced."""
    dose, values = dose[values.notna()], values.dropna()
    levels = np.sort(dose.unique())
    ax.plot(np.searchsorted(levels, dose) + shift, values, "o", ms=3, alpha=0.4, color=colour, mew=0)
    means = [t_interval(values[dose == level].to_numpy()) for level in levels]
    at, halves = np.arange(len(levels)) + shift, [i.half for i in means]
    ax.errorbar(at, [i.mean for i in means], halves, color=colour, lw=1.5, capsize=2, label=label)
    ax.set_xticks(range(len(levels)), [f"{d:g}" for d in levels])
    ax.set_ylim(-0.03, 1.03)


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


# -- files ------------------------------------------------------------------------------------------------------------

FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}
"""and what each would say of the time or the program"""


def save_figure(fig: Figure, name: str, out_dir: Path, svg: bool = False) -> list[Path]:
    """Write ``name`` as PNG (300 dpi) and PDF with no time stamp (same data, same bytes); returns the paths.

    The layout is computed once and then kept, so all formats show the same one (and each is written sooner).

    Args:
        svg: SVG, too. Not by default: the repository keeps its figures, PDF is as sharp, and an SVG is four to seven
            times the size of the PDF (measured on figures 3, 9 and 20).
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = [out_dir / f"{name}.{suffix}" for suffix in list(FORMATS)[: 2 + svg]]
    for path in paths:
        fig.savefig(path, dpi=300, metadata=FORMATS[path.suffix[1:]])
        fig.set_layout_engine("none")
    return paths
