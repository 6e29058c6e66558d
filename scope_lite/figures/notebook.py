"""What several notebooks share: dialogues to read, tables of results, a live figure, and the provenance footer."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure

import scope_lite
from scope_lite.envs.nano import World
from scope_lite.experiments import Source
from scope_lite.experiments import table as experiment_table
from scope_lite.experiments.contrasts import members_of as members_of  # the notebooks take both from here
from scope_lite.experiments.contrasts import verdict
from scope_lite.experiments.summaries import run_summaries as run_summaries
from scope_lite.figures.style import save_figure
from scope_lite.figures.training import curve_panels
from scope_lite.measure.stats import Interval, paired_interval, t_interval
from scope_lite.store import load_rollouts
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import FIGURES
from scope_lite.store.provenance import git_state, package_version


def load_table(experiment: str, source: Source, seeds: int, **options: Any) -> pd.DataFrame | None:
    """The table of an experiment (``experiments.table``); None, and a line, where it has not been made yet."""
    try:
        return experiment_table(experiment, source, seeds, **options)
    except ScopeError as error:
        display(Markdown(f"*Not measured yet: {error}.*"))
        return None


def in_words(differences: Mapping[str, Interval]) -> str:
    """Where a difference of rewards is higher, lower, equal or not told apart, with its mean in points."""
    sides: dict[str, list[str]] = {}
    for where, interval in differences.items():
        sides.setdefault(verdict(interval), []).append(f"{where} ({round(100 * interval.mean):+d})")
    return "; ".join(f"**{side}** at {', '.join(at)}" for side, at in sides.items())


def show_figure(figure: Figure, name: str) -> None:
    """Write a figure to ``figures/`` and show the very picture that was written, so that it is drawn only once."""
    png = save_figure(figure, name, FIGURES)[0]
    plt.close(figure)
    display(Image(png, width=round(figure.get_figwidth() * figure.dpi)))


class LiveCurves:
    """A figure that draws itself while runs train: redrawn in place, with one line a run, at every evaluation."""

    def __init__(self, metrics: Sequence[str], colours: Mapping[str, str], labels: Mapping[str, str]):
        self.metrics, self.colours, self.labels = metrics, colours, labels
        self.rows: list[dict[str, Any]] = []
        self._handle: Any = None

    def follow(self, variant: str, world: str, seed: int) -> Callable[[int, int, dict[str, Any]], None]:
        """A callback for ``train(..., on_step=...)`` that draws this run under the name ``variant``."""

        def on_step(step: int, steps: int, metrics: dict[str, Any]) -> None:
            if "panel/real/reward" in metrics:
                self.rows.append({"variant": variant, "world": world, "seed": seed, **metrics})
                self._draw(final=step == steps)

        return on_step

    def _draw(self, final: bool) -> None:
        fig = curve_panels(pd.DataFrame(self.rows), self.metrics, self.colours, self.labels)
        # a redraw every few seconds is sent at screen resolution, or the notebook grows by megabytes
        fig.set_dpi(110 if final else 60)
        if self._handle is None:
            self._handle = display(fig, display_id=True)
        else:
            self._handle.update(fig)
        plt.close(fig)


def result_table(summaries: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Variant by column and summary: the mean over seeds with its 95 % t-interval, as text."""
    cells = summaries.groupby(["variant", "summary"], sort=False)[list(columns)]
    return cells.agg(lambda rewards: str(t_interval(rewards.dropna())) if rewards.notna().any() else "–")


def difference(summaries: pd.DataFrame, a: str, b: str, column: str, summary: str = "end") -> Interval:
    """Variant a minus variant b on one column, paired by seed."""
    rows = summaries[summaries["summary"] == summary].set_index("seed")
    return paired_interval(rows.loc[rows["variant"] == a, column], rows.loc[rows["variant"] == b, column])


def fall_from_peak(summaries: pd.DataFrame, variant: str, column: str) -> Interval:
    """The end of training minus the run's own best checkpoint, paired by seed (negative: it fell)."""
    rows = summaries[summaries["variant"] == variant].set_index("seed")
    return paired_interval(rows.loc[rows["summary"] == "end", column], rows.loc[rows["summary"] == "best", column])


def read_dialogue(world: World, rollout: dict[str, Any]) -> str:
    """A dialogue as Markdown: both speakers' sentences, and what it earned."""
    lines = [f"**with {rollout['simulator']}** (reward {rollout['reward']:.2f})", ""]
    for act, reply in zip(rollout["acts"], rollout["replies"], strict=True):
        lines += [f"> **agent** ({act}): {world.say(act)}  ", f"> **user** ({reply}): {world.say(reply)}  "]
    return "\n".join([*lines, f"> **user**: *{world.say(rollout['outcome'])}*"])


def kept_dialogue(folder: Path, simulator: str, step: int | None = None, index: int = 0) -> dict[str, Any]:
    """One of the dialogues that a run kept with a panel member, from its last evaluation unless ``step`` is given."""
    kept = load_rollouts([folder])
    rows = kept[(kept["simulator"] == simulator) & (kept["step"] == (kept["step"].max() if step is None else step))]
    return rows.iloc[index].to_dict()


def footer(table: pd.DataFrame | None = None) -> Markdown:
    """Where the numbers above come from: versions, commit, runs."""
    state = git_state(Path(scope_lite.__file__).parent)
    changes = " (with local changes)" if state and state["dirty"] else ""
    commit = f"commit `{state['commit'][:10]}`{changes}" if state else "no git"
    packages = ", ".join(f"{p} {package_version(p)}" for p in ("torch", "transformers", "peft", "numpy"))
    line = f"*scope_lite {scope_lite.__version__}, {commit}; Python {platform.python_version()}; {packages}"
    if table is not None:
        names = sorted(table["run"].unique())
        line += f"; {len(names)} runs, {names[0]} to {names[-1]}"
    return Markdown(line + "*")
