"""Our loop and TRL's on the same work, step by step in turn, in one run.

    .venv/bin/python benchmarks/speed.py nano --trl .venv-trl/bin/python

Each engine is a process of its own that does one step when it is told; while one computes the other waits. Same model,
prompts, dialogues, batch, number format and threads. Seconds are of rollouts and of training apart; tokens are those of
the policy's transcripts. TRL (1.16) lives in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
NANO = {"world": "persuasion", "groups": 32, "group_size": 8, "micro_batch": 256, "learning_rate": 1e-3}
TEXT = {"world": "p4g", "groups": 4, "group_size": 8, "micro_batch": 4, "learning_rate": 1e-4}
WORKLOADS: dict[str, dict[str, Any]] = {"nano": NANO, "smollm2": TEXT}
PARTS = ("rollouts", "training")


def config_of(work: dict[str, Any]) -> Any:
    from scope_lite.method.config import method_config

    same = {key: work[key] for key in ("world", "steps", "groups", "group_size", "learning_rate")}
    rare = {"eval_every": 10**9, "eval_dialogues": 1, "final_dialogues": 1, "checkpoint_every": 10**9, "seed": 0}
    text = {}
    if work["world"] == "p4g":
        text = {
            "turns": work["turns"], "max_new_tokens": work["max_new_tokens"], "reply_tokens": work["reply_tokens"],
            "closing_question": False, "number_format": work["dtype"], "micro_batch": work["micro_batch"],
        }  # fmt: skip
    return method_config("single", **same, **rare, lora_rank=work["lora_rank"], text=text)


def describe(name: str, turns: int, tokens: int, steps: int, threads: int, dtype: str) -> dict[str, Any]:
    """The workload in token ids, so that both engines read the same."""
    from scope_lite.method.scene import open_scene
    from scope_lite.models.records import Transcript

    nano = name == "nano"
    work = WORKLOADS[name] | {"nano": nano, "turns": turns, "steps": steps, "threads": threads, "dtype": dtype}
    work |= {"max_new_tokens": 1 if nano else tokens, "reply_tokens": 1 if nano else tokens, "lora_rank": 8}
    scene = open_scene(config_of(work))
    seat = scene.policy_model()
    episode = scene.episode(0, "train", scene.told(scene.training_members(), _one_row(), "train")[0])
    if nano:
        work["turns"] = scene.world.horizon
        work["model"] = str(scene.library.folder / scene.config.model)
    else:
        from scope_lite.models.pretrained import find_model

        work["model"] = str(find_model(scene.config.model))
    word = "greet" if nano else "hello"
    one = seat.tokenizer(word, add_special_tokens=False)["input_ids"]
    for who in ("policy", "simulator"):
        system = episode.systems[who]
        heard = seat.format.heard(Transcript([0], [True], [0.0], [0]), system, word)
        at = next(i for i in range(len(heard)) if heard[i : i + len(one)] == one)
        work[who] = {
            "opening": seat.format.opening(system, None),
            "around": [heard[:at], heard[at + len(one) :]],
            "ids": seat.choices.get("act" if who == "policy" else "reply", []),
        }
    work["stops"] = [] if nano else sorted(seat.stop_ids)
    work["outcomes"] = seat.choices.get("outcome", [])
    work["close"] = seat.tokenizer("close", add_special_tokens=False)["input_ids"]
    return work


def _one_row() -> Any:
    from scope_lite.models.rng import RowKeys

    return RowKeys.grid(0, 0, 1, 1)


def ours() -> None:
    """The engine of this package: reads the workload, then a step for every line."""
    work = json.loads(sys.stdin.readline())
    torch.set_num_threads(work["threads"])
    from scope_lite.method.train import train

    def wait(step: int, steps: int, metrics: dict[str, Any]) -> None:
        if step == 0:
            print("ready", flush=True)
        else:
            newest = json.loads(
                next(Path(work["folder"]).rglob("timing.jsonl")).read_text().splitlines()[-2 if step == steps else -1]
            )
            print(
                json.dumps(
                    {
                        "rollouts": newest["rollout_seconds"],
                        "training": newest["train_seconds"],
                        "tokens": round(
                            newest["tokens_per_second"] * (newest["rollout_seconds"] + newest["train_seconds"])
                        ),
                    }
                ),
                flush=True,
            )
        if not sys.stdin.readline():
            raise SystemExit

    train(config_of(work), Path(work["folder"]), on_step=wait)


class Engine:
    """A process that does steps."""

    def __init__(self, command: Sequence[str], work: dict[str, Any]):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.say(json.dumps(work))
        self.until("ready")

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def until(self, start: str) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        raise SystemExit(f"the engine ended: {self.process.args}")

    def step(self) -> dict[str, float]:
        self.say("go")
        return json.loads(self.until("{"))

    def end(self) -> None:
        self.process.kill()


def main() -> None:
    if sys.argv[1:] == ["ours"]:
        return ours()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--trl", help="the Python of an environment with trl")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    work = describe(args.workload, args.turns, args.tokens, args.repeats + 3, args.threads, args.dtype)
    commands = {"scope_lite": [sys.executable, __file__, "ours"]}
    if args.trl:
        commands["trl"] = [args.trl, str(HERE / "speed_trl.py")]
    with tempfile.TemporaryDirectory() as folder:
        engines = {name: Engine(command, work | {"folder": f"{folder}/{name}"}) for name, command in commands.items()}
        steps: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
        for i in range(args.repeats + 1):
            for name, engine in engines.items():
                took = engine.step()
                if i:  # the first warms up
                    steps[name].append(took)
                    print(name, took, flush=True)
        for engine in engines.values():
            engine.end()
    for name, taken in steps.items():
        median = {key: statistics.median(t[key] for t in taken) for key in (*PARTS, "tokens")}
        print(
            name,
            {k: round(v, 3) for k, v in median.items()},
            "whole",
            round(statistics.median(t["rollouts"] + t["training"] for t in taken), 3),
        )


if __name__ == "__main__":
    main()
