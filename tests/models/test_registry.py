"""Models by name: what the registry says, what is downloaded or taken, and what is refused."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.method.config import method_config
from scope_lite.method.made_of import run_folder
from scope_lite.models import registry
from scope_lite.models.generate import TextSampler
from scope_lite.models.pretrained import find_model, load_model
from scope_lite.models.replies import SamplingConfig
from scope_lite.store.errors import ScopeError
from tests.standins import tiny_gguf

FILE = "tiny-q8_0.gguf"


def entry(**changes: Any) -> registry.Entry:
    stops = {token: tiny_gguf.TOKENS.index(token) for token in tiny_gguf.ENDS}
    fields: dict[str, Any] = dict(
        title="Tiny-Chat", family="Tiny", size=1e-4, licence="none", address="http://127.0.0.1:9/none",
        files={FILE: None}, download=1e-3, template="chatml", stops=stops, shape=tiny_gguf.SHAPE,
    )  # fmt: skip
    return registry.Entry(**fields | changes)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The makers' file, and a registry that knows it by its hash; the cache is empty."""
    (tmp_path / "makers").mkdir()
    path = tiny_gguf.write(tmp_path / "makers" / FILE)
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path / "cache"))
    know(monkeypatch, files={FILE: digest(path)})
    return path


def know(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    real = registry.models()
    known = {**{name: real[name] for name in ("smollm2", "qwen2.5-coder-1.5b")}, "tiny": entry(**changes)}
    monkeypatch.setattr(registry, "models", lambda: known)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *told: object) -> None:
        pass


@pytest.fixture
def served(file: Path) -> Iterator[str]:
    """The address of a server on this machine that has the makers' folder."""
    handler = functools.partial(Quiet, directory=str(file.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def left(tmp_path: Path) -> list[str]:
    """What lies in the cache folder, but for locks and empty folders."""
    return sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock")


def refused(match: str, call: Any, *args: Any) -> None:
    with pytest.raises(ScopeError, match=match) as caught:
        call(*args)
    assert "\n" not in str(caught.value)


# -- the list itself --------------------------------------------------------------------------------------------------


def test_every_entry_has_what_a_download_and_a_conversion_need() -> None:
    for name, known in registry.models().items():
        assert name == name.lower() and known.address.startswith("https://"), name
        assert known.gguf or {"config.json", "tokenizer.json"} <= set(known.files), name
        assert known.stops and known.shape["vocab_size"] > max(known.stops.values()), name
    pinned = {name for name, known in registry.models().items() if all(known.files.values())}
    assert {"smollm2", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"} <= pinned
    assert len({known.title for known in registry.models().values()}) == len(registry.models())


def test_smollm2_is_in_a_runs_name_as_it_always_was_and_others_with_their_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.content_of("smollm2") == ["smollm2"]
    assert registry.content_of("qwen2.5-coder-1.5b") == [
        f"qwen2.5-coder-1.5b {registry.made_from('qwen2.5-coder-1.5b')}"
    ]
    assert registry.content_of("qwen3-0.6b+nobody") == ["qwen3-0.6b", "nobody"], "unpinned, and not here"
    names = set()
    for pin in "ab":
        know(monkeypatch, files={FILE: 64 * pin})
        names.add(run_folder(Path(), method_config("single", world="p4g", text={"simulator_model": "tiny"})))
    assert len(names) == 2


def test_a_folder_called_as_a_model_of_the_registry_is_not_that_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    before = registry.content_of("tiny")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert registry.content_of("tiny") == before != registry.content_of("./tiny")
    assert find_model("./tiny") == Path("tiny")


# -- taken from this machine ------------------------------------------------------------------------------------------


def test_a_gguf_file_computes_as_the_weights_that_it_holds(tmp_path: Path, file: Path) -> None:
    folder = registry.add("tiny", file)
    loaded = load_model("tiny", "cpu", "float32")
    assert loaded.name == "Tiny-Chat" and find_model("tiny") == folder
    slow = tiny_gguf.reference()
    with torch.no_grad():
        for weight in slow.parameters():
            weight.copy_((tiny_gguf.in_8_bits(weight) if weight.ndim == 2 else weight).bfloat16())
    ids = torch.tensor([loaded.tokenizer("hello")["input_ids"]])
    assert ids.tolist() == [[tiny_gguf.TOKENS.index(token) for token in ("he", "ll", "o")]]
    torch.testing.assert_close(loaded.model(ids).logits, slow(ids).logits, rtol=1e-5, atol=1e-5)
    assert getattr(loaded.model.config, "quantization_config", None) is None
    ends = [tiny_gguf.TOKENS.index(token) for token in tiny_gguf.ENDS]
    assert loaded.model.generation_config.eos_token_id == ends and TextSampler(loaded).stop_ids == set(ends)
    assert (loaded.tokenizer.eos_token, loaded.tokenizer.pad_token) == tiny_gguf.ENDS
    [replies] = TextSampler(loaded).sample([[{"role": "user", "content": "hi"}]], 2, SamplingConfig(max_new_tokens=3))
    assert all(replies)


def test_what_was_made_once_is_not_made_again_unless_it_is_damaged(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = registry.add("tiny", file)
    with monkeypatch.context() as context:
        context.setattr(registry, "_dequantise", lambda *args: pytest.fail("converted again"))
        assert registry.add("tiny", file) == registry.get("tiny") == find_model("tiny") == folder
    os.truncate(folder / "model.safetensors", 100)
    assert registry.kept("tiny") is None
    refused("tiny is not on this machine: run `scope-lite models get tiny`", find_model, "tiny")
    assert registry.add("tiny", file) == registry.kept("tiny")


def test_other_bytes_than_the_pinned_ones_are_refused_and_leave_nothing(tmp_path: Path, file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)
    refused("is cut short or not tiny's: its SHA-256 begins with [0-9a-f]{12}, that of", registry.add, "tiny", file)
    refused("not there, or not what tiny is made of", registry.add, "tiny", file.parent / "none")
    refused("not there, or not what tiny is made of", registry.add, "tiny", file.parent)
    assert left(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_an_unpinned_file_that_is_damaged_is_one_line_and_leaves_nothing(
    damage: str, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch)
    content = {"cut": file.read_bytes()[: file.stat().st_size // 2], "empty": b"", "text": b"no model\n" * 99}
    file.write_bytes(content[damage])
    refused("could not load|cannot read", registry.add, "tiny", file)
    assert left(tmp_path) == []


def test_another_model_than_the_registrys_is_refused(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, shape=tiny_gguf.SHAPE | {"hidden_size": 128})
    refused("this is not tiny: its hidden_size is 64, and tiny's is 128", registry.add, "tiny", file)
    know(monkeypatch, stops={"<|im_end|>": 7})
    refused(r"this is not tiny: its <\|im_end\|> is 260, and tiny's is 7", registry.add, "tiny", file)
    assert left(tmp_path) == []


def test_the_first_unpinned_file_holds_the_name_until_it_is_removed(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch)
    assert registry.made_from("tiny") == "" and registry.content_of("tiny") == ["tiny"]
    folder, first = registry.add("tiny", file), digest(file)
    assert registry.made_from("tiny") == first and registry.content_of("tiny") == [f"tiny {first}"]
    tiny_gguf.write(file, tiny_gguf.reference(seed=1))
    refused(f"made from another file: remove {re.escape(str(folder))} first", registry.add, "tiny", file)
    shutil.rmtree(folder)
    registry.add("tiny", file)
    assert registry.made_from("tiny") == digest(file) != first


@pytest.mark.parametrize("free", [0, 1])
def test_a_full_disk_is_told_before_and_in_the_middle(
    free: int, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if free:

        def full(*args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(registry, "_dequantise", full)
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))
    refused("the disk is full" if free else "needs 0.0 GB in .*/models, and 0.0 are free", registry.add, "tiny", file)
    assert left(tmp_path) == []


# -- downloaded -------------------------------------------------------------------------------------------------------


def test_a_download_is_the_file_that_add_takes(
    tmp_path: Path, file: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = {path.name: digest(path) for path in registry.add("tiny", file).iterdir() if path.suffix != ".lock"}
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path / "other"))
    know(monkeypatch, files={FILE: digest(file)}, address=served)
    folder = registry.get("tiny")
    assert {path.name: digest(path) for path in folder.iterdir()}.keys() == by_hand.keys()
    assert digest(folder / "model.safetensors") == by_hand["model.safetensors"]
    assert not (tmp_path / "other" / "models" / "downloads" / "tiny").exists()


def test_a_download_that_fails_is_one_line_and_leaves_nothing(
    tmp_path: Path, file: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, files={FILE: 64 * "0"}, address=served)
    refused("could not download .*hash", registry.get, "tiny")
    know(monkeypatch, files={"other.gguf": None}, address=served)
    refused("the server answers 404.*download it elsewhere and run `scope-lite models add tiny", registry.get, "tiny")
    know(monkeypatch)
    refused("could not download http://127.0.0.1:9/none", registry.get, "tiny")
    know(monkeypatch, size=1e9)
    refused("free some space, or set SCOPE_LITE_CACHE", registry.get, "tiny")
    assert left(tmp_path) == []


@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_of_several_files_is_taken_whole(
    sharded: bool, tmp_path: Path, file: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load_model(registry.add("tiny", file), "cpu", "float32")
    for path in (folder := file.parent / "hub", tmp_path / "cache"):
        shutil.rmtree(path, ignore_errors=True)
    made.model.save_pretrained(folder, max_shard_size="60KB" if sharded else "1GB")
    made.tokenizer.save_pretrained(folder)
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 1 if sharded else shards == ["model.safetensors"]
    small = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    files = dict.fromkeys([*small, "model.safetensors.index.json" if sharded else "model.safetensors"])
    know(monkeypatch, files=files, address=f"{served}/hub")
    got = registry.get("tiny")
    assert {path.name for path in folder.iterdir()} == {path.name for path in got.iterdir()} - {"converted.json"}
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(load_model("tiny", "cpu", "float32").model(ids).logits, made.model(ids).logits)
    shutil.rmtree(got)
    assert registry.add("tiny", folder) == got, "the same files, the same name"
    (folder / shards[-1]).unlink()
    shutil.rmtree(got)
    refused(f"has no {shards[-1]}, which tiny needs", registry.add, "tiny", folder)
    (folder / list(files)[-1]).write_bytes(b"{")
    refused("cannot read|could not load", registry.add, "tiny", folder)
    assert left(tmp_path) == []


# -- the commands -----------------------------------------------------------------------------------------------------


def test_the_commands_list_take_and_tell_near_names(file: Path) -> None:
    def said(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli.app, ["models", *words])
        return done.exit_code, done.output

    assert "Tiny-Chat" in said("list")[1] and "yes" not in said("list")[1]
    code, told = said("add", "tiny", str(file))
    assert code == 0 and f"SHA-256 {digest(file)}, as pinned" in told
    assert "yes" in said("list")[1] and said("get", "tiny")[0] == 0
    for command in (["get", "tinny"], ["add", "tinny", str(file)]):
        code, told = said(*command)
        assert code == 2 and "unknown model 'tinny'; did you mean 'tiny'?" in told and told.count("\n") == 1
    refused("no model in 'tinyy': .* did you mean 'tiny'", find_model, "tinyy")
