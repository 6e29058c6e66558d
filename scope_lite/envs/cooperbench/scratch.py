"""The folder in which foreign code runs: made, given to the user id that runs it, and removed whatever it did there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GIT_SETTINGS = "[user]\n\tname = agent\n\temail = agent@localhost\n[safe]\n\tdirectory = *\n"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for foreign code, with ``home`` and ``tmp`` inside; removed at the end with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix="scope-lite-")).resolve()
    try:
        fill_scratch(folder)
        yield folder
    finally:
        remove(folder)


def fill_scratch(folder: Path) -> None:
    """What :func:`sandbox.run` needs in a scratch folder. To be called before foreign code ran in it."""
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    (folder / "home" / ".gitconfig").write_text(GIT_SETTINGS, encoding="utf-8")


def give_to(folder: Path, user: int) -> None:
    """Give a folder to a user id, unless it has it. Nothing in there runs now, and links are not followed."""
    if folder.stat().st_uid == user:
        return
    for place, _, files in os.walk(folder):
        for name in (".", *files):
            os.lchown(os.path.join(place, name), user, user)


def remove(folder: Path) -> None:
    """Remove a folder from which foreign code may have taken its rights; nothing of that code runs any more."""
    folder.chmod(0o700)
    for place, names, _ in os.walk(folder):
        for path in (os.path.join(place, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder)
