"""One HTML page to look around in: figures, runs, dialogues. It needs no network and no server, only a browser.

Everything that comes from data is escaped (Jinja's autoescape), what the script reads is JSON with its angle brackets
escaped, and the page's own content policy runs no script but ours: a dialogue cannot bring one along. Same data, same
bytes: nothing in it depends on the time or the machine.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

import jinja2

from scope_lite import __version__
from scope_lite.cli.page.content import dialogues_of, gather_figures, gather_runs
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import plain_disk_errors, replace_text

HERE = Path(__file__).parent


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
    script = (HERE / "page.js").read_text(encoding="utf-8")
    template = _environment().get_template("page.html")
    page = template.render(
        version=__version__,
        style=(HERE / "page.css").read_text(encoding="utf-8"),
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


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
