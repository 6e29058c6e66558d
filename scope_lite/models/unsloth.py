"""The Unsloth engine: one base with an adapter a seat, trained in our own loop with our own masks.

What of Unsloth is used is its public surface: ``FastLanguageModel.from_pretrained`` and ``get_peft_model`` (4-bit
weights, gradient checkpointing, fused kernels), then the model as transformers and peft define it. No trainer of its
is subclassed and no patch of its relied on: what a patched forward pass could get wrong without a word, a padded row
or a key-value cache, is measured on this very model when an adapter is added (``UnslothSeat.check``), and refused or
avoided.

Two adapters of one peft model take turns: ``UnslothBase.use`` switches. A forward pass and its backward pass must see
the same one, since gradient checkpointing computes the layers again; ``learner.Learner`` does one after the other.

Unsloth wants to be imported before transformers; ``import unsloth`` first in a notebook, the command line does it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from peft import LoraConfig
from torch import Tensor
from transformers import PreTrainedModel

from scope_lite.models.adapters import split_adapter
from scope_lite.models.folders import check_files, read_config, require_finite, require_whole
from scope_lite.models.hf import SeatModel, Session
from scope_lite.models.lora import kinds_of, lora_matrices, require_trained
from scope_lite.models.pretrained import LoadedModel, find_model, pick_device, pick_format
from scope_lite.models.records import TokenBatch
from scope_lite.store.contents import folder_fingerprint
from scope_lite.store.errors import ScopeError, first_line

INSTALL = "pip install -r requirements-gpu.lock on a machine with a GPU, or make unsloth-cpu for its slow CPU build"
FIRST = "default"
"""what Unsloth calls the first adapter of a model"""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""largest difference, in nats, that the same token's log probability may show between two ways to compute it; in 16
bits, kernels of different shapes round differently (up to .3 nats in bf16)"""
ALIKE = 0.05
"""the same between two batches of one shape: they are computed alike, so that in 16 bits, too, there is next to none"""
PROBE = ([3, 5, 8, 13, 21, 34, 55], [4, 7, 11])
"""two short rows of token ids, one of them padded in a batch"""


class UnslothBase:
    """One base model on one device, and the adapters that take turns on it."""

    def __init__(
        self,
        model: str | Path,
        max_length: int | None = None,
        four_bit: bool = False,
        device: str = "auto",
        number_format: str = "auto",
    ):
        """Load a base for training.

        Args:
            model: as in ``pretrained.find_model``: "smollm2" or a folder.
            max_length: tokens of the longest transcript, None: as many as the model was made for. Unsloth cuts what is
                longer without a word, so we refuse it.
            four_bit: keep the base in 4 bits (QLoRA); needs a GPU.
            number_format: as in ``pretrained.pick_format``; with four bits, of what is computed.

        Raises:
            ScopeError: Unsloth is not installed, four bits were asked of a CPU, or the model cannot be read.
        """
        try:
            from unsloth import FastLanguageModel
        except ImportError as error:
            raise ScopeError(f"Unsloth is not installed: {INSTALL}") from error
        self.device = pick_device(device)
        if four_bit and self.device.type == "cpu":
            raise ScopeError("4-bit weights need a GPU; set text.four_bit to false")
        self.four_bit, self.dtype = four_bit, getattr(torch, pick_format(self.device, number_format))
        if split_adapter(model)[1] is not None:
            raise ScopeError(f"Unsloth trains on a plain base, and {str(model)!r} has an adapter: name its base")
        self.folder = folder = find_model(model)
        config = read_config(folder)
        names, limit = check_files(folder, config), config.max_position_embeddings
        self.max_length = min(max_length or limit, limit)
        try:
            self.peft, self.tokenizer = FastLanguageModel.from_pretrained(
                str(folder),
                max_seq_length=self.max_length,
                dtype=self.dtype,
                load_in_4bit=four_bit,
                trust_remote_code=False,
            )
        except Exception as error:
            raise ScopeError(f"Unsloth cannot load {folder}: {first_line(error)}") from error
        require_whole(self.peft, names, folder)
        require_finite(dict(self.peft.named_parameters()), f"the model in {folder}")
        # the same model twice: with the adapters' switches (a plain model until the first adapter), and as transformers
        # has it, whose linear layers hold the adapters
        self.lm: PreTrainedModel = self.peft.eval().requires_grad_(False)
        self.adapters: list[str] = []
        self.matrices: list[str] = []
        """the modules that adapters are put on"""
        self._added = 0

    def add(self, name: str, rank: int, alpha: int, seed: int) -> None:
        """A fresh trainable adapter; the first one is put in by Unsloth itself, the next ones by peft in its image.

        ``name`` is :meth:`free_name`'s: Unsloth lets nobody choose the first one's.

        Raises:
            ScopeError: more or less than the adapter would be trained.
        """
        from unsloth import FastLanguageModel

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if not self.adapters:
                self.matrices = lora_matrices(self.lm, rank)
                self.peft = FastLanguageModel.get_peft_model(
                    self.lm, r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none",
                    target_modules=kinds_of(self.matrices), use_gradient_checkpointing="unsloth", random_state=seed,
                )  # fmt: skip
                self.lm = self.peft.get_base_model()
            else:
                like = self.peft.peft_config[FIRST]
                config = LoraConfig(
                    r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none",
                    target_modules=like.target_modules, task_type=like.task_type,
                )  # fmt: skip
                self.peft.add_adapter(name, config)
        self.adapters.append(name)
        self._added += 1
        self.peft.set_adapter(name)
        require_trained(self.lm, self.matrices, name)

    def remove(self, name: str) -> None:
        """Forget an adapter that nobody will use again; the first one stays, since Unsloth built the model on it."""
        if name != FIRST:
            self.peft.delete_adapter(name)
            self.adapters.remove(name)

    def loaded(self) -> LoadedModel:
        """This base as ``pretrained.load_model`` would give it, without a second copy in memory."""
        made_of = f"{folder_fingerprint(self.folder)} unsloth {self.dtype} {self.four_bit} {self.device.type}"
        fingerprint = hashlib.sha256(made_of.encode()).hexdigest()
        return LoadedModel(self.lm, self.tokenizer, self.folder.resolve().name, fingerprint)

    def free_name(self) -> str:
        """Of the next adapter; a name is never used twice."""
        return f"adapter-{self._added}" if self.adapters else FIRST

    @contextlib.contextmanager
    def use(self, name: str | None) -> Iterator[None]:
        """Compute with this adapter (None: the base alone); it stays in place afterwards, for ``backward``."""
        if name is not None:
            self.peft.set_adapter(name)
            yield
        elif self.adapters:
            with self.peft.disable_adapter():
                yield
        else:
            yield

    def hidden(self, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """Last hidden states of right-padded rows.

        No mask is given: under a causal model no real token sees the padding on its right, and Unsloth's kernels drop
        a mask in training anyway. Layers are checkpointed only while gradients are wanted.

        Raises:
            ScopeError: a row is longer than ``max_length``.
        """
        if ids.shape[1] > self.max_length:
            raise ScopeError(
                f"a transcript of {ids.shape[1]} tokens is over the {self.max_length} that Unsloth was set up for: set "
                "text.context to the tokens that a transcript may hold"
            )
        self.peft.train(torch.is_grad_enabled())
        with self.precision():
            return self.lm.get_decoder()(input_ids=ids.to(self.device), use_cache=False).last_hidden_state

    def precision(self) -> Any:
        """On a GPU the fp32 adapters meet 16-bit activations, which Unsloth's kernels expect under autocast."""
        if self.device.type == "cpu":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)


class UnslothSeat(SeatModel):
    """A seat on an :class:`UnslothBase`: its own adapter, or none (the base as it came).

    A drop-in for ``SeatModel`` wherever text is played and trained. Log probabilities come to the CPU, where the
    loss is computed; gradients find their way back.
    """

    def __init__(self, base: UnslothBase, sharpness: float = 1.0):
        super().__init__(base.lm, base.tokenizer, sharpness=sharpness)
        self.unsloth = base
        self.adapter = None
        self.cached = False
        """whether this model's key-value cache gives what a whole forward pass gives"""

    def reference(self) -> UnslothSeat:
        """The base without any adapter; a past self is one more adapter on it."""
        bare = UnslothSeat(self.unsloth, self.sharpness)
        bare.cached = self.cached
        return bare

    def release(self) -> None:
        if self.adapter:
            self.unsloth.remove(self.adapter)

    def add_adapter(self, rank: int, alpha: int, seed: int) -> None:
        """Give this seat an adapter of its own on the shared base, and measure what cannot be taken on trust.

        Unlike ``models.hf`` it leaves an untied lm_head alone: Unsloth would train a full copy of it.
        """
        self._attach(rank, alpha, seed)
        self.check()

    def _attach(self, rank: int, alpha: int, seed: int) -> None:
        self.adapter = self.unsloth.free_name()
        self.unsloth.add(self.adapter, rank, alpha, seed)
        self.model, self.peft = self.unsloth.lm, self.unsloth.peft

    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters of this seat's adapter, in the order of the model."""
        return [p for name, p in self.unsloth.peft.named_parameters() if f".{self.adapter}." in name]

    def logits(self, hidden: Float[Tensor, "n d"], choice: Int[Tensor, " n"]) -> Float[Tensor, "n v"]:
        """Logits of the next token, sharpened; text knows no sets of allowed tokens."""
        with self.unsloth.precision():
            return self.unsloth.lm.get_output_embeddings()(hidden).float() / self.temperature

    def hidden_before(self, batch: TokenBatch) -> Float[Tensor, "n d"]:
        """As ``SeatModel.hidden_before``, with this seat's adapter."""
        place = self.unsloth.device
        with self.unsloth.use(self.adapter):
            return self.unsloth.hidden(batch.ids)[batch.row.to(place), batch.column.to(place) - 1]

    def speaking_model(self) -> PreTrainedModel:
        return self.unsloth.lm

    def session(self, rows: int) -> Session:
        return CachedSession(self, rows) if self.cached else RereadSession(self, rows)

    @torch.no_grad()
    def check(self) -> None:
        """Compare ways to compute the same log probabilities, with an adapter that does something.

        A padded row against the row alone, and against the same batch with other tokens in the padding's place, which
        no causal model sees: refused if they differ, since training would go wrong in silence. The whole row against
        the key-value cache: if they differ, rollouts read their history again each turn.

        Raises:
            ScopeError: padding changes a row's log probabilities.
        """
        before = self.adapter_state()
        noise = torch.Generator().manual_seed(0)
        self.load_adapter_state({n: t + 0.02 * torch.randn(t.shape, generator=noise) for n, t in before.items()})
        try:
            vocabulary = self.model.config.vocab_size
            long, short = ([i % vocabulary for i in row] for row in PROBE)
            together = RereadSession(self, 2)
            together.append([long, short])
            alone = RereadSession(self, 1)
            alone.append([short])
            gap, allowed = _difference(self, together.hidden[1:], alone.hidden), TOLERANCE[self.unsloth.dtype]
            with self.unsloth.use(self.adapter):
                filled = self.unsloth.hidden(torch.tensor([long, short + long[len(short) :]]))[1:, len(short) - 1]
            stray = _difference(self, together.hidden[1:], filled.to(self.unsloth.dtype))
            if not (gap <= allowed and stray <= min(ALIKE, allowed)):
                raise ScopeError(
                    f"Unsloth's forward pass of this model is wrong for padded rows (by {max(gap, stray):.3g} nats): "
                    "set text.training_engine to hf"
                )
            self.cached = self._cache_agrees(long, together.hidden[:1])
        finally:
            self.load_adapter_state(before)

    def _cache_agrees(self, row: list[int], whole: Float[Tensor, "1 d"]) -> bool:
        session = CachedSession(self, 1)
        try:
            session.append([row[:4]])
            session.append([row[4:]])
        except Exception:
            # fused kernels may know no cache of transformers' kind, each in its own way
            return False
        return _difference(self, session.hidden, whole) <= TOLERANCE[self.unsloth.dtype]


class RereadSession(Session):
    """Growing dialogues that are read anew whenever they grow: slower, and right with any forward pass."""

    seat: UnslothSeat

    def __init__(self, seat: UnslothSeat, rows: int):
        super().__init__(seat, rows)
        self.read: list[list[int]] = [[] for _ in range(rows)]

    @torch.no_grad()
    def append(self, pieces: list[list[int]]) -> None:
        """Feed each row its new tokens; only rows that got some are read again."""
        self.read = [old + new for old, new in zip(self.read, pieces, strict=True)]
        rows = [i for i, new in enumerate(pieces) if new]
        lengths = torch.tensor([len(self.read[i]) for i in rows])
        width = int(lengths.max())
        ids = torch.tensor([self.read[i] + [0] * (width - len(self.read[i])) for i in rows])
        unsloth = self.seat.unsloth
        with unsloth.use(self.seat.adapter):
            output = unsloth.hidden(ids)
        newest = output[torch.arange(len(rows)), lengths - 1].to(unsloth.dtype)  # the head's
        if self.hidden.shape[1] == 0:
            self.hidden = newest.new_zeros(len(pieces), newest.shape[1])
        self.hidden = self.hidden.index_copy(0, torch.tensor(rows, device=newest.device), newest)


class CachedSession(Session):
    """A ``Session`` that computes with its seat's adapter, whichever seat spoke before."""

    seat: UnslothSeat

    @torch.no_grad()
    def append(self, pieces: list[list[int]]) -> None:
        unsloth = self.seat.unsloth
        unsloth.peft.eval()
        with unsloth.use(self.seat.adapter), unsloth.precision():
            super().append(pieces)
        self.hidden = self.hidden.to(unsloth.dtype)  # the head's


def _difference(seat: UnslothSeat, a: Float[Tensor, "n d"], b: Float[Tensor, "n d"]) -> float:
    """Largest difference of log probability (nats) between two hidden states of the same places.

    Over the tokens within 5 nats of the likeliest: what is never drawn may differ.
    """
    none = torch.zeros(len(a), dtype=torch.long)
    first, second = (seat.logits(h, none).log_softmax(-1) for h in (a, b))
    likely = first > first.amax(-1, keepdim=True) - 5
    return float((first - second).abs()[likely].max())
