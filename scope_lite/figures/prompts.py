"""Figures 5 to 9: the prompts, rendered from the texts that the code sends to models."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from scope_lite.envs import prompts
from scope_lite.envs.cooperbench.episode import AGENT
from scope_lite.envs.prompts import persuadee, persuader, scripted_agent
from scope_lite.figures.style import WIDTH, footnote

LETTERS = 70
LINE = 0.135
"""height of a line of text, in inches"""
ROLES = {"system": "#0072B2", "user": "#7f7f7f", "assistant": "#D55E00"}


def chat_card(messages: Sequence[tuple[str, str]], where: str) -> Figure:
    """Messages of a chat as a model reads them, one box each, the role in its colour.

    Args:
        messages: (role, text) in order; ``$name`` in a text is filled in for each dialogue.
        where: the file that the text stands in.
    """
    wrapped = [
        (role, [piece for line in text.split("\n") for piece in textwrap.wrap(line, LETTERS) or [""]])
        for role, text in messages
    ]
    lines = sum(len(text) + 2 for _, text in wrapped) + 1
    fig, ax = plt.subplots(figsize=(WIDTH, lines * LINE + 0.3))
    ax.set(xlim=(0, 1), ylim=(lines, 0))
    ax.axis("off")
    top = 0.5
    for role, text in wrapped:
        height = len(text) + 1.3
        ax.add_patch(plt.Rectangle((0.0, top), 1, height, fc=ROLES[role], alpha=0.07, ec="none"))
        ax.add_patch(plt.Rectangle((0.0, top), 0.006, height, fc=ROLES[role], ec="none"))
        ax.text(0.985, top + 0.25, role, ha="right", va="top", fontsize=6.5, color=ROLES[role])
        for i, line in enumerate(text):
            # a dollar sign would begin mathematics
            ax.text(0.02, top + 0.7 + i, line.replace("$", r"\$"), va="top", fontsize=6.5, family="monospace")
        top += height + 0.7
    footnote(fig, f"the code's own text: {where}; $words are filled in")
    return fig


def prompt_card(_: pd.DataFrame, which: str) -> Figure:
    """A prompt of the code by its name; ``verbalized`` is shown as it stands after the last line heard."""
    opening = scripted_agent.SUPPORT[:1]
    asked = prompts.with_verbalized_block([{"role": "user", "content": opening[0]}])[-1:]
    user = prompts.user_simulator_chat("$scenario", opening)
    where = "scope_lite/envs/prompts.yaml"
    texts = {
        "persuader": ([("system", persuader.SYSTEM)], where),
        "persuadee": ([("system", persuadee.SYSTEM)], where),
        "verbalized": ([("user", asked[0]["content"])], f"{where}, after the last line heard"),
        "user_simulator": ([(m["role"], m["content"]) for m in user], where),
        "cooperation": ([("system", AGENT)], "scope_lite/envs/cooperbench/episode.py"),
    }
    return chat_card(*texts[which])
