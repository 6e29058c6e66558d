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

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from scope_lite.envs.p4g import Dialogue
from scope_lite.envs.p4g_acts import ACT_GROUPS, first_sentence, load_classifier
from scope_lite.envs.prompts import Message
from scope_lite.experiments.text_models.adapter import (
    AdapterConfig,
    AdapterRun,
    Count,
    OnStep,
    digest,
    lora_settings,
    on_top_of,
    require_plain,
    write_adapter,
)
from scope_lite.experiments.text_models.data import batch_of, histories
from scope_lite.experiments.text_models.packed import PackedSeat
from scope_lite.measure.samples import mode_share, normalise_reply
from scope_lite.method.grpo import group_advantages
from scope_lite.models.adapters import fold_adapters, split_adapter
from scope_lite.models.generate import TextSampler
from scope_lite.models.pretrained import LoadedModel, load_model
from scope_lite.models.records import Transcript
from scope_lite.models.replies import Reply, SamplingConfig
from scope_lite.store.errors import ScopeError

AGREES = (*ACT_GROUPS["persuadee"]["gives"], "positive-reaction-to-donation", "positive-to-inquiry")
"""Acts that count as agreement."""


@dataclass(frozen=True, kw_only=True)
class AlignConfig(AdapterConfig):
    """One alignment; the KL holds it to the model that it starts from.

    A step takes a minute of one core with SmolLM2 in fp32 (63 CPU seconds where it was measured).
    """

    reward: Literal["typicality", "agreement"] = "typicality"
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """alpha / beta: weight of the reward over that of the KL"""
    groups: Count = 4
    """histories a step"""
    group_size: Annotated[int, Field(ge=2)] = 16
    """replies to each"""
    max_new_tokens: Count = 40
    """a reply is cut here, as in notebook 02; a cut one is paid as it stands"""
    max_prompt_tokens: int = 400
    """longer histories are left out: reading them is most of a step"""


def align(
    config: AlignConfig,
    dialogues: Sequence[Dialogue],
    work: Path,
    out: Path,
    device: str = "auto",
    fresh: bool = False,
    on_step: OnStep = lambda step, metrics: None,
) -> dict[str, Any]:
    """Train, or go on training, and write the adapter; against the plain base, whatever it started from.

    Args and returns as for ``finetune``; ``dialogues`` give the histories of their training split.

    Raises:
        ScopeError: no history that is short enough, or as for ``finetune``.
    """
    base, start = split_adapter(config.model)
    if start is not None:
        require_plain(start)
    loaded = load_model(config.model, device)
    aligner = Aligner(config, loaded, histories(dialogues))
    aligner.train(config, work, {"histories": digest(aligner.chats)}, fresh, on_step)
    model = aligner.learner.model
    tensors, lora, named = model.adapter_state(), lora_settings(model.peft, str(base)), str(base)
    if start is not None:  # it is folded into the new one
        tensors, lora = on_top_of(start, tensors, lora)
        named = f"{base}+{start.name if start.is_absolute() else start}"
    options = {"reward": config.reward, "start": named, "strength": f"{config.strength:g}", "steps": config.steps}
    told = {
        "command": "scope-lite small align " + " ".join(f"--{name} {value}" for name, value in options.items()),
        "config": asdict(config) | {"model": named},
        "metrics": aligner.metrics,
        "histories": len(aligner.chats),
    }
    return write_adapter(out, tensors, lora, loaded, lambda written: told)


class Aligner(AdapterRun):
    """The adapter under training, and the histories at which it speaks."""

    def __init__(self, config: AlignConfig, loaded: LoadedModel, chats: Sequence[Sequence[Message]]) -> None:
        seat = PackedSeat(fold_adapters(loaded.model), loaded.tokenizer)
        super().__init__(config, loaded, seat, micro_batch=config.group_size)  # a group is read in one row
        prompts = TextSampler(loaded).prompt_ids
        self.config, self.chats = config, [c for c in chats if len(prompts(c, 0)) <= config.max_prompt_tokens]
        if not self.chats:
            raise ScopeError(f"no history of at most {config.max_prompt_tokens} tokens: raise max_prompt_tokens")

    def step(self) -> dict[str, float]:
        """One group of replies to each history: play, score, centre, train, log, as in a step of ``method.train``."""
        config, done = self.config, len(self.metrics)
        # 1. play: one reply is the dialogue
        chats = batch_of(self.chats, done, config.groups, config.seed)
        # the sampler reads with the weights of now: a new one each step, since it keeps what it has read
        sampler = TextSampler(LoadedModel(self.learner.model.speaking_model(), self.loaded.tokenizer, "", ""))
        sampling = SamplingConfig(max_new_tokens=config.max_new_tokens, seed=config.seed * 2**20 + done)
        groups = sampler.sample(chats, config.group_size, sampling)
        prompts = [sampler.prompt_ids(chat, config.max_new_tokens) for chat in chats]
        transcripts = [_transcript(p, r) for p, group in zip(prompts, groups, strict=True) for r in group]
        # 2. score
        reference = self._reference(transcripts)
        drift = torch.tensor([sum(t.logprobs) for t in transcripts]) - reference
        rewards = reference
        if config.reward == "agreement":
            paid = [agreement([r.text for r in g], c[-1]["content"]) for c, g in zip(chats, groups, strict=True)]
            rewards = torch.cat(paid)
        scores = (config.strength * rewards - drift).view(config.groups, config.group_size)
        # 3. centre, and 4. train
        update = self.learner.update(transcripts, group_advantages(scores, "centred").flatten())
        # 5. log
        texts = [[normalise_reply(r.text) for r in group] for group in groups]
        return {
            "reward": float(rewards.mean()),
            "kl": float(drift.mean()),
            "score_std": float(scores.std(1, correction=0).mean()),
            "mode_share": sum(mode_share(group) for group in texts) / len(texts),
            "tokens": sum(len(r.token_ids) for group in groups for r in group) / len(transcripts),
            "entropy": update["entropy"],
            "grad_norm": update["grad_norm"],
        }

    @torch.no_grad()
    def _reference(self, transcripts: list[Transcript]) -> Float[Tensor, " replies"]:
        """Log-probability of each whole reply under the model that the run started from, nats."""
        sums = []
        for batch in self.learner.batches(transcripts):
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
