"""The dialogues that runs kept, in words, and those of two runs that belong together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from scope_lite.store.errors import ScopeError
from scope_lite.store.files import read_lines

DIALOGUE = {"simulator": str, "acts": list, "replies": list, "outcome": str, "reward": int | float}


def kept_dialogues(folder: Path) -> list[dict[str, Any]]:
    """What a run kept of its evaluations, in order: ``step simulator member acts replies outcome reward`` and more.

    Returns:
        Nothing for a run that kept none.

    Raises:
        ScopeError: if a line of the file is damaged, or is no dialogue.
    """
    path = Path(folder) / "rollouts.jsonl"
    return read_lines(path, DIALOGUE) if path.is_file() else []


def in_words(say: Callable[[str], str], dialogue: dict[str, Any]) -> list[tuple[str, str, str]]:
    """A dialogue line by line: (speaker, act, sentence), the outcome last.

    Args:
        say: the sentence of an act; ``str`` leaves each act as it is.
    """
    lines: list[tuple[str, str, str]] = []
    # whoever ends a dialogue leaves the other one without a last word
    for act, reply in zip_longest(dialogue["acts"], dialogue["replies"]):
        turn = (("policy", act), ("simulator", reply))
        lines += [(speaker, word, say(word)) for speaker, word in turn if word is not None]
    return [*lines, ("outcome", dialogue["outcome"], say(dialogue["outcome"]))]


def paired_dialogues(a: Path, b: Path, count: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Up to ``count`` pairs of dialogues that two runs kept of their last evaluation, with the same simulator.

    Draws are keyed by (seed, step, group, member), so two runs of one seed and length met the same draws in a pair.
    The simulators take turns, so that a small ``count`` shows as many of them as it can.

    Raises:
        ScopeError: if one of the runs kept none, or they share no simulator.
    """
    first, second = _last_evaluation(a), _last_evaluation(b)
    common = [key for key in first if key in second]
    if not common:
        raise ScopeError(f"{Path(a).name} and {Path(b).name} were evaluated on no common simulator")
    common.sort(key=lambda key: key[1])  # stable: within a member, simulators as they come
    return [(first[key], second[key]) for key in common[:count]]


def _last_evaluation(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """By simulator and number."""
    kept = kept_dialogues(folder)
    if not kept:
        raise ScopeError(f"{folder} has kept no dialogues: its run stopped before its first evaluation")
    end = max(dialogue["step"] for dialogue in kept)
    return {(one["simulator"], one.get("member", 0)): one for one in kept if one["step"] == end}
