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

from scope_lite import paths
from scope_lite.cli.base import Root, console
from scope_lite.errors import ScopeError

if TYPE_CHECKING:
    from scope_lite.chat import Conversation, Message

_STYLES = {"agent": "green", "you": "cyan", "outcome": "bold"}
COMMANDS = ("undo", "restart", "quit")


def chat(
    run: Annotated[str, typer.Argument(help="A run's name or its beginning, or base:<world> (untrained).")],
    partner: Annotated[
        str, typer.Option("--with", help="Who answers: you, a panel member (sim-a, real, ...), or 'training'.")
    ] = "you",
    seed: Annotated[int, typer.Option(min=0, help="The same seed and replies give the same talk.")] = 0,
    out: Root = paths.RUNS,
) -> None:
    """Talk to a trained policy, or let a simulator answer it; one reply a line, also from a pipe."""
    from scope_lite.chat import Conversation, load_policy

    policy = load_policy(run, out)
    talk = Conversation(policy, partner, seed)
    screen = console()
    trained = f"trained for {policy.step} steps" if policy.step else "untrained"
    _line(screen, f"{policy.name}: a policy of world {policy.world.name}, {trained}; seed {seed}", "bold")
    try:
        converse(talk, screen)
    except (EOFError, KeyboardInterrupt):
        screen.print()


def converse(talk: Conversation, screen: Console) -> None:
    """Take replies and commands until "quit".

    Raises:
        EOFError: when there is no more input.
    """
    _show_turn(talk, screen)
    while True:
        if talk.ending is None and not talk.by_hand:
            _say(talk, None, screen)
            continue
        word = _ask(talk, screen)
        try:
            if word == "quit":
                return
            if word in ("undo", "restart"):
                talk.undo() if word == "undo" else talk.restart()
                _show_turn(talk, screen)
            elif word:
                _say(talk, chosen(word, talk.replies), screen)
        except ScopeError as error:  # a slip of the hand is no reason to end a talk
            typer.echo(f"scope-lite: {error}", err=True)


def chosen(word: str, replies: tuple[str, ...]) -> str:
    """The reply of that number (from 1), name, or beginning of a name.

    Raises:
        ScopeError: if no reply or more than one is meant by it.
    """
    from scope_lite.config import closest

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


def _ask(talk: Conversation, screen: Console) -> str:
    asked = ", ".join(COMMANDS if talk.ending else ("your reply", *COMMANDS)) + ": "
    return input(asked if sys.stdin.isatty() else "").strip().lower()


def _say(talk: Conversation, reply: str | None, screen: Console) -> None:
    """Pass the reply on, and show it and what comes of it."""
    answered = len(talk.turns) - 1
    talk.say(reply)
    heard = talk.turns[answered].reply
    assert heard is not None
    _show_message(talk, talk.partner, heard, screen)
    if talk.ending is None:
        _show_turn(talk, screen)
    else:
        _show_ending(talk, screen)


def _show_turn(talk: Conversation, screen: Console) -> None:
    """The open act, and (for a person) what can be answered."""
    world, number = talk.world, len(talk.turns)
    _line(screen, f"\nturn {number} of {world.horizon}", "bold")
    if number == 1 and talk.told:
        _line(screen, f"you are told: {world.say(talk.told)}")
    _show_message(talk, "agent", talk.turns[-1].act, screen)
    if talk.by_hand:
        listed = [_short(f"{i} {reply}: {world.say(reply)}", "cyan") for i, reply in enumerate(talk.replies, 1)]
        screen.print(Columns(listed, padding=(0, 3), column_first=True))


def _show_message(talk: Conversation, speaker: str, message: Message, screen: Console) -> None:
    """What was said, and below it a bar for everything that was likely enough; a person's has none."""
    chance = "" if message.probability is None else f", {message.probability:.3f}"
    _line(
        screen, f"{speaker}: {talk.world.say(message.said)} ({message.said}{chance})", _STYLES.get(speaker, "magenta")
    )
    if chance == "":
        return
    options = message.options()
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, p in options.items():
        mark, style = (">", "bold") if name == message.said else ("", "dim")
        bar = Bar(1, 0, p, width=min(24, screen.width // 6))
        table.add_row(Text(mark), _short(name, style), f"{p:.3f}", bar, _short(talk.world.say(name), "dim"))
    others = len(message.probabilities) - len(options)
    if others:
        table.add_row("", Text(f"{others} others", "dim"), f"{1 - sum(options.values()):.3f}", "", "")
    screen.print(table)


def _show_ending(talk: Conversation, screen: Console) -> None:
    ending = talk.ending
    assert ending is not None
    _line(screen, "\nthe end", "bold")
    if talk.task:
        _line(screen, f"the agent was told: {talk.world.say(talk.task)}")
    _show_message(talk, "outcome", ending.outcome, screen)
    _line(screen, f"reward {ending.reward:.2f} (expected after this talk: {ending.expected_reward:.2f})", "bold")


def _short(text: str, style: str) -> Text:
    """One line of a list, cut where the terminal ends."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _line(screen: Console, text: str, style: str = "") -> None:
    # sentences may hold brackets and numbers, which are no markup here
    screen.print(Text(text, style))
