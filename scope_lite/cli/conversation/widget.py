"""The talk in a notebook cell: bars for what else might have been said, replies to choose or write, undo, restart."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from scope_lite.cli.conversation import YOU, Conversation, Message, in_figures, load_policy
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import RUNS

_SPEAKER = '<div style="margin-top: .6em; white-space: pre-wrap"><b>{who}</b>: {sentence}{label}</div>'
_CELL = '<td style="text-align: left; white-space: nowrap; padding: 0 .5em">'
_WORDS = '<td style="text-align: left; white-space: pre-wrap; padding: 0 .5em">'
_BAR = '<div style="width: 12em"><div style="background: #0072B2; height: .7em; width: {length:.1%}"></div></div>'
_ACT = f"{_CELL}{{said}}</td>{_CELL}{{chance}}</td>{_CELL}{_BAR}</td>{_CELL}{{sentence}}</td>"
_TEXT = f"{_CELL}{{chance}}</td>{_CELL}{_BAR}</td>{_WORDS}{{said}}</td>"


def chat_widget(
    run: str | Path, partner: str = YOU, seed: int = 0, root: Path = RUNS, alternatives: int = 3
) -> ChatWidget:
    """Talk to a policy in a notebook cell; the arguments are those of ``scope-lite chat``.

    Args:
        run: name of a run, its beginning, its folder, or "base:<world>".
        partner: you, a member of the world's panel, or "training".
        alternatives: in text, how many other samples stand beside a message.

    Raises:
        ScopeError: if there is no such run or partner.
    """
    policy = load_policy(run, root)
    return ChatWidget(Conversation(policy, partner, seed, alternatives), f"{policy.name}: {policy.about}")


class ChatWidget(widgets.VBox):
    """A conversation on the screen, under a line that says with whom; ``talk`` is the conversation itself."""

    def __init__(self, talk: Conversation, about: str = ""):
        self.talk, self.about = talk, about
        self.page, self.trouble = widgets.HTML(), widgets.HTML()
        if talk.replies:
            listed = [(f"{reply}: {talk.sentence(reply)}", reply) for reply in talk.replies]
            self.reply = widgets.Dropdown(options=listed, layout={"width": "34em"})
        else:
            self.reply = widgets.Textarea(placeholder="your message", layout={"width": "34em"})
        self.say = widgets.Button(description="say" if talk.by_hand else "next turn", button_style="primary")
        self.undo, self.restart = widgets.Button(description="undo"), widgets.Button(description="restart")
        self.say.on_click(self._on(self._say))
        self.undo.on_click(self._on(talk.undo))
        self.restart.on_click(self._on(talk.restart))
        by_hand = [self.reply, self.say, self.undo, self.restart]
        controls = widgets.HBox(by_hand if talk.by_hand else [self.say, self.restart])
        super().__init__([self.page, controls, self.trouble])
        self._draw()

    def _say(self) -> None:
        self.talk.say(self.reply.value if self.talk.by_hand else None)
        if not self.talk.replies:
            self.reply.value = ""

    def _on(self, action: Any) -> Any:
        def clicked(_: Any) -> None:
            self.trouble.value = ""
            self.say.disabled = True  # in text a message takes seconds
            try:
                action()
            except ScopeError as error:
                self.trouble.value = escape(str(error))
            self._draw()

        return clicked

    def _draw(self) -> None:
        self.page.value = page(self.talk, self.about)
        self.say.disabled = self.talk.ending is not None


def page(talk: Conversation, about: str = "") -> str:
    """The whole talk as HTML; bars for the newest act, the reply before it, and the outcome at the end."""
    parts = [f"<div><i>{escape(line)}</i></div>" for line in (about, talk.legend) if line]
    if talk.told:
        parts.append(
            f'<div style="white-space: pre-wrap"><i>you are told: {escape(talk.sentence(talk.told))}</i></div>'
        )
    for number, turn in enumerate(talk.turns, 1):
        parts.append(_message(talk, turn.act, bars=number == len(talk.turns)))
        if turn.reply:
            parts.append(_message(talk, turn.reply, bars=number >= len(talk.turns) - 1))
    if talk.ending:
        expected = talk.ending.expected_reward
        more = "" if expected is None else f" (expected {expected:.2f})"
        parts.append(_message(talk, talk.ending.outcome, bars=True))
        parts.append(f"<b>reward {talk.ending.reward:.2f}</b>{more}")
    return "".join(parts)


def _message(talk: Conversation, message: Message, bars: bool) -> str:
    label = f" <code>{escape(message.label)}</code>" if message.label else ""
    line = _SPEAKER.format(who=escape(message.speaker), sentence=escape(message.sentence), label=label)
    if not bars or not message.probabilities:
        return line
    cells = _ACT if talk.replies else _TEXT
    rows = []
    for said, p in message.options().items():
        weight = "bold" if said == message.said else "normal"
        chance, length = in_figures(p)
        filled = cells.format(said=escape(said), chance=chance, length=length, sentence=escape(talk.sentence(said)))
        rows.append(f'<tr style="font-weight: {weight}">{filled}</tr>')
    return f"{line}<table>{''.join(rows)}</table>"
