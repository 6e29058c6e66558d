"""Damaged run folders, thousands of them: none ends in a traceback, and none is resumed as something that it is not.

A small run is stopped between two checkpoints, damaged in a copy, and opened again. What may come of it: a refusal in
one line, or a start from a checkpoint whose weights, state and records are byte by byte those of the run that was left
alone. Since training repeats itself bit for bit from there, this is as good as training on, and a hundred times faster.
All commands that only read are asked, too.

    .venv/bin/python benchmarks/fuzz_runs.py --checkpoints 2000 --records 2000
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scope_lite import store as runs
from scope_lite.method.config import method_config
from scope_lite.method.made_of import made_of, run_folder
from scope_lite.method.train import train
from scope_lite.store import checkpoints, files, provenance
from scope_lite.store.errors import ScopeError

RECORDS = ("metrics.jsonl", "rollouts.jsonl", "timing.jsonl", "status", "provenance.json", "config.yaml")
NUMBERS = [-1, 0, 0.5, 2**40, 10**30, float("nan"), float("inf")]
ODD: list[Any] = [None, True, *NUMBERS, "", "x", "\0", [], {}, [[]], {"a": 1}]
WASTE = [b"", b"[" * 100_000, b"{}", b"[]", b"null", b"9" * 5000, bytes(99)]


class Runs:
    """Two runs of one configuration: ``whole`` was left alone, ``cut`` was stopped after step 5 of 6."""

    def __init__(self, scratch: Path) -> None:
        sizes = dict(groups=2, group_size=2, eval_every=2, eval_dialogues=2, final_dialogues=2, checkpoint_every=2)
        self.config = method_config("single", steps=6, **sizes)
        self.whole = train(self.config, scratch / "whole")

        def stop(step: int, steps: int, metrics: dict[str, Any]) -> None:
            if step == 5:
                raise KeyboardInterrupt

        try:
            train(self.config, scratch / "cut", on_step=stop)
        except KeyboardInterrupt:
            pass
        self.cut = scratch / "cut" / self.whole.name
        self.saved = {found.step: found for found in checkpoints.whole(self.cut / "checkpoints")}

    def open(self, root: Path) -> runs.RunFolder:
        content = self.config.model_dump(mode="json")
        return runs.RunFolder(run_folder(root, self.config), content, made_of(self.config))

    def resumed(self, root: Path) -> str:
        """Go back to a checkpoint as ``train`` does, and compare: "refused", or the step that it starts from.

        Raises:
            AssertionError: if it is not what the whole run had there.
        """
        try:
            with self.open(root) as run:
                assert not run.finished, "taken for finished"
                found = run.load_checkpoint()
                for name in ("metrics.jsonl", "rollouts.jsonl"):
                    size = self.saved[found.step].records[name]["bytes"] if found else 0
                    assert (run.path / name).read_bytes() == (self.whole / name).read_bytes()[:size], f"other {name}"
                steps = [json.loads(line)["step"] for line in (run.path / "timing.jsonl").read_bytes().splitlines()]
                assert steps == sorted(set(steps)) and max(steps, default=0) <= (found.step if found else 0)
                if found:
                    assert same(found, self.saved[found.step]), "another checkpoint"
            return f"step {found.step if found else 0}"
        except ScopeError as exc:
            assert "\n" not in str(exc), "more than one line"
            return "refused"

    def read(self, root: Path) -> None:
        """Ask everything that only reads; a refusal in one line is an answer."""
        folder = root / self.cut.name
        asked: list[Callable[[], object]] = [
            lambda: runs.list_runs(root),
            lambda: runs.load_metrics([folder]),
            lambda: runs.load_timing([folder]),
            lambda: runs.load_rollouts([folder]),
            lambda: [runs.in_words(str, dialogue) for dialogue in runs.kept_dialogues(folder)],
            lambda: runs.paired_dialogues(self.whole, folder, 9),
            lambda: runs.compare(self.whole, folder),
            lambda: runs.prune(root, finished=True, checkpoints=True),
        ]
        for ask in asked:
            try:
                ask()
            except ScopeError as exc:
                assert "\n" not in str(exc), "more than one line"


def same(a: runs.Checkpoint, b: runs.Checkpoint) -> bool:
    """Whether two checkpoints hold the same."""
    flat = [{(key, name): t for key, group in c.tensors.items() for name, t in group.items()} for c in (a, b)]
    equal = flat[0].keys() == flat[1].keys() and all(torch.equal(flat[0][key], flat[1][key]) for key in flat[0])
    return equal and (a.step, a.state, a.records) == (b.step, b.state, b.records)


# -- damage ---------------------------------------------------------------------------------------------------------


def flip(data: bytes, draw: random.Random) -> bytes:
    """One bit."""
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def cut(data: bytes, draw: random.Random) -> bytes:
    """The end is lost, or filled with zeros."""
    at = draw.randrange(len(data))
    return data[:at] + draw.choice([b"", bytes(len(data) - at), bytes(4096)])


def swap(data: bytes, draw: random.Random) -> bytes:
    """Two pieces change places."""
    a, b, c = sorted(draw.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def replace(data: bytes, draw: random.Random) -> bytes:
    """Something else entirely, such as a header of 2^60 bytes."""
    return draw.choice([*WASTE, (2**60).to_bytes(8, "little") + data[8:], draw.randbytes(200)])


def lines(data: bytes, draw: random.Random) -> bytes:
    """Lines are lost, doubled, in another order."""
    rows = data.splitlines(keepends=True)
    at, to = draw.randrange(len(rows)), draw.randrange(len(rows))
    kind = draw.randrange(6)
    if kind == 0:
        del rows[at]
    elif kind == 1:
        rows.insert(to, rows[at])
    elif kind == 2:
        rows[at], rows[to] = rows[to], rows[at]
    elif kind == 3:
        rows = [row for row in rows for _ in range(2)]
    elif kind == 4:
        rows = rows[:at]
    else:
        rows[at] = replace(rows[at], draw) + b"\n"
    return b"".join(rows)


def types(data: bytes, draw: random.Random) -> bytes:
    """A value becomes one of another type, a key is lost or has another name."""
    rows = data.splitlines() if data[:1] == b"{" and b"\n" in data[:-1] and data[:2] != b"{\n" else [data]
    at = draw.randrange(len(rows))
    try:
        tree = json.loads(rows[at])
    except ValueError:  # YAML: a line of it
        return lines(data, draw)
    change(tree, draw)
    rows[at] = json.dumps(tree).encode()
    return b"\n".join(rows) + b"\n"


def change(tree: Any, draw: random.Random) -> None:
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    if not keys:
        return
    key = draw.choice(keys)
    if isinstance(tree[key], dict | list) and draw.random() < 0.6:
        change(tree[key], draw)
    elif draw.random() < 0.2:
        del tree[key]
    elif isinstance(tree, dict) and draw.random() < 0.1:
        tree[draw.choice(keys) + "x"] = tree.pop(key)
    else:
        tree[key] = draw.choice(ODD)


DAMAGES = (flip, cut, swap, replace, lines, types)


def damage(path: Path, draw: random.Random) -> str:
    """Damage one file, or what stands in its place; what was done."""
    if draw.random() < 0.1:
        files.remove(path)
        kind = draw.choice(["lost", "a folder", "a link to itself", "a link to nowhere"])
        if kind == "a folder":
            path.mkdir()
        elif kind != "lost":
            path.symlink_to(path if kind == "a link to itself" else "nowhere")
        return f"{path.name}: {kind}"
    make = draw.choice(DAMAGES)
    made = make(path.read_bytes(), draw)
    # YAML's reader loses its way in six hundred lists, and takes minutes to do so in a hundred thousand
    path.write_bytes(made.replace(b"[" * 600, b"") if path.suffix == ".yaml" else made)
    return f"{path.name}: {make.__name__}"


def damage_checkpoint(folder: Path, draw: random.Random) -> str:
    """Damage one of the checkpoints, or both; sometimes by files of one in the other."""
    steps = checkpoints.steps_in(folder / "checkpoints")
    name = draw.choice(["state.json", "state.json", "policy.safetensors"])
    kind = draw.randrange(12)
    if kind == 0:
        shutil.copyfile(steps[0] / name, steps[1] / name)
        return f"{name} of the one in the other"
    if kind == 1:
        return damage_place(draw.choice(steps), draw)
    chosen = steps if kind == 2 else [draw.choice(steps)]
    return ", ".join(damage(step / name, draw) for step in chosen)


def damage_place(step: Path, draw: random.Random) -> str:
    """The folder itself is lost, has another name, is a file or a link."""
    kind = draw.randrange(4)
    if kind == 0:
        step.rename(step.with_name(f"step_{draw.randrange(10**6):06d}"))
        return "another name"
    files.remove(step)
    if kind == 1:
        step.write_text("x", encoding="utf-8")
    elif kind == 2:
        step.symlink_to(step)
    return ("", "a file", "a link to itself", "lost")[kind] + " in place of a checkpoint"


def fuzz(what: str, count: int, seed: int, both: Runs, scratch: Path) -> tuple[collections.Counter[str], list[str]]:
    """Damage ``count`` copies of the stopped run: what came of them, and the tracebacks of those that failed."""
    seen: collections.Counter[str] = collections.Counter()
    failed = []
    for case in range(count):
        draw, root = random.Random(f"{seed} {what} {case}"), scratch / "case"
        folder = root / both.cut.name
        shutil.copytree(both.cut, folder)
        if what == "checkpoints":
            done = damage_checkpoint(folder, draw)
        else:
            names = draw.sample(RECORDS, draw.choice([1, 1, 1, 2]))
            done = ", ".join(damage(folder / name, draw) for name in names)
        try:
            if what == "records":  # nothing else that reads looks into checkpoints
                both.read(root)
            seen[both.resumed(root)] += 1
        except Exception:
            failed.append(f"{what} {case}: {done}\n{traceback.format_exc()}")
        shutil.rmtree(root)
    return seen, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=2000)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.getLogger("scope_lite").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    facts = provenance.collect()
    provenance.collect = lambda: dict(facts)  # it asks git, which takes most of an opening
    bad = False
    with tempfile.TemporaryDirectory() as scratch:
        both = Runs(Path(scratch))
        for what, count in (("checkpoints", args.checkpoints), ("records", args.records)):
            seen, failed = fuzz(what, count, args.seed, both, Path(scratch))
            told = ", ".join(f"{number} {name}" for name, number in sorted(seen.items()))
            print(*failed, f"{count} damaged {what}: {told}, {len(failed)} failed", sep="\n", flush=True)
            bad = bad or bool(failed)
    return bad


if __name__ == "__main__":
    sys.exit(main())
