"""Partners that say the same lines to everyone: what a simulator's health is measured against."""

from scope_lite.envs.prompts.user_simulator import AGENT_FOLLOW_UP, AGENT_OPENING

SUPPORT = (
    AGENT_OPENING,
    AGENT_FOLLOW_UP,
    "Thank you, I have found your account. Which order or booking is it about, and what would you like me to do?",
    "I can do that for you. Please say yes to confirm, or tell me what to change.",
    "It is done, and a confirmation is on its way to your e-mail address. Is there anything else that you need?",
    "Then everything is settled. Goodbye, and have a nice day!",
)
SUPPORT_DONE = 4
"""The line (from 0) that says that all is done: to end the dialogue before it is too early, after the last too late."""
STOP = "###STOP###"
"""What the customer writes to end the dialogue, as the customer's prompt says."""

PERSUADER = (
    "Hello! How are you today?",
    "Have you heard of Save the Children before? It helps children in many countries.",
    "It gives food, medicine and schooling to children in danger. What do you think of that?",
    "Part of your payment could go to these children. Would you like to donate something?",
    "Even a small amount counts. How much would you give, from nothing to all of your 2 dollars?",
    "I understand. Thank you for talking with me!",
)
