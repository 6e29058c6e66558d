"""One HTML page to look around in: figures, runs, dialogues. It needs no network and no server, only a browser.

Everything that comes from data is escaped (Jinja's autoescape), what the script reads is JSON with its angle brackets
escaped, and the page's own content policy runs no script but ours: a dialogue cannot bring one along. Same data, same
bytes: nothing in it depends on the time or the machine.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from PIL import Image

from scope_lite import __version__
from scope_lite import store as run_folders
from scope_lite.envs.nano import get_world
from scope_lite.figures.gallery import GALLERY, Entry
from scope_lite.figures.style import METHOD_LABELS
from scope_lite.figures.training import REAL, SEEN, UNSEEN
from scope_lite.method.alarm import collapse
from scope_lite.store.errors import ScopeError, first_line
from scope_lite.store.files import plain_disk_errors, replace_text
from scope_lite.store.folder import read_config
from scope_lite.store.paths import checked_place

HERE = Path(__file__).parent
WIDTH = 1400  # pixels of a picture's longer side; the files have 300 dpi, for print
NUMBERS = ("reward", SEEN, UNSEEN, REAL, "entropy")
HEADS = (
    "source", "run", "world", "method", "seed", "step", "training reward", "training simulators", "unseen simulators",
    "real users", "entropy (nats)", "collapse alarm",
)  # fmt: skip
NEEDED = {"run", "world", "method", "seed", "step"}
SHOWN_RUNS = 24  # runs whose dialogues are shown, at most


def build(out: Path, runs: Path, results: Path, figures: Path, chosen: Sequence[str] = ()) -> Path:
    """Write the page.

    Args:
        out: the HTML file.
        runs: folder of run folders; where there are none, the run table is made from ``results``.
        results: folder of the shipped tables.
        figures: folder of the figures' PNG files.
        chosen: names of runs whose dialogues to show; by default one of each world and method.

    Returns:
        ``out``.

    Raises:
        ScopeError: if there is nothing to show, a run or figure cannot be read, or ``out`` may not be written.
    """
    if out.is_dir():
        raise ScopeError(f"{out} is a folder: give the file to write, such as {out / 'report.html'}")
    table = gather_runs(runs, results)
    pictures, missing = gather_figures(figures)
    if not table.rows and not pictures:
        raise ScopeError(f"nothing to report: no runs in {runs}, no tables in {results}, no figures in {figures}")
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html").render(
        version=__version__,
        style=style,
        script=script,
        # the one script that the page's content policy allows, named by its hash
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        table=table,
        pictures=pictures,
        missing=missing,
        dialogues=dialogues_of(runs, chosen),
    )
    with plain_disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, page)
    return out


@dataclass(frozen=True)
class RunTable:
    """The runs, one row each: text or number, None for "not measured"."""

    heads: tuple[str, ...]
    rows: list[list[Any]]
    source: str
    """where the rows come from, in words"""

    def values(self, head: str) -> list[str]:
        """What a column holds, each once, for a choice to filter by."""
        column = self.heads.index(head)
        return sorted({str(row[column]) for row in self.rows})


def gather_runs(folder: Path, results: Path) -> RunTable:
    """Every run folder, or every run of the shipped tables where there is no run folder; numbers at the end.

    Raises:
        ScopeError: if a run's metrics are damaged or a table cannot be read.
    """
    rows = []
    for summary in run_folders.list_runs(folder).to_dict("records"):
        path = folder / summary["name"]
        has_metrics = (path / "metrics.jsonl").is_file()
        metrics = run_folders.load_metrics([path]) if has_metrics else pd.DataFrame()
        labels = {**read_config(path), "run": path.name, "step": summary["step"]}
        rows.append(_row(summary["state"], labels, metrics))
    if rows:
        return RunTable(HEADS, rows, f"{len(rows)} run folders")
    tables = 0
    for path in sorted(results.glob("*.csv")):
        try:
            table = pd.read_csv(path)
        except (ValueError, UnicodeDecodeError) as error:
            raise ScopeError(f"cannot read {path}: {first_line(error)}") from None
        if not NEEDED <= set(table):
            continue
        tables += 1
        for _, own in table.sort_values("step", kind="stable").groupby("run", sort=True):
            rows.append(_row(path.stem, own.iloc[-1].to_dict(), own))
    return RunTable(HEADS, rows, f"the shipped tables: {len(rows)} runs of {tables} experiments")


def _row(source: str, labels: dict[str, Any], metrics: pd.DataFrame) -> list[Any]:
    """Labels, and the last measured value of each number."""
    method = str(labels.get("variant") or labels.get("method"))
    ends = [metrics[name].dropna().tolist()[-1:] if name in metrics else [] for name in NUMBERS]
    numbers = [float(end[0]) if end else None for end in ends]
    words = [source, labels["run"], str(labels.get("world")), METHOD_LABELS.get(method, method)]
    counts = [int(labels[name]) if pd.notna(labels.get(name)) else None for name in ("seed", "step")]
    verdict = collapse(metrics)
    alarm = (
        f"from step {verdict.steps[0]}" if verdict.steps else {False: "silent", None: "not judged"}[verdict.collapsed]
    )
    return [*words, *counts, *numbers, alarm]


def gather_figures(folder: Path) -> tuple[list[dict[str, str]], list[Entry]]:
    """The PNG files of a folder, the paper's figures first, and those of the paper that are not drawn yet.

    Returns:
        (name, title, ``paper`` and ``ours`` in words, and a data: address of each figure; the missing ones).

    Raises:
        ScopeError: if a file is no readable picture.
    """
    known = {entry.name: entry for entry in GALLERY}
    files = {path.stem: path for path in sorted(folder.glob("*.png"))}
    pictures = []
    for name in sorted(files, key=lambda name: list(known).index(name) if name in known else len(known)):
        entry = known.get(name)
        told = (entry.title, entry.paper, entry.ours) if entry else (name.replace("_", " "), "", "")
        words = dict(zip(("title", "paper", "ours"), (text.replace("`", "") for text in told), strict=True))
        pictures.append({"name": name, **words, "data": _embedded(files[name])})
    return pictures, [entry for name, entry in known.items() if name not in files]


def _embedded(path: Path) -> str:
    """A figure at screen size with a palette of 255 colours, as a data: address; about a tenth of the file."""
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, ValueError) as error:
        raise ScopeError(f"cannot read the figure {path}: {error}; draw it again or remove it") from None
    picture.thumbnail((WIDTH, WIDTH), Image.Resampling.LANCZOS)
    # no dithering: it would speckle flat colours, and a figure has few others
    picture = picture.quantize(255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def dialogues_of(folder: Path, chosen: Sequence[str] = ()) -> dict[str, Any]:
    """What the page's reader of dialogues needs, as plain values.

    Returns:
        ``runs``: name, label, world, and the kept dialogues of each; ``sentences``: world -> act -> sentence;
        ``left_out``: how many runs with dialogues are not shown.

    Raises:
        ScopeError: for a chosen run that there is not or that kept no dialogues, or a damaged file.
    """
    if chosen:
        paths = [run_folders.find(folder, checked_place(name, "run")) for name in chosen]
    else:
        paths = [folder / name for name in run_folders.list_runs(folder)["name"]]
    kept = {path: found for path in paths if (found := run_folders.kept_dialogues(path))}
    for path in paths if chosen else ():
        if path not in kept:
            raise ScopeError(f"{path} has kept no dialogues")
    shown = list(kept) if chosen else _one_of_each(kept)
    entries, sentences = [], {}
    for path in shown:
        config = read_config(path)
        world, method = str(config.get("world")), str(config.get("method"))
        sentences[world] = _sentences(world)
        label = f"{world}, {METHOD_LABELS.get(method, method)}, seed {config.get('seed')} ({path.name})"
        names = ("step", "simulator", "acts", "replies", "outcome", "reward")
        dialogues = [{**{name: d[name] for name in names}, "member": d.get("member", 0)} for d in kept[path]]
        entries.append({"name": path.name, "label": label, "world": world, "dialogues": dialogues})
    return {"runs": entries, "sentences": sentences, "left_out": len(kept) - len(shown)}


def _one_of_each(paths: Iterable[Path]) -> list[Path]:
    """The first run by name of each world and method, as many as are shown."""
    first: dict[tuple[str, str], Path] = {}
    for path in paths:
        config = read_config(path)
        first.setdefault((str(config.get("world")), str(config.get("method"))), path)
    return list(first.values())[:SHOWN_RUNS]


def _sentences(world: str) -> dict[str, str]:
    """The world's sentences; none for one that is not known here: its acts are shown as they are."""
    try:
        return dict(get_world(world).spec.sentences)
    except ScopeError:
        return {}
