"""The gallery: which figure is drawn from which table (gallery.yaml), what is told beside it, and the page of all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from joblib import Parallel, delayed
from matplotlib.figure import Figure

from scope_lite.figures import paper
from scope_lite.figures.style import save_figure, use_style
from scope_lite.figures.tables import PAPER_TABLES, read_tables
from scope_lite.store.errors import ScopeError
from scope_lite.store.plain_yaml import read_yaml

WORTH_IT = 4
"""figures from which on a second process pays for its start"""
MAX_RUNS = 40
"""run ids are listed up to this many; beyond, their number and a hash stand for them"""


@dataclass(frozen=True)
class Entry:
    """One figure of the gallery."""

    number: str
    """the paper's figure number; a word for a figure that the paper does not have"""
    name: str
    draw: Callable[[pd.DataFrame], Figure]
    paper: str
    """what the paper's figure shows, in our words"""
    ours: str
    """what ours shows, and where it differs"""
    table: str = ""
    """the experiment whose table it is drawn from; empty: from no table"""
    also: Sequence[str] = ()
    """further experiments, drawn along where their tables are there (below ``table`` in what ``draw`` gets)"""
    interval: str = "95 % t-interval over seeds"
    """empty: the figure shows none"""

    @property
    def command(self) -> str:
        """What makes its table."""
        return "scope-lite results " + (self.table if self.table == "claims" else f"build {self.table}")

    @property
    def title(self) -> str:
        """What it is called over a picture."""
        return f"Figure {self.number}" if self.number.isdigit() else f"A figure of ours: {self.number}"


def _entry(row: dict[str, Any]) -> Entry:
    module, function = row.pop("draw", "training.method_curves").split(".")
    draw = getattr(import_module(f"scope_lite.figures.{module}"), function)
    return Entry(draw=partial(draw, **row.pop("with", {})), **row)


_DATA = read_yaml(Path(__file__).with_name("gallery.yaml"))
GALLERY = tuple(map(_entry, _DATA["figures"]))
LEFT_OUT: dict[str, str] = {number: row["why"] for row in _DATA["left_out"] for number in row["figures"]}
"""figure number -> why it is not drawn"""


class Missing(NamedTuple):
    """A figure or table that is not drawn, why, and what makes its data (empty where no command does)."""

    what: str
    why: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.what} is not drawn: {self.why}" + (f"; make it with '{self.command}'" if self.command else "")


def missing(results: Path) -> list[Missing]:
    """Every figure and table of the paper that cannot be drawn from the tables in ``results``."""
    build = "scope-lite results build"
    gone = [
        Missing(f"figure {entry.number}", f"no table {entry.table}.csv", entry.command)
        for entry in GALLERY
        if not has_table(entry, results)
    ]
    gone += [Missing(f"figure {number}", why) for number, why in LEFT_OUT.items()]
    there = {path.stem for path in results.glob("*.csv")}
    lacking = {t.name: " ".join(t.settings.values()) for t in PAPER_TABLES.values() if not t.has_data(there)}
    return gone + [Missing(name, f"no table of {names}", f"{build} {names}") for name, names in lacking.items()]


def has_table(entry: Entry, results: Path) -> bool:
    """Whether the table is there that a figure is drawn from; so it is for a figure of texts."""
    return not entry.table or (results / f"{entry.table}.csv").exists()


def chosen(only: Sequence[str], results: Path) -> list[Entry]:
    """The figures with these numbers; all that have a table if there are no numbers.

    Raises:
        ScopeError: for a number that no figure has or that is left out, or one whose table is missing.
    """
    known = {entry.number: entry for entry in GALLERY}
    lacking = {gone.what: gone for gone in missing(results)}
    for number in only:
        if gone := lacking.get(f"figure {number}"):
            raise ScopeError(str(gone))
        if number not in known:
            raise ScopeError(f"no figure {number!r}; there are {', '.join(known)}")
    return [known[number] for number in only] or [entry for entry in GALLERY if has_table(entry, results)]


def draw(entry: Entry, results: Path, out: Path, svg: bool = False) -> list[Path]:
    """Draw one figure and write it, and beside it what it was drawn from (``describe``); returns the paths."""
    use_style()  # of this process
    tables, rows = rows_of(entry, results)
    fig = entry.draw(rows)
    drawn = save_figure(fig, entry.name, out, svg)
    plt.close(fig)
    told = out / f"{entry.name}.json"
    description = describe(entry.number, tables, rows, drawn, entry.interval)
    told.write_text(json.dumps(description, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [*drawn, told]


def draw_all(entries: Sequence[Entry], results: Path, out: Path, svg: bool = False) -> Iterator[list[Path]]:
    """Draw figures side by side, one a core; yields the paths of each (as ``draw`` returns them), in order."""
    workers = 1 if len(entries) < WORTH_IT else -1
    drawn = Parallel(workers, return_as="generator")(delayed(draw)(entry, results, out, svg) for entry in entries)
    yield from drawn


def build(only: list[str] | None, results: Path, out: Path, svg: bool = False) -> list[Path]:
    """Redraw the figures and tables from the tables in ``results``, without a model, and write the gallery page.

    Args:
        only: figure numbers; None draws all that have a table, writes the tables, too, and says what has no data.
        svg: write each as SVG, too.

    Raises:
        ScopeError: as ``chosen`` does.
    """
    written = [path for paths in draw_all(chosen(only or [], results), results, out, svg) for path in paths]
    if not only:
        found = read_tables(results)
        for table in PAPER_TABLES.values():
            written += table.write(found, out) if table.has_data(found) else []
        for gone in missing(results):
            print(gone)
    write_page(out)
    return written


def rows_of(entry: Entry, results: Path) -> tuple[list[Path], pd.DataFrame]:
    """The tables of a figure that are there, and their rows below each other."""
    paths = [results / f"{name}.csv" for name in (entry.table, *entry.also) if name]
    paths = [path for path in paths if path.exists()]
    return paths, pd.concat(map(pd.read_csv, paths), ignore_index=True) if paths else pd.DataFrame()


# -- what a figure was drawn from: a small JSON file beside it; same tables, same bytes --------------------------------


def describe(
    number: str, tables: Sequence[Path], rows: pd.DataFrame, drawn: Sequence[Path], interval: str
) -> dict[str, Any]:
    """What the corner of a figure says, in full.

    Args:
        tables: the files that it was drawn from; none for a figure of texts.
        rows: their rows, with the columns ``world``, ``seed`` and ``run`` where they are of runs. A figure may show
            only some of these.
        drawn: the picture's files.

    Returns:
        ``seeds`` is the number of seeds in each world. ``runs`` lists the run ids, or holds their ``count`` and the
        ``sha256`` of the sorted ids, one a line. ``files`` holds the hash of each picture, so that a picture which was
        drawn over by someone else does not pass for this one.
    """
    of_runs = rows if "run" in rows else pd.DataFrame(columns=["world", "seed", "run"])
    seeds = {str(world): int(part["seed"].nunique()) for world, part in of_runs.groupby("world")}
    runs = sorted(of_runs["run"].unique())
    listed = {"count": len(runs), "sha256": hashlib.sha256("\n".join(runs).encode()).hexdigest()}
    return {
        "figure": number,
        "command": f"scope-lite figures --only {number}",
        "tables": {path.name: _digest(path) for path in tables},
        "scale": "nano" if tables else None,
        "worlds": list(seeds),
        "seeds": seeds,
        "interval": interval if tables and interval else None,
        "runs": runs if len(runs) <= MAX_RUNS else listed,
        "files": {path.name: _digest(path) for path in drawn},
    }


def tells_of(picture: Path) -> bool:
    """Whether the JSON file beside a picture is there and was written for this very picture."""
    try:
        return bool(_beside(picture)["files"].get(picture.name) == _digest(picture))
    except (OSError, ValueError, KeyError):
        return False


def caption(picture: Path) -> str:
    """What the JSON file beside a picture says, in a line: scale, worlds, seeds, interval, runs, command."""
    told = _beside(picture)
    if not told["tables"]:
        return f"From the texts in the code, by `{told['command']}`."
    seeds, runs = ", ".join(f"`{world}` ({n} seeds)" for world, n in told["seeds"].items()), told["runs"]
    if isinstance(runs, dict):
        named = f"{runs['count']} runs, ids' hash {runs['sha256'][:12]}"
    else:
        named = f"{len(runs)} runs, `{runs[0]}` to `{runs[-1]}`" if runs else "from " + ", ".join(told["tables"])
    parts = [told["scale"], seeds, told["interval"] or "no intervals", named]
    return f"{'; '.join(filter(None, parts))}. Remade by `{told['command']}`."


def _beside(picture: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
    return told


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- the page ---------------------------------------------------------------------------------------------------------


def write_page(out: Path) -> None:
    """``figures/README.md``: the paper's figure in our words, ours, what differs, and which are not drawn yet."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Gallery",
        "",
        "Every figure is drawn from a table, by `make figures` (live, 3 seeds) or `scope-lite figures` (from the",
        "shipped tables in `data/results`). The line below each picture says scale, world, seeds and interval.",
    ]
    for entry in GALLERY:
        lines += ["", f"## {entry.title}", "", f"*The paper's:* {entry.paper}", "", f"*Ours:* {entry.ours}", ""]
        picture = out / f"{entry.name}.png"
        first = f"**Not drawn yet.** First: `{entry.command}`"
        lines.append(f"![{entry.title}]({picture.name})" if picture.exists() else first)
        # a notebook may have drawn it since from other runs: then the file beside it tells of another picture
        if tells_of(picture):
            lines += ["", f"{caption(picture)} [More]({entry.name}.json)."]
    lines += ["", *paper.page_lines()]
    lines += ["", "## Left out", "", *(f"*Figure {number}:* {why}" for number, why in LEFT_OUT.items())]
    others = sorted(p.stem for p in out.glob("*.png") if p.stem not in {e.name for e in GALLERY})
    if others:
        lines += ["", "## Figures that the paper does not have", ""]
        lines += [f"![{name}]({name}.png)\n" for name in others]
    tables = sorted(out.glob("tables/*.md"))
    if tables:
        lines += ["", "## Tables", "", "Each as Markdown and, beside it, as LaTeX.", ""]
        lines += [f"- [{p.stem}](tables/{p.name}): {p.read_text(encoding='utf-8').splitlines()[0]}" for p in tables]
    (out / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
