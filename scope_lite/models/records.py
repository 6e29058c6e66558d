"""What a rollout leaves behind: one append-only transcript a seat, and what the dialogue earned.

A transcript holds the very token ids that the model saw or sampled. Nothing is ever
decoded and tokenized again, so the ids trained are the ids sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FAILED = "simulator-failed"
"""outcome of a dialogue whose simulator gave no reply that could be read: it counts nowhere, but it is counted"""


@dataclass
class Transcript:
    """One seat's view of one dialogue, token by token (all four lists have the same length)."""

    ids: list[int] = field(default_factory=list)
    generated: list[bool] = field(default_factory=list)
    """True where this seat sampled the token; only these can be trained"""
    logprobs: list[float] = field(default_factory=list)
    """log probability at sampling, in nats; 0 where not generated"""
    choices: list[int] = field(default_factory=list)
    """which set of allowed tokens the sample was drawn from; 0 is the whole vocabulary"""

    @property
    def newest(self) -> slice:
        """Where this seat's newest message stands, with the token that ended it."""
        start = len(self.ids)
        while start and self.generated[start - 1]:
            start -= 1
        return slice(start, len(self.ids))

    @property
    def spoke(self) -> bool:
        """Whether there is anything to train: a dialogue can end before this seat says a word."""
        return any(self.generated)

    def copy(self) -> Transcript:
        """One that can grow apart from this."""
        return Transcript(self.ids[:], self.generated[:], self.logprobs[:], self.choices[:])

    def read(self, ids: list[int]) -> None:
        """Append tokens that this seat did not choose: prompt, markup, the other seat's words."""
        self.ids += ids
        self.generated += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.choices += [0] * len(ids)

    def write(self, token: int, logprob: float, choice: int) -> None:
        """Append one token that this seat sampled."""
        self.ids.append(token)
        self.generated.append(True)
        self.logprobs.append(logprob)
        self.choices.append(choice)


@dataclass
class Rollout:
    """One finished dialogue."""

    task: str
    simulator: str
    """name of the simulator that spoke"""
    group: int
    member: int
    acts: list[str]
    replies: list[str]
    outcome: str
    reward: float
    turns: int = 0
    """turns that counted; fewer than were played where the work was done before the end"""
    policy: Transcript | None = None
    simulator_transcript: Transcript | None = None

    @property
    def counts(self) -> bool:
        """Whether its reward says something about the policy."""
        return self.outcome != FAILED

    def readable(self) -> dict[str, Any]:
        """What ``rollouts.jsonl`` keeps: the words, not the tokens."""
        keep = ("task", "simulator", "group", "member", "acts", "replies", "outcome", "reward", "turns")
        return {name: getattr(self, name) for name in keep}


@dataclass(frozen=True)
class TokenBatch:
    """Transcripts of one seat, right-padded, and the flat list of the tokens to train.

    ``row`` and ``column`` say where each of the n generated tokens stands.
    """

    ids: Int[Tensor, "b t"]
    attention: Bool[Tensor, "b t"]
    row: Int[Tensor, " n"]
    column: Int[Tensor, " n"]
    choice: Int[Tensor, " n"]
    sampled_logprobs: Float[Tensor, " n"]

    @property
    def targets(self) -> Int[Tensor, " n"]:
        return self.ids[self.row, self.column]


def collate(transcripts: list[Transcript], pad: int) -> TokenBatch:
    """Pad a seat's transcripts into one batch.

    Raises:
        ValueError: if a transcript begins with a generated token (nothing predicts it).
    """
    # rows of one text share it
    texts = {id(t): t for t in transcripts}
    number = {key: i for i, key in enumerate(texts)}
    row_text = torch.tensor([number[id(t)] for t in transcripts])
    length = max(len(t.ids) for t in texts.values())

    def padded(values: list[list[Any]], fill: Any) -> Tensor:
        return torch.tensor([row + [fill] * (length - len(row)) for row in values])[row_text]

    ids = padded([t.ids for t in texts.values()], pad)
    generated = padded([t.generated for t in texts.values()], False)
    choices = padded([t.choices for t in texts.values()], 0)
    logprobs = padded([t.logprobs for t in texts.values()], 0.0)
    attention = torch.arange(length)[None] < torch.tensor([len(t.ids) for t in transcripts])[:, None]
    if generated[:, 0].any():
        raise ValueError("a transcript begins with a generated token; put a prompt before it")
    row, column = generated.nonzero(as_tuple=True)
    return TokenBatch(ids, attention, row, column, choices[row, column], logprobs[row, column])
