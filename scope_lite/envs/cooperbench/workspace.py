"""A checkout of a task's base commit in a scratch folder, and git and other commands in it, contained.

Git runs contained as well: a repository in which foreign code has run can make git run anything, by its hooks and its
settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scope_lite.envs.cooperbench.dataset import PairTask
from scope_lite.envs.cooperbench.sandbox import Done, Limits, run
from scope_lite.store.errors import ScopeError

BRANCH = "work"
"""the branch of a fresh checkout"""
GIT_LIMITS = Limits(seconds=120, memory_mb=4096, output_bytes=8 << 20)


class Workspace:
    """One working tree, ``scratch/tree``; the arguments are those of ``sandbox.run``."""

    def __init__(self, scratch: Path, limits: Limits | None = None, environment: Mapping[str, str] | None = None):
        self.scratch, self.tree, self.limits, self.environment = scratch, scratch / "tree", limits, environment
        self.base = ""
        """the base commit: an id, since an agent's commits move branches"""

    def checkout(self, task: PairTask) -> None:
        """Fill the tree with the task's base commit: cloned, or copied from a plain tree and committed.

        Raises:
            ScopeError: the repository has no such commit, or cannot be read.
        """
        source, self.base = task.source, task.commit
        clone = (source / ".git").exists() or (source / "HEAD").is_file()
        how = ["git", "clone", "-q", "--no-hardlinks", "--no-checkout"] if clone else ["cp", "-R"]
        fetch = [*how, str(source), str(self.tree)]
        needed(run(fetch, self.scratch, None, GIT_LIMITS, (source,)), f"copy {source}")
        if clone:
            done = self.git("checkout", "-q", "-B", BRANCH, self.base)
            needed(done, f"find commit {self.base} in {source} (try `git fetch` there)")
            return
        for arguments in (("init", "-q", "-b", BRANCH), ("add", "-A", "-f"), ("commit", "-q", "-m", "base")):
            needed(self.git(*arguments), f"commit {source}")
        self.base = needed(self.git("rev-parse", "HEAD"), f"commit {source}").stdout.strip()

    def git(self, *arguments: str, stdin: str = "") -> Done:
        return run(["git", *arguments], self.scratch, self.tree, GIT_LIMITS, stdin=stdin)

    def apply(self, patch: str, *options: str) -> Done:
        """Apply a patch, as it is or else counted anew: people and models count the lines of a hunk wrongly.

        So do tools that strip the end of a patch: a newline, and blank lines of context before it.
        """
        text = patch if patch.endswith("\n") else f"{patch}\n"
        for recount in ((), ("--recount",)):
            done = self.git("apply", "--whitespace=nowarn", *recount, *options, "-", stdin=text)
            if done.ok:
                break
        return done

    def run(self, command: Sequence[str], stdin: str = "") -> Done:
        """A command in the tree, within the workspace's limits, both streams together."""
        return run(command, self.scratch, self.tree, self.limits, (), self.environment, stdin, together=True)

    def patch(self) -> str:
        """All changes against the base commit, new files included; empty if git cannot tell."""
        self.git("add", "-A")
        done = self.git("diff", "--cached", "--binary", self.base)
        return done.stdout if done.ok and not done.cut else ""


def needed(done: Done, what: str) -> Done:
    """The result of a step that fails only if something is wrong here, not with an agent's work; else ScopeError."""
    if not done.ok:
        raise ScopeError(f"cannot {what}: {done.first_line}")
    return done
