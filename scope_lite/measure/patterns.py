"""Word patterns by which simulator health finds the blatant cases: the other side's talk, and refusals to play."""

from __future__ import annotations

import re

SUPPORT_TALK = re.compile(
    r"how (?:can|may) i (?:help|assist) you"
    r"|(?:anything|something) else (?:that )?i (?:can|could|may) (?:help|assist|do)"
    r"|\b(?:happy|glad|here|pleased) to (?:help|assist)\b|thank(?:s| you) for (?:contacting|reaching out|calling)"
    r"|\b(?:provide|give|tell|share|confirm|verify)(?: me| us)?(?: with)? your (?:full |first |last )?"
    r"(?:name|e-?mail|order|zip|user|account|address|booking|reservation|phone)"
    r"|\bi(?:'ll| will| have|'ve)(?: now| just)? (?:processed|issued|process|issue|look up|checked|check) (?:your|the) "
    r"|\bwe apologi[sz]e|\bi apologi[sz]e for (?:the|any) (?:inconvenience|confusion|trouble)"
    r"|^(?:agent|assistant|support|representative)\s*:",
    re.IGNORECASE | re.MULTILINE,
)
"""What a support agent says and a customer does not. Of 10,332 human persuadees' turns in P4G it matches 0.4 %."""
PERSUADER_TALK = re.compile(
    r"\b(?:would|will|could|can) you (?:like|be (?:willing|interested|able|open)|consider|want|please)(?: to| in)? ?"
    r"(?:also )?(?:\w+ )?(?:donat\w+|giv\w+|contribut\w+|mak\w+ a (?:\w+ )?donation)"
    r"|\bhow much (?:would|do|will|can|could|are) you (?:like|want|wish|be willing|willing|be able)?(?: to)? ?"
    r"(?:donat|giv|contribut)"
    r"|\byour (?:\w+ )?(?:donation|contribution)s? (?:will|can|could|would|goes|is going|helps?)\b"
    r"|\bthank(?:s| you)(?: so| very)?(?: much)? for your (?:\w+ )?(?:donation|generosity|contribution)"
    r"|\bhow (?:can|may) i (?:help|assist) you\b|^(?:persuader|assistant)\s*:",
    re.IGNORECASE | re.MULTILINE,
)
"""What a persuader says and who is asked does not (8 % of human persuaders' turns, 0.6 % of persuadees'), and the
assistant's "How can I help you?", which nobody of P4G says; "happy to help" may be the giver's."""
REFUSAL = re.compile(
    r"\bas an? (?:ai|artificial|language model)\b|\b(?:large )?language model\b"
    r"|\bi(?:'m| am) (?:just |only )?an? (?:ai\b|artificial intelligence|virtual assistant|chat ?bot|computer program)"
    r"|\bi(?: can(?:'t|not| not)|'m (?:not able|unable) to| am (?:not able|unable) to| won't)"
    r" (?:help|assist|fulfil|comply|engage|participate|pretend|role-?play|respond|provide assistance)",
    re.IGNORECASE,
)
"""Answers of a model that will not play: "As an AI ...", "I can't assist with that". An apology alone is none.

Of the same human turns it matches 0.04 %."""
