"""The texts that models read, and the two functions that put them together. All texts here are our own."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from scope_lite.envs.prompts import persuadee, persuader, user_simulator, verbalized
from scope_lite.store.errors import ScopeError

Message = dict[str, str]


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
    return _swapped_chat(Template(user_simulator.SYSTEM).substitute(scenario=scenario), turns)


def persuadee_chat(turns: Sequence[str], persona: str = "") -> list[Message]:
    """The chat that a model reads when it plays the person who is asked for a donation.

    Args:
        turns: what was said so far, persuader first, alternating, persuader last.
        persona: who this person is, in labelled lines; none by default.

    Raises:
        ScopeError: an even number of turns.
    """
    about = f"\nWho you are:\n{persona}\n" if persona else ""
    return _swapped_chat(Template(persuadee.SYSTEM).substitute(persona=about), turns)


def persuader_chat(turns: Sequence[str]) -> list[Message]:
    """The chat that a model reads when it plays the person who asks for the donation.

    Args:
        turns: what was said so far, persuader first, alternating, persuadee last.

    Raises:
        ScopeError: an odd number of turns.
    """
    if len(turns) % 2:
        raise ScopeError(f"the persuader speaks after its partner: give an even number of turns, got {len(turns)}")
    roles = ("assistant", "user")
    said = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return [{"role": "system", "content": persuader.SYSTEM}, *said]


def _swapped_chat(system: str, turns: Sequence[str]) -> list[Message]:
    if len(turns) % 2 == 0:
        raise ScopeError(f"a user simulator speaks after its partner: give an odd number of turns, got {len(turns)}")
    roles = ("user", "assistant")
    return [{"role": "system", "content": system}] + [
        {"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)
    ]


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
