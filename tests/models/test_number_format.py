"""The number format of real models: who decides it, who says it, and what holds in 16 bits too."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from scope_lite import experiments
from scope_lite.method.train import train
from scope_lite.models import pretrained
from scope_lite.models.records import Transcript
from scope_lite.store.errors import ScopeError
from tests.method.test_text_training import NO, YES, config_of, gradient, model, panel, played, scripted  # noqa: F401  (fixtures)


def test_the_number_format_follows_the_cpus_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for flags, expected in (
        ({"avx2": True}, "float32"),
        ({"amx_bf16": True}, "bfloat16"),
        ({"avx512_bf16": True}, "bfloat16"),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda flags=flags: flags)
        for unset in ("", " ", "auto", None):
            monkeypatch.delenv(pretrained.FORMAT_VARIABLE, raising=False)
            if unset is not None:
                monkeypatch.setenv(pretrained.FORMAT_VARIABLE, unset)
            assert pretrained.pick_format(cpu) == expected
    assert pretrained.pick_format(torch.device("cuda")) == "bfloat16"


def test_a_config_names_its_number_format_and_the_environment_that_of_all_which_name_none(monkeypatch) -> None:
    cpu = torch.device("cpu")
    for told in pretrained.NUMBER_FORMATS:
        monkeypatch.setenv(pretrained.FORMAT_VARIABLE, told)
        assert pretrained.pick_format(cpu) == pretrained.pick_format(torch.device("cuda")) == told
        assert [pretrained.pick_format(cpu, asked) for asked in pretrained.NUMBER_FORMATS] == ["float32", "bfloat16"]
    monkeypatch.setenv(pretrained.FORMAT_VARIABLE, "fp16")
    for asked in ("auto", "float32"):
        with pytest.raises(ScopeError, match=r"^SCOPE_LITE_NUMBER_FORMAT is 'fp16': set it to auto, float32 or bfl.*$"):
            pretrained.pick_format(cpu, asked)


def test_a_run_says_its_number_format_and_goes_on_in_it_on_any_machine(model, scripted, tmp_path, monkeypatch):  # noqa: F811
    scripted(YES, NO)
    config = config_of(model, final_dialogues=1)

    def die(step: int, steps: int, metrics: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    rows = {}
    for began, now in (("float32", "bfloat16"), ("bfloat16", "float32")):
        monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", began)
        whole = train(config, tmp_path / f"whole-{began}")
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / began, on_step=die)
        monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", now)
        resumed = train(config, tmp_path / began)
        rows[began] = (resumed / "metrics.jsonl").read_bytes()
        assert rows[began] == (whole / "metrics.jsonl").read_bytes() and resumed.name == whole.name
        assert json.loads((resumed / "provenance.json").read_text(encoding="utf-8"))["number_format"] == began
        again = train(config, tmp_path / began, fresh=True)
        assert json.loads((again / "provenance.json").read_text(encoding="utf-8"))["number_format"] == now
    assert rows["float32"] != rows["bfloat16"]
    asked = config_of(model, final_dialogues=1, text={"number_format": "float32"})
    monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", "bfloat16")
    folder = train(asked, tmp_path / "asked")
    assert (folder / "metrics.jsonl").read_bytes() == rows["float32"] and folder.name != whole.name


@pytest.mark.parametrize("number_format", ["float32", "bfloat16"])
def test_a_table_of_runs_in_text_says_their_number_format(model, scripted, tmp_path, monkeypatch, number_format):  # noqa: F811
    scripted(YES, NO)
    monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", number_format)
    base = config_of(model, "base", steps=0).model_dump(mode="json")
    monkeypatch.setitem(
        experiments.EXPERIMENTS, "small", experiments.Experiment([experiments.Variant("base", base)], seeds=1)
    )
    ((_, config),) = experiments.runs_of("small", seeds=1)
    train(config, tmp_path / "runs")  # here, where the panel is the test's
    table = experiments.build("small", seeds=1, root=tmp_path / "runs", results=tmp_path, workers=1)
    assert json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))["number_format"] == number_format


def test_a_number_format_that_is_none_is_told_before_anything_is_written(model, tmp_path, monkeypatch):  # noqa: F811
    with pytest.raises(ScopeError, match=r"^config: text.number_format: .*'float32'.*\(got 'half'\)$"):
        config_of(model, text={"number_format": "half"})
    monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", "half")
    with pytest.raises(
        ScopeError, match=r"^SCOPE_LITE_NUMBER_FORMAT is 'half': set it to auto, float32 or bfloat16, or "
    ):
        train(config_of(model), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def alike(found: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Cosine of two gradients, all parameters together; in 16 bits some thousandths are rounding."""
    one, two = (torch.cat([g.flatten().double() for g in gradients]) for gradients in (found, other))
    return float(one @ two / one.norm() / two.norm())


def test_in_16_bits_a_gradient_is_that_of_32_bits_but_for_rounding(model, scripted, monkeypatch):  # noqa: F811
    advantages, found = torch.randn(8, generator=torch.Generator().manual_seed(1)), {}
    transcripts: list[Transcript] = []
    for number_format in ("float32", "bfloat16"):
        changes = {"kl_coef": 0.3, "text": {"number_format": number_format, "micro_batch": 8}}
        learner, own, _ = played(model, scripted, **changes)
        transcripts = transcripts or own  # the same dialogues for both
        found[number_format] = gradient(learner, transcripts, advantages)
        learner.config = config_of(model, kl_coef=0.3, text={"micro_batch": 3})
        assert alike(gradient(learner, transcripts, advantages), found[number_format]) > 0.99
    assert {g.dtype for gradients in found.values() for g in gradients} == {torch.float32}  # the adapter's
    assert 0.98 < alike(found["bfloat16"], found["float32"]) < 1 - 1e-7
