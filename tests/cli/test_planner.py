"""The plan as a whole: what fits, what is refused and with which knobs; names, cards, and the command."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.cli import planner
from scope_lite.cli.planner.plan import PARTS, remedies
from scope_lite.method.config import method_config
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import NANO_MODELS
from tests.standins.planner_models import made

# -- the plan as a whole ----------------------------------------------------------------------------------------------

SMALL = "Qwen3-4B-Instruct-2507"
HF = {"training_engine": "hf", "rollout_engine": "hf"}


def test_vllm_takes_its_share_for_weights_cache_and_work_and_lends_it_while_the_seats_train() -> None:
    plan = made(SMALL, vllm_share=0.6)
    parts = ("vLLM's weights", "KV cache", "vLLM's own")
    assert sum(plan.rollouts[part] for part in parts) == pytest.approx(0.6 * plan.card.memory)
    assert {part for part in parts if part in plan.training} == {"vLLM's own"}
    assert made(SMALL, vllm_share=0.2).pool_short and not plan.pool_short


def test_vllm_keeps_the_base_in_16_bits_beside_the_trainers_of_four() -> None:
    parts = made(SMALL, four_bit=True).rollouts
    assert parts["vLLM's weights"] > 2.5 * parts["weights"]


def test_the_table_adds_up_to_the_peak() -> None:
    for plan in (made(), made(**HF, groups=1), made(four_bit=True)):
        sums = plan.table()[["rollouts", "training"]].sum() * planner.GIB
        assert sums.max() == pytest.approx(plan.peak)
        assert set(plan.rollouts) | set(plan.training) <= set(PARTS)


CROWDED = [
    ("Qwen3-8B", "24", {}), ("Qwen3-8B", "24", {"vllm_share": 0.95}), (SMALL, "24", {"vllm_share": 0.3}),
    (SMALL, "24", {"micro_batch": 8, "four_bit": True}), ("Qwen3-8B", "24", HF),
    (SMALL, "24", {"training_engine": "hf"}), ("Qwen3-8B", "48", {"context": 40_000}),
    (SMALL, "24", {"lora_rank": 512, "four_bit": True}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "values"), CROWDED, ids=str)
def test_a_plan_that_does_not_fit_is_refused_with_settings_that_do_make_it_fit(
    model: str, gpu: str, values: dict[str, Any]
) -> None:
    plan = made(model, gpu, **values)
    with pytest.raises(ScopeError) as refused:
        planner.require_fit(plan)
    assert "\n" not in str(refused.value) and "GiB" in str(refused.value)
    ways = remedies(plan)
    assert ways
    for words in ways:
        typed = {key.split(".")[-1]: yaml.safe_load(v) for key, v in re.findall(r"--set (\S+)=(\S+)", words)}
        card = re.findall(r"--gpu (\d+)", words) or [gpu]
        assert not made(model, card[0], **{**values, **typed}).short, words


def test_the_mildest_setting_of_a_knob_is_named() -> None:
    plan = made(SMALL, four_bit=True, micro_batch=8)
    [words] = [way for way in remedies(plan) if "micro_batch" in way]
    size = int(words.split("=")[-1])
    assert not made(SMALL, four_bit=True, micro_batch=size).short
    assert made(SMALL, four_bit=True, micro_batch=2 * size).short


def test_a_plan_that_fits_is_not_refused() -> None:
    planner.require_fit(made(SMALL, four_bit=True))


# -- names, cards, values ---------------------------------------------------------------------------------------------


def test_a_model_is_found_by_name_or_in_a_folder(tmp_path: Any) -> None:
    assert planner.shape_of("qwen/qwen3-8b").name == "Qwen3-8B"
    nano = planner.shape_of(str(NANO_MODELS / "persuasion" / "qwen3-tiny"))
    assert nano.name == "qwen3-tiny" and 50_000 < nano.parameters < 1_000_000
    with pytest.raises(ScopeError, match="unknown model 'qwen3-9b'; did you mean"):
        planner.shape_of("qwen3-9b")
    with pytest.raises(ScopeError, match=r"no config\.json"):
        planner.shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text("{not json", encoding="utf-8")
    with pytest.raises(ScopeError, match="cannot read"):
        planner.shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with pytest.raises(ScopeError, match="'gpt2' cannot be planned"):
        planner.shape_of(str(tmp_path))


def test_a_size_stands_for_the_least_memory_that_a_card_so_sold_has() -> None:
    assert planner.card("24").memory == min(one.memory for one in planner.CARDS if one.size == 24)
    assert planner.card("rtx-3090").name == "RTX 3090" and planner.card("36 GB").memory < 36 * planner.GIB
    for text in ("", "0", "-3", "RTX 1", "24.5"):
        with pytest.raises(ScopeError, match="unknown GPU"):
            planner.card(text)


def test_what_makes_no_sense_is_refused() -> None:
    for values, told in (
        ({"context": 100}, "leave no room for a prompt"),
        ({"model": "SmolLM2-135M-Instruct", "context": 9000}, "reads 8192 tokens"),
        ({"world": "persuasion", "model": "qwen3-tiny"}, "needs no GPU"),
    ):
        with pytest.raises(ScopeError, match=told):
            made(**values)


def test_a_plan_has_the_runs_own_defaults() -> None:
    default = planner.plan(method_config("single", world="p4g"), planner.card("24"))
    assert default.shape.name == "SmolLM2-135M-Instruct" and not default.unsloth and not default.pool_short


def test_the_command_prints_the_plan_draws_it_and_refuses_with_2(tmp_path: Any) -> None:
    engines = ["--set", "text.training_engine=unsloth", "--set", "text.rollout_engine=vllm"]
    words = ["plan", "--model", SMALL, "--gpu", "48", *engines]
    done = CliRunner().invoke(cli.app, [*words, "--figure", str(tmp_path / "memory.png")])
    assert done.exit_code == 0, done.output
    for part in (*PARTS, "in all", "a step of 32 dialogues"):
        assert part in done.stdout
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    refused = CliRunner().invoke(cli.app, [*words, "--model", "Qwen3-8B", "--set", "text.context=40000"])
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert "--set text.context=" in refused.stderr
