"""Talk to a policy, or listen to it talk to a simulator: in the terminal (``scope-lite chat``) or in a notebook.

``policy`` finds and loads what to talk to, in acts (the nano worlds) or in text; ``talk`` is the conversation,
``messages`` what it is made of, ``speakers`` say each message and what else it might have been. ``widget`` (imported
on its own, for notebooks) puts a conversation into a cell.
"""

from scope_lite.cli.conversation.messages import YOU, Ending, Message, Turn, in_figures
from scope_lite.cli.conversation.policy import BASE, TRAINING, LoadedPolicy, NanoPolicy, TextPolicy, load_policy
from scope_lite.cli.conversation.talk import Conversation

__all__ = [
    "BASE",
    "TRAINING",
    "YOU",
    "Conversation",
    "Ending",
    "LoadedPolicy",
    "Message",
    "NanoPolicy",
    "TextPolicy",
    "Turn",
    "in_figures",
    "load_policy",
]
