"""CooperBench: the dataset folder, the merge and its verdict, and two agents on a task."""

# ruff: noqa: F811  (a fixture is imported, and is a test's argument, under one name)
from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scope_lite.envs.cooperbench import PairTask, evaluate_pair, load_pairs, sandbox
from scope_lite.envs.cooperbench.agents import BEGIN, PairEpisode, open_episode
from scope_lite.envs.cooperbench.sandbox import Done, Limits
from scope_lite.envs.cooperbench.testing import files_of
from scope_lite.envs.tau2.tools import ToolCall
from scope_lite.method.episodes import WrittenSeat, run_episodes
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from tests.standins.cooperbench_shop import BIG, PLAIN, PYTEST, SHOP, TWICE, folders, judged, patch, place, shop, task  # noqa: F401

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="foreign code is contained on Linux only")

# ---- the dataset


def test_every_two_features_of_a_task_are_a_pair(folders: tuple[Path, Path]) -> None:
    pairs = load_pairs(*folders)
    assert [pair.name.rpartition("/")[2] for pair in pairs] == ["f1_f2", "f1_f3", "f2_f3"]
    first = pairs[0]
    assert (first.name, first.repository) == ("shop_task/task7/f1_f2", "small/shop") and len(first.commit) == 40
    assert first.features[0].description == "Twice the price." and first.features[0].gold == shop(TWICE)


def test_a_subset_names_its_pairs_in_either_order(folders: tuple[Path, Path]) -> None:
    assert [pair.name for pair in load_pairs(*folders, subset="lite")] == ["shop_task/task7/f1_f2"]


@pytest.mark.parametrize(
    "gone", ["", "shop_task", "shop_task/task7/Dockerfile", "shop_task/task7/feature2/tests.patch"]
)
def test_what_is_missing_in_a_dataset_is_said_in_one_line(folders: tuple[Path, Path], gone: str) -> None:
    path = folders[0] / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ScopeError) as error:
        load_pairs(*folders)
    assert "\n" not in str(error.value) and str(folders[0]) in str(error.value)


def test_a_missing_repository_or_subset_is_named(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ScopeError, match="it has lite"):
        load_pairs(*folders, subset="flash")
    shutil.rmtree(folders[1] / "small")
    with pytest.raises(ScopeError, match="clones of small/shop"):
        load_pairs(*folders)


def test_a_commit_that_the_clone_lacks_is_the_users_mistake(task: PairTask) -> None:
    with pytest.raises(ScopeError, match="cannot find commit"):
        evaluate_pair(replace(task, commit="0" * 40), ("", ""))


# ---- merge and verdict


def test_two_patches_that_fit_merge_and_pass(task: PairTask) -> None:
    result = judged(task, task.features[0].gold, task.features[1].gold, PYTEST)
    assert (result.merged, result.conflict, result.union, result.passed) == (True, False, False, (True, True))
    assert result.success and result.why == "" and result.containment
    assert result.containment.user != 0


def test_a_plain_tree_serves_as_a_repository(task: PairTask, place: Path) -> None:
    (place / "plain").mkdir()
    (place / "plain" / "shop.py").write_text(SHOP, encoding="utf-8")
    result = judged(replace(task, source=place / "plain"), shop(TWICE), "")
    assert result.merged and result.passed == (True, False)
    assert result.why == "feature 2: its tests fail (exit code 1)"


def test_lines_added_at_one_place_conflict_and_a_union_keeps_both(task: PairTask) -> None:
    first, second = (shop(f"{SHOP}\n\n{line}\n") for line in ("price = lambda x: 2 * x", "name = lambda: 'big shop'"))
    result = judged(task, first, second)
    assert (result.merged, result.conflict, result.union, result.passed) == (True, True, True, (True, True))
    assert result.success


def test_a_union_of_contradicting_lines_merges_and_fails_its_tests(task: PairTask) -> None:
    result = judged(task, shop(TWICE), shop(BIG.replace("return x", "return 3 * x")))
    assert (result.merged, result.union, result.passed) == (True, True, (False, True))
    assert not result.success and result.why == "feature 1: its tests fail (exit code 1)"


def test_a_file_deleted_by_one_and_changed_by_the_other_cannot_be_merged(task: PairTask) -> None:
    result = judged(task, patch({"shop.py": SHOP}, {}), shop(BIG))
    assert (result.merged, result.conflict, result.union, result.passed) == (False, True, False, (False, False))
    assert "union merge cannot settle" in result.why and result.containment is None


def test_a_patch_that_does_not_apply_is_the_agents_failure(task: PairTask) -> None:
    result = judged(task, patch({"shop.py": "other\n"}, {"shop.py": "text\n"}), shop(BIG))
    assert not result.merged and not result.conflict
    assert result.why.startswith("the patch for feature 1 does not apply: error: ")


def test_a_pass_is_not_won_by_changing_the_tests(task: PairTask) -> None:
    """An agent's own tests, a conftest.py that skips all, and a union of its choice are left out."""
    tricks = {
        "tests/test_price.py": "def test_it():\n    pass\n",
        "conftest.py": "import os\n\nos._exit(0)\n",
        ".gitattributes": "* merge=union\n",
    }
    first = patch({"shop.py": SHOP}, tricks | {"shop.py": SHOP.replace("return x", "return 5")})
    result = judged(task, first, shop(BIG), PYTEST)
    assert result.merged and result.passed == (False, True)


def test_exit_code_0_without_a_passed_test_is_no_pass(task: PairTask) -> None:
    result = judged(task, shop(f"import os\n\n{SHOP}\nos._exit(0)\n"), "", PYTEST)
    assert result.passed == (False, False) and "no test passed" in result.why


def test_tests_that_hang_are_ended_and_said_to_be(task: PairTask) -> None:
    suite = replace(PLAIN, limits=Limits(seconds=2))
    result = judged(task, shop(f"{SHOP}\nwhile True:\n    pass\n"), "", suite)
    assert result.merged and result.passed == (False, False)
    assert "too much time" in result.why


def test_files_of_a_patch_are_those_it_leaves() -> None:
    assert files_of(patch({"a.py": "1\n", "b.py": "1\n"}, {"a.py": "2\n", "c/d.py": "1\n"})) == ["a.py", "c/d.py"]


# ---- the agents


class PaperWorkspace:
    """A workspace that runs nothing."""

    limits = Limits(seconds=5)

    def __init__(self) -> None:
        self.commands: list[str] = []

    def run(self, command: list[str]) -> Done:
        self.commands.append(command[-1])
        held = sandbox.Containment("namespaces", "none", True, 1)
        return Done(3, "exit", f"ran {command[-1]}\n", "", False, 0.0, held)

    def patch(self) -> str:
        return f"patch after {len(self.commands)}"


def bash(command: str) -> str:
    return ToolCall("bash", {"command": command}).as_message()


def tell(text: str) -> str:
    return ToolCall("message", {"text": text}).as_message()


SUBMIT = ToolCall("submit", {}).as_message()


@pytest.fixture
def paper(task: PairTask) -> PairEpisode:
    spaces = (PaperWorkspace(), PaperWorkspace())
    return PairEpisode(task, spaces, lambda patches: 0.5, max_turns=4)  # type: ignore[arg-type]


def test_each_agent_knows_its_own_feature_only(paper: PairEpisode) -> None:
    assert "Twice the price." in paper.systems["policy"] and "A bigger name." not in paper.systems["policy"]
    assert "A bigger name." in paper.systems["simulator"] and "5 seconds" in paper.systems["simulator"]


def test_a_message_is_read_at_the_partners_next_turn_and_once(paper: PairEpisode) -> None:
    assert (paper.next_seat, paper.hears) == ("policy", BEGIN)
    paper.take(tell("I take price."))
    assert paper.next_seat == "simulator" and paper.hears == f"{BEGIN}\n\nYour partner writes: I take price."
    paper.take(bash("ls"))
    assert "Sent." in (paper.hears or "") and "I take price." not in (paper.hears or "")
    paper.take(bash("pwd"))
    assert paper.hears == "<tool_response>\nran ls\n[exit code 3]\n</tool_response>"
    assert paper.sent == [("policy", "I take price.")]


def test_who_has_submitted_is_silent_and_both_patches_are_judged(paper: PairEpisode) -> None:
    paper.take(SUBMIT)
    paper.take(tell("Are you there?"))
    assert paper.next_seat == "simulator" and "reads no more" in (paper.hears or "")
    paper.take(bash("ls"))
    with pytest.raises(RuntimeError, match="not over"):
        assert paper.reward
    paper.take(SUBMIT)
    assert (paper.next_seat, paper.hears, paper.outcome, paper.turns) == (None, None, "submitted", 1)
    assert paper.patches == {"policy": "patch after 0", "simulator": "patch after 1"} and paper.reward == 0.5


def test_what_is_no_call_is_answered_and_counted(paper: PairEpisode) -> None:
    for message, answer in [
        ("Hello!", "every message is one tool call"),
        (ToolCall("rm", {}).as_message(), "there is no tool rm"),
        (ToolCall("bash", {"cmd": "ls"}).as_message(), "bash takes one argument, command"),
        (ToolCall("submit", {"now": 1}).as_message(), "submit takes no argument"),
    ]:
        paper.take(message)
        paper.take(bash("ls"))
        assert answer in paper._answers["policy"]
    assert (paper.next_seat, paper.outcome, paper.turns) == (None, "max-turns", 4)
    assert paper.patches == {"policy": "patch after 0", "simulator": "patch after 4"} and paper.reward == 0.5


def test_a_stopped_episode_earns_nothing(paper: PairEpisode) -> None:
    paper.take(SUBMIT)
    paper.stop("context")
    assert (paper.next_seat, paper.outcome, paper.reward) == (None, "context", 0.0)


def test_two_agents_work_in_their_own_checkouts_and_the_loop_pays_the_merge(task: PairTask) -> None:
    """Gold on both seats earns 1; where one hands in nothing, 0."""
    doubled = bash("sed -i 's/return x/return 2 * x/' shop.py && git diff --stat")
    named = bash("sed -i 's/.shop.$/\"big shop\"/' shop.py; cat shop.py")
    with open_episode(task, PLAIN) as gold, open_episode(task, PLAIN) as lazy:
        policy = WrittenSeat([[tell("price is mine"), doubled, SUBMIT], [doubled, SUBMIT]])
        simulator = WrittenSeat([[named, SUBMIT], [SUBMIT]])
        rollouts = run_episodes([gold, lazy], policy, simulator, RowKeys.grid(0, 0, 1, 2), ["gold", "lazy"])
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
    assert [(rollout.outcome, rollout.turns) for rollout in rollouts] == [("submitted", 3), ("submitted", 2)]
    # each saw its own change, and not the other's
    assert "2 * x" in gold.patches["policy"] and "big shop" not in gold.patches["policy"]
    assert "big shop" in gold.patches["simulator"] and lazy.patches["simulator"] == ""
