"""Sampled replies on disk, by content: the same model, history and settings give the same file name.

An entry carries a checksum of itself. One that is truncated, edited or of another shape counts as absent, so it is
computed again rather than trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from scope_lite.store.errors import ScopeError


@dataclass(frozen=True)
class Reply:
    """One sampled reply.

    The three sequences have one number per token: its log-probability, and the entropy (nats) and largest probability
    of the distribution that it was drawn from.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    top_probs: tuple[float, ...]
    finished: bool
    """False if the reply was cut at the token limit"""
    failure: str = ""
    """why there is no reply: "context" where the chat outgrew what the model reads; empty where there is one"""


class ReplyCache:
    """A folder of replies; keys are hex digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> list[Reply]:
        """The replies stored under ``key``; an empty list if there are none or the entry is damaged."""
        try:
            entry = json.loads(self.path(key).read_text(encoding="utf-8"))
            if entry["sha256"] != _digest(key, entry["replies"]):
                return []
            return [_reply(fields) for fields in entry["replies"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return []

    def put(self, key: str, replies: list[Reply]) -> None:
        """Store ``replies`` in one step: a reader sees the old entry or the new one, never a part.

        What failed is no reply: those before the first failure are stored.

        Raises:
            ScopeError: the folder can't be written, for instance because the disk is full.
        """
        body = [asdict(reply) for reply in takewhile(lambda reply: not reply.failure, replies)]
        if replies and not body:
            return
        text = json.dumps({"sha256": _digest(key, body), "replies": body})
        path = self.path(key)
        scratch = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(scratch, path)
        except OSError as error:
            if scratch:
                Path(scratch).unlink(missing_ok=True)
            raise ScopeError(
                f"could not write the reply cache in {self.folder}: {error}; free some space or set "
                "SCOPE_LITE_CACHE to another folder"
            ) from error


def _digest(key: str, body: object) -> str:
    return hashlib.sha256((key + json.dumps(body, sort_keys=True)).encode()).hexdigest()


def _reply(fields: dict[str, Any]) -> Reply:
    made: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Reply(**made)
