"""Talk to a policy, or listen to it talk to a simulator: in the terminal (``scope-lite chat``) or in a notebook.

``policy`` finds and loads what to talk to, ``conversation`` is the talk itself, and
``widget`` (imported on its own, for notebooks) puts it into a cell.
"""

from scope_lite.chat.conversation import Conversation, Ending, Message, Turn
from scope_lite.chat.policy import BASE, TRAINING, YOU, LoadedPolicy, load_policy

__all__ = ["BASE", "TRAINING", "YOU", "Conversation", "Ending", "LoadedPolicy", "Message", "Turn", "load_policy"]
