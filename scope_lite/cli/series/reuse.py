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

import scope_lite
from scope_lite.cli.series.parameters import Plan
from scope_lite.store.contents import own_files
from scope_lite.store.files import check, log, read_object, replace_text
from scope_lite.store.provenance import package_version

LIBRARIES = ("torch", "transformers", "peft", "numpy", "scipy", "pandas", "matplotlib", "ipykernel")
RESULTS = Path("data") / "results"
# the gallery page is rewritten by several notebooks and is nobody's result
NOT_RESULTS = {"README.md"}


class Ledger:
    """The record of past runs of the series, a small JSON file beside the executed notebooks.

    ``notebooks[stem] = {key, inputs, outputs}``, ``files[path] = {sha256, by}`` for the last notebook that wrote a
    file, ``seconds[scale][stem]`` the last duration.
    """

    def __init__(self, path: Path, home: Path) -> None:
        self.path, self.home = path, home.resolve()
        self._content: dict[str, Any] = {"notebooks": {}, "files": {}, "seconds": {}}
        try:
            self._content = _read(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            log.warning("%s cannot be read; every notebook runs again", path)

    def seconds(self, plan: Plan) -> float | None:
        """How long the notebook took last time at this scale, in seconds."""
        return self._content["seconds"].get(plan.scale, {}).get(plan.stem)

    def is_unchanged(self, plan: Plan) -> bool:
        """Whether running the notebook again would give what is there already."""
        entry = self._content["notebooks"].get(plan.stem)
        if entry is None or entry["key"] != self._key(plan):
            return False
        files = self._content["files"]
        # a table that a later notebook has written since was not this one's input
        read = {
            name: digest for name, digest in entry["inputs"].items() if files.get(name, {}).get("by", "") < plan.stem
        }
        wrote = {name: files[name]["sha256"] for name in entry["outputs"] if name in files}
        return len(wrote) == len(entry["outputs"]) and all(
            _digest(self.home / name) == digest for name, digest in {**read, **wrote}.items()
        )

    @contextlib.contextmanager
    def watch(self, plan: Plan) -> Iterator[None]:
        """Note what the notebook that runs inside finds and writes; a failed one is forgotten."""
        self._content["notebooks"].pop(plan.stem, None)
        self._save()
        before, start = self._stamps(), time.monotonic()
        inputs = {name: _digest(self.home / name) for name in before if Path(name).is_relative_to(RESULTS)}
        key = self._key(plan)
        yield
        after = self._stamps()
        outputs = sorted(name for name in after if after[name] != before.get(name))
        for name in outputs:
            inputs.pop(name, None)
            self._content["files"][name] = {"sha256": _digest(self.home / name), "by": plan.stem}
        self._content["notebooks"][plan.stem] = {"key": key, "inputs": inputs, "outputs": outputs}
        self._content["seconds"].setdefault(plan.scale, {})[plan.stem] = round(time.monotonic() - start, 1)
        self._save()

    def _save(self) -> None:
        replace_text(self.path, json.dumps(self._content, indent=1, sort_keys=True) + "\n")

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """Every file under figures/ and data/results, with its time of change and size."""
        stamps = {}
        for path in [*_files(self.home / "figures"), *_files(self.home / RESULTS)]:
            if path.name not in NOT_RESULTS:
                stat = path.stat()
                stamps[str(path.relative_to(self.home))] = (stat.st_mtime_ns, stat.st_size)
        return stamps

    def _key(self, plan: Plan) -> str:
        notebook = json.loads(plan.notebook.read_text(encoding="utf-8"))
        cells = [[cell["cell_type"], "".join(cell["source"])] for cell in notebook["cells"]]
        parts = [cells, plan.parameters, *self._surroundings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def _surroundings(self) -> list[Any]:
        source = Path(scope_lite.__file__).parent
        data = [path for path in _files(self.home / "data") if not path.is_relative_to(self.home / RESULTS)]
        versions = {name: package_version(name) for name in LIBRARIES}
        return [_digest_all(_files(source), source), _digest_all(data, self.home), versions, own_files()]


def _read(path: Path) -> dict[str, Any]:
    content = read_object(path, {"notebooks": dict, "files": dict, "seconds": dict})
    for entry in content["notebooks"].values():
        check(entry, {"key": str, "inputs": dict, "outputs": list})
        entry["outputs"] = [str(name) for name in entry["outputs"]]
    for entry in content["files"].values():
        check(entry, {"sha256": str | None, "by": str})
    for entry in content["seconds"].values():
        check(entry, {}, int | float)
    return content


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
    names = {str(path.relative_to(root)): _digest(path) for path in files}
    return hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()
