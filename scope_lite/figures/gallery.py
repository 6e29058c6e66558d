"""Which figure is drawn by which function from which table, and the gallery page that shows them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from scope_lite.errors import ScopeError
from scope_lite.figures import training
from scope_lite.figures.style import save_figure, use_style


@dataclass(frozen=True)
class Entry:
    """One figure of the gallery."""

    number: str
    """the paper's figure number"""
    name: str
    table: str
    """the experiment whose table it is drawn from"""
    draw: Callable[[pd.DataFrame], Figure]
    paper: str
    """what the paper's figure shows, in our words"""
    ours: str
    """what ours shows, and where it differs"""


GALLERY = (
    Entry(
        "1",
        "fig01_overfitting",
        "methods",
        training.figure_1,
        "(a) held-out success and (b) policy entropy of single-simulator RL against the fixes; (c) a human study.",
        "(a, b) in the nano world `persuasion`: reward with simulators that the run has not seen, and entropy at act "
        "positions. The single run peaks and falls, as in the paper. Entropy falls for Verbalized Sampling too, only "
        "later: any policy that becomes good loses entropy here. (c) needs people and is not drawn.",
    ),
    Entry(
        "3",
        "fig03_three_simulators",
        "single_by_simulator",
        training.figure_3,
        "Training reward, held-out reward and entropy of three runs, each against one simulator.",
        "The same against `sim-a`, `sim-b` and `sim-c`, which differ in their favourite user type.",
    ),
    Entry(
        "4",
        "fig04_methods",
        "methods",
        training.figure_4,
        "(a) evaluation reward on Persuasion for Good, (b) success on τ²-bench retail, (c) entropy.",
        "(a) reward with the real users of `persuasion`, whose types are spread wider than any simulator's; "
        "(c) entropy. (b) needs the world `retail`.",
    ),
    Entry(
        "20",
        "fig20_persuasion",
        "methods",
        training.figure_20,
        "Persuasion for Good, six methods.",
        "Training reward, reward with the training simulators, with unseen ones and with real users. Co-Training is "
        "not among the methods yet; the un-sharpened control (black) is ours and trains on P itself.",
    ),
)


def build(only: list[str] | None, results: Path, out: Path) -> list[Path]:
    """Redraw the figures from the tables in ``results``, without a model, and write the gallery page.

    Args:
        only: figure numbers; None draws all that have a table and says which have none.

    Raises:
        ScopeError: for a number that no figure has, or one asked for whose table is missing.
    """
    known = {entry.number: entry for entry in GALLERY}
    for number in only or []:
        if number not in known:
            raise ScopeError(f"no figure {number!r}; there are {', '.join(known)}")
    use_style()
    written: list[Path] = []
    for entry in [known[n] for n in only] if only else GALLERY:
        table = results / f"{entry.table}.csv"
        if not table.exists():
            message = f"figure {entry.number} needs {table.name}; make it with 'scope-lite results build {entry.table}'"
            if only:
                raise ScopeError(message)
            print(message)
            continue
        fig = entry.draw(pd.read_csv(table))
        written += save_figure(fig, entry.name, out)
        plt.close(fig)
    write_page(out)
    return written


def write_page(out: Path) -> None:
    """``figures/README.md``: the paper's figure in our words, ours, what agrees and what differs."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Gallery",
        "",
        "Every figure is drawn from a table, by `make figures` (live, 3 seeds) or `scope-lite figures` (from the",
        "shipped tables in `data/results`). The line below each picture says scale, world, seeds and interval.",
    ]
    for entry in GALLERY:
        lines += ["", f"## Figure {entry.number}", "", f"*The paper's:* {entry.paper}", ""]
        lines += [f"*Ours:* {entry.ours}", "", f"![figure {entry.number}]({entry.name}.png)"]
    others = sorted(p.stem for p in out.glob("*.png") if p.stem not in {e.name for e in GALLERY})
    if others:
        lines += ["", "## Figures that the paper does not have", ""]
        lines += [f"![{name}]({name}.png)\n" for name in others]
    (out / "README.md").write_text("\n".join(lines).rstrip() + "\n")
