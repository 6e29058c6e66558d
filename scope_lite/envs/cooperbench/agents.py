"""Two agents on one pair task: each with a checkout of its own, a bash tool, and an inbox for the other's messages.

In the benchmark the two work at the same time. Our loop takes one message of each living episode a round, so here they
take turns, one message each, until both have handed in or used up their messages; a message sent is read at the
receiver's next turn. Which models sit where is the caller's: two of the same (self-play), or of different kinds
(cross-play). Either seat can be the trained one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from string import Template

from scope_lite.envs.cooperbench.dataset import Feature, PairTask
from scope_lite.envs.cooperbench.evaluate import evaluate_pair
from scope_lite.envs.cooperbench.sandbox import Done, Limits
from scope_lite.envs.cooperbench.scratch import scratch_folder
from scope_lite.envs.cooperbench.testing import Suite
from scope_lite.envs.cooperbench.workspace import Workspace
from scope_lite.envs.tau2.tools import MAX_OUTPUT, CallError, ToolCall, parse_call, shown
from scope_lite.envs.turns import SeatName, TurnEpisode

SEATS: tuple[SeatName, SeatName] = ("policy", "simulator")
SUBMITTED, MAX_TURNS = "submitted", "max-turns"
BEGIN = "Begin."
"""What each agent hears first, before anything has happened."""
TOOLS = {"bash": "command", "message": "text", "submit": ""}
"""the tools, each with its one argument"""

AGENT = """\
You are a software engineer. You and a partner work on the same repository, each in a checkout of your own, each on \
one feature. At the end git merges your changes and your partner's, and the tests of both features are run on the \
result. So write your feature, and agree with your partner on who changes what, or the merge will fail.

Each of your messages is one tool call and nothing else:
<tool_call>
{"name": "name of the tool", "arguments": {"name of the argument": "value"}}
</tool_call>

# Tools
bash(command: str): run a command with bash in the root of your checkout, for at most $seconds seconds, without network.
message(text: str): send your partner a message. They read it before their next tool call, as you read theirs.
submit(): hand in your checkout as it is now. Nothing can be changed afterwards. You have $turns messages in all.

# Your feature
$feature"""


class PairEpisode(TurnEpisode):
    """One pair task; ``replies`` are the simulator's messages, as it wrote them."""

    def __init__(
        self,
        task: PairTask,
        workspaces: tuple[Workspace, Workspace],
        judge: Callable[[tuple[str, str]], float],
        max_turns: int = 40,
        max_output: int = MAX_OUTPUT,
    ):
        """An episode at its beginning: the policy builds ``task.features[0]``, the simulator ``task.features[1]``.

        Args:
            workspaces: checkouts of the task's base commit, one a seat.
            judge: the reward in [0, 1] of the two patches, in the order of the features; asked at most once.
            max_turns: messages of each seat; what is in its checkout by then counts as handed in.
            max_output: characters of a command's output that an agent reads.
        """
        super().__init__(task.name, opens="policy")
        self.judge, self.max_turns, self.max_output = judge, max_turns, max_output
        self.workspaces = dict(zip(SEATS, workspaces, strict=True))
        self.systems = {
            seat: agent_system(feature, self.workspaces[seat].limits.seconds, max_turns)
            for seat, feature in zip(SEATS, task.features, strict=True)
        }
        self.patches: dict[SeatName, str] = {}
        """what has been handed in"""
        self.inboxes: dict[SeatName, list[str]] = {seat: [] for seat in SEATS}
        self.sent: list[tuple[SeatName, str]] = []
        """the conversation, in the order written"""
        self._answers: dict[SeatName, str] = dict.fromkeys(SEATS, BEGIN)

    @property
    def turns(self) -> int:
        return len(self.acts)

    @property
    def hears(self) -> str | None:
        """The answer to the seat's last call, then what its partner has written since; None when all is over."""
        if self.next_seat is None:
            return None
        letters = [f"Your partner writes: {text}" for text in self.inboxes[self.next_seat]]
        return "\n\n".join([self._answers[self.next_seat], *letters])

    def _turn(self, seat: SeatName, message: str) -> None:
        said = self.acts if seat == "policy" else self.replies
        said.append(message)
        self.inboxes[seat].clear()  # it has read them
        self._answers[seat] = shown(self._act(seat, message), self.max_output)
        if len(said) >= self.max_turns and seat not in self.patches:
            self._hand_in(seat)
            self.outcome = MAX_TURNS
        self._pass_on(seat)

    def _earned(self) -> float:
        """What the two patches earned together; 0 for an episode that was stopped."""
        if len(self.patches) < len(SEATS):
            return 0.0
        return self.judge((self.patches["policy"], self.patches["simulator"]))

    def _act(self, seat: SeatName, message: str) -> str:
        """Do what a message asks for; what the agent is to hear of it."""
        try:
            call = parse_call(message)
            if call is None:
                raise CallError("every message is one tool call: bash, message or submit")
            argument = argument_of(call)
        except CallError as error:
            return f"Error: {error}."
        if call.name == "submit":
            self._hand_in(seat)
            return "Handed in."
        if call.name == "message":
            self.inboxes[partner_of(seat)].append(argument)
            self.sent.append((seat, argument))
            return "Sent." if partner_of(seat) not in self.patches else "Your partner has handed in and reads no more."
        return as_heard(self.workspaces[seat].run(["bash", "-c", argument]))

    def _hand_in(self, seat: SeatName) -> None:
        self.patches[seat] = self.workspaces[seat].patch()

    def _pass_on(self, seat: SeatName) -> None:
        """Whose turn it is: the partner's, or the same seat's again if the partner has handed in; or it is over."""
        left = [other for other in (partner_of(seat), seat) if other not in self.patches]
        self.next_seat = left[0] if left else None
        if not left:
            self.outcome = self.outcome or SUBMITTED


def agent_system(feature: Feature, seconds: float, turns: int) -> str:
    """An agent's system prompt."""
    return Template(AGENT).substitute(seconds=f"{seconds:g}", turns=turns, feature=feature.description)


def partner_of(seat: SeatName) -> SeatName:
    return "simulator" if seat == "policy" else "policy"


def argument_of(call: ToolCall) -> str:
    """The one argument of a call, "" for a tool that takes none.

    Raises:
        CallError: no such tool, or not its argument; the text is for the agent.
    """
    if call.name not in TOOLS:
        raise CallError(f"there is no tool {call.name}; there are {', '.join(TOOLS)}")
    if set(call.arguments) != ({TOOLS[call.name]} - {""}):
        raise CallError(
            f"{call.name} takes {'one argument, ' + TOOLS[call.name] if TOOLS[call.name] else 'no argument'}"
        )
    value = call.arguments.get(TOOLS[call.name], "")
    if not isinstance(value, str) or "\0" in value:
        raise CallError(f"the {TOOLS[call.name]} is a string")
    return value


def as_heard(done: Done) -> str:
    """A command's output, and how it ended."""
    output = done.stdout.encode(errors="surrogateescape").decode(errors="replace").rstrip()
    end = f"[exit code {done.code}]" if done.ended == "exit" else f"[ended: too much {done.ended}]"
    return f"{output}\n{end}" if output else end


@contextmanager
def open_episode(
    task: PairTask, suite: Suite | None = None, limits: Limits | None = None, max_turns: int = 40
) -> Iterator[PairEpisode]:
    """An episode with two fresh checkouts, judged by :func:`~scope_lite.envs.cooperbench.evaluate.evaluate_pair`.

    The checkouts are removed at the end of the block, so read the reward inside it.

    Args:
        suite: how the tests are run; its Python and environment are also what the agents have.
        limits: of each bash command.
    """
    suite = suite or Suite()
    with scratch_folder() as first, scratch_folder() as second:
        workspaces = [Workspace(scratch, limits, suite.readable, suite.environment) for scratch in (first, second)]
        for workspace in workspaces:
            workspace.checkout(task)
        yield PairEpisode(
            task,
            (workspaces[0], workspaces[1]),
            judge=lambda patches: float(evaluate_pair(task, patches, suite).success),
            max_turns=max_turns,
        )
