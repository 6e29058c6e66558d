"""Teach a tiny causal LM a nano world: its tokenizer, the dialogues it learns from, and the training.

A nano model is an ordinary transformers model with an ordinary tokenizer and chat
template; one act is one token. In the user's seat it learns the exact P(reply | history)
of a population (soft targets from the Bayes filter); in the agent's seat it imitates a
broad mix of agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import Olmo3Config, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config

from scope_lite.envs.nano import World
from scope_lite.envs.nano.episode import CLOSE
from scope_lite.envs.nano.users import BeliefUsers, draw, told_prior
from scope_lite.method.nano import choice_sets
from scope_lite.models.chat import ChatFormat

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FAMILIES: dict[str, Callable[[int], Qwen3Config | Olmo3Config]] = {
    "qwen3-tiny": lambda v: Qwen3Config(vocab_size=v, head_dim=16, **_shape(48, 96, 2, 3)),
    "qwen3-small": lambda v: Qwen3Config(vocab_size=v, head_dim=16, **_shape(80, 160, 3, 5)),
    "olmo3-tiny": lambda v: Olmo3Config(vocab_size=v, **_shape(48, 96, 2, 3)),
}
DEFAULT_FAMILY = "qwen3-tiny"


def _shape(hidden: int, inner: int, layers: int, heads: int) -> dict:
    return dict(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )


def build_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """One token an act, one a role, one a persona prompt."""
    roles = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]
    spec = world.spec
    personas = [f"user-{how}-{z}" for how in ("as", "says") for z in spec.prior if not spec.told]
    prompts = [*world.tasks, *world.prompts, *personas]
    # two agents who are alike share their acts
    words = dict.fromkeys([*roles, *prompts, *spec.agent_acts, *spec.user_acts, CLOSE, *spec.outcomes])
    core = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|pad|>"))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|pad|>", additional_special_tokens=roles[1:], chat_template=TEMPLATE
    )


@dataclass(frozen=True)
class Dialogues:
    """n dialogues of a population, and what the exact users would have said at every turn."""

    tasks: Int[np.ndarray, " n"]
    prompts: Int[np.ndarray, " n"]
    acts: Int[np.ndarray, "n H"]
    replies: Int[np.ndarray, "n H"]
    outcomes: Int[np.ndarray, " n"]
    reply_probs: Float[np.ndarray, "n H R"]
    outcome_probs: Float[np.ndarray, "n O"]
    explored: np.ndarray
    """True where the agent was an explorer: good for the user's seat, no example for the agent's"""


def sample_dialogues(world: World, prior: np.ndarray, n: int, rng: np.random.Generator) -> Dialogues:
    """Dialogues of the world's own agents (60 %) and of explorers that try anything (40 %).

    A policy under training goes where no agent of the mix goes; a simulator must know its way there.
    """
    spec = world.spec
    prompts = np.zeros(n, dtype=int)
    if len(world.prompts) > 1:  # where all are told the same, nothing is drawn
        prompts = rng.choice(len(world.prompts), size=n, p=world.knows @ prior)
    tasks = rng.integers(len(world.tasks), size=n)  # of one task: takes nothing from the stream
    users = BeliefUsers(world, told_prior(world, prior, prompts), n, tasks=tasks)
    shares = np.array([h.weight for h in spec.habits])
    habits = rng.choice(len(shares), size=n, p=shares / shares.sum())
    explored = rng.random(n) < 0.4
    favourite, fickle = rng.integers(len(spec.agent_acts), size=n), rng.random(n)
    acts, replies = np.zeros((n, world.horizon), dtype=int), np.zeros((n, world.horizon), dtype=int)
    reply_probs = np.zeros((n, world.horizon, len(spec.user_acts)))
    histories = [world.opening(t) for t in tasks]
    for t in range(world.horizon):
        anything = rng.integers(len(spec.agent_acts), size=n)
        for i in range(n):
            if explored[i]:
                acts[i, t] = anything[i] if rng.random() < fickle[i] else favourite[i]
            else:
                acts[i, t] = world.agent_index[spec.habits[habits[i]].act(histories[i], rng)]
        reply_probs[:, t] = users.reply_probabilities(acts[:, t])
        replies[:, t] = draw(reply_probs[:, t], rng.random(n))
        users.observe(acts[:, t], replies[:, t])
        said = zip(histories, acts[:, t], replies[:, t], strict=True)
        histories = [(*h, (spec.agent_acts[a], spec.user_acts[r])) for h, a, r in said]
    outcome_probs = users.outcome_probabilities()
    outcomes = draw(outcome_probs, rng.random(n))
    return Dialogues(tasks, prompts, acts, replies, outcomes, reply_probs, outcome_probs, explored)


@dataclass(frozen=True)
class Batch:
    """Token ids and, at the positions that are taught, the target distribution of the next token."""

    ids: Int[Tensor, "n t"]
    targets: Float[Tensor, "n t v"]
    taught: Tensor


class Renderer:
    """Turns dialogues into the token ids of either seat, through the model's own chat format."""

    def __init__(self, world: World, tokenizer: PreTrainedTokenizerFast):
        self.world, self.format, self.vocabulary = world, ChatFormat(tokenizer), len(tokenizer)
        self.ids = {name: np.array(ids) for name, ids in choice_sets(world, tokenizer).items()}

    def _batch(
        self,
        systems: list[str],
        heard: list[list[str | None]],
        spoken: Int[np.ndarray, "n t"],
        target: Float[np.ndarray, "n k v"],
    ) -> Batch:
        """One seat's dialogues: k words heard (None: it begins), each answered by a token, but perhaps the last one.

        Taught is the answer to every word; ``target`` is its distribution.
        """
        rows: list[list[int]] = []
        columns: list[int] = []
        for system, words, tokens in zip(systems, heard, spoken.tolist(), strict=True):
            ids: list[int] = []
            columns = []
            for word, token in zip_longest(words, tokens):
                ids = ids + (self.format.continuation(word) if ids else self.format.opening(system, word))
                columns.append(len(ids) - 1)
                ids = ids + ([] if token is None else [token])
            rows.append(ids)
        ids_of = torch.tensor(rows)
        targets = torch.zeros(*ids_of.shape, self.vocabulary)
        targets[:, columns] = torch.tensor(target, dtype=torch.float32)
        taught = torch.zeros(ids_of.shape, dtype=torch.bool)
        taught[:, columns] = True
        return Batch(ids_of, targets, taught)

    def user(self, d: Dialogues, persona: str | None = None) -> Batch:
        """The user's seat; taught the exact distribution of every reply and of the outcome that it speaks."""
        (n, h), spec = d.acts.shape, self.world.spec
        ends = spec.outcome_by == "simulator"
        target = np.zeros((n, h + ends, self.vocabulary))
        target[:, :h, self.ids["reply"]] = d.reply_probs
        if ends:
            target[:, h, self.ids["outcome"]] = d.outcome_probs
        systems = [persona or self.world.prompts[told] for told in d.prompts]
        heard = [[spec.agent_acts[act] for act in acts] + [CLOSE] * ends for acts in d.acts]
        return self._batch(systems, heard, self.ids["reply"][d.replies], target)

    def agent(self, d: Dialogues) -> Batch:
        """The agent's seat; taught the act that the agent chose (explorers left out)."""
        keep = ~d.explored
        spoken = self.ids["act"][d.acts[keep]]
        target = np.zeros((*spoken.shape, self.vocabulary))
        np.put_along_axis(target, spoken[..., None], 1.0, axis=-1)
        systems = [self.world.tasks[task] for task in d.tasks[keep]]
        heard = [[None, *(self.world.spec.user_acts[reply] for reply in replies[:-1])] for replies in d.replies[keep]]
        return self._batch(systems, heard, spoken, target)


def _user_batches(
    world: World, prior: np.ndarray, render: Renderer, n: int, rng: np.random.Generator, personas: bool
) -> Iterator[Batch]:
    """Plain users, and (for the base model) users under each kind of persona prompt."""
    yield render.user(sample_dialogues(world, prior, n, rng))
    if personas:
        z = str(rng.choice(list(world.spec.prior)))
        yield render.user(sample_dialogues(world, world.prior_vector({z: 1.0}), n // 4, rng), f"user-as-{z}")
        z = str(rng.choice(list(world.spec.prior)))
        yield render.user(sample_dialogues(world.claiming(z), prior, n // 4, rng), f"user-says-{z}")


def _loss(model: PreTrainedModel, batch: Batch) -> Tensor:
    logits = model(input_ids=batch.ids).logits
    return -(batch.targets * logits.log_softmax(-1)).sum(-1)[batch.taught].mean()


def pretrain(
    model: PreTrainedModel,
    world: World,
    prior: np.ndarray,
    render: Renderer,
    steps: int,
    agent: bool,
    personas: bool = False,
    learning_rate: float = 2e-3,
) -> Iterator[float]:
    """Train in place, as the population ``prior``; yields the loss of each step (nats a taught token).

    Args:
        agent: teach the agent's seat, too.
        personas: teach users under persona prompts, too.
    """
    rng = np.random.default_rng([0, 7])
    model.requires_grad_(True).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, optimizer.defaults["lr"], total_steps=steps)
    for _ in range(steps):
        batches = list(_user_batches(world, prior, render, 192, rng, personas))
        if agent:
            batches.append(render.agent(sample_dialogues(world, prior, 128, rng)))
        loss = torch.stack([_loss(model, b) for b in batches]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()
    model.eval().requires_grad_(False)


@torch.no_grad()
def user_kl(model: PreTrainedModel, world: World, prior: np.ndarray, render: Renderer, n: int = 2000) -> float:
    """Mean KL(exact || model) in nats a turn, on held-out dialogues (replies and outcome alike)."""
    held_out = sample_dialogues(world, prior, n, np.random.default_rng(99))
    batch = render.user(held_out)
    p, log_q = batch.targets[batch.taught], model(input_ids=batch.ids).logits[batch.taught].log_softmax(-1)
    return torch.where(p > 0, p * (p.clamp_min(1e-30).log() - log_q), torch.zeros_like(p)).sum(-1).mean().item()


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write an ordinary transformers folder (safetensors)."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
