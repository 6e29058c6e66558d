"""The trainer's newest adapter into the engine, and the proof that it is what the engine serves.

After every change the engine is asked for the likeliest next tokens at some places of fixed texts, by the way that
rollouts take, and the trainer's own model is asked for the same. Two things are tested. The log probabilities must
agree up to rounding, or the engine has another model altogether. And the engine must have moved where the trainer has:
agreement alone would not notice a stale adapter after a small step.

In 16 bits any change of the weights rounds every number anew, and that moves a log probability more than a step of
training does (SmolLM2, a step of 1e-4: .08 nats of rounding on a move of .016). So no fixed tolerance can tell the two
apart, but the engine's own answers can:

- An engine that serves old weights repeats itself. Its change since the version before is then far smaller than the
  trainer's, rounding and all, and one step is enough to see it.
- An engine that never repeats itself to the bit is judged by its share of the trainer's move since the last version
  that was told apart, over all places at once; the direction of that move is read off weights moved by a multiple of
  it, where rounding is small. Until the standard error of the share is small, there is no verdict, and steps add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.models.chat import ChatFormat
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import Transcript, collate
from scope_lite.models.vllm.engine import Adapter, VllmEngine
from scope_lite.store.errors import ScopeError

TOLERANCE = {"float32": 0.02, "bfloat16": 0.25, "float16": 0.25}
"""the largest mean distance (nats) between engine and trainer, by number format; beyond it, their bases differ"""
STALE, SERVED = 0.25, 0.5
"""of the trainer's change at the same places: what the explanation that the engine serves old weights, or that it
serves the new ones, may leave unexplained"""
DECISIVE = 0.1
"""standard error of the share of the move, up to which it is a verdict: stale is 0, served is 1"""
EVERY, PLACES = 3, 8
"""tokens between two places of a text that are read, and places of a text, from its end on"""

HEARD = (
    "Hello. I have a few minutes, so tell me what this is all about, please.",
    "Yes, please. I would like to know more about how the money is used.",
    "No, thank you. I gave to another one last month and have little left.",
    "Why do you ask me that? I never said that I was going to do it today.",
    "Tell me more. My sister worked for something like that for two years.",
    "I am not sure. How can I know that this arrives where it is needed?",
    "How much do other people give, and what happens if I change my mind?",
    "Okay, that sounds good to me. Could you send me the details by mail?",
)
"""what the probe's texts hear"""


@dataclass(frozen=True)
class Reading:
    """What engine and trainer said at the probe's places, at one version of the adapter."""

    trainer: Float[Tensor, "n v"]
    engine: list[dict[int, float]]
    """log probabilities (nats) of the likeliest tokens at each place"""
    again: list[dict[int, float]]
    """a second answer; not always the same to the bit, since it may come from the prefix cache"""
    state: dict[str, Tensor]
    """the adapter; empty for the base"""


class Move:
    """The changes of engine and trainer between two readings, at the tokens that the engine named both times."""

    def __init__(self, now: Reading, before: Reading):
        answers = enumerate(zip(now.engine, before.engine, before.again, strict=True))
        at = [
            (i, token) for i, (new, old, again) in answers for token in sorted(new.keys() & old.keys() & again.keys())
        ]
        self.at = tuple(torch.tensor(at, dtype=torch.long).reshape(-1, 2).T)
        served, *old = (
            torch.tensor([t[i][token] for i, token in at]) for t in (now.engine, before.engine, before.again)
        )
        self.engine = min((served - one for one in old), key=torch.linalg.vector_norm)
        self.trainer = now.trainer[self.at] - before.trainer[self.at]

    def seen(self) -> float | None:
        """The share of the trainer's move that the engine shows, where either of 0 and 1 explains its change by itself.

        None also where less than half of the trainer's answers changed: a healthy engine's may then be as they were.
        """
        size = self.trainer.norm()
        explained = self.engine.norm() <= STALE * size or (self.engine - self.trainer).norm() <= SERVED * size
        if not explained or not 2 * self.trainer.count_nonzero() > len(self.trainer):
            return None
        return (self.engine @ self.trainer / size**2).item()

    def estimated(self, direction: Float[Tensor, "n v"]) -> float | None:
        """The same by regression along ``direction``, which must not share its rounding with either change.

        None where the standard error, by place, is too large for a verdict.
        """
        z = direction[self.at]
        scale = self.trainer @ z
        share = self.engine @ z / scale
        by_place = torch.zeros(len(direction)).index_add(0, self.at[0], (self.engine - share * self.trainer) * z)
        return share.item() if by_place.norm() <= DECISIVE * scale.abs() and scale != 0 else None


class AdapterSync:
    """Keeps one seat's adapter in an engine up to date, and probes it at every change."""

    def __init__(self, engine: VllmEngine, model: SeatModel, prompts: list[list[int]], name: str = "policy"):
        """``prompts``: a few as the rollouts have them (:func:`probe_prompts`), long enough to be cached."""
        self.engine, self.model, self.prompts, self.name = engine, model, prompts, name
        self.adapter: Adapter | None = None
        self.difference: float | None = None
        """mean distance of the engine's from the trainer's log probabilities at the newest probe, over the engine's
        likeliest tokens, nats"""
        self.moved: float | None = None
        """the share of the trainer's move that the engine shows, 1 if it serves the new weights and 0 if the old ones;
        None where the move is too small against the rounding to tell"""
        self._stretch = 16.0
        """multiple of a move at which its direction showed, the last time"""
        # a first adapter is told from the model as it was without one
        self._told = self._last = self._read(model.reference(), None, {})

    def __call__(self) -> Adapter | None:
        """The adapter to speak with: the newest version, published and probed if the weights changed; None: the base.

        Raises:
            ScopeError: the engine does not serve the weights that the trainer has.
        """
        if self.model.peft is None:
            return None
        state = self.model.adapter_state()
        if self.adapter and all(torch.equal(state[name], tensor) for name, tensor in self._last.state.items()):
            return self.adapter
        old, self.adapter = self.adapter, self.engine.publish(self.model, self.name)
        self._check(self.adapter, state)
        if old:
            self.engine.retire(old)
        return self.adapter

    def retire(self) -> None:
        """The seat is over: its adapter leaves the engine."""
        if self.adapter:
            self.engine.retire(self.adapter)
        self.adapter = None

    def _read(self, model: SeatModel, adapter: Adapter | None, state: dict[str, Tensor]) -> Reading:
        asked = places(self.prompts)
        engine, again = (self.engine.next_logprobs(asked, adapter, self.model.temperature) for _ in range(2))
        return Reading(next_logprobs(model, self.prompts), engine, again, state)

    def _check(self, adapter: Adapter, state: dict[str, Tensor]) -> None:
        now = self._read(self.model, adapter, state)
        told = [(i, token, value) for i, row in enumerate(now.engine) for token, value in row.items()]
        gaps = torch.tensor([abs(value - now.trainer[i, token].item()) for i, token, value in told])
        moves = [Move(now, before) for before in (self._last, self._told)]
        moved = next((share for move in moves if (share := move.seen()) is not None), None)
        if moved is None and moves[1].trainer.any():
            moved = moves[1].estimated(self._direction(state))
        self.difference, self.moved = gaps.mean().item(), moved
        allowed = TOLERANCE[self.engine.settings.dtype]
        if not self.difference <= allowed:
            raise ScopeError(
                f"vLLM and the trainer disagree on {adapter.name}: {self.difference:.2g} nats a token where {allowed} "
                "is allowed; check that both load the same base model in the same number format"
            )
        if moved is not None and moved < 0.5:
            raise ScopeError(
                f"vLLM serves old weights: it shows {max(0.0, moved):.0%} of the trainer's last move in "
                f"{adapter.name}; update vLLM, or set text.rollout_engine to hf"
            )
        # what could not be told keeps its reference, so that small steps add up until they can be seen
        self._last = now
        if moved is not None:
            self._told = now

    def _direction(self, state: dict[str, Tensor]) -> Float[Tensor, "n v"]:
        """Where the trainer's answers go along its move since the version told apart last, well above the rounding."""
        # the base is any adapter whose second matrices are zero
        old = self._told.state or {n: t * 0 if "lora_B" in n else t for n, t in state.items()}
        try:
            for _ in range(3):  # until it is about a nat: less is rounding, and more is bent
                plus, minus = (self._moved_by(stretch, old, state) for stretch in (self._stretch, -self._stretch))
                size = (plus - minus)[minus > math.log(0.01)].square().mean().sqrt().item()
                if not (size < 0.5 or size > 2):
                    break
                self._stretch *= min(max(1 / (size + 1e-9), 1 / 32), 32)
        finally:
            self.model.load_adapter_state(state)
        return plus - minus

    def _moved_by(self, stretch: float, old: dict[str, Tensor], new: dict[str, Tensor]) -> Float[Tensor, "n v"]:
        """The trainer's answers at ``old`` and a multiple of the way to ``new``; the adapter stays there."""
        self.model.load_adapter_state({name: old[name] + stretch * (new[name] - old[name]) for name in new})
        return next_logprobs(self.model, self.prompts)

    def metrics(self) -> dict[str, float | None]:
        """The newest probe, by the names of a run's metrics."""
        probed = self.difference is not None
        return {"engine/logp_difference": self.difference, "engine/moved": self.moved} if probed else {}


def probe_prompts(chat: ChatFormat, systems: Sequence[str]) -> list[list[int]]:
    """Openings of dialogues under the run's own system prompts: cached as those of its rollouts."""
    told = list(dict.fromkeys(systems))
    return [chat.opening(told[i % len(told)], heard) for i, heard in enumerate(HEARD)]


def ends(prompt: list[int]) -> range:
    """Of a text, how much is read before each place."""
    return range(max(1, len(prompt) - EVERY * (PLACES - 1)), len(prompt) + 1, EVERY)


def places(prompts: list[list[int]]) -> list[list[int]]:
    """The beginnings of all texts after which a token is asked for, in order."""
    return [prompt[:end] for prompt in prompts for end in ends(prompt)]


@torch.no_grad()
def next_logprobs(model: SeatModel, prompts: list[list[int]]) -> Float[Tensor, "n v"]:
    """The trainer's log distribution (nats) of the next token at each place of each text, in order."""
    transcripts = []
    for prompt in prompts:
        transcripts.append(Transcript())
        read = 0
        for end in ends(prompt):
            transcripts[-1].read(prompt[read:end])
            transcripts[-1].write(prompt[end] if end < len(prompt) else 0, 0.0, 0)  # whatever follows: the place counts
            read = end + 1
    return model.log_distributions(collate(transcripts, pad=0)).cpu()
