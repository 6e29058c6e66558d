"""The trainer's newest adapter into the engine, and the proof that it is what the engine serves (pitfalls P15, P16).

After every change the engine is asked for the likeliest next tokens of a few fixed prompts, by the way that rollouts
take, and the trainer's own model is asked for the same. Two things are tested. The log probabilities must agree up to
rounding, or the engine has another model altogether. And the engine must have moved where the trainer has moved since
the last version that could be told apart: agreement alone would not notice a stale adapter after a small step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.engines.chat import ChatFormat
from scope_lite.engines.hf import SeatModel
from scope_lite.engines.vllm.engine import Adapter, VllmEngine
from scope_lite.errors import ScopeError
from scope_lite.records import Transcript, collate

TOLERANCE = {"float32": 0.02, "bfloat16": 0.25, "float16": 0.25}
"""the largest mean distance (nats) between engine and trainer, by number format"""
DECISIVE = 0.125
"""standard error of the share of the move, up to which it is a verdict: stale (0) and served (1) are 8 of them apart"""

HEARD = (
    "Hello.",
    "Yes, please.",
    "No, thank you.",
    "Why do you ask?",
    "Tell me more.",
    "I am not sure.",
    "How?",
    "Bye.",
)
"""what the probe's prompts hear"""


@dataclass(frozen=True)
class Probe:
    """What one probe found."""

    difference: float
    """mean distance of the engine's from the trainer's log probabilities, over the engine's likeliest tokens, nats"""
    largest: float
    """the largest such distance"""
    moved: float | None
    """the share of the trainer's move that the engine shows, 1 if it serves the new weights and 0 if the old ones; None
    where the move is too small against the rounding to tell"""


def compare(engine: Float[Tensor, " n"], trainer: Float[Tensor, " n"], before: Float[Tensor, " n"]) -> Probe:
    """Compare log probabilities of the same tokens; ``before``: the trainer's at an earlier version."""
    gap = (engine - trainer).abs()
    step, shown = trainer - before, engine - before
    size = step.norm().item()
    # the rounding, by the better of the two explanations
    noise = min((shown - step).norm().item(), shown.norm().item()) / math.sqrt(len(step))
    decisive = size > 0 and noise / size <= DECISIVE
    moved = (shown @ step).item() / size**2 if decisive else None
    return Probe(gap.mean().item(), gap.max().item(), moved)


class AdapterSync:
    """Keeps one seat's adapter in an engine up to date, and probes it at every change."""

    def __init__(
        self, engine: VllmEngine, model: SeatModel, prompts: list[list[int]], name: str = "policy", top: int = 5
    ):
        """``prompts``: a few as the rollouts have them (:func:`probe_prompts`), long enough to be cached."""
        self.engine, self.model, self.prompts, self.name, self.top = engine, model, prompts, name, top
        self.adapter: Adapter | None = None
        self.probe: Probe | None = None
        """the newest one"""
        self._state: dict[str, Tensor] = {}
        # a first adapter is told from the model as it was without one
        self._reference = next_logprobs(model.reference(), prompts)

    def __call__(self) -> Adapter | None:
        """The adapter to speak with: the newest version, published and probed if the weights changed; None: the base.

        Raises:
            ScopeError: the engine does not serve the weights that the trainer has.
        """
        if self.model.peft is None:
            return None
        state = self.model.adapter_state()
        if self.adapter and all(torch.equal(state[name], tensor) for name, tensor in self._state.items()):
            return self.adapter
        old, self.adapter = self.adapter, self.engine.publish(self.model, self.name)
        self._state = state
        self._check(self.adapter)
        if old:
            self.engine.retire(old)
        return self.adapter

    def retire(self) -> None:
        """The seat is over: its adapter leaves the engine."""
        if self.adapter:
            self.engine.retire(self.adapter)
        self.adapter = None

    def _check(self, adapter: Adapter) -> None:
        trainer = next_logprobs(self.model, self.prompts)
        tables = self.engine.next_logprobs(self.prompts, adapter, self.top, self.model.temperature)
        places = [(row, token) for row, table in enumerate(tables) for token in table]
        served = torch.tensor([tables[row][token] for row, token in places])
        at = tuple(torch.tensor(places).T)
        self.probe = compare(served, trainer[at], self._reference[at])
        allowed = TOLERANCE[self.engine.settings.dtype]
        if not self.probe.difference <= allowed:
            raise ScopeError(
                f"vLLM and the trainer disagree on {adapter.name}: {self.probe.difference:.2g} nats a token where "
                f"{allowed} is allowed; check that both load the same base model in the same number format"
            )
        if self.probe.moved is not None and self.probe.moved < 0.5:
            raise ScopeError(
                f"vLLM serves old weights: it shows {max(0.0, self.probe.moved):.0%} of the trainer's last step in "
                f"{adapter.name}; update vLLM, or set text.rollout_engine to hf"
            )
        # an undecided probe keeps its reference, so that small steps add up until they can be seen
        if self.probe.moved is not None:
            self._reference = trainer

    def metrics(self) -> dict[str, float | None]:
        """The newest probe, by the names of a run's metrics."""
        if self.probe is None:
            return {}
        return {"engine/logp_difference": self.probe.difference, "engine/moved": self.probe.moved}


def probe_prompts(chat: ChatFormat, systems: Sequence[str]) -> list[list[int]]:
    """Openings of dialogues under the run's own system prompts: cached as those of its rollouts."""
    told = list(dict.fromkeys(systems))
    return [chat.opening(told[i % len(told)], heard) for i, heard in enumerate(HEARD)]


@torch.no_grad()
def next_logprobs(model: SeatModel, prompts: list[list[int]]) -> Float[Tensor, "n v"]:
    """The trainer's log distribution (nats) of the token after each prompt."""
    transcripts = []
    for prompt in prompts:
        transcripts.append(Transcript())
        transcripts[-1].read(prompt)
        transcripts[-1].write(0, 0.0, 0)  # any token: the distribution is that of its place
    return model.token_logprobs(collate(transcripts, pad=0))[1].cpu()
