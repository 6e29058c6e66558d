"""Where things lie, and which names may become part of a path.

Shipped data, run folders and figures lie under ``SCOPE_LITE_HOME``, by default the checkout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path

from scope_lite.store.errors import ScopeError

HOME_VARIABLE, CACHE_VARIABLE = "SCOPE_LITE_HOME", "SCOPE_LITE_CACHE"
WORLDS_VARIABLE, P4G_VARIABLE = "SCOPE_LITE_WORLDS", "SCOPE_LITE_P4G"
COOPERBENCH_VARIABLE = "SCOPE_LITE_COOPERBENCH"
LONGEST_NAME, LONGEST_PART = 64, 255
"""characters of a name; bytes of one part of a path that file systems hold"""


def value_in(variable: str) -> str:
    """What an environment variable says; empty if it is unset or blank."""
    return os.environ.get(variable, "").strip()


def paths_in(variable: str) -> list[Path]:
    """The files or folders that an environment variable lists as PATH does; none if it is unset or empty."""
    return [_absolute(part) for part in value_in(variable).split(os.pathsep) if part.strip()]


def path_in(variable: str) -> Path | None:
    """The one file or folder that an environment variable names; None if it is unset or empty."""
    return _absolute(given) if (given := value_in(variable)) else None


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(expanded(text)))


def expanded(text: str | Path) -> Path:
    """The path with ``~`` as the home folder; unlike Path.expanduser, an unknown ``~name`` stays as it is."""
    return Path(os.path.expanduser(text))


# A kernel works in the notebooks' folder: what was relative to the first process must not move with it.
_FOLDERS = (HOME_VARIABLE, CACHE_VARIABLE, P4G_VARIABLE, COOPERBENCH_VARIABLE)
os.environ |= {name: str(path) for name in _FOLDERS if (path := path_in(name))}
if own := paths_in(WORLDS_VARIABLE):
    os.environ[WORLDS_VARIABLE] = os.pathsep.join(map(str, own))

HOME = path_in(HOME_VARIABLE) or Path(__file__).resolve().parents[2]
DATA = HOME / "data"
CONVERSION_NOTE = "converted.json"  # what a converted model was made from: no part of the model
NANO_MODELS = DATA / "models" / "nano"
SMALL_MODELS = DATA / "models" / "small"
RESULTS = DATA / "results"
FIGURES = HOME / "figures"
RUNS = HOME / "runs"


def name_fault(name: str) -> str:
    """Why a text may not be the name of a method, model, world, member or run, for such names become paths; else ""."""
    if len(name) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} characters, this one {len(name)}"
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or ".." in name:
        return "a name is made of the letters a to z, digits, '_', '-' and single '.', and begins with none of - and ."
    return ""


def place_fault(text: str) -> str:
    """Why a text cannot name a folder, a model of one, or an endpoint; else ""."""
    if not text.isprintable():
        return "control and invisible characters are no part of a model's name"
    if any(len(part.encode()) > LONGEST_PART for part in re.split(r"[/+]", text)):
        return f"a part of a path has at most {LONGEST_PART} bytes"
    return ""


def checked_name(text: str, what: str, fault: Callable[[str], str] = name_fault) -> str:
    """The text itself, if it may become part of a path.

    Raises:
        ScopeError: why it may not.
    """
    if why := fault(text):
        raise ScopeError(f"{what} {text[: LONGEST_NAME + 1]!r}: {why}")
    return text


def checked_place(text: str, what: str) -> str:
    """The same for what may be the path of a file or folder."""
    return checked_name(text, what, place_fault)


def cache_folder() -> Path:
    """The user's cache folder for this package; ``SCOPE_LITE_CACHE`` puts it elsewhere."""
    return path_in(CACHE_VARIABLE) or user_cache_path("scope_lite")


def model_folder(world: str) -> Path:
    """The nano models of a world: shipped, or (a random world's) made here and cached."""
    shipped = NANO_MODELS / world
    return shipped if shipped.exists() else cache_folder() / "nano" / world


def adapter_folder(adapter: str) -> Path:
    """The folder of a LoRA adapter: the folder itself, or a shipped one by its name ("persuadee").

    Wherever the process runs, the name is the same; so it can stand in the config of a run that others repeat.
    """
    folder, shipped = expanded(adapter), SMALL_MODELS / adapter
    return folder if folder.is_dir() or not shipped.is_dir() else shipped


def text_panel(world: str) -> Path:
    """The list of the simulators of a text world."""
    return DATA / "panels" / f"{world}.yaml"
