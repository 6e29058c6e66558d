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
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_terminal

if TYPE_CHECKING:
    from scope_lite.cli.conversation import Conversation, Message

_STYLES = {"agent": "green", "you": "cyan", "outcome": "bold"}
COMMANDS = ("undo", "restart", "quit")


def chat(
    run: Annotated[str, typer.Argument(help="A run's name or its beginning, or base:<world> (untrained).")],
    partner: Annotated[
        str, typer.Option("--with", help="Who answers: you, a panel member (sim-a, real, ...), or 'training'.")
    ] = "you",
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="The same seed and replies give the same talk.")] = 0,
    alternatives: Annotated[
        int, typer.Option(min=0, max=1000, help="In text: other samples beside each message. Each costs time.")
    ] = 3,
    out: Root = paths.RUNS,
) -> None:
    """Talk to a trained policy, or let a simulator answer it; one reply a line, also from a pipe."""
    from scope_lite.cli.conversation import Conversation, load_policy

    policy = load_policy(run, out)
    screen = console()
    _line(screen, f"{policy.name}: {policy.about}; seed {seed}", "bold")
    talk = Conversation(policy, partner, seed, alternatives)
    if talk.legend:
        _line(screen, talk.legend)
    try:
        converse(talk, screen)
    except (EOFError, KeyboardInterrupt):
        screen.print()


def converse(talk: Conversation, screen: Console) -> None:
    """Take replies and commands until "quit".

    Raises:
        EOFError: when there is no more input.
    """
    _show_turns(talk, 0, screen)
    while True:
        if talk.ending is None and not talk.by_hand:
            _say(talk, None, screen)
            continue
        word = _ask(talk, screen)
        command = word.lower()
        try:
            if command == "quit":
                return
            if command == "undo":
                talk.undo()
                _show_turns(talk, len(talk.turns) - 1, screen)
            elif command == "restart":
                talk.restart()
                _show_turns(talk, 0, screen)
            elif word:
                _say(talk, chosen(command, talk.replies) if talk.replies else word, screen)
        except ScopeError as error:  # a slip of the hand is no reason to end a talk
            typer.echo(f"scope-lite: {for_terminal(str(error))}", err=True)


def chosen(word: str, replies: tuple[str, ...]) -> str:
    """The reply of that number (from 1), name, or beginning of a name.

    Raises:
        ScopeError: if no reply or more than one is meant by it.
    """
    from scope_lite.store.errors import closest

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
    return input(asked if sys.stdin.isatty() else "").strip()


def _say(talk: Conversation, reply: str | None, screen: Console) -> None:
    """Pass the reply on, and show it and what comes of it."""
    answered = len(talk.turns) - 1
    talk.say(reply)
    if heard := talk.turns[answered].reply:
        _show_message(talk, heard, screen)
    _show_turns(talk, answered + 1, screen)


def _show_turns(talk: Conversation, first: int, screen: Console) -> None:
    """The turns from number ``first`` (from 0), and (for a person) what can be answered, or how it ended."""
    if first == 0 and talk.told:
        _line(screen, f"\nyou are told: {talk.sentence(talk.told)}")
    for number, turn in enumerate(talk.turns[first:], first + 1):
        _line(screen, f"\n{talk.heading(number)}", "bold")
        _show_message(talk, turn.act, screen)
        if turn.reply:
            _show_message(talk, turn.reply, screen)
    if talk.ending:
        _show_ending(talk, screen)
    elif talk.by_hand and talk.replies:
        listed = [_short(f"{i} {reply}: {talk.sentence(reply)}", "cyan") for i, reply in enumerate(talk.replies, 1)]
        screen.print(Columns(listed, padding=(0, 3), column_first=True))


def _show_message(talk: Conversation, message: Message, screen: Console) -> None:
    """What was said, and below it a bar for everything that was likely enough; a person's has none."""
    label = f" ({message.label})" if message.label else ""
    # set in, so that no line of a reply passes for one of ours
    said = for_terminal(f"{message.speaker}: {message.sentence}{label}", "\n  ")
    _line(screen, said, _STYLES.get(message.speaker, "magenta"))
    if not message.probabilities:
        return
    from scope_lite.cli.conversation import in_figures

    options = message.options()
    table = Table(box=None, show_header=False, padding=(0, 1))
    for said, p in options.items():
        mark, style = (">", "bold") if said == message.said else ("", "dim")
        chance, length = in_figures(p)
        bar = Bar(1, 0, length, width=min(24, screen.width // 6))
        if talk.replies:
            table.add_row(Text(mark), _short(said, style), chance, bar, _short(talk.sentence(said), "dim"))
        else:  # words of any length
            table.add_row(Text(mark), chance, bar, Text(for_terminal(said), style))
    others = len(message.probabilities) - len(options)
    if others:
        table.add_row("", Text(f"{others} others", "dim"), f"{1 - sum(options.values()):.3f}", "", "")
    screen.print(table)


def _show_ending(talk: Conversation, screen: Console) -> None:
    ending = talk.ending
    assert ending is not None
    _line(screen, "\nthe end", "bold")
    if talk.revealed:
        _line(screen, talk.revealed)
    _show_message(talk, ending.outcome, screen)
    expected = ending.expected_reward
    more = "" if expected is None else f" (expected after this talk: {expected:.2f})"
    _line(screen, f"reward {ending.reward:.2f}{more}", "bold")


def _short(text: str, style: str) -> Text:
    """One line of a list, cut where the terminal ends."""
    return Text(for_terminal(text), style, no_wrap=True, overflow="ellipsis")


def _line(screen: Console, text: str, style: str = "") -> None:
    # sentences may hold brackets and numbers, which are no markup here
    screen.print(Text(for_terminal(text, "\n"), style))
