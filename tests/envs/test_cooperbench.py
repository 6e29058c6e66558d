"""CooperBench: the merge and its verdict, and two agents on a task."""

# ruff: noqa: F811  (a fixture is imported, and is a test's argument, under one name)
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scope_lite.envs.cooperbench import PairTask, evaluate_pair
from scope_lite.envs.cooperbench.episode import PairEpisode
from scope_lite.envs.cooperbench.sandbox import Limits
from scope_lite.method.dialogue import WrittenSeat, run_dialogues
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from tests.standins.cooperbench_shop import BIG, PLAIN, PYTEST, SHOP, TWICE, folders, judged, patch, place, shop, task  # noqa: F401

pytestmark = pytest.mark.sandbox


def test_a_commit_that_the_clone_lacks_is_the_users_mistake(task: PairTask) -> None:
    with pytest.raises(ScopeError, match="cannot find commit"):
        evaluate_pair(replace(task, commit="0" * 40), ("", ""))


def test_two_patches_that_fit_merge_and_pass(task: PairTask) -> None:
    result = judged(task, task.features[0].gold, task.features[1].gold, PYTEST)
    assert (result.merged, result.conflict, result.passed) == (True, False, (True, True))
    assert result.success and result.why == ""


def test_a_plain_tree_serves_as_a_repository(task: PairTask, place: Path) -> None:
    (place / "plain").mkdir()
    (place / "plain" / "shop.py").write_text(SHOP, encoding="utf-8")
    result = judged(replace(task, source=place / "plain"), shop(TWICE), "")
    assert result.merged and result.passed == (True, False)
    assert result.why == "feature 2: its tests fail (exit code 1)"


def test_lines_added_at_one_place_conflict_and_a_union_keeps_both(task: PairTask) -> None:
    first, second = (shop(f"{SHOP}\n\n{line}\n") for line in ("price = lambda x: 2 * x", "name = lambda: 'big shop'"))
    result = judged(task, first, second)
    assert (result.merged, result.conflict, result.passed) == (True, True, (True, True))
    assert result.success


def test_a_union_of_contradicting_lines_merges_and_fails_its_tests(task: PairTask) -> None:
    result = judged(task, shop(TWICE), shop(BIG.replace("return x", "return 3 * x")))
    assert (result.merged, result.conflict, result.passed) == (True, True, (False, True))
    assert not result.success and result.why == "feature 1: its tests fail (exit code 1)"


def test_a_file_deleted_by_one_and_changed_by_the_other_cannot_be_merged(task: PairTask) -> None:
    result = judged(task, patch({"shop.py": SHOP}, {}), shop(BIG))
    assert (result.merged, result.conflict, result.success) == (False, True, False)
    assert "union merge cannot settle" in result.why


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


def test_a_patch_whose_lines_are_counted_wrongly_is_counted_anew(task: PairTask) -> None:
    by_hand = shop(TWICE).replace("@@ -1,5 +1,5 @@", "@@ -1,2 +1,9 @@")
    assert by_hand != shop(TWICE) and judged(task, by_hand, shop(BIG)).success


def test_two_agents_work_in_their_own_checkouts_and_the_loop_pays_the_merge(task: PairTask) -> None:
    """The right changes on both seats, by commands and as a patch, earn 1; where one hands in nothing, 0."""
    doubled = "```bash\nsed -i 's/return x/return 2 * x/' shop.py && git diff --stat\n```"
    submit, named = "I am done:\n```diff\n```", f"```diff\n{shop(BIG)}```"
    gold, lazy = (PairEpisode(task, lambda task, patches: judged(task, *patches)) for _ in range(2))
    policy = WrittenSeat([["Price is mine.", doubled, submit], [doubled, submit]])
    rollouts = run_dialogues(
        [gold, lazy], policy, WrittenSeat([["Good.", named], [submit]]), RowKeys.grid(0, 0, 1, 2), ["gold", "lazy"]
    )
    assert [(r.reward, r.outcome, r.turns) for r in rollouts] == [(1.0, "both-pass", 3), (0.0, "no-patch", 2)]
    # each saw its own change, and not the other's
    assert "2 * x" in gold.patches["policy"] and "big shop" not in gold.patches["policy"]
    assert gold.patches["simulator"] == shop(BIG) and lazy.patches["simulator"] == ""
    assert not any(workspace.scratch.exists() for workspace in (*gold._workspaces.values(), *lazy._workspaces.values()))
