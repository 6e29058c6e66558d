"""Models side by side: each number is the one that the measures give alone, and changes are over the same histories."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.measure import human_baseline as baseline
from scope_lite.measure.comparison import compare
from scope_lite.measure.replies import by_history, read_replies, summarise, write_replies
from scope_lite.measure.stats import paired_interval
from scope_lite.store.errors import ScopeError
from tests.measure.test_human_baseline import LAW, people, replies


def sharp(gamma: float) -> np.ndarray:
    return LAW**gamma / (LAW**gamma).sum()


def table(gamma: float, n: int = 40, seed: int = 1, histories: int = 8) -> pd.DataFrame:
    """Direct replies by an exponent, and lists that are as varied as people, of which one in five is cut."""
    parts = [replies(sharp(gamma), n=n, seed=seed, histories=histories),
             replies(LAW, "VS, free", n=n, seed=seed + 9, fails=0.2, histories=histories),
             replies(LAW, "VS, grammar", n=n, seed=seed + 5, fails=0.9, histories=histories)]  # fmt: skip
    whole = pd.concat(parts, ignore_index=True)
    return whole.assign(finished=whole["failure"] == "", model="x")


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    return compare({"small": table(1), "large": table(4, n=20, seed=2)}, people()).set_index(["model", "condition"])


def test_a_models_numbers_are_those_of_its_own_table(found: pd.DataFrame) -> None:
    own = table(4, n=20, seed=2)
    levels = summarise(by_history(own)).set_index(["condition", "level"])
    beside = baseline.acts_beside_people(own, people()).set_index(["condition", "view"])
    distances = baseline.reference_recovery(own, people()).set_index(["reference", "condition"])
    for condition in ("direct, T = 1", "VS, free"):
        row = found.loc[("large", condition)]
        for level in ("string", "cluster", "act"):
            assert row[f"epsilon_{level}"] == pytest.approx(1 - levels.loc[(condition, level), "mode_share"])
        assert row["entropy"] == pytest.approx(levels.loc[(condition, "act"), "entropy"])
        assert row["pooled"] == pytest.approx(beside.loc[(condition, baseline.POOLED), "entropy"])
        assert row["to_people"] == pytest.approx(distances.loc[(baseline.PEOPLE, condition), "distance"])
        assert row["to_own"] == pytest.approx(distances.loc[(baseline.OWN, condition), "distance"])
    unread = own[own["condition"] == "VS, free"]["failure"].ne("").mean()
    assert found.loc[("large", "VS, free"), ["unread", "cut"]].tolist() == [unread, unread]


def test_changes_are_against_direct_replies_and_steps_against_the_model_before(found: pd.DataFrame) -> None:
    small, large = (
        by_history(part[part["reply"] < 20], ["act"]).pivot(index="history", columns="condition", values="entropy")
        for part in (table(1), table(4, n=20, seed=2))
    )
    change = paired_interval(large["VS, free"], large["direct, T = 1"])
    step = paired_interval(large["direct, T = 1"], small["direct, T = 1"])
    columns = [f"entropy_{kind}{end}" for kind in ("change", "step") for end in ("", "_low", "_high")]
    free, direct = found.loc[("large", "VS, free")], found.loc[("large", "direct, T = 1")]
    assert free[columns[:3]].tolist() == pytest.approx([change.mean, change.low, change.high])
    assert direct[columns[3:]].tolist() == pytest.approx([step.mean, step.low, step.high])
    assert change.low > 0 > step.high and direct["gamma"] > 2 > free["gamma"], "lists bring the variety back"
    assert free["to_people_change_high"] < 0
    assert found.loc["small", columns[3]].isna().all() and np.isnan(direct["entropy_change"])


def test_what_could_mostly_not_be_read_has_no_numbers(found: pd.DataFrame) -> None:
    row = found.loc[("large", "VS, grammar")]
    assert row["unread"] > 0.8 and row.drop(["histories", "outputs", "unread", "cut"]).isna().all()


def test_only_histories_that_all_tables_have_count_and_none_is_one_line() -> None:
    both = compare({"a": table(1, histories=8), "b": table(1, histories=4)}, people())
    assert set(both["histories"]) == {4}
    elsewhere = table(1).assign(history=lambda t: "other " + t["history"])
    with pytest.raises(ScopeError, match="no history of Persuasion for Good in common") as caught:
        compare({"a": table(1), "b": elsewhere}, people())
    assert "\n" not in str(caught.value)


def test_the_command_reads_tables_by_the_models_names(tmp_path) -> None:  # type: ignore[no-untyped-def]
    real = table(1).assign(after=lambda t: t["after"].replace("proposition", "proposition-of-donation"), raw="")
    real = real.assign(act=real["act"].where(real["act"] == "", "thank"), **{"first_token_epsilon": 0.5})
    real = real.assign(**{f"{what}_{k}": 0.5 for what in ("logprob", "entropy") for k in (1, 2, 4, 8)})
    for name in ("02_replies", "02_replies_large"):
        write_replies(real, tmp_path / f"{name}.csv")
    assert len(read_replies(tmp_path / "02_replies.csv")) == len(real)
    command = ["simulator", "compare", "smollm2", "/models/large", "--results", str(tmp_path)]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.output
    assert pd.read_csv(tmp_path / "02_models.csv")["model"].unique().tolist() == ["smollm2", "/models/large"]
    done = CliRunner().invoke(cli.app, ["simulator", "compare", "nobody", "--results", str(tmp_path)])
    assert done.exit_code == 2 and "could not read the reply table" in done.output


def test_replies_are_refused_from_another_file_or_in_an_unknown_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scope_lite.envs.p4g.load_dialogues", lambda *given, **more: pytest.fail("before any work"))
    done = CliRunner().invoke(cli.app, ["simulator", "replies", "qwen2.5-coder-0.5b", "--sha256", "cc32"])
    assert done.exit_code == 2 and "--sha256 cc32: qwen2.5-coder-0.5b is made from 1d9614638d18" in done.output
    from scope_lite.models.pretrained import pick_device, pick_format

    with pytest.raises(ScopeError, match="the number format is 'float23': set it to auto"):
        pick_format(pick_device("cpu"), "float23")
