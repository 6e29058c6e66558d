"""The state of one tau2-bench episode: who speaks next, what they hear, and how it ended.

The agent ("policy") and the customer ("simulator") alternate, but for the agent's tool calls: their outputs come back
to the agent, which then speaks again before the customer hears anything. What the agent hears, a customer's words or a
tool's output, is never trained: only what a seat itself sampled is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scope_lite.envs.tau2 import tools
from scope_lite.envs.tau2.prompt import GREETING, agent_system
from scope_lite.envs.tau2.tools import ToolCall, ToolOutput
from scope_lite.envs.turns import SeatName, TurnEpisode

USER_STOPS = {"###STOP###": "stop", "###TRANSFER###": "transfer", "###OUT-OF-SCOPE###": "out-of-scope"}
"""What the customer writes to end the episode, and the outcome that it makes; only these are judged."""
MAX_TURNS = "max-turns"


@dataclass(frozen=True)
class Said:
    """Words that the other side heard."""

    who: Literal["agent", "user"]
    text: str


@dataclass(frozen=True)
class Called:
    """A tool call that the environment executed, with its whole output."""

    call: ToolCall
    output: ToolOutput


Event = Said | Called


class Tau2Episode(TurnEpisode):
    """One task. ``replies[i]`` is what ``acts[i]`` was answered with; the greeting is the first act, and the last act
    of a cut episode has no answer."""

    def __init__(
        self,
        task: str,
        environment: tools.Environment,
        user: str,
        judge: Callable[[Sequence[Event]], float],
        max_turns: int = 30,
    ):
        """An episode at its beginning: the agent has greeted, the customer is to speak.

        Args:
            task: its name in records, for instance "retail/12".
            user: the customer's system prompt.
            judge: the reward in [0, 1] of what happened; asked only when the customer ended the episode.
            max_turns: messages of the agent, speech and tool calls alike.
        """
        super().__init__(task, opens="simulator")
        self.environment, self.judge, self.max_turns = environment, judge, max_turns
        agent = agent_system(environment.policy, environment.schemas)
        self.systems: Mapping[str, str] = {"policy": agent, "simulator": user}
        self.events: list[Event] = [Said("agent", GREETING)]
        self.acts.append(GREETING)
        self.turns = 0
        self.hears: str | None = GREETING

    def _turn(self, seat: SeatName, message: str) -> None:
        if seat == "simulator":
            self.events.append(Said("user", message))
            self.replies.append(message)
            self._hand_over("policy", tools.without_marks(message))
            if signs := [outcome for sign, outcome in USER_STOPS.items() if sign in message]:
                self.stop(signs[0])
            return
        self.turns += 1
        self.acts.append(message)
        try:
            call = tools.parse_call(message)
        except tools.CallError as error:
            self._answer(f"Error: {error}.")
        else:
            if call is None:
                self.events.append(Said("agent", message))
                self._hand_over("simulator", message)
            elif reason := tools.refusal(call):  # it never reached the environment, so it is no event
                self._answer(f"Error: {reason}.")
            else:
                output = self.environment.call(call)
                self.events.append(Called(call, output))
                self._answer(output.text)
        if self.turns >= self.max_turns:
            self.stop(MAX_TURNS)

    def _answer(self, output: str) -> None:
        """Let the agent hear a tool's output, or why there is none."""
        self.replies.append(tools.shown(output))
        self._hand_over("policy", self.replies[-1])

    def _hand_over(self, seat: SeatName, words: str) -> None:
        self.next_seat, self.hears = seat, words

    def _earned(self) -> float:
        """The judge's word if the customer ended it, else 0, as in the benchmark."""
        return self.judge(self.events) if self.outcome in USER_STOPS.values() else 0.0
