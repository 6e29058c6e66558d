"""The plan as a whole: what fits, what is refused and with which knobs; names, cards, and the command."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.cli import planner
from scope_lite.cli.planner import cards, memory
from scope_lite.cli.planner.plan import remedies
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import NANO_MODELS

# -- the plan as a whole ----------------------------------------------------------------------------------------------


def made(model: str = "Qwen3-8B", gpu: str = "24", **values: Any) -> planner.Plan:
    return planner.plan(planner.shape_of(model), planner.card(gpu), planner.workload(**values))


def test_the_automatic_share_fills_the_card_and_no_more() -> None:
    plan = made("Qwen3-4B-Instruct-2507")
    assert not plan.short and plan.memory.share
    step = 0.01 * plan.card.memory
    assert plan.card.memory - step <= plan.memory.peak <= plan.card.memory
    assert made("Qwen3-4B-Instruct-2507", vllm_share=plan.memory.share).memory == plan.memory
    assert made("Qwen3-4B-Instruct-2507", vllm_share=plan.memory.share + 0.02).short
    # where the card has room to spare, the cache takes what a step wants
    small = made("SmolLM2-135M-Instruct", "80")
    assert small.memory.kv_wanted <= small.memory.kv_room <= small.memory.kv_wanted + 0.01 * small.card.memory


def test_sleep_frees_vllms_weights_and_cache_while_the_seats_train() -> None:
    awake, asleep = (made("Qwen3-4B-Instruct-2507", vllm_share=0.7, sleep=sleep) for sleep in (False, None))
    freed = sum(awake.memory.training.values()) - sum(asleep.memory.training.values())
    copied = memory.weight_bytes(planner.shape_of("Qwen3-4B-Instruct-2507"), 16)
    assert freed == pytest.approx(awake.memory.kv_room + copied) and awake.memory.rollouts == asleep.memory.rollouts


def test_vllm_keeps_the_base_in_16_bits_beside_the_trainers_of_four() -> None:
    parts = made("Qwen3-4B-Instruct-2507", bits=4).memory.rollouts
    assert parts["vLLM's weights"] > 2.5 * parts["weights"]


def test_the_table_adds_up_to_the_peak() -> None:
    for plan in (made(), made(engine="hf", at_once=2), made(bits=4, checkpointing=False)):
        sums = plan.table()[["rollouts", "training"]].sum() * cards.GIB
        assert sums.max() == pytest.approx(plan.memory.peak)
        assert set(plan.memory.rollouts) | set(plan.memory.training) <= set(memory.PARTS)


SMALL = "Qwen3-4B-Instruct-2507"
CROWDED = [
    ("Qwen3-8B", "24", {}), ("Qwen3-8B", "24", {"vllm_share": 0.95}), (SMALL, "24", {"vllm_share": 0.3}),
    (SMALL, "24", {"micro_batch": 8, "bits": 4}), (SMALL, "24", {"checkpointing": False}),
    ("Qwen3-8B", "24", {"engine": "hf"}), ("Qwen3-8B", "24", {"logits_everywhere": True, "bits": 4, "micro_batch": 2}),
    ("Qwen3-8B", "48", {"context": 40_000}), (SMALL, "24", {"lora_rank": 512, "bits": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "values"), CROWDED, ids=str)
def test_a_plan_that_does_not_fit_is_refused_with_knobs_that_do_make_it_fit(
    model: str, gpu: str, values: dict[str, Any]
) -> None:
    plan = made(model, gpu, **values)
    with pytest.raises(ScopeError) as refused:
        planner.require_fit(plan)
    assert "\n" not in str(refused.value) and "GiB" in str(refused.value)
    ways = remedies(plan)
    assert ways
    for words, left in ways:
        assert left <= 0
        changes = dict(re.findall(r"--(\S+?)(?: ([\d.]+))?(?: \(| and|$)", words))
        gone = set(re.findall(r"without --(\S+)", words))
        card = changes.pop("gpu", gpu)
        typed = {
            n.replace("-", "_"): (float(v) if "." in v else int(v)) if v else n not in gone for n, v in changes.items()
        }
        typed |= {name.replace("-", "_"): None for name in gone if name == "vllm-share"}
        assert not made(model, card, **{**values, **typed}).short, words


def test_the_mildest_setting_of_a_knob_is_named() -> None:
    plan = made(SMALL, bits=4, micro_batch=8)
    [(words, _)] = [way for way in remedies(plan) if way[0].startswith("--micro-batch")]
    size = int(words.split()[-1])
    assert not made(SMALL, bits=4, micro_batch=size).short and made(SMALL, bits=4, micro_batch=2 * size).short


def test_a_plan_that_fits_is_not_refused() -> None:
    planner.require_fit(made("Qwen3-4B-Instruct-2507"))


# -- names, cards, values ---------------------------------------------------------------------------------------------


def test_a_model_is_found_by_name_or_in_a_folder(tmp_path: Any) -> None:
    assert planner.shape_of("qwen/qwen3-8b") is planner.KNOWN[1]
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
    assert planner.card("24").like == "RTX 4090" and planner.card("rtx-3090").bandwidth == 936e9
    assert planner.card("36 GB").memory < 36 * cards.GIB and planner.card("36").like == "RTX 5090"
    for text in ("", "0", "-3", "RTX 1", "24.5"):
        with pytest.raises(ScopeError, match="unknown GPU"):
            planner.card(text)


@pytest.mark.parametrize(
    "values, told",
    [
        ({"group_size": 1}, "--group-size"),
        ({"vllm_share": 1.5}, "--vllm-share"),
        ({"bits": 8}, "--bits"),
        ({"context": 100}, "leave no room for a prompt"),
        ({"engine": "hf", "vllm_share": 0.5}, "has no vLLM"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ScopeError, match=told):
        planner.workload(**values)


def test_a_context_longer_than_the_model_reads_is_refused() -> None:
    with pytest.raises(ScopeError, match="reads 8192 tokens"):
        made("SmolLM2-135M-Instruct", context=9000)


def test_the_command_prints_the_plan_draws_it_and_refuses_with_2(tmp_path: Any) -> None:
    words = ["plan", "--model", "Qwen3-4B-Instruct-2507", "--gpu", "24", "--figure", str(tmp_path / "memory.png")]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    for part in (*memory.PARTS, "at most", "likely", "hours of 200 steps"):
        assert part in done.stdout
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    refused = CliRunner().invoke(cli.app, ["plan", "--model", "Qwen3-8B", "--gpu", "48", "--context", "40000"])
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert "--bits 4 (frees" in refused.stderr
