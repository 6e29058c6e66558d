"""CooperBench through the training loop: on a tiny random chat model whose first token picks a prepared message."""

# ruff: noqa: F811  (a fixture is imported, and is a test's argument, under one name)
from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scope_lite.envs.cooperbench import evaluate_pair, load_split
from scope_lite.method import seats, text_tasks
from scope_lite.method.config import RunConfig, method_config
from scope_lite.method.text import TextScene
from scope_lite.method.train import train
from scope_lite.models.gate import Said
from scope_lite.models.hf import SeatModel
from tests.method.test_text_training import Scripted, model, rows_of  # noqa: F401
from tests.standins.cooperbench_shop import BIG, PLAIN, SHOP, TWICE, folders, place, shop  # noqa: F401

pytestmark = pytest.mark.sandbox

ALL = SHOP.replace("return x", "return 2 * x").replace("'shop'", "'big shop'")
RIGHT, PART, UNREADABLE = (f"Here:\n```diff\n{text}```" for text in (shop(ALL), shop(TWICE), "-return x\n+return 2x\n"))

WRONG = ((PART, "tests-fail"), (UNREADABLE, "unreadable"), ("Hello!", "no-patch"))


@pytest.fixture
def lines(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the model's words stand for, in the one repository of the stand-in; a pair is judged without pytest."""
    said: list[str] = []
    shutil.rmtree(folders[0] / "shop_task/task7/feature3")  # one pair, in both orders
    monkeypatch.setenv("SCOPE_LITE_COOPERBENCH", str(folders[0].parent))
    monkeypatch.setattr(text_tasks, "evaluate_pair", lambda pair, patches, suite: evaluate_pair(pair, patches, PLAIN))
    monkeypatch.setattr(SeatModel, "decode", lambda self, ids: said[ids[0] % len(said)] if ids else "")
    monkeypatch.setattr(
        seats, "newest_said", lambda m, t, n: Said(said[t.ids[t.newest][0] % len(said)] if t.newest else "")
    )
    for cached in (text_tasks._pairs, text_tasks._judged):
        cached.cache_clear()
    yield said
    for cached in (text_tasks._pairs, text_tasks._judged):
        cached.cache_clear()


def config_of(folder: Path, method: str, **changes: Any) -> RunConfig:
    small = dict(world="cooperbench", model=str(folder), steps=1, groups=1, group_size=4, eval_dialogues=1,
                 final_dialogues=1, text={"turns": 2, "max_new_tokens": 3, "reply_tokens": 3})  # fmt: skip
    return method_config(method, **{**small, **changes})


@pytest.mark.parametrize("method", ["base", "single", "ensemble"])
def test_cross_play_pays_1_for_right_patches_and_0_for_others(method, model, lines, tmp_path, monkeypatch):
    lines += [RIGHT]
    partner = Scripted(RIGHT)
    monkeypatch.setattr(TextScene, "_sampler", lambda scene, model: partner)
    steps = {} if method == "base" else {"steps": 1}
    last = rows_of(train(config_of(model, method, **steps), tmp_path / "right"))[-1]
    assert last["panel/plain/reward"] == last["panel/sim-a/reward"] == 1
    if method != "base":
        assert last["reward"] == last["outcome/both-pass"] == 1
    for wrong, outcome in (
        () if method != "single" else ((PART, "tests-fail"), (UNREADABLE, "unreadable"), ("Hello!", "no-patch"))
    ):
        lines[:], partner.lines = [wrong], (wrong,)
        last = rows_of(train(config_of(model, method, **steps), tmp_path / outcome))[-1]
        assert last["panel/plain/reward"] == last.get("reward", 0) == 0
        assert last.get(f"outcome/{outcome}", 1) == 1


@pytest.mark.parametrize("method", ["selfplay", "selfplay_population"])
def test_in_self_play_both_seats_are_trained_towards_what_is_paid(method, model, lines, tmp_path):
    lines += [RIGHT, UNREADABLE, "Let us begin."]
    rows = rows_of(train(config_of(model, method, steps=2, group_size=8), tmp_path))
    for row in rows[1:]:
        assert row["reward"] == row["outcome/both-pass"] and row["outcome/simulator-failed"] == 0
    assert any(0 < row["reward"] < 1 and row["grad_norm"] > 0 for row in rows[1:])


def test_where_nothing_can_contain_it_a_run_is_refused_in_one_line(model, monkeypatch):
    monkeypatch.setattr(text_tasks, "fault", lambda: "there is no `bwrap` here")
    with pytest.raises(text_tasks.ScopeError, match="no `bwrap` here"):
        TextScene(config_of(model, "single"))


def test_what_ships_is_passed_by_the_two_solutions_together_and_by_none_alone() -> None:
    pairs = [*load_split("train"), *load_split("test")][::2]
    for pair in pairs:
        first, second = (feature.gold for feature in pair.features)
        assert text_tasks._judged(pair, (first, second)).passed == (True, True), pair.name
    assert text_tasks._judged(pairs[0], (first := pairs[0].features[0].gold, "")).passed == (True, False), first
