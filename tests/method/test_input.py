"""What a user gives is checked before anything is written: YAML, names, numbers, variables."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from scope_lite import MAX_SEED, cli
from scope_lite.cli.notebook_runner.ledger import Ledger
from scope_lite.cli.notebook_runner.parameters import Plan, load_scale
from scope_lite.envs.cooperbench.dataset import read_base
from scope_lite.method.config import (
    METHODS,
    RunConfig,
    load_config,
    method_config,
    parse_config,
)
from scope_lite.method.made_of import run_folder
from scope_lite.method.panel_file import read_panel
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import name_fault, place_fault
from scope_lite.store.plain_yaml import LARGEST, read_yaml

named = partial(run_folder, Path())

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    "",
    ".",
    "..",
    "../x",
    "/tmp/x",
    "a/b",
    "a..b",
    "-rf",
    ".x",
    "a\0",
    "a\n",
    "a b",
    "a\u202eb",
    "\u0441",
    "a" * 65,
)


def file(folder: Path, text: str | bytes) -> Path:
    path = folder / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# -- YAML -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"line 3: not plain YAML: the key 'a' is given twice \(first in line 1\)"),
        ("s:\n  k: 3\n  k: 3\n", "line 3.*'k' is given twice"),
        ("s: {k: 3, k: 4}\n", "'k' is given twice"),
        ("a: &x [1]\nb: *x\n", r"line 2.*aliases"),
        ("a: &x {k: 1}\nb: {<<: *x}\n", "aliases"),
        ("a: !!binary c2luZ2xl\n", "tags"),
        ("a: !!str 3\n", "tags"),
        ("1: 2\n", "a key that is no text"),
        ("[a]: 2\n", "a key that is no text"),
        ("a: " + "9" * 5000, "a number of 5000 characters"),
        ("a: 0x" + "f" * 5000, "a number of 5002 characters"),
        ("a: 010\n", "'010' can be read in two ways"),
        ("a: 1:30\n", "'1:30' can be read in two ways"),
        ("a: 1:30.5\n", "two ways"),
        ("a: .inf\n", "no finite number"),
        ("a: 1.0e+400\n", "no finite number"),
        ("[" * 100_000, "nested more than 32 levels"),
        ("- " * 3000, "nested more than 32 levels"),
        ("a: 1\n--- \nb: 2\n", "another document"),
        ("a:\n\t- b\n", "not plain YAML"),
        ('a: "\\x"\n', "not plain YAML"),
        ("a: 1\nb: \u00e9\n".encode("latin-1"), "line 2: not plain YAML: not UTF-8"),
        ("a: 1\n".encode("utf-16"), "not UTF-8"),
        (b"a: \x00\n", "not plain YAML"),
        (b"#" * (LARGEST + 1), "larger than 256 KiB"),
    ],
)
def test_yaml_that_is_more_than_plain_data_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(ScopeError, match=message) as told:
        read_yaml(file(tmp_path, text))
    assert str(tmp_path / "c.yaml") in str(told.value) and "\n" not in str(told.value)


def test_yaml_reads_as_it_looks(tmp_path):
    text = "\ufeffa: 0x1F\r\nb: 1_000\r\nc: 2026-12-01\r\nd: '010'\r\ne: 1.5e+3\r\n=: no\r\n"
    assert read_yaml(file(tmp_path, text)) == {
        "a": 31, "b": 1000, "c": "2026-12-01", "d": "010", "e": 1500.0, "=": False
    }  # fmt: skip
    assert read_yaml(file(tmp_path, "")) is None


def test_panels_and_parameter_files_are_checked_by_their_types(tmp_path, monkeypatch):
    panel = tmp_path / "persuasion" / "panel.yaml"
    panel.parent.mkdir()
    entry = "{name: NAME, model: MODEL, sharpness: 2.0, kind: broad, population: {a: 1}}"
    good = f"- {entry}\n".replace("NAME", "sim-a").replace("MODEL", "twin")
    for text, message in (
        (good.replace("twin", "../../x"), "model '../../x': a name is made of"),
        (good.replace("2.0", ".nan"), "no finite number"),
        (good.replace("kind", "kinds"), "kinds"),
        (good + good, "sim-a is listed twice"),
        (good.replace(", population: {a: 1}", ""), "sim-a has no population"),
        ("3\n", "valid list"),
    ):
        panel.write_text(text, encoding="utf-8")
        with pytest.raises(ScopeError, match=message):
            read_panel("persuasion", tmp_path)
    panel.write_text(good, encoding="utf-8")
    assert read_panel("persuasion", tmp_path)[0].model == "twin"
    monkeypatch.setattr("scope_lite.method.panel_file.text_panel", lambda world: tmp_path / "c.yaml")
    for text, message in (
        ("sharpness: 0, about: c", r"0\.sharpness"),
        ("sharpness: 1, personas: perhaps", r"0\.personas"),
    ):
        file(tmp_path, f"- {{name: a, kind: b, model: null, {text}}}\n")
        with pytest.raises(ScopeError, match=message):
            read_panel("p4g")
    (tmp_path / "parameters").mkdir()
    for settings, message in (("execution_timeout: soon", "execution_timeout"), ("series: 5", "series")):
        (tmp_path / "parameters" / "nano.yaml").write_text(f"settings: {{{settings}}}\n", encoding="utf-8")
        with pytest.raises(ScopeError, match=message):
            load_scale(tmp_path, "nano")


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_would_be_more_than_one_part_of_a_path_is_refused_everywhere(name, tmp_path):
    assert name_fault(name)
    frozen = {"kind": "frozen"}
    for content in (
        {"method": name, "simulator": frozen},
        {"world": name},
        {"model": name},
        {"simulator": {"members": [name]}},
        {"method": name, "world": "p4g", "model": "smollm2", "simulator": frozen},
    ):
        with pytest.raises(ScopeError) as told:
            parse_config(content)
        assert "\n" not in str(told.value) and "\u202e" not in str(told.value)
    with pytest.raises(ScopeError):
        read_panel(name, tmp_path)


def test_names_in_a_data_set_are_names(tmp_path):
    (tmp_path / "Dockerfile").write_text(
        "RUN git clone https://host/../.. x && git checkout abcdef1\n", encoding="utf-8"
    )
    with pytest.raises(ScopeError, match="neither a Dockerfile"):
        read_base(tmp_path)
    (tmp_path / "Dockerfile").write_text(
        "RUN git clone https://host/owner/name x && git checkout abcdef1\n", encoding="utf-8"
    )
    assert read_base(tmp_path) == ("owner/name", "abcdef1")


def test_every_name_that_is_shipped_is_a_name():
    worlds = [path.name for path in paths.NANO_MODELS.iterdir()]
    models = [path.parent.name for path in paths.NANO_MODELS.glob("*/*/config.json")]
    assert not [name for name in [*METHODS, *worlds, *models] if name_fault(name)]
    for place in ("smollm2+persuadee", "openai:m:8b@http://127.0.0.1:1/v1#KEY", "/data/my models/\u00e9", "~/x"):
        assert not place_fault(place)
    assert place_fault("a" * 256) and place_fault("a\0b") and place_fault("a\u202eb")


def test_a_method_in_a_file_is_known_or_says_what_it_stands_for(tmp_path):
    with pytest.raises(ScopeError, match=r"c\.yaml: unknown method 'singel'; did you mean 'single'"):
        load_config(file(tmp_path, "method: singel\n"))
    with pytest.raises(ScopeError, match="unknown method 'singel'"):
        load_config(file(tmp_path, "method: singel\nsimulator: {k: 3}\n"))
    with pytest.raises(ScopeError, match="needs a method"):
        load_config(file(tmp_path, "simulator: {kind: trained}\n"))
    assert load_config(file(tmp_path, "method: mine\nsimulator: {kind: trained}\n")).method == "mine"
    assert load_config(file(tmp_path, "world: p4g\nseed: 3\n")) == method_config("single", world="p4g", seed=3)


def test_runs_and_models_are_asked_for_by_what_a_path_can_hold(tmp_path):
    for words in ("runs show", f"runs compare {'x' * 300}", "chat", "simulator report", "plan --gpu 24 --model"):
        code, told = spoken([*words.split(), "a" * 300])
        assert code == 2 and "at most 255 bytes" in told, told


def spoken(words: list[str]) -> tuple[int, str]:
    """Exit code and what was told of the command, on streams that know Latin-1 only."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="latin-1") for _ in range(2)]
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams
    try:
        with pytest.raises(SystemExit) as left:
            cli.app(words)
    finally:
        sys.stdout, sys.stderr = before
    for stream in streams:
        stream.flush()
    return int(left.value.code or 0), "".join(stream.buffer.getvalue().decode("latin-1") for stream in streams)  # type: ignore[attr-defined]


# -- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        {"seed": MAX_SEED + 1}, {"seed": 2**63}, {"seed": True}, {"seed": 1.5}, {"steps": 10**7},
        {"groups": 10**9}, {"groups": 50_000, "group_size": 3}, {"lora_rank": 10**8}, {"learning_rate": float("inf")},
        {"learning_rate": "inf"}, {"kl_coef": float("nan")}, {"kl_coef": "nan"}, {"eval_dialogues": 10**9},
        {"simulator": {"members": ["sim-a"] * 2}}, {"simulator": {"members": [f"m{i}" for i in range(65)]}},
        {"simulator": {"k": 10**6}}, {"simulator": {"pool_size": 10**9}}, {"simulator": {"sharpness": float("inf")}},
        {"simulator": "frozen"}, {"simulator": [1, 2]}, {"simulator": None}, {"text": 5}, {"text": {"turns": 10**9}},
        {"text": {"prices": [1]}}, {"text": {"prices": [True, False]}}, {"text": {"prices": [-1, 0]}},
        {"advantages": False}, {"advantages": "z-score"}, {"text": {"grammar": 1}},
        {"text": {"budget": float("inf")}}, {"model": "x" * 2000}, {"learning_rate": True}, {"sharpness": 10**5000},
    ],
)  # fmt: skip
def test_a_number_that_no_machine_can_use_is_refused_in_one_line(content):
    with pytest.raises(ScopeError) as told:
        method_config("single", **content)
    assert "\n" not in str(told.value) and len(str(told.value)) < 600


def test_the_value_counts_and_not_how_it_is_written(tmp_path):
    written = ("1000", "1e3", "1.0e+3", "'1000.0'", "1_000")
    configs = [load_config(file(tmp_path, f"clip_range: {text}\n")) for text in written]
    options = [cli.base.make_config(None, [f"clip_range={text}"]) for text in written]
    assert len({named(c) for c in [*configs, *options, method_config("single", clip_range=1000)]}) == 1


def test_the_largest_seed_trains_in_every_part():
    import numpy as np
    import torch

    from scope_lite.models.rng import RowKeys

    torch.manual_seed(MAX_SEED + 1_000_003)  # a second adapter's
    np.random.RandomState(MAX_SEED + 1_000_003)
    assert RowKeys.grid(MAX_SEED, 1, 2, 2).uniforms(0, "task").shape == (4, 1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "steps=3", "--set", "steps=4"], "steps is given twice"),
        (["--seed", "1", "--set", "seed=2"], "seed is given twice"),
        (["--set", "simulator={k: 3}", "--set", "simulator.k=4"], "simulator.k is given twice"),
        (["--set", "simulator.k=4", "--set", "simulator={k: 3}"], "simulator is given twice"),
        (["--set", "simulator={k: 3, k: 4}"], "'k' is given twice"),
        (["--set", "simulator=frozen"], "simulator: Input should be a valid dictionary"),
        (["--set", "learning_rate=.inf"], "no finite number"),
        (["--seed", str(2**63)], "seed: Input should be less than"),
        (["--set", f"seed={2**63}"], "seed: Input should be less than"),
        (["--method", "\u03c4\u202e"], r"unknown method '\u03c4\u202e'"),
    ],
)
def test_options_are_checked_as_files_are_on_any_terminal(words, told, tmp_path):
    code, line = spoken(["train", *words, "--out", str(tmp_path / "runs")])
    assert code == 2 and told in line and line.count("\n") == 1, line
    assert not (tmp_path / "runs").exists()


# -- what a run is made of -------------------------------------------------------------------------------------------


def test_the_content_of_every_model_that_a_run_reads_is_in_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path))
    folder = tmp_path / "nano" / "persuasion_5"
    config = method_config("single", world="persuasion_5")

    def write(file: str, text: str) -> None:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")

    seen = [named(config)]
    write("qwen3-tiny/model.safetensors", "weights")
    seen.append(named(config))
    write("panel.yaml", "- {name: half, model: twin}\n")
    seen.append(named(config))
    write("twin/model.safetensors", "of the panel")
    seen.append(named(config))
    write("twin/model.safetensors", "of the panel, changed")
    seen.append(named(config))
    write("sim-a/model.safetensors", "of the simulator in training")
    seen.append(named(config))
    assert len(set(seen)) == len(seen)
    write("other/model.safetensors", "not read by this run")
    write("twin/.hidden", "a file manager's")
    assert named(config) == seen[-1]
    write("panel.yaml", "[" * 100_000)
    with pytest.raises(ScopeError, match=r"panel.yaml.*nested"):
        named(config)


def test_a_new_key_changes_no_name_at_its_default_and_every_name_at_another_value():
    class Later(RunConfig):
        warmup: int = 0

    for name in ("single", "cotraining"):
        config = method_config(name)
        parts = {part: getattr(config, part) for part in RunConfig.model_fields}
        assert named(Later(**parts)) == named(config) != named(Later(**parts, warmup=1))


def test_a_changed_file_with_own_worlds_makes_notebooks_and_runs_anew(tmp_path, monkeypatch):
    from scope_lite.envs.nano import WORLDS, get_world, load_files
    from tests.envs.test_worlds_own import FILE

    own, notebook = tmp_path / "own.py", tmp_path / "03_one.ipynb"
    notebook.write_text(json.dumps({"cells": []}), encoding="utf-8")
    own.write_text(FILE, encoding="utf-8")
    monkeypatch.setenv(paths.WORLDS_VARIABLE, str(own))
    shipped = named(method_config("single"))

    def made_of() -> tuple[str, str]:
        load_files([own])
        key = Ledger(tmp_path / "series.json", tmp_path)._key(Plan(notebook, "nano", {}, 1))
        return key, named(method_config("single", world="own_world"))

    try:
        before = made_of()
        assert made_of() == before
        own.write_text(FILE + "\n# changed\n", encoding="utf-8")
        after = made_of()
        assert before[0] != after[0] and before[1] != after[1]
        assert named(method_config("single")) == shipped
    finally:
        WORLDS.pop("own_world", None)
        get_world.cache_clear()


def test_a_model_of_a_panels_member_is_in_a_runs_name(tmp_path, monkeypatch):
    monkeypatch.setattr("scope_lite.method.made_of.text_panel", lambda world: tmp_path / "c.yaml")
    names = set()
    for weights in ("one", "other"):
        (tmp_path / "config.json").write_text(weights, encoding="utf-8")
        file(tmp_path, f"- {{name: a, model: {json.dumps(str(tmp_path))}}}\n")
        names.add(named(method_config("single", world="p4g")))
    assert len(names) == 2
    (tmp_path / "c.yaml").unlink()
    with pytest.raises(ScopeError, match="cannot read"):
        named(method_config("single", world="p4g"))


def test_a_folder_called_as_the_embedded_model_is_not_in_a_runs_name(tmp_path, monkeypatch):
    before = named(method_config("single", world="p4g"))
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert named(method_config("single", world="p4g")) == before


# -- variables and encodings -----------------------------------------------------------------------------------------


def test_a_variable_that_is_empty_is_unset_and_a_folder_is_absolute(tmp_path):
    code = "from scope_lite.store import paths as p; import os; "
    code += "print(p.HOME, p.cache_folder(), os.environ['SCOPE_LITE_P4G'])"

    def told(**variables: str) -> list[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "SCOPE_LITE_P4G": "raw", **variables}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, encoding="utf-8")
        return done.stdout.split() or [done.stderr]

    raw, plain = str(tmp_path / "raw"), str(tmp_path / "x")
    assert told(SCOPE_LITE_HOME="", SCOPE_LITE_CACHE="  ")[0] == str(ROOT)
    assert told(SCOPE_LITE_HOME="~/x", SCOPE_LITE_CACHE="x") == [plain, plain, raw]


def test_a_home_that_is_no_folder_is_named(monkeypatch):
    monkeypatch.setattr(cli.base, "HOME", Path("/nowhere"))
    code, told = spoken(["train"])
    assert code == 2 and "SCOPE_LITE_HOME names /nowhere, which is no folder" in told


def test_no_hostile_file_breaks_the_reader_or_means_something_else(tmp_path):
    spec = importlib.util.spec_from_file_location("fuzz_configs", ROOT / "benchmarks" / "fuzz_configs.py")
    fuzzer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzer)
    counts, broken = fuzzer.fuzz(300, 1, tmp_path)
    assert broken == [] and counts["accepted"] > 30 and counts["refused"] > 100
