"""Our loop and TRL's on the same work, step by step in turn, in one run.

    .venv/bin/python benchmarks/speed.py nano --trl .venv-trl/bin/python

Each engine is a process of its own that does one step when it is told; while one computes the other waits. Same model,
prompts, dialogues, batch, number format and threads. Seconds are of rollouts and of training apart; tokens are those of
the policy's transcripts. At nano our adapter lies on the head, too, which TRL refuses.
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

from scope_lite.method.config import RunConfig, method_config
from scope_lite.method.nano import NanoScene
from scope_lite.method.train import open_scene, train
from scope_lite.models.pretrained import find_model
from scope_lite.models.records import Transcript
from scope_lite.models.rng import RowKeys

NANO = {"world": "persuasion", "groups": 32, "group_size": 8, "micro_batch": 256, "learning_rate": 1e-3}
TEXT = {"world": "p4g", "groups": 4, "group_size": 8, "micro_batch": 4, "learning_rate": 1e-4}
WORKLOADS: dict[str, dict[str, Any]] = {"nano": NANO, "smollm2": TEXT}


def config_of(work: dict[str, Any]) -> RunConfig:
    """Our run of this work; it is evaluated only before and after what is measured."""
    same = {key: work[key] for key in ("world", "steps", "groups", "group_size", "learning_rate", "lora_rank")}
    rare = {"eval_every": 10**9, "eval_dialogues": 1, "final_dialogues": 1, "checkpoint_every": 10**9}
    text = {key: work[key] for key in ("turns", "max_new_tokens", "reply_tokens", "micro_batch")}
    text |= {"closing_question": False, "number_format": work["dtype"]}
    return method_config("single", **same, **rare, text={} if work["nano"] else text)


def describe(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The work in token ids, so that both engines read the same prompts and markup."""
    nano = name == "nano"
    tokens = 1 if nano else asked.tokens
    work = WORKLOADS[name] | {"nano": nano, "turns": asked.turns, "steps": asked.repeats + 3, "threads": asked.threads}
    work |= {"max_new_tokens": tokens, "reply_tokens": tokens, "lora_rank": 8, "dtype": asked.dtype}
    scene = open_scene(config_of(work))
    seat, row = scene.policy_model(), RowKeys.grid(0, 0, 1, 1)
    episode = scene.episode(0, "train", scene.told(scene.training_members, row, "train")[0])
    if isinstance(scene, NanoScene):
        work["turns"], folder = scene.world.horizon, scene.library.folder / scene.config.model
    else:
        folder = find_model(scene.config.model)
    word = "greet" if nano else "hello"
    ids = seat.tokenizer(word, add_special_tokens=False)["input_ids"]
    for who, kind in (("policy", "act"), ("simulator", "reply")):
        system = episode.systems[who]
        heard = seat.format.heard(Transcript([0], [True], [0.0], [0]), system, word)
        at = next(i for i in range(len(heard)) if heard[i : i + len(ids)] == ids)
        work[who] = {
            "opening": seat.format.opening(system, None),
            "around": [heard[:at], heard[at + len(ids) :]],
            "ids": seat.choices.get(kind, []),
        }
    close = seat.tokenizer("close", add_special_tokens=False)["input_ids"]
    ends = {"stops": [] if nano else sorted(seat.stop_ids), "outcomes": seat.choices.get("outcome", []), "close": close}
    return work | ends | {"model": str(folder)}


def ours() -> None:
    """The engine of this package: reads the work, then does a step for every line."""
    work = json.loads(sys.stdin.readline())
    torch.set_num_threads(work["threads"])

    def wait(step: int, steps: int, metrics: dict[str, Any]) -> None:
        if step:
            took = json.loads(
                next(Path(work["folder"]).rglob("timing.jsonl")).read_text(encoding="utf-8").splitlines()[step]
            )
            rollouts, training = took["rollout_seconds"], took["train_seconds"]
            tokens = round(took["tokens_per_second"] * (rollouts + training))
            print(json.dumps({"rollouts": rollouts, "training": training, "tokens": tokens}), flush=True)
        else:
            print("ready", flush=True)
        if not sys.stdin.readline():
            raise SystemExit

    train(config_of(work), Path(work["folder"]), on_step=wait)


class Engine:
    """A process that does steps."""

    def __init__(self, command: Sequence[str], work: dict[str, Any]):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
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
        found: dict[str, float] = json.loads(self.until("{"))
        return found


def main() -> None:
    if sys.argv[1:] == ["ours"]:
        return ours()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--trl", help="the Python of an environment with trl; without it only our loop is measured")
    parser.add_argument("--repeats", type=int, default=5, help="measured steps of each")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24, help="new tokens a message, in text")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    asked = parser.parse_args()
    work = describe(asked.workload, asked)
    commands = {"scope_lite": [sys.executable, __file__, "ours"]}
    if asked.trl:
        commands["trl"] = [asked.trl, str(Path(__file__).with_name("speed_trl.py"))]
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        engines = {name: Engine(command, work | {"folder": f"{folder}/{name}"}) for name, command in commands.items()}
        for i in range(asked.repeats + 1):
            for name, engine in engines.items():
                took = engine.step()
                if i:  # the first warms up
                    taken[name].append(took)
        for engine in engines.values():
            engine.process.kill()
    for part in ("rollouts", "training", "tokens"):
        print(
            part,
            *(f"{name} {statistics.median(t[part] for t in steps):.3f}" for name, steps in taken.items()),
            sep="  ",
        )
    whole = {name: [t["rollouts"] + t["training"] for t in steps] for name, steps in taken.items()}
    if asked.trl:
        ratios = [trl / own for own, trl in zip(whole["scope_lite"], whole["trl"], strict=True)]
        print(
            f"trl / scope_lite, a whole step: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
