"""The curves of two runs, one over the other."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from scope_lite.figures.style import footnote
from scope_lite.figures.training import REAL, UNSEEN, curve_panels
from scope_lite.store.errors import ScopeError

METRICS = ("reward", UNSEEN, REAL, "entropy")
COLOURS = ("#0072B2", "#D55E00")


def two_runs(table: pd.DataFrame) -> Figure:
    """Training reward, reward with unseen simulators and real users, and entropy, as far as the runs have them.

    Args:
        table: metrics of exactly two runs, one row a run and step (``store.load_metrics``).

    Raises:
        ScopeError: if they are not two, or have none of these metrics.
    """
    names = list(dict.fromkeys(table["run"]))
    metrics = [name for name in METRICS if name in table and table[name].notna().any()]
    if len(names) != 2 or not metrics:
        raise ScopeError(f"curves need two different runs with one of {', '.join(METRICS)}; got {', '.join(names)}")
    fig = curve_panels(table.assign(variant=table["run"]), metrics, dict(zip(names, COLOURS, strict=True)), {})
    for line in (line for ax in fig.axes for line in ax.get_lines() if line.get_color() == COLOURS[0]):
        line.set_linewidth(
            2 * line.get_linewidth()
        )  # where the runs agree, the first shows on both sides of the second
    footnote(fig, "one run each: no interval can be given")
    return fig
