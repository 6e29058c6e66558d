"""The collapse alarm: it sounds when training and unseen reward part, and not for noise or a good policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from scope_lite.cli import app
from scope_lite.method.alarm import UNSEEN, collapse, collapse_of
from scope_lite.store.paths import DATA

STEPS = np.arange(0, 110, 10)
RISING = np.array([np.nan, 0.4, 0.7, 0.9, 0.95, 0.97, 0.98, 0.98, 0.99, 0.98, 0.99])
FALLING = np.array([0.2, 0.35, 0.5, 0.48, 0.3, 0.25, 0.2, 0.21, 0.19, 0.2, 0.2])
HOLDING = np.array([0.2, 0.35, 0.5, 0.63, 0.64, 0.62, 0.65, 0.63, 0.66, 0.64, 0.65])


def table(unseen: Any, reward: Any = RISING, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"step": STEPS[: len(unseen)], "reward": reward[: len(unseen)], UNSEEN: unseen, **columns})


def test_it_sounds_when_unseen_reward_falls_while_training_reward_holds_whatever_entropy_does() -> None:
    for entropy in (np.linspace(2, 0.1, 11), np.full(11, 2.0)):
        verdict = collapse(table(FALLING, entropy=entropy))
        assert verdict.collapsed and verdict.steps[0] == 70 and verdict.steps[-1] == 100
        assert "at step 70: unseen reward 0.21, and 0.50 at step 20" in verdict.told and "entropy" in verdict.told
    assert collapse(table(FALLING)).steps == verdict.steps


@pytest.mark.parametrize(
    ("unseen", "reward"),
    [
        (HOLDING, RISING),
        (HOLDING - 0.04 * (STEPS > 50), RISING),  # less than matters
        (np.where(STEPS == 60, 0.2, HOLDING), RISING),  # one evaluation is not two
        (np.append(FALLING[:4], [0.3, *HOLDING[5:]]), RISING),  # a dip that is made good
        (FALLING, FALLING),  # all is lost, in training too: no gap opens
        (np.tile([0.6, 0.3], 6)[:11], RISING),  # noise as large as the fall
        (np.zeros(11), RISING),
    ],
)
def test_it_stays_silent_without_a_fall_beyond_noise(unseen: Any, reward: Any) -> None:
    verdict = collapse(table(unseen, reward))
    assert verdict.collapsed is False and verdict.steps == () and "no collapse alarm" in verdict.told


def test_every_step_is_judged_by_what_was_known_then() -> None:
    whole = collapse(table(FALLING)).steps
    growing = [n for n in range(1, 12) if STEPS[n - 1] in collapse(table(FALLING[:n])).steps]
    assert [STEPS[n - 1] for n in growing] == list(whole)


def test_rows_between_evaluations_their_order_and_text_for_numbers_change_nothing() -> None:
    between = pd.DataFrame({"step": STEPS + 5, "reward": 0.0, UNSEEN: None})
    mixed = pd.concat([table(FALLING), between]).sample(frac=1, random_state=0).astype(object)
    assert collapse(mixed) == collapse(table(FALLING))
    assert collapse(mixed.astype(str)) == collapse(table(FALLING))


def test_metrics_from_elsewhere_are_judged_or_told_what_they_lack(tmp_path: Path) -> None:
    renamed = table(FALLING).rename(columns={UNSEEN: "eval/unseen", "reward": "mean_reward"})
    verdict = collapse(renamed)
    assert verdict.collapsed is None and verdict.told.endswith(f"no column reward, {UNSEEN}")
    assert "3 evaluations" in collapse(table(FALLING[:3])).told
    assert collapse(pd.DataFrame()).collapsed is collapse_of(tmp_path).collapsed is None
    rows = [{k: v for k, v in row.items() if v == v} for row in table(FALLING).to_dict("records")]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert collapse_of(tmp_path) == collapse(table(FALLING))


def test_on_the_shipped_runs_it_sounds_for_single_and_not_for_the_control() -> None:
    runs = pd.read_csv(DATA / "results" / "methods.csv").groupby(["method", "run"])
    told = pd.Series({key: collapse(rows).collapsed for key, rows in runs if key[0] in ("single", "unsharpened")})
    assert told["single"].all() and len(told["single"]) == 10
    assert not told["unsharpened"].any() and len(told["unsharpened"]) == 10


def test_train_and_runs_compare_tell_the_same_verdict(tmp_path: Path, monkeypatch: Any) -> None:
    for name, unseen in (("fell", FALLING), ("held", HOLDING)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status").write_text('{"state": "finished", "step": 100, "steps": 100}', encoding="utf-8")
        rows = [{k: v for k, v in row.items() if v == v} for row in table(unseen).to_dict("records")]
        (tmp_path / name / "metrics.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    compared = CliRunner().invoke(app, ["runs", "compare", "fell", "held", "--out", str(tmp_path)]).stdout
    assert "a: collapse alarm at step 70" in compared and "b: no collapse alarm" in compared
    monkeypatch.setattr("scope_lite.method.train.train", lambda *a, **b: tmp_path / "fell")
    assert collapse(table(FALLING)).told in CliRunner().invoke(app, ["train", "--steps", "1"]).stdout
