"""CooperBench without its sandbox: the dataset folder, the tasks that ship, and how an episode goes."""

# ruff: noqa: F811  (a fixture is imported, and is a test's argument, under one name)
from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scope_lite.envs.cooperbench import PairResult, PairTask, load_pairs, load_split
from scope_lite.envs.cooperbench.dataset import content
from scope_lite.envs.cooperbench.episode import BEGIN, OUTCOMES, PairEpisode
from scope_lite.envs.cooperbench.sandbox import Done
from scope_lite.envs.cooperbench.testing import files_of
from scope_lite.store.errors import ScopeError
from tests.standins.cooperbench_shop import TWICE, folders, patch, place, shop, task  # noqa: F401

# ---- the dataset


def test_every_two_features_of_a_task_are_a_pair(folders: tuple[Path, Path]) -> None:
    pairs = load_pairs(*folders)
    assert [pair.name.rpartition("/")[2] for pair in pairs] == ["f1_f2", "f1_f3", "f2_f3"]
    first = pairs[0]
    assert (first.name, first.repository) == ("shop_task/task7/f1_f2", "small/shop") and len(first.commit) == 40
    assert first.features[0].description == "Twice the price." and first.features[0].gold == shop(TWICE)


@pytest.mark.parametrize(
    "gone", ["", "shop_task", "shop_task/task7/Dockerfile", "shop_task/task7/feature2/tests.patch"]
)
def test_what_is_missing_in_a_dataset_is_said_in_one_line(folders: tuple[Path, Path], gone: str) -> None:
    path = folders[0] / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ScopeError) as error:
        load_pairs(*folders)
    assert "\n" not in str(error.value) and str(folders[0]) in str(error.value)


def test_a_missing_repository_is_named(folders: tuple[Path, Path]) -> None:
    shutil.rmtree(folders[1] / "small")
    with pytest.raises(ScopeError, match="clones of small/shop"):
        load_pairs(*folders)


def test_files_of_a_patch_are_those_it_leaves() -> None:
    assert files_of(patch({"a.py": "1\n", "b.py": "1\n"}, {"a.py": "2\n", "c/d.py": "1\n"})) == ["a.py", "c/d.py"]


def test_the_tasks_that_ship_are_split_by_repository_and_stand_in_both_orders() -> None:
    train, test = ({pair.name: pair for pair in load_split(split)} for split in ("train", "test"))
    assert (len(train), len(test)) == (6, 2) and not set(train) & set(test)
    for name, pair in (train | test).items():
        other = (train | test)[name.removesuffix("/swapped") if name.endswith("/swapped") else f"{name}/swapped"]
        assert pair.features == other.features[::-1] and pair.source.is_dir()


def test_the_names_of_runs_tell_one_dataset_from_another(
    folders: tuple[Path, Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = content()
    monkeypatch.setenv("SCOPE_LITE_COOPERBENCH", str(place))
    own = content()
    place.rename(place.with_name(f"{place.name}-moved"))
    monkeypatch.setenv("SCOPE_LITE_COOPERBENCH", f"{place}-moved")
    assert content() == own != shipped
    Path(f"{place}-moved").rename(place)
    (place / "dataset/shop_task/task7/feature2/feature.md").write_text("Another name.", encoding="utf-8")
    monkeypatch.setenv("SCOPE_LITE_COOPERBENCH", str(place))
    assert content() not in (own, shipped)


# ---- the agents


class Paper:
    """A workspace that runs nothing."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def run(self, command: list[str]) -> Done:
        self.commands.append(command[-1].strip())
        return Done(3, "exit", f"ran {self.commands[-1]}\n", "", False)

    def patch(self) -> str:
        return f"patch after {len(self.commands)}"


def verdict(merged: bool = True, conflict: bool = False, why: str = "") -> PairResult:
    return PairResult(merged, conflict, why, (not why,) * 2 if merged else ())


@pytest.fixture
def paper(task: PairTask) -> PairEpisode:
    return on_paper(task, verdict())


def on_paper(task: PairTask, result: PairResult) -> PairEpisode:
    episode = PairEpisode(task, lambda task, patches: result, max_turns=4, about="You work alone.")
    episode._workspaces = {"policy": Paper(), "simulator": Paper()}  # type: ignore[dict-item]
    return episode


def bash(command: str) -> str:
    return f"Let me see.\n```bash\n{command}\n```"


SUBMIT = "```diff\n```"


def test_each_agent_knows_its_own_feature_only(paper: PairEpisode) -> None:
    assert "Twice the price." in paper.systems["policy"] and "A bigger name." not in paper.systems["policy"]
    assert "A bigger name." in paper.systems["simulator"] and "60 seconds" in paper.systems["simulator"]
    assert "alone" in paper.systems["simulator"] and "alone" not in paper.systems["policy"]


def test_a_message_is_read_at_the_partners_next_turn_and_once(paper: PairEpisode) -> None:
    assert (paper.next_seat, paper.hears) == ("policy", BEGIN)
    paper.take("I take price.")
    assert paper.next_seat == "simulator" and paper.hears == f"{BEGIN}\n\nYour partner writes: I take price."
    paper.take(bash("ls"))
    assert paper.hears == "Sent."
    paper.take(bash("pwd"))
    assert paper.hears == "ran ls\n[exit code 3]"


def test_who_has_handed_in_is_silent_and_both_patches_are_judged(paper: PairEpisode) -> None:
    paper.take(SUBMIT)
    paper.take("Are you there?")
    assert paper.next_seat == "simulator" and "reads no more" in (paper.hears or "")
    paper.take(bash("ls"))
    with pytest.raises(RuntimeError, match="not over"):
        assert paper.reward
    paper.take(f"Here:\n```diff\n{shop(TWICE)}```\nBye!")
    assert (paper.next_seat, paper.hears, paper.outcome, paper.turns) == (None, None, "both-pass", 1)
    assert paper.patches == {"policy": "patch after 0", "simulator": shop(TWICE)} and paper.reward == 1.0


def test_what_the_commands_have_changed_by_the_last_message_counts_as_handed_in(paper: PairEpisode) -> None:
    for _ in range(4):
        paper.take("Hello!")
        paper.take(bash("ls"))
    assert (paper.next_seat, paper.turns) == (None, 4)
    assert paper.patches == {"policy": "patch after 0", "simulator": "patch after 4"}


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (verdict(), "both-pass"),
        (verdict(why="a test fails"), "tests-fail"),
        (verdict(merged=False, conflict=True, why="no"), "conflict"),
        (verdict(merged=False, why="does not apply"), "unreadable"),
    ],
)
def test_only_two_passed_features_are_paid_and_every_end_is_counted_by_its_name(
    task: PairTask, result: PairResult, outcome: str
) -> None:
    episode = on_paper(task, result)
    for _ in range(2):
        episode.take(SUBMIT)
    assert episode.outcome == outcome in OUTCOMES and episode.reward == float(result.success)


def test_an_agent_that_hands_in_nothing_is_not_judged_unless_its_partner_did_it_all(task: PairTask) -> None:
    for result, second, outcome in (
        (verdict(), SUBMIT, "no-patch"),
        (verdict(), "```diff\nall of it\n```", "both-pass"),
        (verdict(why="a test fails"), "```diff\na part\n```", "no-patch"),
    ):
        episode = on_paper(task, result)
        episode._workspaces = {}
        episode.take(SUBMIT)
        episode.take(second)
        assert (episode.outcome, episode.result is None) == (outcome, second == SUBMIT)


def test_a_stopped_episode_earns_nothing(paper: PairEpisode) -> None:
    paper.take(SUBMIT)
    paper.stop("context")
    assert (paper.next_seat, paper.outcome, paper.reward) == (None, "context", 0.0)
