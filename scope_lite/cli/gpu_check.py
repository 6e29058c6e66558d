"""``scope-lite gpu-check``: two real steps of everything that needs a GPU, on whatever is there, with a small model.

Each check trains a tiny run in a process of its own, as a user would: what one engine patches or keeps in memory then
reaches no other. A process writes what it measured into a file; how it died is told by its last words.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scope_lite.cli.base import print_table
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    from scope_lite.method.config import RunConfig

GIB = 2**30
LIMIT_SECONDS = 1200
RUN: dict[str, Any] = {
    "world": "p4g", "steps": 2, "groups": 2, "group_size": 4, "eval_every": 2, "eval_dialogues": 1,
    "final_dialogues": 1, "lora_rank": 8,
}  # fmt: skip
TEXT = {"turns": 2, "max_new_tokens": 16, "reply_tokens": 16, "micro_batch": 4, "context": 1024}
UNSLOTH, VLLM = {"training_engine": "unsloth"}, {"rollout_engine": "vllm"}
CHILD = "import sys; from scope_lite.cli.gpu_check import child; child(*sys.argv[1:])"
UNCOUNTED = ("CUDA and slack", "vLLM's own")
"""parts of a plan that torch does not count"""


@dataclass(frozen=True)
class Check:
    """One row: what is run, and what it needs."""

    name: str
    method: str = "single"
    text: dict[str, Any] = field(default_factory=dict)
    """what differs from ``TEXT``"""
    on_gpu: dict[str, Any] = field(default_factory=dict)
    """the same, where there is a GPU"""
    simulator: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False
    """stop after the first step, then take the run up again from its checkpoint"""

    def config(self, model: str, on_cpu: bool) -> RunConfig:
        from scope_lite.method.config import method_config

        text = {**TEXT, **self.text, **({"device": "cpu"} if on_cpu else {"device": "auto", **self.on_gpu})}
        return method_config(self.method, model=model, text=text, simulator=self.simulator, **RUN)


CHECKS = (
    Check("HF + LoRA GRPO"),
    Check("Unsloth GRPO", text=UNSLOTH, on_gpu=VLLM),
    Check("vLLM rollouts", text=VLLM),
    Check("VS, structured", "verbalized", {"grammar": True}, VLLM),
    Check("Co-Training, two adapters", "cotraining", on_gpu=UNSLOTH | VLLM),
    Check("Population of past selves", "population", {}, UNSLOTH | VLLM, {"pool_size": 2, "cadence": 1}),
    Check("P4G loop, stopped and resumed", stopped=True),
)


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


def gpu_check(
    model: Annotated[str, typer.Option(help='A small chat model: "smollm2" or a folder.')] = "smollm2",
    cpu: Annotated[bool, typer.Option("--cpu", help="Without a GPU: the parts that run on a CPU (minutes).")] = False,
    only: Annotated[str | None, typer.Option(help="Only checks whose name holds this.")] = None,
) -> None:
    """Run two real steps of everything on this GPU; exit code 1 if there is none, or if a check fails."""
    import pandas as pd

    if not cpu and not has_gpu():
        typer.echo("gpu-check: no CUDA device here; --cpu runs the parts that need none", err=True)
        raise typer.Exit(1)
    results = []
    for check in CHECKS:
        if (only or "").lower() in check.name.lower():
            typer.echo(f"{check.name} ...", err=True)
            results.append(run_check(check, model, cpu))
    marks = {True: "pass", False: "FAIL", None: "not here"}
    rows = [(r.name, marks[r.ok], r.tokens_per_second, r.peak_gib, r.planned_gib, r.detail) for r in results]
    columns = ["check", "", "tokens/s", "peak GiB", "planned GiB", "what it said"]
    print_table(pd.DataFrame(rows, columns=columns), f"gpu-check{' (CPU)' if cpu else ''}: two steps each")
    if not results or any(result.ok is False for result in results):
        raise typer.Exit(1)


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def run_check(check: Check, model: str, on_cpu: bool, limit: float = LIMIT_SECONDS) -> Result:
    """Run one check in a process of its own."""
    engines = check.config(model, on_cpu).text
    wanted = {engines.training_engine, engines.rollout_engine} - {"hf"}
    missing = sorted(engine for engine in wanted if importlib.util.find_spec(engine) is None)
    if missing:
        return Result(check.name, None, f"{missing[0]} is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch) / "result.json"
        command = [sys.executable, "-c", CHILD, check.name, model, str(int(on_cpu)), str(told)]
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
    config = check.config(model, on_cpu)
    if config.text.training_engine == "unsloth":
        importlib.import_module("unsloth")  # it wants to come before transformers
    import torch

    from scope_lite.method.train import train
    from scope_lite.store import load_metrics, load_timing

    with tempfile.TemporaryDirectory() as root:
        if check.stopped:
            with contextlib.suppress(KeyboardInterrupt):
                train(config, Path(root), on_step=_stop_after_one)
        folder = train(config, Path(root))
        metrics, timing = load_metrics([folder]), load_timing([folder])
    last = metrics.iloc[-1]
    wrong = [name for name in ("loss", "grad_norm", "entropy", "reward") if not last[name] == last[name]]
    if wrong:
        raise ScopeError(f"no number in {', '.join(wrong)} after step {int(last['step'])}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    planned = None
    if not on_cpu:
        from scope_lite.cli.planner import card, plan

        peak = torch.cuda.max_memory_allocated()
        size = torch.cuda.get_device_properties(0).total_memory / 1e9
        made = plan(config, card(str(round(size))))
        parts = [{**phase, **dict.fromkeys(UNCOUNTED, 0.0)} for phase in (made.rollouts, made.training)]
        planned = max(sum(phase.values()) for phase in parts) / GIB
    speed = float(timing["tokens_per_second"].dropna().iloc[-1])
    said = f"reward {last['reward']:.2f}, entropy {last['entropy']:.2f} nats"
    return Result(check.name, True, said, speed, peak / GIB, planned)


def _stop_after_one(step: int, steps: int, metrics: dict[str, Any]) -> None:
    if step == 1:
        raise KeyboardInterrupt


def child(name: str, model: str, on_cpu: str, told: str) -> None:
    """What the process of a check does: its result goes to the file ``told``, a refusal to standard error."""
    (chosen,) = [check for check in CHECKS if check.name == name]
    try:
        result = measure(chosen, model, bool(int(on_cpu)))
    except ScopeError as error:
        sys.exit(" ".join(str(error).split()))
    Path(told).write_text(json.dumps(asdict(result)), encoding="utf-8")
