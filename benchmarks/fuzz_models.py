"""Damaged folders of models and adapters: each is refused in one line, or loads as the thing that it was.

    .venv/bin/python benchmarks/fuzz_models.py --count 1000 --seed 0

Prints how each kind of damage ended; exits with 1 if one crashed, or was accepted as something else without need.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from scope_lite.models.chat import ChatFormat
from scope_lite.models.pretrained import load_model
from scope_lite.store.errors import ScopeError

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}<s>assistant: "
IDS = torch.tensor([[1, 70, 80, 90, 100]])
SECONDS = 60  # far more than a load takes; a case that is still at it hangs

# Damage that leaves a whole model, though another one: no file says what the number, word or token was before. Its
# fingerprint is another one, too, and so is the name of a run with it.
ANOTHER_MODEL = {
    "bit of the weights": "a finite number is a number",
    "less precise weights": "the format that a file is in is the format that it was saved in",
    "setting of another value": "a value that transformers takes for this setting",
    "setting left out": "a setting that is left out has transformers' default",
    "bit of a text file": "as above, and any text is a text to a tokenizer",
}


@dataclass(frozen=True)
class Case:
    """One damaged folder, and how it was met."""

    number: int
    kind: str
    outcome: str
    """refused, same (as the undamaged one), another (as ``ANOTHER_MODEL`` allows), accepted, crashed"""
    told: str


def make(folder: Path) -> None:
    """A tiny whole model with settings that are not the defaults, and an adapter on it."""
    torch.manual_seed(0)
    alphabet = {c: i for i, c in enumerate(["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    core = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    words = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    words.chat_template = TEMPLATE
    shape = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=256, rms_norm_eps=1e-3, initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 50.0}, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    lora = LoraConfig(r=4, lora_alpha=7, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(model, lora).save_pretrained(folder / "adapter")


# -- damage -----------------------------------------------------------------------------------------------------------


def flip(path: Path, rng: random.Random, start: int = 0, end: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    place = rng.randrange(start, min(end or len(content), len(content)))
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def head(path: Path) -> int:
    """Where the numbers of a safetensors file begin."""
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def edit_weights(path: Path, rng: random.Random, edit: Callable[[dict[str, torch.Tensor], str], object]) -> None:
    tensors = load_file(path)
    edit(tensors, rng.choice(sorted(tensors)))
    save_file(tensors, path, metadata={"format": "pt"})


def edit_text(path: Path, edit: Callable[[str], str]) -> None:
    path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8", errors="surrogatepass")


def edit_settings(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def odd_value(rng: random.Random) -> Any:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    values = [None, "", "x" * 10_000, "../..", "/etc/passwd", -1, 0, 1, 2.5, 10**9, 10**30, -(10**30), float("nan")]
    values += [float("inf"), 1e300, True, [], {}, {"a": {}}, [1, "a"], deep, "((a+)+)+!", "\x00", "\u202e", "'; exit"]
    return rng.choice(values)


FOREIGN = {
    "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    "quantization_config": {"quant_method": "fp8"},
    "transformers_weights": "../model/model.safetensors",
    "_attn_implementation": "someone/kernels",
    "architectures": ["GPT2LMHeadModel"],
    "modules_to_save": ["embed_tokens"],
    "trainable_token_indices": [1, 2],
    "auto_mapping": {"base_model_class": "Evil", "parent_library": "evil"},
    "layer_replication": [[0, 2], [1, 2]],
    "invented_later": {"x": 1},
}
SPARED = {"use_cache", "transformers_version", "dtype"}  # settings that say nothing of what is computed


def of_weights(path: Path) -> dict[str, Callable[[random.Random], object]]:
    def numbers(edit: Callable[[dict[str, torch.Tensor], str, random.Random], object]) -> Callable[..., object]:
        return lambda rng: edit_weights(path, rng, lambda t, name: edit(t, name, rng))

    def poison(t: dict[str, torch.Tensor], name: str, rng: random.Random) -> None:
        t[name].view(-1)[rng.randrange(t[name].numel())] = rng.choice([torch.nan, torch.inf, -torch.inf])

    codes, short = [torch.int8, torch.int32, torch.bool, torch.float8_e4m3fn], [torch.float16, torch.bfloat16]
    return {
        "bit of the head": lambda rng: flip(path, rng, 0, head(path)),
        "bit of the weights": lambda rng: flip(path, rng, head(path)),
        "cut file": lambda rng: path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)]),
        "longer file": lambda rng: path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 100))),
        "missing weight": numbers(lambda t, name, rng: t.pop(name)),
        "surplus weight": numbers(lambda t, name, rng: t.update({name + rng.choice("x.1_"): t[name].clone()})),
        "renamed weight": numbers(lambda t, name, rng: t.update({name.replace("1", "7") + "x": t.pop(name)})),
        "NaN or infinity": numbers(poison),
        "another shape": numbers(lambda t, name, rng: t.update({name: t[name].reshape(-1, 4).clone()})),
        "codes for weights": numbers(lambda t, name, rng: t.update({name: t[name].to(rng.choice(codes))})),
        "less precise weights": numbers(lambda t, name, rng: t.update({name: t[name].to(rng.choice(short))})),
        "more precise weights": numbers(lambda t, name, rng: t.update({name: t[name].double()})),
    }


def of_settings(path: Path) -> dict[str, Callable[[random.Random], object]]:
    def key(rng: random.Random) -> str:
        return rng.choice(sorted(set(json.loads(path.read_text(encoding="utf-8"))) - SPARED))

    def misspell(content: dict[str, Any], name: str, rng: random.Random) -> None:
        place = rng.randrange(len(name))
        content[name[:place] + rng.choice("qzxjw") + name[place + 1 :]] = content.pop(name)

    return {
        "setting of another value": lambda rng: edit_settings(path, lambda c: c.update({key(rng): odd_value(rng)})),
        "setting left out": lambda rng: edit_settings(path, lambda c: c.pop(key(rng))),
        "setting misspelt": lambda rng: edit_settings(path, lambda c: misspell(c, key(rng), rng)),
        "foreign setting": lambda rng: edit_settings(path, lambda c: c.update([rng.choice(sorted(FOREIGN.items()))])),
        "another shape of JSON": lambda rng: path.write_text(
            rng.choice(["", "[]", "1", "null", '"x"', "{", "[" * 200_000, '{"a":' * 200_000, "NaN", "9" * 5000]),
            encoding="utf-8",
        ),
        "text that is no JSON": lambda rng: path.write_bytes(rng.choice([b"\xff\xfe", b"\xef\xbb\xbf", b"\0"]) * 9),
        "bit of a text file": lambda rng: flip(path, rng),
    }


def replaced(path: Path, rng: random.Random) -> None:
    """Something that is no file where a file should be."""
    path.unlink()
    how = rng.choice(["gone", "folder", "loop", "pipe", "dangling"])
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how != "gone":
        path.symlink_to(path if how == "loop" else path.with_name("nowhere"))


def outside(folder: Path, rng: random.Random) -> None:
    """The weights lie elsewhere, and an index points to them."""
    (folder / "model.safetensors").rename(folder.parent / "stolen.safetensors")
    where = rng.choice(["../stolen.safetensors", str(folder.parent / "stolen.safetensors"), "./../stolen.safetensors"])
    names = load_file(folder.parent / "stolen.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, where)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def damages(model: Path, adapter: Path) -> list[tuple[str, str, Callable[[random.Random], object]]]:
    """What is damaged, how, and the damage."""
    kinds = [("model", kind, act) for kind, act in of_weights(model / "model.safetensors").items()]
    kinds += [("model", kind, act) for kind, act in of_settings(model / "config.json").items()]
    kinds += [("adapter", kind, act) for kind, act in of_weights(adapter / "adapter_model.safetensors").items()]
    kinds += [("adapter", kind, act) for kind, act in of_settings(adapter / "adapter_config.json").items()]
    files = [model / n for n in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")]
    for path in files:
        kinds.append(("tokenizer", "bit of a text file", lambda rng, path=path: flip(path, rng)))
    everything = [*files, model / "config.json", model / "model.safetensors", *adapter.glob("adapter_*")]
    kinds.append(("any", "no file", lambda rng: replaced(rng.choice(everything), rng)))
    kinds.append(("model", "weights elsewhere", lambda rng: outside(model, rng)))
    return kinds


# -- cases ------------------------------------------------------------------------------------------------------------


def observed(folder: Path) -> tuple[torch.Tensor, str]:
    """What the model computes and how it reads a chat, and its fingerprint: all that the project makes of a folder."""
    loaded = load_model(f"{folder / 'model'}+{folder / 'adapter'}", "cpu")
    read = ChatFormat(loaded.tokenizer).opening("be kind", "hello, you there")
    with torch.inference_mode():
        logits = loaded.model(IDS).logits[0]
    return torch.cat([logits.flatten(), torch.tensor(read, dtype=logits.dtype)]), loaded.fingerprint


def hang(*_: object) -> None:
    raise TimeoutError(f"still loading after {SECONDS} s")


def fuzz(count: int, seed: int, scratch: Path) -> list[Case]:
    """``count`` cases; the i-th is a function of (seed, i)."""
    make(scratch / "whole")
    whole, _ = observed(scratch / "whole")
    before = signal.signal(signal.SIGALRM, hang)
    cases = []
    for number in range(count):
        rng, folder = random.Random(f"{seed} {number}"), scratch / "case"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(scratch / "whole", folder)
        kinds = damages(folder / "model", folder / "adapter")
        part, kind, act = kinds[number % len(kinds)]  # every kind alike
        act(rng)
        signal.alarm(SECONDS)
        outcome, told = meet(folder, whole, kind)
        signal.alarm(0)
        cases.append(Case(number, f"{part}: {kind}", outcome, told))
    signal.signal(signal.SIGALRM, before)
    return cases


def meet(folder: Path, whole: torch.Tensor, kind: str) -> tuple[str, str]:
    """Load the damaged folder, twice if it loads."""
    try:
        (first, name), (second, _) = observed(folder), observed(folder)
    except ScopeError as error:
        return ("refused" if "\n" not in str(error) else "crashed"), str(error)
    except BaseException:
        return "crashed", traceback.format_exc()
    if torch.equal(first, whole):
        return "same", ""
    if kind in ANOTHER_MODEL and torch.equal(first, second):
        return "another", name
    return "accepted", "computes something else" if torch.equal(first, second) else "computes something else each time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cases = fuzz(asked.count, asked.seed, Path(scratch))
    outcomes = ("refused", "same", "another", "accepted", "crashed")
    print(f"{'':42}" + "".join(f"{outcome:>10}" for outcome in outcomes))
    for kind in [*sorted({case.kind for case in cases}), ""]:
        counts = Counter(case.outcome for case in cases if kind in ("", case.kind))
        print(f"{kind or 'all':42}" + "".join(f"{counts[outcome]:>10}" for outcome in outcomes))
    wrong = [case for case in cases if case.outcome in ("accepted", "crashed")]
    for case in wrong:
        print(f"\ncase {case.number}, {case.kind}, {case.outcome}: {case.told}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
