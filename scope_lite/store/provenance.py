"""Where a run came from: versions, commit, machine and command, enough to ask for the same again."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import scope_lite

PACKAGES = ("torch", "transformers", "peft", "numpy")


def now() -> str:
    """The time in UTC, to the second, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def collect() -> dict[str, Any]:
    """Facts about this process and machine, as plain JSON values."""
    return {
        "scope_lite": scope_lite.__version__,
        "git": git_state(Path(scope_lite.__file__).parent),
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "command": sys.argv,
        "pid": os.getpid(),
        "started": now(),
        "ended": None,
    }


def package_version(name: str) -> str | None:
    """The installed version, read from metadata so that nothing heavy is imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether files differ from it; None outside a checkout of this project or without git."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, text=True, encoding="utf-8", check=True, timeout=10
        ).stdout.strip()

    try:
        # a copy in site-packages inside someone else's repository must not claim that repository's commit
        git("ls-files", "--error-unmatch", "__init__.py")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None
