"""The paper's tables 1 (in two parts), 5, 6 and 7: notebook 06 shows them, and `scope-lite figures` writes.

Here ``found`` is experiment -> its table (one row per run and evaluated step), as shipped or as just measured.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from scope_lite.figures import tables
from scope_lite.measure.stats import run_summaries
from scope_lite.store.paths import NANO_MODELS
from scope_lite.store.plain_yaml import read_yaml

WORLDS = {"persuasion": "methods", "persuasion_hard": "methods_hard", "retail": "methods_retail"}
"""setting of table 1 -> the experiment behind it"""
FURTHER = {
    "retail, larger policy (qwen3-small)": "larger_retail",
    "persuasion, Olmo 3 policy": "family_persuasion",
    "retail, Olmo 3 policy": "family_retail",
}
"""the same for its second part"""


@dataclass(frozen=True)
class PaperTable:
    """One table: ``make`` gets the tables of the experiments that are there."""

    name: str
    caption: str
    make: Callable[[Mapping[str, pd.DataFrame]], pd.DataFrame]
    needs: tuple[str, ...] = ()
    """experiments, of which one at least must have its table"""
    wide: str | None = None
    """the column of long text"""


def present(names: Mapping[str, str], found: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Setting -> table, for those of setting -> experiment whose table is there."""
    return {setting: found[name] for setting, name in names.items() if name in found}


def results_of(names: Mapping[str, str], found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Every method in every setting that has a table."""
    return tables.results_table({s: run_summaries(table) for s, table in present(names, found).items()})


def panels(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The panels of the worlds that table 1 shows."""
    return tables.panel_table(
        {world: read_yaml(NANO_MODELS / world / "panel.yaml") for world in present(WORLDS, found)}
    )


PAPER_TABLES = (
    PaperTable(
        "table01",
        "Table 1. All methods in three nano worlds: reward, mean ± half of the 95 % t-interval over seeds.",
        lambda found: results_of(WORLDS, found),
        tuple(WORLDS.values()),
    ),
    PaperTable(
        "table03",
        "Table 1, second part. Another policy in the same worlds: a larger one, and one of another family.",
        lambda found: results_of(FURTHER, found),
        tuple(FURTHER.values()),
    ),
    PaperTable(
        "table06",
        "Table 6. Hyperparameters, beside those that the paper states.",
        lambda _: tables.hyperparameters(),
        wide="meaning",
    ),
    PaperTable(
        "table06_methods",
        "Table 6, second part. What each method's name sets.",
        lambda _: tables.method_presets(),
        wide="sets",
    ),
    PaperTable(
        "table06_text",
        "Table 6, third part. What a run with language models has beside.",
        lambda _: tables.text_settings(),
        wide="meaning",
    ),
    PaperTable(
        "table07",
        "Table 7. The panel of each world: kind, sharpness γ, model, and the shares of user types.",
        panels,
        tuple(WORLDS.values()),
        "population",
    ),
    PaperTable(
        "table_paradigms",
        "Table 5. Methods compared: who is trained, who plays the partner, and where diversity comes from.",
        lambda _: tables.paradigms(),
    ),
)


def has_data(table: PaperTable, there: Container[str]) -> bool:
    """Whether there is something to make it from, with the tables of these experiments."""
    return not table.needs or any(name in there for name in table.needs)


def read(results: Path) -> dict[str, pd.DataFrame]:
    """The shipped tables that the paper's are made from, as far as they are in ``results``."""
    paths = [results / f"{name}.csv" for name in (*WORLDS.values(), *FURTHER.values())]
    return {path.stem: pd.read_csv(path) for path in paths if path.exists()}


def write(table: PaperTable, found: Mapping[str, pd.DataFrame], out: Path) -> list[Path]:
    """Write one table into ``out/tables`` as Markdown and LaTeX; returns the two paths."""
    return tables.write_table(table.make(found), table.name, table.caption, out / "tables", table.wide)
