"""The texts that models read (``prompts.yaml``), and the chats that are put together from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template
from types import SimpleNamespace

from scope_lite.store.errors import ScopeError
from scope_lite.store.plain_yaml import read_yaml

Message = dict[str, str]

_TEXTS = {part: SimpleNamespace(**texts) for part, texts in read_yaml(Path(__file__).with_suffix(".yaml")).items()}
persuader, persuadee, user_simulator = _TEXTS["persuader"], _TEXTS["persuadee"], _TEXTS["user_simulator"]
engineer, verbalized, scripted_agent = _TEXTS["engineer"], _TEXTS["verbalized"], _TEXTS["scripted_agent"]


def personas(part: SimpleNamespace) -> dict[str, list[str]]:
    """Those of one part, by split: to train with, and held out for evaluation."""
    return {"train": part.PERSONAS, "test": part.HELD_OUT}


def user_simulator_chat(scenario: str, turns: Sequence[str]) -> list[Message]:
    """The chat that a model reads when it plays the customer.

    The model answers the "user" of its own chat, so the roles are swapped: the support agent's lines come in as
    "user", the customer's earlier lines stand as "assistant".

    Args:
        scenario: who the customer is and what they want, as text.
        turns: what was said so far, agent first, alternating, agent last.

    Raises:
        ScopeError: an even number of turns, so that it would not be the customer's turn.
    """
    return _chat(Template(user_simulator.SYSTEM).substitute(scenario=scenario), turns, opens=False)


def persuadee_chat(turns: Sequence[str], persona: str = "") -> list[Message]:
    """The chat that a model reads when it plays the person who is asked for a donation, as :func:`user_simulator_chat`.

    ``persona`` is who this person is, in labelled lines; none by default.
    """
    about = f"\nWho you are:\n{persona}\n" if persona else ""
    return _chat(Template(persuadee.SYSTEM).substitute(persona=about), turns, opens=False)


def persuader_chat(turns: Sequence[str]) -> list[Message]:
    """The chat that a model reads when it plays the person who asks for the donation.

    Args:
        turns: what was said so far, persuader first, alternating, persuadee last.

    Raises:
        ScopeError: an odd number of turns.
    """
    return _chat(persuader.SYSTEM, turns, opens=True)


def _chat(system: str, turns: Sequence[str], opens: bool) -> list[Message]:
    """What one of two speakers reads; ``opens``: whether it spoke first."""
    if (len(turns) % 2 == 0) != opens:
        number = "even" if opens else "odd"
        raise ScopeError(f"this speaker answers its partner: give an {number} number of turns, got {len(turns)}")
    roles = ("assistant", "user") if opens else ("user", "assistant")
    said = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return [{"role": "system", "content": system}, *said]


def with_verbalized_block(chat: Sequence[Message], candidates: int = 5, speaker: str = "customer") -> list[Message]:
    """The same chat, with the request for ``candidates`` replies and their probabilities after the last line.

    ``speaker`` is what the request calls the one whose words are wanted.

    It stands last because a small model follows what it read last, and because both chats then share their beginning.
    """
    if candidates < 2:
        raise ScopeError(f"Verbalized Sampling needs at least 2 candidates, got {candidates}")
    block = Template(verbalized.BLOCK).substitute(candidates=candidates, speaker=speaker)
    last = chat[-1]
    return [*chat[:-1], {"role": last["role"], "content": f"{last['content']}\n\n{block}"}]
