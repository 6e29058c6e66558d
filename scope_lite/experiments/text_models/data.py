"""P4G dialogues as token ids of one seat, with a mark on every token that this seat speaks.

A dialogue is one row: system prompt, the partner's turns as "user", the own turns as "assistant", put together from the
same pieces of the chat template from which rollouts are (``models.chat``). Spoken are the words of the own turns and
the token that ends each: what the model has to produce itself when it replies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np

from scope_lite.envs.p4g import Dialogue
from scope_lite.envs.prompts import Message, persuadee_chat, persuader
from scope_lite.models.chat import ChatFormat
from scope_lite.models.records import Transcript
from scope_lite.store.errors import ScopeError

SPLITS = ("train", "valid", "test")
Row = TypeVar("Row")


@dataclass(frozen=True)
class Example:
    """One dialogue as one seat hears and speaks it."""

    name: str
    transcript: Transcript
    """as a rollout's: what the seat speaks, which alone is in the loss, is what was chosen, with the data's log
    probability, 0"""
    cut: bool
    """whether later turns did not fit"""


def split_of(name: str) -> str:
    """The split of a dialogue: a tenth each for "valid" and "test", the rest "train", by the hash of its name."""
    bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 10
    return "test" if bucket == 0 else "valid" if bucket == 1 else "train"


def system_prompt(role: str) -> str:
    """What the seat is told: the persuadee's prompt without a persona, or the persuader's."""
    return persuadee_chat([""])[0]["content"] if role == "persuadee" else persuader.SYSTEM


def histories(dialogues: Sequence[Dialogue]) -> list[list[Message]]:
    """The chats of the training split, as a persuadee's model reads them, up to each turn at which the person spoke.

    In the order of :func:`encode_splits`. A dialogue that the persuadee begins is left out.
    """
    chats = []
    for dialogue in sorted(dialogues, key=_order):
        turns = merged_turns(dialogue)
        if split_of(dialogue.name) == "train" and turns[0][0] == "persuader":
            said = [text for _, text in turns]
            chats += [persuadee_chat(said[:end]) for end in range(1, len(said), 2)]
    return chats


def merged_turns(dialogue: Dialogue) -> list[tuple[str, str]]:
    """(who, text), alternating: turns of one person in a row are one."""
    return [(who, " ".join(turn.text for turn in part)) for who, part in groupby(dialogue.turns, lambda t: t.role)]


def batch_of(rows: Sequence[Row], step: int, size: int, seed: int) -> list[Row]:
    """The rows of a step: each epoch is a permutation of its own, cut without regard to its end."""
    chosen = []
    for position in range(step * size, (step + 1) * size):
        epoch, place = divmod(position, len(rows))
        chosen.append(rows[np.random.default_rng([seed, epoch]).permutation(len(rows))[place]])
    return chosen


def encode(dialogue: Dialogue, role: str, chat: ChatFormat, max_tokens: int) -> Example:
    """One dialogue as ``role`` sees it; whole exchanges that exceed ``max_tokens`` are left out at the end.

    Raises:
        ScopeError: a template that ends no turn with the end-of-turn token, or no own turn that fits.
    """
    stop, system = chat.tokenizer.eos_token_id, system_prompt(role)
    turns = merged_turns(dialogue)
    heard = [text for who, text in turns if who != role]
    own = [text for who, text in turns if who == role]
    transcript, added = Transcript(), 0
    transcript.read(list(chat.opening(system, heard.pop(0) if turns[0][0] != role else None)))
    for i, text in enumerate(own):
        words = [*chat.tokenizer(text, add_special_tokens=False)["input_ids"], stop]
        between = chat.continuation(heard[i - 1]) if i else []
        if between and between[0] != stop:
            raise ScopeError("this model's chat template ends no turn with its end-of-turn token: set eos_token to it")
        # the first token of `between` ends the turn before; it is there already
        if len(transcript.ids) + len(between) + len(words) > max_tokens:
            break
        transcript.read(list(between[1:]))
        for word in words:
            transcript.write(word, 0.0, 0)
        added += 1
    if not added:
        raise ScopeError(f"dialogue {dialogue.name}: no turn of the {role} fits {max_tokens} tokens: raise max_tokens")
    return Example(dialogue.name, transcript, added < len(own))


def encode_splits(
    dialogues: Sequence[Dialogue], role: str, chat: ChatFormat, max_tokens: int
) -> dict[str, list[Example]]:
    """All dialogues in which ``role`` speaks, by split; the order within a split is by the hash of the name.

    Raises:
        ScopeError: as :func:`encode`, or a split without dialogues.
    """
    chosen: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for dialogue in sorted(dialogues, key=_order):
        if any(turn.role == role for turn in dialogue.turns):
            chosen[split_of(dialogue.name)].append(encode(dialogue, role, chat, max_tokens))
    if empty := [split for split, examples in chosen.items() if not examples]:
        raise ScopeError(f"{len(dialogues)} dialogues are too few: none falls into the {empty[0]} split")
    return chosen


def _order(dialogue: Dialogue) -> bytes:
    return hashlib.sha256(dialogue.name.encode()).digest()
