"""The verdict on a pair of patches: merged by git, then both features' tests on the merged tree, all of it contained.

As the benchmark's paper has it, a conflict is met by a union merge (both sides' lines are kept); the result says so,
since later versions of the benchmark count only merges without conflict. Changes to test files are left out of the
agents' patches, so that nobody passes by rewriting the tests, and so is what decides how tests run (``testing``). The
tests run in the process of the code they test, so an agent bent on it could still forge a pass from there; read the
patches of surprising winners.
"""

from __future__ import annotations

from dataclasses import dataclass

from scope_lite.envs.cooperbench.dataset import PairTask
from scope_lite.envs.cooperbench.sandbox import scratch_folder
from scope_lite.envs.cooperbench.testing import Suite, TestRun, files_of, run_tests, whole_patch
from scope_lite.envs.cooperbench.workspace import BRANCH, Workspace, needed

LEFT_OUT = (
    *("tests/*", "*/tests/*", "conftest.py", "*/conftest.py", ".gitattributes", "*/.gitattributes"),
    *("test_*.py", "*/test_*.py", "*_test.py", "*_test.go", "*.test.ts", "*.test.tsx"),
)
"""files of an agent's patch that do not count: they could change the tests, or how git merges"""


@dataclass(frozen=True)
class PairResult:
    """What came of two patches."""

    merged: bool
    conflict: bool
    """git could not merge them; where they are merged all the same, it was by keeping both sides' lines"""
    why: str
    """why it is no success, in one line; empty for a success"""
    tests: tuple[TestRun, ...] = ()
    """of each feature, on the merged tree"""

    @property
    def passed(self) -> tuple[bool, ...]:
        return tuple(not test.why for test in self.tests)

    @property
    def success(self) -> bool:
        return self.merged and all(self.passed)


def evaluate_pair(task: PairTask, patches: tuple[str, str], suite: Suite | None = None) -> PairResult:
    """Merge two patches against the base commit, in the order of ``task.features``, and test both features.

    Raises:
        ScopeError: the repository is not at hand, there are no tests to run, or nothing can contain them here.
    """
    with scratch_folder() as scratch:
        workspace = Workspace(scratch)
        workspace.checkout(task)
        merged, conflict, why = merge(workspace, task, patches)
        if not merged:
            return PairResult(merged, conflict, why)
        tests = tuple(run_tests(workspace, feature, suite or Suite()) for feature in task.features)
    reasons = [f"feature {f.number}: {t.why}" for f, t in zip(task.features, tests, strict=True) if t.why]
    return PairResult(merged, conflict, "; ".join(reasons), tests)


def merge(workspace: Workspace, task: PairTask, patches: tuple[str, str]) -> tuple[bool, bool, str]:
    """Merge the patches in a checkout of the base commit.

    A patch whose hunks are counted wrongly, as people and models do who write it by hand, is counted anew.

    Returns:
        Whether they are merged, whether there was a conflict, and why they are not merged.
    """
    touched = [path for feature in task.features for path in files_of(feature.tests)]
    exclude = [f"--exclude={pattern}" for pattern in (*LEFT_OUT, *touched)]
    apply = ["apply", "--index", "--whitespace=nowarn", *exclude]
    for feature, patch in zip(task.features, patches, strict=True):
        if feature is task.features[1]:
            needed(workspace.git("checkout", "-q", "-b", "second", workspace.base), "make a branch")
        if not patch.strip():
            continue
        done = workspace.git(*apply, "-", stdin=whole_patch(patch))
        if not done.ok and not workspace.git(*apply, "--recount", "-", stdin=whole_patch(patch)).ok:
            return False, False, f"the patch for feature {feature.number} does not apply: {done.first_line}"
        commit = workspace.git("commit", "-q", "--allow-empty", "--no-verify", "-m", f"feature {feature.number}")
        needed(commit, "commit a patch")
    if _merges(workspace):
        return True, False, ""
    needed(workspace.git("merge", "--abort"), "undo a merge")
    attributes = ["tee", str(workspace.tree / ".git" / "info" / "attributes")]
    needed(workspace.run(attributes, stdin="* merge=union\n"), "ask for a union merge")
    if _merges(workspace):
        return True, True, ""
    return False, True, "a conflict that a union merge cannot settle (a file deleted, renamed or binary on one side)"


def _merges(workspace: Workspace) -> bool:
    """Merge the first branch; False for a conflict, which git tells by exit code 1. Any other trouble is ours."""
    done = workspace.git("merge", "-q", "--no-edit", BRANCH)
    return done.code != 1 and needed(done, "merge").ok
