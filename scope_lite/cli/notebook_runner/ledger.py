"""Remember what each notebook was made from and what it left, so that nothing is computed twice.

A notebook is unchanged if its cells, its parameters, the package's source, the shipped data, the files with own worlds
and the versions of the libraries are as they were, the tables it found in ``data/results`` are the same, and every
figure and table it wrote is still there with the same content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import scope_lite
from scope_lite.cli.notebook_runner.parameters import Plan
from scope_lite.store.contents import own_files
from scope_lite.store.files import log, replace_text
from scope_lite.store.provenance import package_version

LIBRARIES = ("torch", "transformers", "peft", "numpy", "scipy", "pandas", "matplotlib", "ipykernel")
RESULTS = Path("data") / "results"
GALLERY_PAGE = "README.md"
"""rewritten by several notebooks, and nobody's result"""


class Entry(BaseModel):
    """The last run of one notebook."""

    key: str = ""
    """of what it was made from; empty where it failed"""
    inputs: dict[str, str | None] = {}
    outputs: dict[str, str | None] = {}
    """SHA-256 by path"""
    seconds: dict[str, float] = {}
    """that it took, by scale"""


class Record(BaseModel):
    """The ledger's file."""

    notebooks: dict[str, Entry]


class Ledger:
    """The record of past runs, a small JSON file beside the executed notebooks; ``entries`` are by notebook."""

    def __init__(self, path: Path, home: Path) -> None:
        self.path, self.home = path, home.resolve()
        self.entries: dict[str, Entry] = {}
        try:
            self.entries = Record.model_validate_json(path.read_bytes(), strict=True).notebooks
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            log.warning("%s cannot be read; every notebook runs again", path)

    def seconds(self, plan: Plan) -> float | None:
        """How long the notebook took last time at this scale, in seconds."""
        return self._entry(plan).seconds.get(plan.scale)

    def _entry(self, plan: Plan) -> Entry:
        return self.entries.get(plan.stem, Entry())

    def is_unchanged(self, plan: Plan) -> bool:
        """Whether running the notebook again would give what is there already."""
        entry = self._entry(plan)
        if entry.key != self._key(plan):
            return False
        later = [other.outputs for stem, other in sorted(self.entries.items()) if stem > plan.stem]
        # what a later notebook wrote was not this one's input; a figure that it drew again is as that one left it
        written = {name: digest for outputs in later for name, digest in outputs.items()}
        inputs = {name: digest for name, digest in entry.inputs.items() if name not in written}
        outputs = {name: written.get(name, digest) for name, digest in entry.outputs.items()}
        return all(_digest(self.home / name) == digest for name, digest in (inputs | outputs).items())

    @contextlib.contextmanager
    def watch(self, plan: Plan) -> Iterator[None]:
        """Note what the notebook that runs inside finds and writes; one that failed is never unchanged."""
        entry = self.entries[plan.stem] = self._entry(plan).model_copy(update={"key": ""})
        self._save()
        before, start, key = self._stamps(), time.monotonic(), self._key(plan)
        inputs = {name: _digest(self.home / name) for name in before if Path(name).is_relative_to(RESULTS)}
        yield
        outputs = [name for name, stamp in self._stamps().items() if stamp != before.get(name)]
        seconds = {**entry.seconds, plan.scale: round(time.monotonic() - start, 1)}
        self.entries[plan.stem] = Entry(
            key=key,
            inputs={name: digest for name, digest in inputs.items() if name not in outputs},
            outputs={name: _digest(self.home / name) for name in outputs},
            seconds=seconds,
        )
        self._save()

    def _save(self) -> None:
        replace_text(self.path, Record(notebooks=self.entries).model_dump_json(indent=1) + "\n")

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """Every file under figures/ and data/results, with its time of change and size."""
        found = [*_files(self.home / "figures"), *_files(self.home / RESULTS)]
        stats = {path: path.stat() for path in found if path.name != GALLERY_PAGE}
        return {str(path.relative_to(self.home)): (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}

    def _key(self, plan: Plan) -> str:
        notebook = json.loads(plan.notebook.read_text(encoding="utf-8"))
        cells = [[cell["cell_type"], "".join(cell["source"])] for cell in notebook["cells"]]
        return _hash([cells, plan.parameters, *self._surroundings])

    @cached_property
    def _surroundings(self) -> list[Any]:
        source = Path(scope_lite.__file__).parent
        data = [path for path in _files(self.home / "data") if not path.is_relative_to(self.home / RESULTS)]
        versions = {name: package_version(name) for name in LIBRARIES}
        return [_digest_all(_files(source), source), _digest_all(data, self.home), versions, own_files()]


def _files(folder: Path) -> list[Path]:
    def is_content(path: Path) -> bool:
        parts = path.relative_to(folder).parts
        return path.is_file() and "__pycache__" not in parts and not any(part.startswith(".") for part in parts)

    return sorted(path for path in folder.rglob("*") if is_content(path))


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None


def _digest_all(files: list[Path], root: Path) -> str:
    return _hash({str(path.relative_to(root)): _digest(path) for path in files})


def _hash(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
