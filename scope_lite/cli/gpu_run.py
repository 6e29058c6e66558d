"""Two real steps of everything that needs a GPU, on whatever GPU is there, with a small model: does it run, how fast.

Each check trains a tiny run in a process of its own, as a user would: what one engine patches or keeps in memory then
reaches no other (pitfall P23). A process writes what it measured into a file; how it died is told by its last words.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scope_lite.method.config import RunConfig, method_config
from scope_lite.store.errors import ScopeError

GIB = 2**30
LIMIT_SECONDS = 1200
SIZE: dict[str, Any] = {
    "world": "p4g", "steps": 2, "groups": 2, "group_size": 4, "eval_every": 2, "eval_dialogues": 1,
    "final_dialogues": 1, "lora_rank": 8,
}  # fmt: skip
TEXT = {"turns": 2, "max_new_tokens": 16, "reply_tokens": 16, "micro_batch": 4, "context": 1024}


@dataclass(frozen=True)
class Check:
    """One row: what is run, and what it needs."""

    name: str
    method: str = "single"
    text: tuple[tuple[str, Any], ...] = ()
    """what differs from ``TEXT``"""
    simulator: tuple[tuple[str, Any], ...] = ()
    packages: tuple[str, ...] = ()
    gpu_only: bool = False
    stopped: bool = False
    """stop after the first step, then take the run up again from its checkpoint"""


CHECKS = (
    Check("HF + LoRA GRPO"),
    Check("Unsloth GRPO", text=(("training_engine", "unsloth"), ("rollout_engine", "vllm")),
          packages=("unsloth", "vllm"), gpu_only=True),
    Check("Unsloth GRPO, on a CPU", text=(("training_engine", "unsloth"),), packages=("unsloth",)),
    Check("vLLM rollouts", text=(("rollout_engine", "vllm"),), packages=("vllm",)),
    Check("VS, structured", method="verbalized", text=(("grammar", True), ("rollout_engine", "vllm")),
          packages=("vllm",), gpu_only=True),
    Check("VS, structured, on a CPU", method="verbalized", text=(("grammar", True),)),
    Check("Co-Training, two adapters", method="cotraining",
          text=(("training_engine", "unsloth"), ("rollout_engine", "vllm")), packages=("unsloth", "vllm"),
          gpu_only=True),
    Check("Co-Training, two adapters, on a CPU", method="cotraining"),
    Check("Population of past selves", method="population", simulator=(("pool_size", 2), ("cadence", 1)),
          text=(("training_engine", "unsloth"), ("rollout_engine", "vllm")), packages=("unsloth", "vllm"),
          gpu_only=True),
    Check("Population of past selves, on a CPU", method="population", simulator=(("pool_size", 2), ("cadence", 1))),
    Check("P4G loop, stopped and resumed", stopped=True),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What became of a check."""

    name: str
    ok: bool | None
    """None: it could not be tried here"""
    detail: str
    tokens_per_second: float | None = None
    """of the last step: the policy's transcripts, played and trained"""
    peak_gib: float | None = None
    """the most that torch had allocated on the GPU; on a CPU the process's resident memory"""
    planned_gib: float | None = None
    """the planner's figure for a card of this size (None on a CPU: it plans cards)"""


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def selected(on_cpu: bool) -> list[Check]:
    """The checks for this kind of machine: where a check exists in two forms, the one that belongs here."""
    return [c for c in CHECKS if (not c.gpu_only if on_cpu else not c.name.endswith("on a CPU"))]


def run_config(check: Check, model: str, on_cpu: bool) -> RunConfig:
    text = {**TEXT, **dict(check.text), "device": "cpu" if on_cpu else "auto"}
    return method_config(check.method, model=model, text=text, simulator=dict(check.simulator), **SIZE)


def run_check(check: Check, model: str, on_cpu: bool, limit: float = LIMIT_SECONDS) -> Result:
    """Run one check in a process of its own."""
    missing = [p for p in check.packages if importlib.util.find_spec(p) is None]
    if missing:
        return Result(check.name, None, f"{missing[0]} is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch) / "result.json"
        command = [sys.executable, "-m", "scope_lite.cli.gpu_run", check.name, model, str(int(on_cpu)), str(told)]
        # cuBLAS is deterministic only so; a run asks for deterministic kernels
        env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ, "PYTHONUTF8": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", timeout=limit, env=env
            )
        except subprocess.TimeoutExpired:
            return Result(check.name, False, f"took longer than {limit:.0f} s")
        if done.returncode or not told.exists():
            words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return Result(check.name, False, words[-1][:200])
        return Result(**json.loads(told.read_text(encoding="utf-8")))


def measure(check: Check, model: str, on_cpu: bool) -> Result:
    """Train the two steps here, in this process.

    Raises:
        ScopeError: whatever the run refuses, or numbers that are none.
    """
    if "unsloth" in check.packages:
        import unsloth  # noqa: F401  (it wants to come before transformers)
    import torch

    from scope_lite.method.train import train
    from scope_lite.store import load_metrics, load_timing

    config = run_config(check, model, on_cpu)
    with tempfile.TemporaryDirectory() as root:
        if check.stopped:
            try:
                train(config, Path(root), on_step=_stop_after_one)
            except _Stopped:
                pass
        folder = train(config, Path(root))
        metrics, timing = load_metrics([folder]), load_timing([folder])
    last = metrics.iloc[-1]
    wrong = [name for name in ("loss", "grad_norm", "entropy", "reward") if not last[name] == last[name]]
    if wrong:
        raise ScopeError(f"no number in {', '.join(wrong)} after step {int(last['step'])}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if not on_cpu:
        peak = torch.cuda.max_memory_allocated()
    speed = float(timing["tokens_per_second"].dropna().iloc[-1])
    return Result(check.name, True, f"reward {last['reward']:.2f}, entropy {last['entropy']:.2f} nats", speed,
                  peak / GIB, None if on_cpu else planned(config))  # fmt: skip


def planned(config: RunConfig) -> float | None:
    """The planner's peak for this run on this card, GiB, without what torch does not count (the driver, slack)."""
    import torch

    from scope_lite.cli.planner import card, plan, shape_of, workload
    from scope_lite.models.pretrained import find_model

    text = config.text
    unsloth = text.training_engine == "unsloth"
    size = str(round(torch.cuda.get_device_properties(0).total_memory / 1e9))
    work = workload(
        groups=config.groups, group_size=config.group_size, context=text.context, turns=text.turns,
        new_tokens=text.max_new_tokens, adapters=config.adapters, lora_rank=config.lora_rank,
        bits=4 if text.four_bit else 16, engine="unsloth" if unsloth else "hf",
        vllm_share=text.vllm_share if unsloth else None, micro_batch=text.micro_batch, checkpointing=unsloth,
    )  # fmt: skip
    memory = plan(shape_of(str(find_model(config.model))), card(size), work).memory
    phases = (memory.rollouts, memory.training)
    ours = [sum(v for part, v in parts.items() if part not in ("CUDA and slack", "vLLM's own")) for parts in phases]
    return max(ours) / GIB


class _Stopped(Exception):
    """The run was stopped on purpose."""


def _stop_after_one(step: int, steps: int, metrics: dict[str, Any]) -> None:
    if step == 1:
        raise _Stopped


if __name__ == "__main__":
    name, model, on_cpu, told = sys.argv[1:]
    (chosen,) = [check for check in CHECKS if check.name == name]
    try:
        result = measure(chosen, model, bool(int(on_cpu)))
    except ScopeError as error:
        sys.exit(" ".join(str(error).split()))
    Path(told).write_text(json.dumps(asdict(result)), encoding="utf-8")
