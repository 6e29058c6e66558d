r"""A collapsed persuadee by alignment: a LoRA adapter trained by KL-regularised RL, one reply at a time.

At histories of Persuasion for Good, groups of replies are drawn from the adapter and paid for; the update is the
project's own (:class:`~scope_lite.method.learner.Learner`). For each history the run maximises

    E_p[alpha r(y)] - beta KL(p || p_ref),   at its best where   p(y) \propto p_ref(y) exp(alpha r(y) / beta),

with p_ref the model that it starts from and ``strength`` = alpha / beta. Two rewards:

typicality: r = log p_ref(y), the log-probability of the whole reply (nats): people prefer text that reads as usual,
    and a model that is aligned to them is paid for it. The best is p \propto p_ref^(1 + alpha / beta), the reference
    sharpened by gamma = 1 + strength: what a temperature of 1 / gamma does to each token, done to whole replies.
    Short replies are the likely ones, so it favours them.
agreement: r = the probability of an act that gives or approves, as the shipped classifier of acts reads the reply. A
    reply that surely does becomes exp(strength) times as likely against one that surely does not.

The KL is part of the reward, strength * r(y) - log p(y) / p_ref(y), and not a term of the loss, for two reasons: its
gradient is then that of the objective above, whose best is known in closed form; and at the best every reply is paid
the same, so the groups' standard deviation (``score_std``) falls to zero and says how far there is to go. Scores are
centred by group and not scaled, for a scaled group would ask for more however near it is.

    runs/small/typical/{settings.json, checkpoints/}  ->  data/models/small/typical/{adapter_*, manifest.json}
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from scope_lite.envs.p4g import Dialogue
from scope_lite.envs.p4g_acts import ACT_GROUPS, first_sentence, load_classifier
from scope_lite.envs.prompts import Message
from scope_lite.experiments.text_models.data import batch_of, histories
from scope_lite.experiments.text_models.folders import (
    lora_settings,
    on_top_of,
    require_at_least,
    require_plain,
    working,
    write_manifest,
    write_weights,
)
from scope_lite.experiments.text_models.packed import PackedSeat
from scope_lite.measure.samples import mode_share, normalise_reply
from scope_lite.method.config import RunConfig, TextConfig
from scope_lite.method.grpo import group_advantages
from scope_lite.method.learner import Learner
from scope_lite.models import adapters
from scope_lite.models.adapters import fold_adapters
from scope_lite.models.generate import TextSampler
from scope_lite.models.pretrained import SMOLLM2, LoadedModel, load_model
from scope_lite.models.records import Transcript, collate
from scope_lite.models.replies import Reply, SamplingConfig
from scope_lite.store import checkpoints
from scope_lite.store.errors import ScopeError
from scope_lite.store.files import replacing

AGREES = (*ACT_GROUPS["persuadee"]["gives"], "positive-reaction-to-donation", "positive-to-inquiry")
"""Acts that count as agreement."""


@dataclass(frozen=True)
class AlignConfig:
    """One alignment; every field but ``steps`` is fixed once a run has begun."""

    reward: Literal["typicality", "agreement"] = "typicality"
    model: str = SMOLLM2
    """where it starts, and what the KL holds it to: as ``load_model`` takes it, so "smollm2+FOLDER" is an adapter"""
    strength: float = 1.0
    """alpha / beta: weight of the reward over that of the KL"""
    steps: int = 60
    """optimizer steps; one takes a minute of one core with SmolLM2 in fp32 (63 CPU seconds where it was measured)"""
    groups: int = 4
    """histories a step"""
    group_size: int = 16
    """replies to each"""
    max_new_tokens: int = 40
    """a reply is cut here, as in notebook 02; a cut one is paid as it stands"""
    max_prompt_tokens: int = 400
    """longer histories are left out: reading them is most of a step"""
    learning_rate: float = 2e-4
    """AdamW's"""
    rank: int = 8
    """of the adapter; its scale is 2"""
    checkpoint_every: int = 2
    """steps between two checkpoints: the most that a kill costs"""
    seed: int = 0
    """of the adapter's start, the order of the histories and the replies"""

    def __post_init__(self) -> None:
        if self.reward not in ("typicality", "agreement"):
            raise ScopeError(f"unknown reward {self.reward!r}: choose typicality or agreement")
        require_at_least(1, self, "steps", "groups", "max_new_tokens", "rank", "checkpoint_every")
        require_at_least(2, self, "group_size")
        if not 0 < self.strength < math.inf:
            raise ScopeError(f"strength must be above 0 and finite, got {self.strength}")

    def run(self) -> RunConfig:
        """What the learner reads; its own KL term is off, for the KL is in the reward."""
        text = TextConfig(reply_tokens=self.max_new_tokens, micro_batch=self.group_size)  # a group is read in one row
        return RunConfig(
            world="p4g", model=self.model, learning_rate=self.learning_rate, lora_rank=self.rank, kl_coef=0.0, text=text
        )


def align(
    config: AlignConfig,
    dialogues: Sequence[Dialogue],
    work: Path,
    out: Path,
    device: str = "auto",
    fresh: bool = False,
    on_step: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
) -> dict[str, Any]:
    """Train, or go on training, and write the adapter; against the plain base, whatever it started from.

    Args:
        config: what to train.
        dialogues: histories are taken from those of the training split.
        work: the run's own folder, for checkpoints.
        out: the adapter's folder, replaced at the end.
        device: as for ``load_model``.
        fresh: forget what ``work`` holds.
        on_step: called after every step with its number and metrics.

    Returns:
        What ``manifest.json`` in ``out`` says.

    Raises:
        ScopeError: no history that is short enough, or as for ``finetune``.
    """
    if (start := adapters.split_adapter(config.model)[1]) is not None:
        require_plain(start)
    loaded = load_model(config.model, device)
    aligner = Aligner(config, loaded, histories(dialogues))
    digest = hashlib.sha256(json.dumps(aligner.chats).encode()).hexdigest()
    with working(work, asdict(config) | {"base": loaded.fingerprint, "histories": digest}, fresh) as folder:
        aligner.resume(folder)
        while len(aligner.metrics) < config.steps:
            aligner.step()
            done = len(aligner.metrics)
            if done % config.checkpoint_every == 0 or done == config.steps:
                checkpoints.save(folder, done, {"persuadee": aligner.learner.state()}, {"metrics": aligner.metrics})
            on_step(done, aligner.metrics[-1])
        return _write(aligner, out)


class Aligner:
    """The adapter under training, and the histories at which it speaks."""

    def __init__(self, config: AlignConfig, loaded: LoadedModel, chats: Sequence[Sequence[Message]]) -> None:
        self.config, self.loaded = config, loaded
        seat = PackedSeat(fold_adapters(loaded.model), loaded.tokenizer)
        self.learner = Learner(seat, config.run(), config.seed)
        prompts = TextSampler(loaded).prompt_ids
        self.chats = [chat for chat in chats if len(prompts(chat, 0)) <= config.max_prompt_tokens]
        if not self.chats:
            raise ScopeError(f"no history of at most {config.max_prompt_tokens} tokens: raise max_prompt_tokens")
        self.metrics: list[dict[str, float]] = []
        """of every step, in order"""

    def resume(self, folder: Path) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        found = checkpoints.load_newest(folder)
        if found is not None:
            self.learner.load_state(found.tensors["persuadee"])
            self.metrics = found.state["metrics"]

    def step(self) -> None:
        """Draw groups of replies, pay them, and update on them."""
        config, number = self.config, len(self.metrics)
        chats = batch_of(self.chats, number, config.groups, config.seed)
        # the sampler reads with the weights of now: a new one each step, since it keeps what it has read
        speaking = LoadedModel(self.learner.model.speaking_model(), self.loaded.tokenizer, "", "")
        sampler = TextSampler(speaking)
        sampling = SamplingConfig(max_new_tokens=config.max_new_tokens, seed=config.seed * 2**20 + number)
        groups = sampler.sample(chats, config.group_size, sampling)
        transcripts = [
            _transcript(sampler.prompt_ids(chat, config.max_new_tokens), r)
            for chat, g in zip(chats, groups, strict=True)
            for r in g
        ]
        reference = self._reference(transcripts)
        drift = torch.tensor([sum(t.logprobs) for t in transcripts]) - reference
        rewards = reference
        if config.reward == "agreement":
            paid = [agreement([r.text for r in g], c[-1]["content"]) for c, g in zip(chats, groups, strict=True)]
            rewards = torch.cat(paid)
        scores = (config.strength * rewards - drift).view(config.groups, config.group_size)
        update = self.learner.update(transcripts, group_advantages(scores, scale=False).flatten())
        texts = [[normalise_reply(r.text) for r in group] for group in groups]
        self.metrics.append(
            {
                "reward": float(rewards.mean()),
                "kl": float(drift.mean()),
                "score_std": float(scores.std(1, correction=0).mean()),
                "mode_share": sum(mode_share(group) for group in texts) / len(texts),
                "tokens": sum(len(r.token_ids) for group in groups for r in group) / len(transcripts),
                "entropy": update["entropy"],
                "grad_norm": update["grad_norm"],
            }
        )

    @torch.no_grad()
    def _reference(self, transcripts: list[Transcript]) -> Float[Tensor, " replies"]:
        """Log-probability of each whole reply under the model that the run started from, nats."""
        sums = []
        size = self.config.group_size
        for start in range(0, len(transcripts), size):
            batch = collate(transcripts[start : start + size], pad=self.loaded.tokenizer.pad_token_id)
            logprobs, _ = self.learner.reference.token_logprobs(batch)
            sums.append(torch.zeros(len(batch.ids)).index_add(0, batch.row, logprobs))
        return torch.cat(sums)


def agreement(replies: Sequence[str], heard: str) -> Float[Tensor, " replies"]:
    """Probability that each reply agrees (:data:`AGREES`), by its first sentence; 0 for silence.

    ``heard`` is what the persuader said last, whose last sentence the classifier reads along.
    """
    classifier = load_classifier()
    agreeing = [i for i, act in enumerate(classifier.acts) if act in AGREES]
    last = re.split(r"(?<=[.!?])\s+", heard.strip())[-1]
    examples = [(first_sentence(reply), last) for reply in replies]
    shares = torch.from_numpy(classifier.probabilities(examples)[:, agreeing].sum(1)).float()
    return torch.where(torch.tensor([bool(reply.strip()) for reply in replies]), shares, torch.zeros_like(shares))


def _transcript(prompt: list[int], reply: Reply) -> Transcript:
    transcript = Transcript()
    transcript.read(prompt)
    for token, logprob in zip(reply.token_ids, reply.logprobs, strict=True):
        transcript.write(token, logprob, 0)
    return transcript


def _write(aligner: Aligner, out: Path) -> dict[str, Any]:
    """The adapter and its manifest; with the one that it started from folded into it, if there was one."""
    config = aligner.config
    base, start = adapters.split_adapter(config.model)
    tensors, settings = aligner.learner.model.adapter_state(), lora_settings(aligner.learner.model.peft, str(base))
    if start is not None:
        tensors, settings = on_top_of(start, tensors, settings)
    with replacing(out) as beside:
        write_weights(beside, {name: t.cpu() for name, t in tensors.items()}, settings)
        model = str(base) if start is None else f"{base}+{start.name if start.is_absolute() else start}"
        options = {"reward": config.reward, "start": model, "strength": f"{config.strength:g}", "steps": config.steps}
        told = {
            "command": "scope-lite small align " + " ".join(f"--{name} {value}" for name, value in options.items()),
            "config": asdict(config) | {"model": model},
            "metrics": aligner.metrics,
            "histories": len(aligner.chats),
        }
        return write_manifest(beside, told, aligner.loaded)
