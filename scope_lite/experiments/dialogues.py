"""What was said in runs in real text: who reads their table wants to see it, so some of it is shipped beside the table.

One dialogue a panel member, from the first and the last evaluation. Draws are keyed by step, so runs with the same
start begin with the same dialogues, but for what the rounding of batches of other sizes turns. A model of the web says
slurs, too; they are masked, since classes read this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd

from scope_lite.store.dialogues import in_words, kept_dialogues
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_terminal

SLUR = re.compile(r"\bnigg\w*", re.IGNORECASE)


def first_and_last(runs: Iterable[tuple[str, Path]]) -> pd.DataFrame:
    """A row a message: ``variant run step simulator line speaker words outcome reward``.

    Outcome and reward are those of the whole dialogue and stand in each of its rows.

    Args:
        runs: variant and folder of each run.
    """
    rows = []
    for variant, folder in runs:
        kept = kept_dialogues(folder)
        steps = [one["step"] for one in kept]
        shown: dict[tuple[int, str], dict[str, Any]] = {}
        for one in kept:
            if one["step"] in (min(steps), max(steps)):
                shown.setdefault((one["step"], one["simulator"]), one)
        for (step, simulator), one in shown.items():
            about = {"variant": variant, "run": folder.name, "step": step, "simulator": simulator}
            ended = {"outcome": one["outcome"], "reward": one["reward"]}
            for line, (speaker, words, _) in enumerate(in_words(str, one)[:-1]):  # the last one is the outcome
                rows.append({**about, "line": line, "speaker": speaker, "words": SLUR.sub("[slur]", words), **ended})
    return pd.DataFrame(rows)


def dialogues_path(results: Path, experiment: str) -> Path:
    return results / f"{experiment}_dialogues.csv"


def frozen_dialogues(experiment: str, results: Path) -> pd.DataFrame:
    """The shipped dialogues of an experiment.

    Raises:
        ScopeError: if there are none, with the command that makes them.
    """
    path = dialogues_path(results, experiment)
    if not path.exists():
        raise ScopeError(f"no {path.name}; make it with 'scope-lite results build {experiment}'")
    return pd.read_csv(path, keep_default_na=False)


def as_text(dialogue: pd.DataFrame, width: int = 120) -> str:
    """One dialogue to be printed: plain text, since a model may write what a notebook would take for HTML or maths."""
    one = dialogue.iloc[0]
    lines = [f"with {one['simulator']}: {one['outcome']}, reward {one['reward']:.2f}"]
    for speaker, words in zip(dialogue["speaker"], dialogue["words"], strict=True):
        lines.append(fill(f"{speaker}: {for_terminal(words)}", width, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)
