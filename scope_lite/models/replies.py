"""Sampled replies: how they are drawn, their record on disk, and what every sampler does with it.

A record's file is named by a hash of the model, the history and the settings, so a second run reads what the first one
drew. It carries a checksum of itself: what is cut short, edited or of another shape is drawn again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from scope_lite.store.errors import ScopeError
from scope_lite.store.files import replace_text

Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant", "content": text}."""


@dataclass(frozen=True)
class SamplingConfig:
    """How replies are drawn; every field is part of a record's name."""

    temperature: float = 1.0
    """divides the logits; 1 samples the model's own distribution"""
    max_new_tokens: int = 48
    """a reply is cut here; the cut is visible as ``Reply.finished == False``"""
    seed: int = 0
    """base seed of all random streams; to an endpoint, which is sent none, it tells one record from another"""
    grammar: str | None = None
    """EBNF grammar (xgrammar's dialect) that every reply must follow; None leaves the model free"""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ScopeError(f"temperature must be above 0 and finite, got {self.temperature}")
        if self.max_new_tokens < 1:
            raise ScopeError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")


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


OUTGROWN = Reply("", (), (), (), (), False, "context")
"""Stands for each reply to a history that leaves no room for one; no record holds it."""


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
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps({"sha256": _digest(key, body), "replies": body}))
        except (OSError, ScopeError) as error:
            raise ScopeError(
                f"could not write the reply cache in {self.folder}: {error.__cause__ or error}; free some space or set "
                "SCOPE_LITE_CACHE to another folder"
            ) from error


def _digest(key: str, body: object) -> str:
    return hashlib.sha256((key + json.dumps(body, sort_keys=True)).encode()).hexdigest()


def _reply(fields: dict[str, Any]) -> Reply:
    made: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Reply(**made)


class Sampler:
    """What draws replies to histories, through a record on disk if it is given one.

    A subclass says what its model reads of a history, under which key that is on record, and how replies are drawn.
    """

    def __init__(self, name: str, cache: ReplyCache | None) -> None:
        """``name``: the model's, for tables and figures."""
        self.name, self.cache = name, cache

    def sample(
        self,
        histories: Sequence[Sequence[Message]],
        replies: int,
        config: SamplingConfig | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[list[Reply]]:
        """Draw ``replies`` replies to each history; result ``[h][i]`` is reply i to history h.

        To a history that leaves its model no room for a reply, each reply is :data:`OUTGROWN`.

        Args:
            histories: chats that end where the model is to speak.
            progress: called with (histories done, histories in all) after each batch.

        Raises:
            ScopeError: fewer than one reply asked for, or what the sampler cannot do; what was drawn is on record.
        """
        config = config or SamplingConfig()
        if replies < 1:
            raise ScopeError(f"replies must be at least 1, got {replies}")
        self._check(config)
        prompts = [self._prompt(history) for history in histories]
        keys = [self._key(prompt, config) for prompt in prompts]
        done = {key: self._recorded(key) for key in keys} | {"": [OUTGROWN] * replies}
        # Equal histories share a key and are drawn for once; a longer recorded list serves a smaller request.
        todo = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if len(done[key]) < replies}
        for drawn in self._draw(todo, {key: done[key] for key in todo}, replies, config):
            done |= drawn
            for key in drawn if self.cache else ():
                self.cache.put(key, done[key])  # type: ignore[union-attr]
            if progress:
                progress(sum(len(done[key]) >= replies for key in keys), len(keys))
        return [done[key][:replies] for key in keys]

    def recorded(self, histories: Sequence[Sequence[Message]], config: SamplingConfig) -> list[int]:
        """How many replies to each history are on record."""
        return [len(self._recorded(self._key(self._prompt(history), config))) for history in histories]

    def _recorded(self, key: str) -> list[Reply]:
        return self.cache.get(key) if self.cache else []

    def _check(self, config: SamplingConfig) -> None:
        """Refuse settings that cannot be met."""

    def _prompt(self, history: Sequence[Message]) -> Any:
        """What the model reads of a history."""
        raise NotImplementedError

    def _key(self, prompt: Any, config: SamplingConfig) -> str:
        """The name of the record; empty for a prompt that leaves no room for a reply."""
        raise NotImplementedError

    def _draw(
        self, todo: dict[str, Any], known: dict[str, list[Reply]], replies: int, config: SamplingConfig
    ) -> Iterator[dict[str, list[Reply]]]:
        """All replies to some prompts, batch by batch, by key; ``known`` are those that are there already."""
        raise NotImplementedError
