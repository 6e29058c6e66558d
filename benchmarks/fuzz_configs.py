"""Configuration files that nobody means well with: each is refused in one line, or means what it says.

Valid files are mutated (types swapped, hostile names, extreme numbers, keys twice, deep nesting, other encodings,
YAML's own tricks, stray bytes) and read in this process; nothing is trained. A file that is accepted must say, scalar
by scalar, what the config holds, must give the same config and name when it is written and read again, and its run
folder must lie directly in the folder of run folders. Prints how many were refused and accepted; exit code 1 if one
broke a rule.

    python benchmarks/fuzz_configs.py --count 10000 --seed 0
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from scope_lite.method.config import METHODS, RunConfig, SimulatorConfig, TextConfig, load_config
from scope_lite.method.made_of import run_folder
from scope_lite.store.errors import ScopeError

NAMES = (
    "../../../escaped", "..", ".", "", "/tmp/escaped", "a/b", "a\0b", "a" * 300, "a\nb", "\x1b[2J", "a\u202eb", "mine",
    "s\u0456ngle", "~root", "~nobody9/x", "CON", "-rf", "a b", "a..b", ".hidden", "no", "1e3", "010", "persuasion_007",
    "persuasion_\u0663", "persuasion_" + "9" * 24, "smollm2+../../etc", "openai:x@http://127.0.0.1:1/v1", "singel",
)  # fmt: skip
NUMBERS = (
    "-1", "0", "-0.0", "2147483647", "2147483648", "9223372036854775808", "9" * 25, "9" * 5000, "0x" + "f" * 20_000,
    "0x1F", "010", "0o17", "1:30", "1:30.5", "1_000", "1e3", "1.0e+3", "1e400", "1.0e+400", ".inf", "-.inf", ".nan",
    "inf", "nan", "5e-324", "true", "yes", "1.5", "'7'", "2026-12-01", "1000000000", "0b11", "+5", "1.", "\u0663",
)  # fmt: skip
TYPES = ("null", "[]", "{}", "[1, 2]", "{a: 1}", "text", "[[sim-a]]", "true", "3", "''", "[true]", str(["sim-a"] * 100))
HARMLESS = (
    "1",
    "3",
    "4.0",
    "0.5",
    "1e-3",
    "true",
    "off",
    "null",
    "~",
    "'2'",
    "[sim-b]",
    "[0, 1]",
    "mine",
    "frozen",
    "hf",
)
TRICKS = (
    "a: &a [x, x]\nb: &b [*a, *a]\nk: *b\n", "<<: {seed: 3}\n", "seed: !!int '3'\n", "method: !!binary c2luZ2xl\n",
    "method: !!python/name:os.system\n", "? [seed]\n: 3\n", "1: 2\n", "true: 3\n", "---\nseed: 1\n---\nseed: 2\n",
    "%YAML 1.2\n---\nseed: 1\n", "seed: |\n  3\n", "simulator: {k: 3, k: 4}\n", "text: &t {turns: 2}\n", "=: 3\n",
    "seed:\t4\n", "\tseed: 4\n", "seed: 4 # \u03b3\n", "simulator: !!set {k}\n", "\ufeff\n", "{seed: 1, seed: 1}\n",
    "seed: [" * 40, "[" * 5000, "- " * 3000 + "x\n", "\n".join("  " * i + "k:" for i in range(200)) + "\n", "...\n",
)  # fmt: skip
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252", "utf-7")
TRUE, FALSE = ("true", "yes", "on", "1", "t", "y"), ("false", "no", "off", "0", "f", "n")


def valid(rng: random.Random) -> dict[str, Any]:
    """A short config that is in order."""
    content: dict[str, Any] = {"method": rng.choice(list(METHODS))}
    content["world"] = rng.choice(["persuasion", "retail", "coding", "persuasion_1000", "p4g"])
    usual: dict[str, list[Any]] = {
        "seed": [0, 7], "steps": [0, 20], "groups": [4], "group_size": [8], "learning_rate": [0.001, 1e-05],
        "kl_coef": [0, 0.1], "lora_rank": [4], "advantages": ["z", "centred", "raw", "batch"],
        "recipe": ["stated", "launched"],
    }  # fmt: skip
    content |= {key: rng.choice(values) for key, values in usual.items() if rng.random() < 0.5}
    content["simulator"] = {"k": rng.choice([1, 5]), "sharpness": rng.choice([None, 2.0])}
    content["text"] = {"turns": 2, "grammar": rng.choice([None, True]), "prices": rng.choice([[], [0, 1.5]])}
    return content


def spoilt(rng: random.Random) -> bytes:
    """A config file with one to three things wrong with it, or only odd."""
    lines = yaml.safe_dump(valid(rng), sort_keys=False).splitlines()
    keys = [*RunConfig.model_fields, "methodd", "recipe"]
    below = {"simulator": [*SimulatorConfig.model_fields], "text": [*TextConfig.model_fields]}

    def put(value: str) -> None:
        """Set a key to what stands in the file as ``value``, in the place of what it had or beside it."""
        part = rng.choice(["", "", "simulator", "text"])
        line = f"{'  ' if part else ''}{rng.choice(below.get(part, keys))}: {value}"
        at = next((i for i, old in enumerate(lines) if old.split(":")[0] == line.split(":")[0]), None)
        if at is not None and rng.random() < 0.9:
            lines[at] = line
        else:
            lines.insert(lines.index(f"{part}:") + 1 if f"{part}:" in lines else 0, line)

    def named() -> None:
        key, name = rng.choice(["method", "world", "model"]), rng.choice(NAMES)
        lines[:] = [line for line in lines if not line.startswith(f"{key}:")]
        style = rng.choice([None, '"'])
        lines.insert(0, f"{key}: {yaml.safe_dump(name, default_style=style, width=9999).splitlines()[0]}")
        if rng.random() < 0.5 and "simulator:" in lines:
            lines.insert(lines.index("simulator:") + 1, "  kind: frozen")

    mutations: list[Callable[[], None]] = [
        named,
        lambda: put(rng.choice(NUMBERS)),
        lambda: put(rng.choice(TYPES)),
        lambda: put(yaml.safe_dump(rng.choice(NAMES), default_style='"').strip()),
        lambda: lines.append(rng.choice(lines)),
        lambda: lines.insert(rng.choice([0, len(lines)]), rng.choice(TRICKS)),
        lambda: put(rng.choice(HARMLESS)),
        lambda: put(rng.choice(HARMLESS)),
    ]
    for change in rng.choices(mutations, k=rng.choice([0, 1, 1, 2, 3])):
        change()
    text = "\n".join(lines) + "\n"
    data = text.encode(rng.choice(ENCODINGS) if rng.random() < 0.05 else "utf-8", errors="replace")
    for _ in range(rng.choice([0] * 7 + [1, 3])):
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice([b"", b"\x00", b"\xff", b":", b"\t", b"\n", b"- ", b"\r"]) + data[at + 1 :]
    return data


def says(written: Any, held: Any) -> bool:
    """Whether a file's text (every scalar a string) stands for what the config holds."""
    if isinstance(written, dict):
        return isinstance(held, dict) and all(key in held and says(value, held[key]) for key, value in written.items())
    if isinstance(written, list):
        return isinstance(held, list) and len(written) == len(held) and all(map(says, written, held))
    if held is None:
        return written in ("", "~", "null", "Null", "NULL")
    if isinstance(held, bool):
        return written.lower() in (TRUE if held else FALSE)
    if isinstance(held, str):
        return bool(written == held)
    plain = written.strip().replace("_", "")
    return bool((float(int(plain, 0)) if plain.lower().lstrip("+-")[:2] in ("0x", "0b") else float(plain)) == held)


def check(data: bytes, folder: Path) -> str:
    """What became of a file: "refused", "accepted", or which rule was broken."""
    path, out = folder / "config.yaml", folder / "runs"
    path.write_bytes(data)
    try:
        config = load_config(path)
        place = run_folder(out, config)
    except ScopeError as error:
        return "refused" if str(error).strip() and len(str(error)) < 2000 else f"told badly: {error}"
    held = config.model_dump(mode="json")
    if place.resolve().parent != out.resolve() or not place.name.isascii() or len(place.name) > 255:
        return f"its folder is {place}"
    written = yaml.load(data.decode("utf-8-sig"), yaml.BaseLoader) or {}
    written.pop("recipe", None)  # what it stands for is written out
    if not says(written, held):
        return f"another meaning: {held}"
    path.write_text(yaml.safe_dump(held, sort_keys=False), encoding="utf-8")
    again = load_config(path)
    if again != config or run_folder(out, again) != place:
        return f"another config when read again: {again}"
    return "accepted"


def fuzz(count: int, seed: int, folder: Path) -> tuple[Counter[str], list[tuple[bytes, str]]]:
    """How many files were accepted and refused, and those that broke a rule, with which."""
    rng, counts, broken = random.Random(seed), Counter[str](), []
    for _ in range(count):
        data = spoilt(rng)
        try:
            outcome = check(data, folder)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        counts[outcome if outcome in ("refused", "accepted") else "broken"] += 1
        if outcome not in ("refused", "accepted"):
            broken.append((data, outcome))
    return counts, broken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        counts, broken = fuzz(asked.count, asked.seed, Path(scratch))
    for data, outcome in broken[:20]:
        print(f"{outcome[:300]}\n    {data[:400]!r}")
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
