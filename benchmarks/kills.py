"""SIGKILL at random instants, again and again: the run that comes of it against one that was left alone, byte by byte.

Half of the kills come after a random time, half at a random touch of the disk (open, rename, mkdir, remove, truncate).

    .venv/bin/python benchmarks/kills.py --kills 200
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from scope_lite.method.config import RunConfig, method_config
from scope_lite.method.train import train

TOUCHES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}
# these tell times and processes, which no two runs share
OWN = {"timing.jsonl", "provenance.json", "status"}


def config_of(steps: int) -> RunConfig:
    """A small Population Co-Training with a checkpoint every three steps."""
    sizes = dict(groups=2, group_size=4, eval_every=5, eval_dialogues=2, final_dialogues=4)
    return method_config("population", steps=steps, checkpoint_every=3, **sizes)


def life(config: RunConfig, root: Path, touches: int, seconds: float) -> int:
    """Train in a child that is killed at this touch of the disk (0: never) or after these seconds (0: never).

    Returns:
        Its exit code, -9 if it was killed. A child starts at once, for it shares what was imported here.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_at(root, touches)
            train(config, root)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    end = time.monotonic() + seconds
    while seconds and time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    if seconds:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(root: Path, touches: int) -> None:
    """Kill this process at its n-th touch of the disk."""
    seen = 0

    def note(event: str, args: tuple) -> None:
        nonlocal seen
        if event in TOUCHES or (event == "open" and str(args[0]).startswith(str(root))):
            seen += 1
            if seen == touches:
                os.kill(os.getpid(), signal.SIGKILL)

    if touches:
        sys.addaudithook(note)


def remains(root: Path) -> dict[str, bytes]:
    """Every file under ``root`` but locks, times and processes; of the status what a run leaves for good."""
    files = {str(p.relative_to(root)): p for p in root.rglob("*") if p.is_file() and ".locks" not in p.parts}
    kept = {name: path.read_bytes() for name, path in files.items() if path.name not in OWN}
    for name, path in files.items():
        if path.name == "status":
            status = json.loads(path.read_bytes())
            kept[name] = json.dumps({**status, "pid": 0, "since": 0}).encode()
        elif path.name == "timing.jsonl":
            kept[name] = bytes(json.loads(line)["step"] for line in path.read_bytes().splitlines())
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config, draw, began = config_of(args.steps), random.Random(args.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        alone = Path(scratch, "alone")
        if life(config, alone, 0, 0) != 0:
            return 1
        took, expected = time.monotonic() - began, remains(alone)
        touches = 7 * args.steps  # about half of what a run has
        kills, runs, wrong, broken = 0, 0, [], 0
        while kills < args.kills and not broken:
            root = Path(scratch, str(runs))
            code = -signal.SIGKILL
            while code == -signal.SIGKILL:
                left = kills < args.kills
                by_touch = left and kills % 2
                code = life(
                    config,
                    root,
                    draw.randrange(1, touches) if by_touch else 0,
                    draw.uniform(0.01, took / 4) if left and not by_touch else 0,
                )
                kills += code == -signal.SIGKILL
            runs, broken = runs + 1, broken + (code != 0)
            now = remains(root)
            wrong += sorted(name for name in expected.keys() | now.keys() if expected.get(name) != now.get(name))
    print(f"{kills} kills over {runs} runs of {args.steps} steps: {broken} could not go on, {len(wrong)} files differ")
    print("\n".join(wrong), end="")
    print(f"{time.monotonic() - began:.0f} s")
    return bool(broken or wrong)


if __name__ == "__main__":
    sys.exit(main())
