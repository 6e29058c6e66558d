"""What was said in runs in real text: who reads their table wants to see it, so some of it is shipped beside the table.

One dialogue a panel member, from the first and the last evaluation; the tasks and random numbers of an evaluation are
those of its step, so the first ones of runs with the same start are alike. A model of the web says slurs, too; they are
masked, since classes read this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from textwrap import fill

import pandas as pd

from scope_lite.errors import ScopeError
from scope_lite.runs import load_rollouts

SLUR = re.compile(r"\bnigg\w*", re.IGNORECASE)


def first_and_last(runs: Iterable[tuple[str, Path]]) -> pd.DataFrame:
    """A row a turn: ``variant run step simulator turn policy user outcome reward``.

    Where only the user speaks (the answer to the closing question) ``policy`` is empty; outcome and reward are those of
    the whole dialogue and stand in each of its rows.

    Args:
        runs: variant and folder of each run.
    """
    rows = []
    for variant, folder in runs:
        kept = load_rollouts([folder])
        kept = kept[kept["step"].isin([kept["step"].min(), kept["step"].max()])]
        for one in kept.drop_duplicates(["step", "simulator"]).itertuples():
            about = {"variant": variant, "run": one.run, "step": one.step, "simulator": one.simulator}
            ended = {"outcome": one.outcome, "reward": one.reward}
            for turn, (act, reply) in enumerate(zip_longest(one.acts, one.replies, fillvalue="")):
                policy, user = (SLUR.sub("[slur]", words) for words in (act, reply))
                rows.append({**about, "turn": turn, "policy": policy, "user": user, **ended})
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
    for act, reply in zip(dialogue["policy"], dialogue["user"], strict=True):
        for speaker, words in (("policy", act), ("user", reply)):
            if words:
                said = " ".join("".join(c if c.isprintable() else " " for c in words).split())
                lines.append(fill(f"{speaker}: {said}", width, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)
