"""Two agents on one pair task: they write to each other, run commands in checkouts of their own, hand in patches.

In the benchmark the two work at the same time. Our loop takes one message of each living episode a round, so here they
take turns, one message each, until both have handed in or used up their messages. Which models sit where is the
caller's: two of the same (self-play), or of different kinds (cross-play). Either seat can be the trained one.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from string import Template

from scope_lite.envs.cooperbench.dataset import PairTask
from scope_lite.envs.cooperbench.sandbox import Done, Limits, scratch_folder
from scope_lite.envs.cooperbench.testing import PairResult
from scope_lite.envs.cooperbench.workspace import Workspace
from scope_lite.envs.turns import SeatName, TurnEpisode

SEATS: tuple[SeatName, SeatName] = ("policy", "simulator")
PARTNER: dict[SeatName, SeatName] = {"policy": "simulator", "simulator": "policy"}
PASSED, TESTS_FAIL, CONFLICT, UNREADABLE, NO_PATCH = "both-pass", "tests-fail", "conflict", "unreadable", "no-patch"
"""How an episode ends: paid 1; merged, and a test fails; no merge; a patch that git cannot apply; an agent that has
handed in nothing."""
OUTCOMES = (PASSED, TESTS_FAIL, CONFLICT, UNREADABLE, NO_PATCH)
BEGIN = "Begin."
"""What each agent hears first, before anything has happened."""
COMMANDS = Limits(output_bytes=8_000)
"""of each command of an agent"""

AGENT = """\
You are a software engineer. You and a partner work on one repository, each on one feature. In the end git merges your \
patch and your partner's, and the tests of both features are run on the result: you succeed together, or not at all. \
So agree on who changes what, or the merge will fail.

Each of your messages is one of three things:
- Plain text. Your partner reads it.
- A command between ```bash and ```. It runs in a checkout of your own, for at most $seconds seconds and without \
network, and you read what it prints.
- A patch between ```diff and ```, as git writes it, against the code that you began with. With it you hand in and are \
done; if it is empty, what your commands have changed is handed in.
You have $turns messages in all.

# Your feature
$feature"""

_BLOCK = re.compile(r"^```(bash|diff)[ \t]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


class PairEpisode(TurnEpisode):
    """One pair task; ``replies`` are the simulator's messages, as it wrote them."""

    def __init__(
        self,
        task: PairTask,
        judge: Callable[[PairTask, tuple[str, str]], PairResult],
        max_turns: int = 40,
        about: str = "",
    ):
        """An episode at its beginning: the policy builds ``task.features[0]``, the simulator ``task.features[1]``.

        Args:
            judge: the verdict on the patches, in the order of the features; asked once.
            max_turns: messages of each seat; what its commands have changed by then counts as handed in.
            about: what the simulator is told of itself.
        """
        super().__init__(task.name, opens="policy")
        self.pair, self.judge, self.max_turns = task, judge, max_turns
        self.systems: dict[str, str] = {
            seat: Template(AGENT).substitute(seconds=f"{COMMANDS.seconds:g}", turns=max_turns, feature=f.description)
            for seat, f in zip(SEATS, task.features, strict=True)
        }
        self.systems["simulator"] += f"\n\n# You\n{about}" if about else ""
        self.patches: dict[SeatName, str] = {}
        """what has been handed in"""
        self.result: PairResult | None = None
        self.turns = 0
        self._unheard: dict[SeatName, list[str]] = {seat: [BEGIN] for seat in SEATS}
        self._workspaces: dict[SeatName, Workspace] = {}
        self._folders = ExitStack()
        weakref.finalize(self, self._folders.close)

    @property
    def hears(self) -> str | None:
        """What has come of the seat's last message, then what its partner has written since; None when all is over."""
        return "\n\n".join(self._unheard[self.next_seat]) if self.next_seat else None

    def stop(self, outcome: str) -> None:
        super().stop(outcome)
        self._folders.close()

    def workspace(self, seat: SeatName) -> Workspace:
        """The seat's checkout, made when it is first needed and removed when the episode is over."""
        if seat not in self._workspaces:
            scratch = self._folders.enter_context(scratch_folder())
            self._workspaces[seat] = Workspace(scratch, COMMANDS)
            self._workspaces[seat].checkout(self.pair)
        return self._workspaces[seat]

    def _turn(self, seat: SeatName, message: str) -> None:
        said = self.acts if seat == "policy" else self.replies
        said.append(message)
        self.turns = len(self.acts)
        partner, block = PARTNER[seat], _BLOCK.search(message)
        if block is None:
            self._unheard[seat] = ["Sent." if partner not in self.patches else "Your partner reads no more."]
            self._unheard[partner].append(f"Your partner writes: {message}")
        elif block[1] == "bash":
            self._unheard[seat] = [as_heard(self.workspace(seat).run(["bash", "-c", block[2]]))]
        else:
            self.patches[seat] = block[2] if block[2].strip() else self._changed(seat)
        if len(said) >= self.max_turns and seat not in self.patches:
            self.patches[seat] = self._changed(seat)
        left = [other for other in (partner, seat) if other not in self.patches]
        self.next_seat = left[0] if left else None
        if not left:
            self._finish((self.patches["policy"], self.patches["simulator"]))

    def _changed(self, seat: SeatName) -> str:
        """What the seat's commands have changed, as a patch."""
        return self._workspaces[seat].patch() if seat in self._workspaces else ""

    def _finish(self, patches: tuple[str, str]) -> None:
        """Judge two patches, unless there is nothing to judge."""
        self.result = result = self.judge(self.pair, patches) if any(patches) else None
        if result and result.success:
            self.stop(PASSED)
        elif result is None or not all(patches):
            self.stop(NO_PATCH)
        else:
            self.stop(TESTS_FAIL if result.merged else CONFLICT if result.conflict else UNREADABLE)

    def _earned(self) -> float:
        return float(self.outcome == PASSED)


def as_heard(done: Done) -> str:
    """A command's output, and how it ended."""
    output = done.stdout.encode(errors="surrogateescape").decode(errors="replace").rstrip()
    end = f"[exit code {done.code}]" if done.ended == "exit" else f"[ended: too much {done.ended}]"
    return f"{output}\n{end}" if output else end
