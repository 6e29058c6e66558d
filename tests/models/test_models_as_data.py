"""A folder of a model or an adapter is data: none of its code runs, and what is loaded is what was asked for."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import scope_lite
from benchmarks.fuzz_models import fuzz
from scope_lite.cli import app
from scope_lite.models.adapters import CONFIG, WEIGHTS, fold_adapters
from scope_lite.models.hf import SeatModel, load_base
from scope_lite.models.pretrained import load_model
from scope_lite.store.errors import ScopeError
from tests.standins.tiny_models import tiny

Tensors = dict[str, torch.Tensor]
NORM = "model.layers.1.input_layernorm.weight"
IDS = torch.tensor([[5, 9, 70, 33]])


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shipped") / "model"
    loaded = tiny("llama", max_position_embeddings=2048)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(shipped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped, tmp_path / "model"))


def change(path: Path, **keys: Any) -> None:
    """Set keys of a JSON file; ``...`` takes one away."""
    content = {**json.loads(path.read_text(encoding="utf-8")), **keys}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}), encoding="utf-8")


def rewrite(path: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def refusal(load: Callable[[], object]) -> str:
    with pytest.raises(ScopeError) as caught:
        load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- no code ----------------------------------------------------------------------------------------------------------


def test_every_read_of_a_folder_forbids_its_code() -> None:
    readers, found = {"from_pretrained", "LLM"}, 0
    for path in Path(scope_lite.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in readers:
                told = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                spread = [ast.unparse(k.value) for k in node.keywords if k.arg is None]
                assert told.get("trust_remote_code") == "False" or "AS_DATA" in spread, f"{path}:{node.lineno}"
                found += 1
    assert found >= 5


def plant(folder: Path, kind: str) -> Path:
    """Code in a model's folder that leaves a mark when it runs, and a config that asks for it."""
    mark = folder.parent / "ran"
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w').close()\nfrom transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizer\n"
        "class Config(LlamaConfig):\n    model_type = 'evil'\nModel, Words = LlamaForCausalLM, LlamaTokenizer\n",
        encoding="utf-8",
    )
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.Words", None]}
    if kind == "tokenizer":
        change(folder / "tokenizer_config.json", auto_map=auto, tokenizer_class="EvilWords")
    else:
        change(folder / "config.json", auto_map=auto, model_type="evil" if kind == "type" else "llama")
    return mark


@pytest.mark.parametrize("kind", ["type", "known", "tokenizer"])
@pytest.mark.parametrize("command", ["train", "replies", "plan", "nano"])
def test_code_in_a_model_s_folder_does_not_run_though_standard_input_says_yes(
    command: str, kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = plant(folder, kind)
    monkeypatch.chdir(folder)
    train = ["train", "--world", "p4g", "--steps", "0", "--set", f"model={folder}", "--set", "eval_dialogues=1"]
    words = {
        "train": [*train, "--set", "final_dialogues=1", "--set", "text.turns=1", "--out", str(tmp_path / "runs")],
        "replies": ["simulator", "replies", str(folder), "--replies", "1", "--out", str(tmp_path / "replies.csv")],
        "plan": ["plan", "--model", str(folder)],
    }
    if command == "nano":
        if kind != "known":
            refusal(lambda: load_base(folder))
    else:
        result = CliRunner().invoke(app, words[command], input="y\n" * 20)
        assert result.exception is None or isinstance(result.exception, SystemExit | ScopeError), result.exception
    assert not mark.exists()


# -- models -----------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Tensors], object]] = {
    f"lacks {NORM}": lambda t: t.pop(NORM),
    "lacks model.layers.0.input_layernorm.weight and 8 more": lambda t: [t.pop(n) for n in [*t] if ".layers.0." in n],
    "no place for extra": lambda t: t.update(extra=torch.ones(3)),
    f"NaN or infinity in {NORM}": lambda t: t[NORM].fill_(torch.nan),
    "NaN or infinity in model.embed_tokens.weight": lambda t: t["model.embed_tokens.weight"][7, 3].fill_(-torch.inf),
    "could not load the model": lambda t: t.update({NORM: torch.ones(5)}),
    f"{NORM} is kept as I8": lambda t: t.update({NORM: torch.ones(32, dtype=torch.int8)}),
}


@pytest.mark.parametrize("told", DAMAGE)
@pytest.mark.parametrize("load", [load_model, load_base])
def test_a_model_whose_weights_are_not_its_config_s_is_refused(load: Any, told: str, folder: Path) -> None:
    rewrite(folder / "model.safetensors", DAMAGE[told])
    assert told in refusal(lambda: load(folder))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"tie_word_embeddings": True}, "has a head of its own"),
        ({"num_hidden_layers": 1}, "no place for"),
        ({"num_hidden_layers": 3}, "lacks model.layers.2"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is larger than"),
        ({"vocab_size": 10**12}, "vocab_size is larger than"),
        ({"head_dim": 10**9}, "head_dim is larger than"),
        ({"transformers_weights": "../other.safetensors"}, "names its weights by transformers_weights"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"model_type": 7}, "config.json"),
        ({"rms_norm_eps": ..., "rms_nrom_eps": 1e-3}, "no 'rms_norm_eps'"),
    ],
)
def test_a_config_that_is_not_its_weights_is_refused_before_anything_is_allocated(
    keys: dict[str, Any], told: str, folder: Path
) -> None:
    change(folder / "config.json", **keys)
    assert told in refusal(lambda: load_model(folder))


@pytest.mark.parametrize("epsilon", [float("nan"), -1e9])
@pytest.mark.parametrize("load", [load_model, load_base])
def test_a_model_that_loads_and_cannot_compute_is_refused(load: Any, epsilon: float, folder: Path) -> None:
    change(folder / "config.json", rms_norm_eps=epsilon)
    assert "computes NaN" in refusal(lambda: load(folder))
    change(folder / "config.json", rms_norm_eps=1e-6, hidden_act="no_such_function")
    refusal(lambda: load(folder))


@pytest.mark.parametrize("keys", [{"_attn_implementation": "a/b"}, {"text_config": {"_experts_implementation": "a/b"}}])
@pytest.mark.parametrize("load", [load_model, load_base])
def test_a_kernel_that_a_config_names_is_not_fetched(load: Any, keys: dict[str, Any], folder: Path) -> None:
    change(folder / "config.json", **keys)
    assert "names a kernel" in refusal(lambda: load(folder))


def test_weights_outside_of_the_folder_and_a_second_model_in_it_are_refused(folder: Path) -> None:
    (folder / CONFIG).write_text("{}", encoding="utf-8")
    assert "holds a model and an adapter" in refusal(lambda: load_model(folder))
    (folder / CONFIG).unlink()
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    index = folder / "model.safetensors.index.json"
    names = load_file(folder.parent / "elsewhere.safetensors")
    index.write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "../elsewhere.safetensors")}), encoding="utf-8"
    )
    assert "outside of its folder" in refusal(lambda: load_model(folder))
    for content in ("[" * 100_000, "[]", '{"weight_map": [1]}', "{}"):
        index.write_text(content, encoding="utf-8")
        refusal(lambda: load_model(folder))


def test_another_model_s_tokenizer_is_refused(folder: Path) -> None:
    tokens = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens["model"]["vocab"]["unheard"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
    assert "tokens have no embedding" in refusal(lambda: load_model(folder))


def test_buffers_of_older_files_and_a_second_copy_of_a_tied_head_are_harmless(folder: Path) -> None:
    change(folder / "config.json", tie_word_embeddings=True)
    path, head, buffer = folder / "model.safetensors", "lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(path, lambda t: t.update({head: t["model.embed_tokens.weight"].clone()}))
    before = load_model(folder).model(IDS).logits
    rewrite(path, lambda t: (t.pop(head), t.update({buffer: torch.ones(4)})))
    assert torch.equal(load_model(folder).model(IDS).logits, before)


# -- adapters ---------------------------------------------------------------------------------------------------------


def save_adapter(base: Path, to: Path, **settings: Any) -> Path:
    settings = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, **settings}
    torch.manual_seed(0)
    get_peft_model(load_model(base).model, LoraConfig(task_type="CAUSAL_LM", **settings)).save_pretrained(to)
    return to


@pytest.fixture(scope="module")
def trained(shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(shipped, tmp_path_factory.mktemp("trained") / "adapter")


@pytest.fixture
def adapter(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "adapter"))


@pytest.mark.parametrize(
    "settings",
    [
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["lm_head"]},
        {"trainable_token_indices": [1, 2]},
        {"bias": "all"},
        {"lora_bias": True, "target_modules": ["q_proj"]},
        {"layer_replication": [[0, 2], [1, 2]]},
    ],
)
def test_an_adapter_that_is_more_than_low_rank_matrices_is_refused(
    settings: dict[str, Any], folder: Path, adapter: Path
) -> None:
    change(adapter / CONFIG, **settings)
    assert f"uses {next(iter(settings))}" in refusal(lambda: load_model(f"{folder}+{adapter}"))


@pytest.mark.parametrize(
    "keys",
    [
        {"lora_alpha": float("nan")},
        {"lora_alpha": 1e300},
        {"lora_alpha": "16"},
        {"lora_alpha": ...},
        {"r": 10**9},
        {"r": -1},
        {"r": True},
        {"r": 2},
        {"rank_pattern": {"q_proj": 10**9}},
        {"rank_pattern": {"(a+)+!": 4}},
        {"target_modules": "(([a-z_.0-9]+)+)+!"},
        {"target_modules": ["q_proj"]},
        {"target_modules": ["q_proj", "v_proj", "o_proj"]},
        {"target_modules": []},
        {"layers_to_transform": [0]},
        {"layers_pattern": "((a+)+)+!"},
        {"exclude_modules": "((a+)+)+!"},
        {"init_lora_weights": "pissa"},
        {"use_dora": True},
        {"peft_type": "IA3"},
        {"peft_type": ["LORA"]},
        {"invented_later": {"changes": "everything"}},
    ],
)
def test_settings_that_would_be_read_otherwise_than_meant_are_refused(
    keys: dict[str, Any], folder: Path, adapter: Path
) -> None:
    change(adapter / CONFIG, **keys)
    refusal(lambda: load_model(f"{folder}+{adapter}"))


def test_an_adapter_s_weights_must_be_those_of_its_settings_and_finite(folder: Path, trained: Path, tmp_path: Path):
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    refusals: dict[str, Callable[[Tensors], object]] = {
        f"lacks {first}": lambda t: t.pop(first),
        "no place for extra": lambda t: t.update(extra=torch.ones(2, 2)),
        "no place for base_model.model.lm_head.weight": lambda t: t.update(
            {"base_model.model.lm_head.weight": IDS + 0.5}
        ),
        f"another shape for {first}": lambda t: t.update({first: torch.ones(4, 31)}),
        f"NaN or infinity in {first}": lambda t: t[first][0, 0].fill_(torch.nan),
        f"{first} is kept as I8": lambda t: t.update({first: torch.ones(4, 32, dtype=torch.int8)}),
        f"{first} is kept as F8_E4M3": lambda t: t.update({first: t[first].to(torch.float8_e4m3fn)}),
    }
    for number, (told, edit) in enumerate(refusals.items()):
        copy = Path(shutil.copytree(trained, tmp_path / str(number)))
        rewrite(copy / WEIGHTS, edit)
        assert told in refusal(lambda copy=copy: load_model(f"{folder}+{copy}"))


def test_what_an_adapter_says_of_libraries_is_not_imported(folder: Path, adapter: Path, monkeypatch: Any) -> None:
    (adapter / "evil.py").write_text(f"open({str(adapter / 'ran')!r}, 'w')", encoding="utf-8")
    monkeypatch.syspath_prepend(adapter)
    mapping = {"base_model_class": "Evil", "parent_library": "evil"}
    change(adapter / CONFIG, auto_mapping=mapping, megatron_core="evil", revision="evil")
    load_model(f"{folder}+{adapter}")
    assert not (adapter / "ran").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3.5}},
        {"layers_to_transform": [1]},
        {"target_modules": ["q_proj", "lm_head"]},  # peft saves the head itself beside its adapter
    ],
)
def test_every_kind_of_plain_adapter_computes_what_peft_computes(
    settings: dict[str, Any],
    folder: Path,
    tmp_path: Path,
    float32: None,
) -> None:
    adapter = save_adapter(folder, tmp_path / "adapter", **settings)
    loaded = load_model(f"{folder}+{adapter}")
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(load_model(folder).model, str(adapter))(IDS).logits
        assert torch.equal(loaded.model(IDS).logits, theirs)
        assert not [name for name, p in loaded.model.named_parameters() if p.requires_grad]
        seat = SeatModel(fold_adapters(loaded.model), loaded.tokenizer)
        seat.add_adapter(4, 8, seed=0)  # refused, if the first one had left anything that would be trained
        for model in (seat.model, seat.reference().model):
            torch.testing.assert_close(model(IDS).logits, theirs, atol=1e-4, rtol=1e-3)


def test_fifty_damaged_folders_are_refused_in_one_line_or_are_what_they_were(tmp_path: Path) -> None:
    cases = fuzz(50, 1, tmp_path)
    assert not [case for case in cases if case.outcome in ("accepted", "crashed")]
    assert sum(case.outcome == "refused" for case in cases) > 25
