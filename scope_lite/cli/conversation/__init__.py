"""Talk to a policy, or listen to it talk to a simulator: in the terminal (``scope-lite chat``) or in a notebook.

``policy`` finds and loads what to talk to. ``talk`` is what every talk is made of; ``conversation`` is one in acts (the
nano worlds), ``text`` one in text, whose ``speakers`` say what else they might have said. ``widget`` (imported on its
own, for notebooks) puts a talk into a cell.
"""

from scope_lite.cli.conversation.acts import Conversation
from scope_lite.cli.conversation.base import YOU, Ending, Message, Talk, Turn, in_figures
from scope_lite.cli.conversation.policy import BASE, TRAINING, LoadedPolicy, LoadedTextPolicy, load_policy
from scope_lite.cli.conversation.text import TextConversation

__all__ = [
    "BASE",
    "TRAINING",
    "YOU",
    "Conversation",
    "Ending",
    "LoadedPolicy",
    "LoadedTextPolicy",
    "Message",
    "Talk",
    "TextConversation",
    "Turn",
    "in_figures",
    "load_policy",
    "open_conversation",
]


def open_conversation(
    policy: LoadedPolicy | LoadedTextPolicy, partner: str = YOU, seed: int = 0, alternatives: int = 3
) -> Conversation | TextConversation:
    """Begin a talk with a policy of either kind.

    Args:
        partner: who answers it, a name out of ``policy.partners``.
        seed: the same seed and replies give the same talk.
        alternatives: in text, how many other samples stand beside a message; acts are few, and all of them do.

    Raises:
        ScopeError: for a partner that does not exist.
    """
    if isinstance(policy, LoadedTextPolicy):
        return TextConversation(policy, partner, seed, alternatives)
    return Conversation(policy, partner, seed)
