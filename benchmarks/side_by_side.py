"""Two commits, one machine: the same runs and figures from each, compared byte for byte.

    .venv/bin/python benchmarks/side_by_side.py HEAD~5              # the working tree against an old commit
    .venv/bin/python benchmarks/side_by_side.py HEAD~5 --quick      # one seed, two worlds, some minutes

For each method x nano world x seed: ``metrics.jsonl`` and ``rollouts.jsonl`` (20 steps); for each method in text the
same (2 steps); the figures drawn from shipped tables. The old commit is checked out beside the project for as long as
it takes; both sides run at once, on one thread each. Recorded bytes would not do: another processor gives other bits.

Exit code: 0 all equal, 1 not; each difference is one line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
METHODS = ("base", "single", "persona", "verbalized", "ensemble", "cotraining", "population", "unsharpened")
SELF_PLAY = ("single", "ensemble", "selfplay", "selfplay_population")
WORLDS = ("persuasion", "persuasion_plain", "persuasion_hard", "retail", "airline")
SMALL = ["groups=1", "group_size=3", "text.turns=2", "text.max_new_tokens=12", "text.reply_tokens=20"]
"""settings of the runs in text"""
ENDS = ["eval_every=1", "eval_dialogues=1", "final_dialogues=1"]
WORKER = """
import json, sys, traceback
from scope_lite.cli import app
for line in sys.stdin:
    try:
        app(json.loads(line), standalone_mode=False)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    print("done", flush=True)
"""
"""runs one command line after the other in a process that has imported everything once"""


def commands(out: Path, quick: bool) -> Iterator[list[str]]:
    """The command lines of one side; each run has a folder of its own under ``out``."""
    seeds = (0,) if quick else (0, 1)
    nano = [(world, method) for world in (WORLDS[:2] if quick else WORLDS) for method in METHODS]
    for world, method in [*nano, *(("coding", method) for method in SELF_PLAY)]:
        for seed in seeds:
            folder = out / f"{world}-{method}-{seed}"
            yield ["train", "--world", world, "--method", method, "--steps", "20", "--seed", str(seed), *to(folder)]
    for method in METHODS[1:4] if quick else METHODS:
        sets = [f"--set={value}" for value in (*SMALL, *ENDS)]
        yield ["train", "--world", "p4g", "--method", method, "--steps", "2", *sets, *to(out / f"p4g-{method}")]
    yield ["figures", *to(out / "figures")]


def to(folder: Path) -> list[str]:
    return ["--out", str(folder)]


def play(tree: Path, out: Path, quick: bool, tell: str) -> None:
    """Run every command of one side with the code and data of ``tree``."""
    environment = os.environ | {"PYTHONPATH": str(tree), "SCOPE_LITE_HOME": str(tree), "OMP_NUM_THREADS": "1"}
    log = out.parent / f"{out.name}.log"
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=tree,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        assert process.stdin and process.stdout
        todo = list(commands(out, quick))
        for number, command in enumerate(todo, 1):
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            while (line := process.stdout.readline()) not in ("done\n", ""):
                pass
            if not line:
                raise SystemExit(
                    f"{tell}: scope-lite {' '.join(command)} failed:\n{log.read_text(encoding='utf-8')[-2000:]}"
                )
            print(f"{tell} {number}/{len(todo)}: {' '.join(command[1:5])}", file=sys.stderr)
        process.stdin.close()
        process.wait()


def files(out: Path) -> dict[str, bytes]:
    """What is compared: each run's records without the hash in its folder's name, and every figure."""
    kept = [p for p in sorted(out.rglob("*")) if p.is_file()]
    runs = {f"{p.relative_to(out).parts[0]}/{p.name}": p.read_bytes() for p in kept if p.suffix == ".jsonl"}
    shown = {str(p.relative_to(out)): p.read_bytes() for p in kept if p.suffix in (".png", ".svg", ".md", ".tex")}
    names = {
        f"{p.relative_to(out).parts[0]}: run name": p.parent.name.encode() for p in kept if p.name == "config.yaml"
    }
    return {name: content for name, content in (runs | shown | names).items() if not name.endswith("timing.jsonl")}


def differences(old: dict[str, bytes], new: dict[str, bytes]) -> Iterator[str]:
    """One line for each file that is not the same on both sides."""
    for name in sorted(old | new):
        if name not in old or name not in new:
            yield f"{name}: only {'before' if name in old else 'after'}"
        elif old[name] != new[name]:
            yield f"{name}: {first_difference(old[name], new[name]) if name.endswith('.jsonl') else 'other bytes'}"


def first_difference(old: bytes, new: bytes) -> str:
    """Where two files of records part: the first line, its step, and the keys in it."""
    for number, (a, b) in enumerate(zip(old.splitlines(), new.splitlines(), strict=False)):
        if a != b:
            one, other = json.loads(a), json.loads(b)
            keys = [key for key in one | other if one.get(key) != other.get(key)]
            told = ", ".join(f"{key} {one.get(key)!r:.40} -> {other.get(key)!r:.40}" for key in keys[:3])
            return f"line {number + 1} (step {one.get('step')}), {len(keys)} keys: {told}"
    return f"{len(old.splitlines())} lines -> {len(new.splitlines())}"


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A working tree of a commit, for a while."""
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(PROJECT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="a commit")
    parser.add_argument("--new", help="another commit; by default the working tree")
    parser.add_argument("--quick", action="store_true", help="one seed, two worlds, three methods in text")
    asked = parser.parse_args()
    with checkout(asked.old) as old, tempfile.TemporaryDirectory(prefix="side-by-side-") as scratch:
        outs = Path(scratch) / "old", Path(scratch) / "new"
        with checkout(asked.new) if asked.new else nullcontext(PROJECT) as new, ThreadPoolExecutor() as pool:
            list(
                pool.map(
                    lambda side: play(*side), zip((old, new), outs, (asked.quick,) * 2, ("old", "new"), strict=True)
                )
            )
        before, after = (files(out) for out in outs)
    lines = list(differences(before, after))
    print("\n".join(lines) or f"all {len(before)} files are equal")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
