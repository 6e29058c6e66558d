"""``scope-lite chat``: talk to a trained policy, or let a simulator, and see what else it might have said."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.bar import Bar
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scope_lite import MAX_SEED
from scope_lite.cli.base import Root, console
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.escaping import for_terminal

if TYPE_CHECKING:
    from scope_lite.cli.conversation import Message, Talk
    from scope_lite.models.records import Rollout

_STYLES = {"agent": "green", "you": "cyan", "outcome": "bold", "you are told": ""}
COMMANDS = ("undo", "restart", "quit")


def chat(
    run: Annotated[str, typer.Argument(help="A run's name or its beginning, or base:<world> (untrained).")],
    partner: Annotated[
        str, typer.Option("--with", help="Who answers: you, a panel member (sim-a, real, ...), or 'training'.")
    ] = "you",
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="The same seed and replies give the same talk.")] = 0,
    out: Root = paths.RUNS,
) -> None:
    """Talk to a trained policy, or let a simulator answer it; one reply a line, also from a pipe."""
    from scope_lite.cli.conversation import Talk, load_policy

    policy, screen = load_policy(run, out), console()
    talk = Talk(policy, partner, seed)
    _line(screen, f"{policy.name}: {policy.about}; seed {seed}", "bold")
    if not talk.replies:
        _line(screen, "a message's probability is the geometric mean of its tokens' probabilities")
    try:
        converse(talk, screen)
    except (EOFError, KeyboardInterrupt):
        screen.print()


def converse(talk: Talk, screen: Console) -> None:
    """Play the talk, and again after "undo" and "restart".

    Raises:
        EOFError: after "quit", or when there is no more input.
    """
    from scope_lite.cli.conversation import Again

    while True:
        try:
            rollout = talk.play(lambda: _ask(talk, screen), lambda message: _show(talk, message, screen))
            _show_ending(talk, rollout, screen)
            _ask(talk, screen, over=True)
        except Again:
            continue


def _ask(talk: Talk, screen: Console, over: bool = False) -> str:
    """A person's next reply; commands are obeyed, and a slip of the hand is no reason to end a talk."""
    if talk.replies and not over:
        sentences = [f"{i} {reply}: {talk.sentence(reply)}" for i, reply in enumerate(talk.replies, 1)]
        screen.print(Columns([_short(text, "cyan") for text in sentences], padding=(0, 3), column_first=True))
    asked = ", ".join(COMMANDS if over else ("your reply", *COMMANDS)) + ": "
    while True:
        word = input(asked if sys.stdin.isatty() else "").strip()
        try:
            if word.lower() == "quit":
                raise EOFError
            if word.lower() == "undo":
                talk.undo()
            if word.lower() == "restart":
                talk.restart()
            if word and over:
                raise ScopeError("the talk is over; undo, or restart")
            if word:
                return chosen(word.lower(), talk.replies) if talk.replies else word
        except ScopeError as error:
            typer.echo(f"scope-lite: {for_terminal(str(error))}", err=True)


def chosen(word: str, replies: tuple[str, ...]) -> str:
    """The reply of that number (from 1), name, or beginning of a name.

    Raises:
        ScopeError: if no reply or more than one is meant by it.
    """
    if word.isdecimal():
        if not 1 <= int(word) <= len(replies):
            raise ScopeError(f"no reply {word}: give 1 to {len(replies)}, a name, or {', '.join(COMMANDS)}")
        return replies[int(word) - 1]
    fitting = [word] if word in replies else [reply for reply in replies if reply.startswith(word)]
    if not fitting:
        raise ScopeError(closest(word, [*replies, *COMMANDS], "reply"))
    if len(fitting) > 1:
        raise ScopeError(f"{word!r} fits {', '.join(fitting)}; give more of the name")
    return fitting[0]


def _show(talk: Talk, message: Message, screen: Console) -> None:
    """What was said, and below it a bar for everything that was likely enough."""
    if heading := talk.heading(message):
        _line(screen, f"\n{heading}", "bold")
    # set in, so that no line of a reply passes for one of ours
    _line(screen, for_terminal(message.line, "\n  "), _STYLES.get(message.speaker, "magenta"))
    if not message.probabilities:
        return
    options = message.options()
    table = Table(box=None, show_header=False, padding=(0, 1))
    for said, p in options.items():
        mark, style = (">", "bold") if said == message.said else ("", "dim")
        bar = Bar(1, 0, p, width=min(24, screen.width // 6))
        table.add_row(mark, _short(said, style), f"{p:.3f}", bar, _short(talk.sentence(said), "dim"))
    if others := len(message.probabilities) - len(options):
        table.add_row("", Text(f"{others} others", "dim"), f"{1 - sum(options.values()):.3f}")
    screen.print(table)


def _show_ending(talk: Talk, rollout: Rollout, screen: Console) -> None:
    if revealed := talk.revealed(rollout.task):
        _line(screen, revealed)
    expected = talk.expected_reward()
    more = "" if expected is None else f" (expected after this talk: {expected:.2f})"
    _line(screen, f"reward {rollout.reward:.2f}{more}", "bold")


def _short(text: str, style: str) -> Text:
    """One line of a list, cut where the terminal ends."""
    return Text(for_terminal(text), style, no_wrap=True, overflow="ellipsis")


def _line(screen: Console, text: str, style: str = "") -> None:
    # sentences may hold brackets and numbers, which are no markup here
    screen.print(Text(for_terminal(text, "\n"), style))
