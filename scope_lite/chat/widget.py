"""The talk in a notebook cell: bars for what the policy might have said, a menu of replies, undo and restart."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from scope_lite.chat.conversation import Conversation, Message
from scope_lite.chat.policy import YOU, load_policy
from scope_lite.errors import ScopeError
from scope_lite.paths import RUNS

_SPEAKER = '<div style="margin-top: .6em"><b>{who}</b>: {sentence} <code>{said}</code></div>'
_CELL = '<td style="text-align: left; white-space: nowrap; padding: 0 .5em">'
_BAR = (
    f'<tr style="font-weight: {{weight}}">{_CELL}{{name}}</td>{_CELL}{{p:.3f}}</td>{_CELL}<div style="width: 12em">'
    f'<div style="background: #0072B2; height: .7em; width: {{p:.1%}}"></div></div></td>{_CELL}{{sentence}}</td></tr>'
)


def chat_widget(run: str | Path, partner: str = YOU, seed: int = 0, root: Path = RUNS) -> ChatWidget:
    """Talk to a policy in a notebook cell; the arguments are those of ``scope-lite chat``.

    Args:
        run: name of a run, its beginning, its folder, or "base:<world>".
        partner: you, a member of the world's panel, or "training".

    Raises:
        ScopeError: if there is no such run or partner.
    """
    return ChatWidget(Conversation(load_policy(run, root), partner, seed))


class ChatWidget(widgets.VBox):
    """A conversation on the screen; ``talk`` is the conversation itself."""

    def __init__(self, talk: Conversation):
        self.talk = talk
        self.page, self.trouble = widgets.HTML(), widgets.HTML()
        listed = [(f"{reply}: {talk.world.say(reply)}", reply) for reply in talk.replies]
        self.reply = widgets.Dropdown(options=listed, layout={"width": "34em"})
        self.say = widgets.Button(description="say" if talk.by_hand else "next turn", button_style="primary")
        self.undo, self.restart = widgets.Button(description="undo"), widgets.Button(description="restart")
        self.say.on_click(self._on(lambda: talk.say(self.reply.value if talk.by_hand else None)))
        self.undo.on_click(self._on(talk.undo))
        self.restart.on_click(self._on(talk.restart))
        by_hand = [self.reply, self.say, self.undo, self.restart]
        controls = widgets.HBox(by_hand if talk.by_hand else [self.say, self.restart])
        super().__init__([self.page, controls, self.trouble])
        self._draw()

    def _on(self, action: Any) -> Any:
        def clicked(_: Any) -> None:
            self.trouble.value = ""
            try:
                action()
            except ScopeError as error:
                self.trouble.value = escape(str(error))
            self._draw()

        return clicked

    def _draw(self) -> None:
        self.page.value = page(self.talk)
        self.say.disabled = self.talk.ending is not None


def page(talk: Conversation) -> str:
    """The whole talk as HTML; bars for the newest act (and reply), and for the outcome at the end."""
    parts = []
    if talk.told:
        parts.append(f"<i>you are told: {escape(talk.world.say(talk.told))}</i>")
    for number, turn in enumerate(talk.turns, 1):
        newest = number == len(talk.turns)
        parts.append(_message(talk, "agent", turn.act, bars=newest))
        if turn.reply:
            parts.append(_message(talk, talk.partner, turn.reply, bars=newest))
    if talk.ending:
        parts.append(_message(talk, "outcome", talk.ending.outcome, bars=True))
        parts.append(f"<b>reward {talk.ending.reward:.2f}</b> (expected {talk.ending.expected_reward:.2f})")
    return "".join(parts)


def _message(talk: Conversation, who: str, message: Message, bars: bool) -> str:
    said = message.said if message.probability is None else f"{message.said} {message.probability:.3f}"
    line = _SPEAKER.format(who=escape(who), sentence=escape(talk.world.say(message.said)), said=escape(said))
    if not bars or not message.probabilities:
        return line
    rows = [
        _BAR.format(
            weight="bold" if name == message.said else "normal",
            name=escape(name),
            p=p,
            sentence=escape(talk.world.say(name)),
        )
        for name, p in message.options().items()
    ]
    return f"{line}<table>{''.join(rows)}</table>"
