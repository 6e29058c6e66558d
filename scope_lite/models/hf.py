"""The transformers engine: sampling with a key-value cache that lives as long as the dialogue, and log probabilities.

One ``SeatModel`` is a causal LM as one seat uses it: a base, perhaps a LoRA adapter of its own, a sharpness, and the
sets of tokens it may choose from. Seats that share a base share its weights in memory, not its modules, so no adapter
is ever switched. A ``Session`` is all that sampling needs: what a batch of dialogues has read, and what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from scope_lite.models.adapters import add_lora, lora_layers, set_state, state_of
from scope_lite.models.chat import ChatFormat, stop_ids
from scope_lite.models.draw import draw
from scope_lite.models.folders import read_model, require_computing
from scope_lite.models.records import TokenBatch
from scope_lite.models.rows import RowCache, row_attention
from scope_lite.models.shared_prefix import has_sliding_window
from scope_lite.models.stack import share_weights
from scope_lite.models.texts import Speaker
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    from peft import PeftModel


def load_base(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM and its tokenizer from a local folder, in eval mode, without gradients.

    Raises:
        ScopeError: if the folder is missing, unreadable, truncated, or holds other weights than its config asks for.
    """
    if not (folder / "config.json").exists():
        raise ScopeError(f"no model in {folder}; run 'scope-lite nano build' or give another model")
    model, tokenizer = read_model(folder, torch.float32, attn_implementation="sdpa")
    require_computing(model, folder)
    return model.requires_grad_(False), tokenizer


class SeatModel:
    """A causal LM in one seat. ``choices`` names sets of token ids that a sample may be confined to."""

    adapter = "default"
    """the name of this seat's adapter in ``peft``; empty for a seat that never has one"""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        choices: Mapping[str, list[int]] | None = None,
        sharpness: float = 1.0,
        act_sharpness: float = 1.0,
    ):
        """``sharpness`` is of all but the acts of a nano world, which a policy chooses: a model may play both seats."""
        self.model = self.base = model
        self.tokenizer, self.choices = tokenizer, choices or {}
        self.sharpness, self.act_sharpness = sharpness, act_sharpness
        self.format = ChatFormat(tokenizer)
        self.peft: PeftModel | None = None
        self._past: dict[str, Tensor] = {}
        self._merged: PreTrainedModel | None = None
        self._adapted: list[tuple[torch.nn.Module, Tensor, Tensor, Tensor, float]] = []
        self._words: dict[tuple[int, ...], str] = {}
        self.device = model.device
        self.stop_ids = stop_ids(model, tokenizer)
        everything = np.arange(model.config.vocab_size)
        self.choice_ids = {"": everything} | {name: np.array(ids) for name, ids in self.choices.items()}
        self.choice_index = {name: i for i, name in enumerate(self.choice_ids)}
        self.choice_scale = torch.tensor([act_sharpness if name == "act" else sharpness for name in self.choice_ids])
        self.choice_bias = torch.full((len(self.choice_ids), len(everything)), -torch.inf)
        for row, ids in zip(self.choice_bias, self.choice_ids.values(), strict=True):
            row[torch.from_numpy(ids)] = 0.0

    # -- the adapter --------------------------------------------------------------------------------------------------

    def add_adapter(self, rank: int, alpha: int, seed: int) -> None:
        """Give this seat a fresh trainable LoRA adapter; the base stays as it is.

        lm_head is adapted too: without it a model this small keeps an entropy floor near .6 nats.
        """
        self._attach(rank, alpha, seed)

    def _attach(self, rank: int, alpha: int, seed: int) -> None:
        head = not self.model.config.tie_word_embeddings
        self.peft = add_lora(share_weights(self.model), rank, alpha, seed, head)
        self.model = self.peft.get_base_model()

    def reference(self) -> SeatModel:
        """This seat without its adapter, on the same base: the anchor of KL terms, and what a new adapter begins on."""
        return type(self)(self.base, self.tokenizer, self.choices, self.sharpness, self.act_sharpness)

    def snapshot(self, adapter: Mapping[str, Tensor]) -> SeatModel:
        """A past self: this seat's base with an adapter as it was (``adapter_state``), frozen."""
        past, shape = self.reference(), self.trained.peft_config[self.adapter]
        if self.choices:  # a tiny model, whose weights are soon copied
            return past._become(self, adapter)
        past._attach(shape.r, shape.lora_alpha, seed=0)
        past.load_adapter_state(adapter)
        for parameter in past.trainable():
            parameter.requires_grad_(False)
        return past

    @torch.no_grad()
    def _become(self, seat: SeatModel, adapter: Mapping[str, Tensor]) -> SeatModel:
        """Hold the weights of ``seat`` with this adapter in them, which is kept to be saved."""
        self.model, self._past = share_weights(self.base), {name: t.clone() for name, t in adapter.items()}
        for name, layer in lora_layers(seat.model):
            a, b = (self._past[f"base_model.model.{name}.lora_{factor}.weight"] for factor in "AB")
            weight = torch.addmm(layer.get_base_layer().weight, b, a, alpha=layer.scaling[seat.adapter])
            self.model.get_submodule(name).weight = torch.nn.Parameter(weight, requires_grad=False)
        return self

    def release(self) -> None:
        """Give back what a snapshot holds outside itself; here nothing."""

    @property
    def trained(self) -> PeftModel:
        """The model as peft wraps it."""
        assert self.peft is not None, "add_adapter comes first"
        return self.peft

    def trainable(self) -> list[torch.nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def adapter_state(self) -> dict[str, Tensor]:
        """The adapter's tensors by name, copies on the CPU."""
        if self._past:
            return {name: t.clone() for name, t in self._past.items()}
        return {name: t.detach().cpu().clone() for name, t in state_of(self.trained, self.adapter).items()}

    def load_adapter_state(self, state: Mapping[str, Tensor]) -> None:
        set_state(self.trained, self.adapter, state)

    # -- what it computes ---------------------------------------------------------------------------------------------

    @property
    def temperature(self) -> float:
        """Of free text: this seat speaks, and is trained, at it."""
        return 1 / float(self.choice_scale[0])

    def read(self, model: PreTrainedModel, ids: Int[Tensor, "b t"], **options: Any) -> Float[Tensor, "b t d"]:
        """Last hidden states of ``model``: this seat's own, or the one that speaks for it."""
        return model.model(input_ids=ids.to(self.device), **options).last_hidden_state

    def logits(self, hidden: Float[Tensor, "n d"], choice: Int[Tensor, " n"]) -> Float[Tensor, "n v"]:
        """Logits of the next token, sharpened, minus infinity outside the allowed set."""
        raw = self.model.lm_head(hidden).float()
        scale, bias = self.choice_scale[choice].to(self.device), self.choice_bias[choice].to(self.device)
        return raw * scale[:, None] + bias

    @torch.no_grad()
    def probabilities(
        self, model: PreTrainedModel, hidden: Float[Tensor, "n d"], choice: int, sharpness: float | None = None
    ) -> Float[np.ndarray, "n v"]:
        """Distribution of the next token, in float64, by the head of ``model``; None: at this seat's own sharpness."""
        raw = model.lm_head(hidden).float()
        scale = float(self.choice_scale[choice]) if sharpness is None else sharpness
        return (raw * scale + self.choice_bias[choice].to(raw.device)).double().softmax(-1).cpu().numpy()

    def token_logprobs(self, batch: TokenBatch) -> tuple[Float[Tensor, " n"], Float[Tensor, "n v"]]:
        """Log probability of every generated token, and the full log distribution it came from (nats).

        The head runs only where a token is trained: nothing else is ever a logit. What a GPU computed comes to the CPU
        token by token, where the loss is; the distributions stay where they are.
        """
        log_all = self.logits(self.hidden_before(batch), batch.choice).log_softmax(-1)
        return log_all.gather(-1, batch.targets.to(self.device)[:, None])[:, 0].cpu(), log_all

    def hidden_before(self, batch: TokenBatch) -> Float[Tensor, "n d"]:
        """The hidden state that predicts each generated token. Rows with the same tokens are read once.

        There is no mask: what stands behind a token, padding too, changes nothing in a causal model.
        """
        texts, text = batch.ids.unique(dim=0, return_inverse=True)
        # a tiny model's time is the number of its products; a larger one's their size, which the sum would add to
        hidden = self.read(self.merged() if self.choices else self.model, texts, use_cache=False)
        return hidden[text[batch.row].to(self.device), batch.column.to(self.device) - 1]

    @torch.no_grad()
    def speaking_model(self) -> PreTrainedModel:
        """The model for rollouts; weights of 16 bits stay apart from the adapter, which the sum would round away."""
        return self.merged() if self.base.dtype == torch.float32 else self.model

    def merged(self) -> PreTrainedModel:
        """The model with the adapter as it is now added into its weights (W + s BA): one product a layer, not three.

        Only the adapted matrices are copied. Where gradients are on, they go through the sum to the adapter.
        """
        if self.peft is None:
            return self.model
        if self._merged is None:
            self._merged, self._adapted = share_weights(self.base), []
            for name, layer in lora_layers(self.model):
                module, base = self._merged.get_submodule(name), layer.get_base_layer().weight
                factors = layer.lora_B[self.adapter].weight, layer.lora_A[self.adapter].weight
                self._adapted.append((module, base, *factors, layer.scaling[self.adapter]))
                del module._parameters["weight"]
        for module, base, b, a, scale in self._adapted:
            module.weight = torch.addmm(base, b, a, alpha=scale)
        return self._merged

    def speaker(self) -> Speaker:
        """This seat as it is now, for one whose messages are single words (``texts``)."""
        return Speaker(self.speaking_model(), self.base)

    def session(self, rows: int) -> Session:
        """A batch of dialogues in this seat; in free text one for long histories and large vocabularies."""
        free = not self.choices and not has_sliding_window(self.model)
        return RowSession(self, rows) if free else Session(self, rows)

    def decode(self, ids: tuple[int, ...]) -> str:
        """The words of one sampled message."""
        if ids not in self._words:
            self._words[ids] = self.tokenizer.decode(list(ids), skip_special_tokens=True).strip()
        return self._words[ids]


def entropy(log_all: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """Entropy of each distribution, in nats; an impossible token adds nothing."""
    p = log_all.exp()
    return -torch.where(p > 0, p * log_all, torch.zeros_like(p)).sum(-1)


class Session:
    """A batch of growing dialogues under one seat, as the seat is when the session begins.

    With ``cached`` the keys and values of what was read are kept across turns; without, everything is read anew
    whenever a dialogue grows, which is slower, and right with any forward pass.
    """

    def __init__(self, seat: SeatModel, rows: int, cached: bool = True):
        self.seat, self.cached = seat, cached
        self.model = seat.speaking_model()
        self.cache = DynamicCache(config=seat.model.config)
        self.attention = torch.zeros(rows, 0, dtype=torch.long)
        self.hidden: Float[Tensor, "b d"] = torch.empty(rows, 0)
        self._ids: list[list[int]] = [[] for _ in range(rows)]
        """all that each row has read, where nothing else keeps it"""

    @torch.no_grad()
    def append(self, pieces: list[list[int]]) -> None:
        """Feed each row its new tokens; ``hidden`` then predicts each row's next token.

        Rows may differ in length, or get nothing: padding is masked and takes no position.
        """
        place = self.seat.device
        if not self.cached:
            pieces = self._ids = [old + new for old, new in zip(self._ids, pieces, strict=True)]
            self.cache, self.attention = None, self.attention[:, :0]
        lengths = torch.tensor([len(p) for p in pieces])
        width = int(lengths.max())
        ids = torch.tensor([p + [0] * (width - len(p)) for p in pieces])
        real = (torch.arange(width)[None] < lengths[:, None]).long()
        position = self.attention.sum(1, keepdim=True) + torch.arange(width)[None]
        self.attention = torch.cat([self.attention, real], dim=1)
        output = self.seat.read(
            self.model,
            ids,
            attention_mask=None if self.attention.all() else self.attention.to(place),
            position_ids=position.to(place),
            past_key_values=self.cache,
            use_cache=self.cached,
        )
        newest = output[torch.arange(len(pieces)), (lengths - 1).clamp_min(0)]
        if not self.hidden.shape[1] or bool((lengths > 0).all()):
            self.hidden = newest  # a row that has read nothing yet predicts nothing, and nobody asks it
        else:
            self.hidden = torch.where((lengths[:, None] > 0).to(place), newest, self.hidden)

    @torch.no_grad()
    def next_probabilities(
        self, choice: int, sharpness: float | None = None, rows: Int[np.ndarray, " r"] | None = None
    ) -> Float[np.ndarray, "r v"]:
        """Distribution of the next token of each of ``rows`` (by default all), in float64."""
        hidden = self.hidden if rows is None or len(rows) == len(self.hidden) else self.hidden[torch.from_numpy(rows)]
        return self.seat.probabilities(self.model, hidden, choice, sharpness)


class RowSession(Session):
    """A session in free text: keys and values stand in a ``RowCache``, and tokens are drawn where the scores are."""

    def __init__(self, seat: SeatModel, rows: int):
        super().__init__(seat, rows)
        self.rows = RowCache(rows, seat.device)

    @torch.no_grad()
    def append(self, pieces: list[list[int]]) -> None:
        with row_attention(self.model):
            newest = self.rows.append(lambda ids, **options: self.seat.read(self.model, ids, **options), pieces)
        fed = torch.tensor([bool(piece) for piece in pieces])[:, None].to(newest.device)
        self.hidden = torch.where(fed, newest, self.hidden) if self.hidden.shape[1] else newest

    @torch.no_grad()
    def sample(
        self, rows: Int[np.ndarray, " r"], uniforms: Float[np.ndarray, " r"], sharpness: float | None = None
    ) -> tuple[Int[np.ndarray, " r"], Float[np.ndarray, " r"]]:
        """The next token of each of ``rows``, and its log probability in nats."""
        scores = self.model.lm_head(self.hidden[torch.from_numpy(rows)]).float()
        scale = float(self.seat.choice_scale[0]) if sharpness is None else sharpness
        tokens, measured = draw(scores, torch.from_numpy(uniforms).to(scores.device), 1 / scale)
        return tokens.cpu().numpy(), measured[:, 0].cpu().numpy()
