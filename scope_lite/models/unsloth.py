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
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from scope_lite.models.adapters import kinds_of, lora_matrices, require_trained, split_adapter
from scope_lite.models.folders import check_files, read_config, reading, require_finite, require_weights
from scope_lite.models.hf import SeatModel, Session
from scope_lite.models.pretrained import LoadedModel, find_model, pick_device, pick_format
from scope_lite.store.contents import folder_fingerprint
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    from peft import PeftModel

INSTALL = "pip install -r requirements-gpu.lock on a machine with a GPU, or make unsloth-cpu for its slow CPU build"
FIRST = "default"
"""what Unsloth calls the first adapter of a model"""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3}
"""largest difference, in nats, that the same token's log probability may show between two ways to compute it; in 16
bits, kernels of different shapes round differently"""
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
        self.folder = find_model(model)
        config = read_config(self.folder)
        names, limit = check_files(self.folder, config), config.max_position_embeddings
        self.max_length = min(max_length or limit, limit)
        self.fast = FastLanguageModel
        with reading(f"Unsloth cannot load {self.folder}"):
            self.lm, self.tokenizer = self.fast.from_pretrained(
                str(self.folder),
                max_seq_length=self.max_length,
                dtype=self.dtype,
                load_in_4bit=four_bit,
                trust_remote_code=False,
            )
        parameters = dict(self.lm.named_parameters())
        require_weights(self.folder, parameters.keys() - names, "lacks")  # its loader would not tell
        require_finite(parameters, f"the model in {self.folder}")
        self.lm.eval().requires_grad_(False)
        self.peft: PeftModel | None = None
        """the same model with the adapters' switches"""
        self.matrices: list[str] = []
        """the modules that adapters are put on"""
        self.cached = False
        """whether this model's key-value cache gives what a whole forward pass gives"""
        self._names = itertools.chain([FIRST], (f"adapter-{i}" for i in itertools.count(1)))

    def add(self, rank: int, alpha: int, seed: int) -> str:
        """A fresh trainable adapter, by a name that was never used before.

        The first one is put in by Unsloth itself, the next ones by peft in its image.

        Raises:
            ScopeError: more or less than the adapter would be trained.
        """
        name = next(self._names)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if self.peft is None:
                self.matrices = lora_matrices(self.lm, rank)
                self.peft = self.fast.get_peft_model(
                    self.lm, r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none",
                    target_modules=kinds_of(self.matrices), use_gradient_checkpointing="unsloth", random_state=seed,
                )  # fmt: skip
                self.lm = self.peft.get_base_model()
            else:
                shape = dataclasses.replace(self.peft.peft_config[FIRST], r=rank, lora_alpha=alpha)
                self.peft.add_adapter(name, shape)
        self.peft.set_adapter(name)
        require_trained(self.lm, self.matrices, name)
        return name

    def loaded(self) -> LoadedModel:
        """This base as ``pretrained.load_model`` would give it, without a second copy in memory."""
        made_of = f"{folder_fingerprint(self.folder)} unsloth {self.dtype} {self.four_bit} {self.device.type}"
        fingerprint = hashlib.sha256(made_of.encode()).hexdigest()
        return LoadedModel(self.lm, self.tokenizer, self.folder.resolve().name, fingerprint)

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[None]:
        """Compute with this adapter ("": the base alone); it stays in place afterwards, for ``backward``."""
        if self.peft is not None and name:
            self.peft.set_adapter(name)
        with self.peft.disable_adapter() if self.peft is not None and not name else contextlib.nullcontext():
            yield

    def hidden(self, ids: Int[Tensor, "b t"], **options: Any) -> Float[Tensor, "b t d"]:
        """Last hidden states, in the head's number format; layers are checkpointed only while gradients are wanted.

        Raises:
            ScopeError: a row is longer than ``max_length``.
        """
        if ids.shape[1] > self.max_length:
            raise ScopeError(
                f"a transcript of {ids.shape[1]} tokens is over the {self.max_length} that Unsloth was set up for: set "
                "text.context to the tokens that a transcript may hold"
            )
        self.lm.train(torch.is_grad_enabled())
        # on a GPU the fp32 adapters meet 16-bit activations, which Unsloth's kernels expect under autocast
        with torch.autocast(self.device.type, self.dtype, enabled=self.device.type != "cpu"):
            return self.lm.get_decoder()(input_ids=ids.to(self.device), **options).last_hidden_state.to(self.dtype)


class UnslothSeat(SeatModel):
    """A seat on an :class:`UnslothBase`: its own adapter, or none (the base as it came).

    A drop-in for ``SeatModel`` wherever text is played and trained. Log probabilities come to the CPU, where the
    loss is computed; gradients find their way back.
    """

    adapter = ""

    def __init__(self, base: UnslothBase, sharpness: float = 1.0):
        super().__init__(base.lm, base.tokenizer, sharpness=sharpness)
        self.unsloth = base

    def reference(self) -> UnslothSeat:
        """The base without any adapter; a past self is one more adapter on it."""
        return UnslothSeat(self.unsloth, self.sharpness)

    def release(self) -> None:
        """Forget an adapter that nobody will use again; the first one stays, since Unsloth built the model on it."""
        if self.adapter not in ("", FIRST):
            self.trained.delete_adapter(self.adapter)

    def add_adapter(self, rank: int, alpha: int, seed: int) -> None:
        """Give this seat an adapter of its own on the shared base, and measure what cannot be taken on trust.

        Unlike ``models.hf`` it leaves an untied lm_head alone: Unsloth would train a full copy of it.
        """
        self._attach(rank, alpha, seed)
        self.check()

    def _attach(self, rank: int, alpha: int, seed: int) -> None:
        self.adapter = self.unsloth.add(rank, alpha, seed)
        self.model, self.peft = self.unsloth.lm, self.unsloth.peft

    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters of this seat's adapter, in the order of the model."""
        return [p for name, p in self.trained.named_parameters() if f".{self.adapter}." in name]

    def logits(self, hidden: Float[Tensor, "n d"], choice: Int[Tensor, " n"]) -> Float[Tensor, "n v"]:
        """Logits of the next token, sharpened; text knows no sets of allowed tokens, which would take a copy."""
        return self.unsloth.lm.get_output_embeddings()(hidden).float() / self.temperature

    def read(self, model: PreTrainedModel, ids: Int[Tensor, "b t"], **options: Any) -> Float[Tensor, "b t d"]:
        """Last hidden states of right-padded rows, with this seat's adapter, whichever seat computed before.

        No mask is given without a cache: under a causal model no real token sees the padding on its right, and
        Unsloth's kernels drop a mask in training anyway.
        """
        if not options.get("use_cache"):
            options = {"use_cache": False}
        with self.unsloth.use(self.adapter):
            return self.unsloth.hidden(ids, **options)

    def speaking_model(self) -> PreTrainedModel:
        return self.unsloth.lm

    def session(self, rows: int) -> Session:
        return Session(self, rows, self.unsloth.cached)

    @torch.no_grad()
    def check(self) -> None:
        """Compare ways to compute the same log probabilities, with an adapter that does something.

        A padded row against the row alone, and against the same batch with other tokens in the padding's place, which
        no causal model sees: refused if they differ, since training would go wrong in silence. The whole row against
        the key-value cache: if they differ, rollouts read their history again each turn.

        Raises:
            ScopeError: padding changes a row's log probabilities.
        """
        before, allowed = self.adapter_state(), TOLERANCE[self.unsloth.dtype]
        noise = torch.Generator().manual_seed(0)
        self.load_adapter_state({n: t + 0.02 * torch.randn(t.shape, generator=noise) for n, t in before.items()})
        try:
            long, short = ([i % self.model.config.vocab_size for i in row] for row in PROBE)
            together = self._hidden([long, short])
            gap = self._difference(together[1:], self._hidden([short]))
            filled = self.read(self.model, torch.tensor([long, short + long[len(short) :]]))[1:, len(short) - 1]
            stray = self._difference(together[1:], filled)
            if not (gap <= allowed and stray <= min(ALIKE, allowed)):
                raise ScopeError(
                    f"Unsloth's forward pass of this model is wrong for padded rows (by {max(gap, stray):.3g} nats): "
                    "set text.training_engine to hf"
                )
            self.unsloth.cached = False
            with contextlib.suppress(Exception):  # fused kernels may know no cache of transformers' kind
                kept = self._hidden([long[:4]], [long[4:]], cached=True)
                self.unsloth.cached = self._difference(kept, together[:1]) <= allowed
        finally:
            self.load_adapter_state(before)

    def _hidden(self, *pieces: list[list[int]], cached: bool = False) -> Float[Tensor, "n d"]:
        """What a session knows when it has read some pieces of rows, one after the other."""
        session = Session(self, len(pieces[0]), cached)
        for piece in pieces:
            session.append(piece)
        return session.hidden

    def _difference(self, a: Float[Tensor, "n d"], b: Float[Tensor, "n d"]) -> float:
        """Largest difference of log probability (nats) between two hidden states of the same places.

        Over the tokens within 5 nats of the likeliest: what is never drawn may differ.
        """
        none = torch.zeros(len(a), dtype=torch.long)
        first, second = (self.logits(h, none).log_softmax(-1) for h in (a, b))
        likely = first > first.amax(-1, keepdim=True) - 5
        return float((first - second).abs()[likely].max())
