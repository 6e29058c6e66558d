"""The paper's tables at nano scale (tables.yaml), beside its own numbers, as Markdown and as LaTeX (booktabs).

Each function returns a frame of text; ``write_table`` writes it in both forms. Table 3 is of people: the paper's only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from scope_lite.experiments.contrasts import COMMON, like_for_like
from scope_lite.experiments.summaries import SUMMARIES, run_summaries
from scope_lite.figures.cooperation import LABELS, TRAINED_WITH
from scope_lite.figures.paper import VERSION, paper_settings, paper_table
from scope_lite.figures.style import named
from scope_lite.figures.training import REAL, SEEN, UNSEEN
from scope_lite.measure.stats import t_interval
from scope_lite.method.config import METHODS, RunConfig, Settings, SimulatorConfig, TextConfig, method_config
from scope_lite.store.escaping import for_markdown
from scope_lite.store.paths import NANO_MODELS
from scope_lite.store.plain_yaml import read_yaml

SPLITS = {SEEN: "training simulators", UNSEEN: "unseen simulators", REAL: "real users"}
COOPERATION = {COMMON: "partners that none trained with", REAL: "real partners"}
_DATA = read_yaml(Path(__file__).with_name("tables.yaml"))
LATEX = str.maketrans(_DATA["latex"])
WIDE = 6
"""columns from which on LaTeX sets a table in its smallest size"""
LONG_CELL = 32
"""letters of a cell from which on its column breaks lines"""


# -- what stands in the tables ----------------------------------------------------------------------------------------


def results_table(
    settings: Mapping[str, pd.DataFrame], splits: Mapping[str, str] = SPLITS, labels: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Tables 1 and 2: every method in every setting, with each split of the panel: end, AUC, best.

    Args:
        settings: name of the setting -> its runs' summaries, as ``summaries.run_summaries`` makes them.
        splits: column -> what it is called.
        labels: variant -> what it is called, if not as in the figures of users.

    Returns:
        Text "mean ± half-width" of the 95 % t-interval over seeds (reward in [0, 1]); "–" where nothing is measured.
    """
    cells = {
        setting: {
            (labels or {}).get(str(variant), named(variant)): {
                (split, summary.replace("auc", "AUC")): _mean_and_half(runs.loc[runs["summary"] == summary, column])
                for column, split in splits.items()
                for summary in SUMMARIES
            }
            for variant, runs in summaries.groupby("variant", sort=False)
        }
        for setting, summaries in settings.items()
    }
    return pd.concat({setting: pd.DataFrame(rows).T for setting, rows in cells.items()}, names=["setting", "method"])


def _mean_and_half(values: pd.Series) -> str:
    measured = values.dropna()
    if measured.empty:
        return "–"
    interval = t_interval(measured.to_numpy())
    # no leading zeros: nine such cells have to fit on a line
    half = f" ± {interval.high - interval.mean:.2f}".replace("0.", ".") if interval.n > 1 else ""
    return f"{interval.mean:.2f}".removeprefix("0") + half


def hyperparameters() -> pd.DataFrame:
    """Table 6: every number of a run with its default here, what the paper states for it, and its meaning."""
    rows = _settings(RunConfig, "") | _settings(SimulatorConfig, "simulator.") | _DATA["beside"]
    return pd.DataFrame(rows, index=["here", "the paper's", "meaning"]).T.rename_axis("setting")


def text_settings() -> pd.DataFrame:
    """Table 6, third part: what a run with language models has beside, with its default and its meaning."""
    rows = _settings(TextConfig, "text.")
    return pd.DataFrame(rows, index=["here", "the paper's", "meaning"]).T.rename_axis("setting")[["here", "meaning"]]


def _settings(settings: type[Settings], prefix: str) -> dict[str, list[str]]:
    """Key -> its default here, the paper's value, its meaning."""
    chosen = settings().model_dump(mode="json", exclude={"version", "method", "seed", "simulator", "text"})
    meanings = {name: settings.model_fields[name].description or "–" for name in chosen}
    return {
        prefix + name: [_plain(value), paper_settings().get(prefix + name, "–"), " ".join(meanings[name].split())]
        for name, value in chosen.items()
    }


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def method_presets() -> pd.DataFrame:
    """Table 6, second part: what each method's name sets; everything else is the default."""
    rows = {}
    for method, preset in METHODS.items():
        flat = {k: v for k, v in preset.items() if k != "simulator"}
        flat |= {f"simulator.{k}": v for k, v in preset.get("simulator", {}).items()}
        said = ", ".join(f"{k} = {' '.join(v) or 'none' if isinstance(v, list) else v}" for k, v in flat.items())
        rows[method] = {"label": named(method), "sets": said}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def panel_table(panels: Mapping[str, Iterable[Mapping[str, Any]]]) -> pd.DataFrame:
    """Table 7: the members of each world's panel: kind, sharpness γ, and the shares of user types they speak for.

    Args:
        panels: world -> entries as in its ``panel.yaml`` (name, model, sharpness, kind, population).
    """
    members = {
        world: {
            entry["name"]: {
                "kind": entry["kind"],
                "γ": f"{entry['sharpness']:g}",
                "model": entry["model"] or "none, users with a hidden type",
                "population": ", ".join(f"{kind} {share:.2f}" for kind, share in entry["population"].items()),
            }
            for entry in entries
        }
        for world, entries in panels.items()
    }
    return pd.concat({world: pd.DataFrame(rows).T for world, rows in members.items()}, names=["world", "member"])


def cooperation_table(settings: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Table 2: the kinds of partner, from the runs (a row a run and evaluated step) of each setting."""
    made = {name: like_for_like(run_summaries(runs), TRAINED_WITH) for name, runs in settings.items()}
    return results_table(made, COOPERATION, LABELS)


def frameworks() -> pd.DataFrame:
    """Table 4: what frameworks can do, as the paper says it of others; the last column is of this package."""
    table = paper_table("Table 4", ["quantity"], ["method"]).rename_axis("property")
    return table.assign(scope_lite=pd.Series(_DATA["frameworks"]))


def methods_compared() -> pd.DataFrame:
    """Table 5: who plays the user, whether it learns, and how it is drawn: the paper's, and in a run of ours."""
    theirs = paper_table("Table 5", ["method"], ["quantity"]).add_prefix("the paper's: ")
    ours = pd.DataFrame.from_dict(_DATA["compared"], orient="index", columns=["here: simulators", "here: drawn"])
    return theirs.join(ours).rename_axis("method")


def compute() -> pd.DataFrame:
    """Table 8: cost of a step as the paper gives it, beside what of it a run here holds."""
    theirs = paper_table("Table 8", ["method"], ["quantity"])
    units = {"training compute a step": " ×", "peak GPU memory": " ×", "wall clock a step": " s"}
    theirs = pd.DataFrame({f"the paper's: {column}": theirs[column] + unit for column, unit in units.items()})
    ours = {named(method).removesuffix(" (K=3)"): method_config(method) for method in METHODS}
    held = {name: (str(run.adapters), str(run.simulator.pool_size - 1)) for name, run in ours.items()}
    here = pd.DataFrame.from_dict(held, orient="index", columns=["here: adapters trained", "here: past selves kept"])
    return theirs.join(here).rename_axis("method")


def simulator_rewards() -> pd.DataFrame:
    """Table 9: what a trained simulator can be paid for: the paper's formula, and ours for each value of the key."""
    theirs = paper_table("Table 9", ["method"], ["quantity"])["simulator reward"]
    names = get_args(SimulatorConfig.model_fields["reward"].annotation)
    rows = {
        name: [theirs.get(name.removesuffix("_group"), "–"), *_DATA["rewards"].get(name, ["–", "–"])] for name in names
    }
    columns = ["the paper's", "the paper's main results", "here, of rollout i"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("reward")


MAKERS: dict[str, Callable[[Mapping[str, pd.DataFrame]], pd.DataFrame]] = {
    "results": lambda runs: results_table({setting: run_summaries(table) for setting, table in runs.items()}),
    "panels": lambda runs: panel_table({world: read_yaml(NANO_MODELS / world / "panel.yaml") for world in runs}),
    "hyperparameters": lambda _: hyperparameters(),
    "methods": lambda _: method_presets(),
    "text settings": lambda _: text_settings(),
    "cooperation": cooperation_table,
    "frameworks": lambda _: frameworks(),
    "compared": lambda _: methods_compared(),
    "compute": lambda _: compute(),
    "rewards": lambda _: simulator_rewards(),
}
"""from the runs of each setting that has a table"""


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper. ``found`` is experiment -> its table (one row per run and evaluated step)."""

    name: str
    caption: str
    make: str = ""
    """a key of :data:`MAKERS`"""
    paper: Mapping[str, Any] = field(default_factory=dict)
    """instead: what ``paper_table`` makes it from, the paper's own numbers"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """setting -> the experiment behind it, of which one at least must have its table; empty: it needs none"""
    wide: str | None = None
    """the column of long text"""

    def has_data(self, there: Container[str]) -> bool:
        """Whether there is something to make it from, with the tables of these experiments."""
        return not self.settings or any(name in there for name in self.settings.values())

    def write(self, found: Mapping[str, pd.DataFrame], out: Path) -> list[Path]:
        """Write it into ``out/tables`` as Markdown and LaTeX; returns the two paths."""
        runs = {setting: found[name] for setting, name in self.settings.items() if name in found}
        made = paper_table(**self.paper) if self.paper else MAKERS[self.make](runs)
        said = f"{self.caption} The paper's own ({VERSION}): other models, other tasks." if self.paper else self.caption
        return write_table(made, self.name, said, out / "tables", self.wide)


PAPER_TABLES = {row["name"]: PaperTable(**row) for row in _DATA["tables"]}


def read_tables(results: Path) -> dict[str, pd.DataFrame]:
    """The shipped tables that the paper's are made from, as far as they are in ``results``."""
    names = dict.fromkeys(name for table in PAPER_TABLES.values() for name in table.settings.values())
    return {name: pd.read_csv(path) for name in names if (path := results / f"{name}.csv").exists()}


# -- as Markdown and LaTeX --------------------------------------------------------------------------------------------


def write_table(table: pd.DataFrame, name: str, caption: str, out: Path, wide: str | None = None) -> list[Path]:
    """Write a table of text as ``<name>.md`` and ``<name>.tex`` (needs the package booktabs); returns the two paths.

    ``wide`` is the column whose text is long; in LaTeX it is set in 7 cm.
    """
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.md", out / f"{name}.tex"]
    paths[0].write_text(f"{caption}\n\n{to_markdown(table)}\n", encoding="utf-8")
    paths[1].write_text(to_latex(table, name, caption, wide), encoding="utf-8")
    return paths


def to_markdown(table: pd.DataFrame) -> str:
    """The table with its index as the first columns; two levels of column names become one."""
    flat = table.reset_index()
    names = [", ".join(part for part in c if part) if isinstance(c, tuple) else c for c in flat.columns]
    rows = [names, ["---"] * len(names), *flat.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(for_markdown, row)) + " |" for row in rows)


def to_latex(table: pd.DataFrame, label: str, caption: str, wide: str | None = None) -> str:
    """The table as a LaTeX float with booktabs rules; special characters are escaped, Greek letters set as maths."""
    # LaTeX breaks lines only in a column of a stated width
    widths = ["p{3.2cm}" if table[c].map(len).max() > LONG_CELL else "l" for c in table.columns]
    formats = ["p{7cm}" if c == wide else width for c, width in zip(table.columns, widths, strict=True)]
    shown = table.rename_axis([name and latex_text(name) for name in table.index.names]).style.format(latex_text)
    text: str = (
        shown.format_index(latex_text, axis="index")
        .format_index(latex_text, axis="columns")
        .to_latex(
            hrules=True,
            column_format="l" * table.index.nlevels + "".join(formats),
            multicol_align="c",
            multirow_align="naive",  # the name in the first of its rows: no package is needed for that
            caption=latex_text(caption),
            label="tab:" + re.sub(r"[^A-Za-z0-9:._-]+", "-", label),  # nothing can be escaped in a label
            position_float="centering",
        )
    )
    size = r"\scriptsize \setlength{\tabcolsep}{2pt}" if table.shape[1] > WIDE else r"\footnotesize"
    return text.replace(r"\centering", rf"\centering {size}", 1)


def latex_text(text: object) -> str:
    """Plain text as LaTeX: special characters escaped, the symbols of this package set as maths."""
    return str(text).translate(LATEX)
