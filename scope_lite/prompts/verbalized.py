"""The Verbalized Sampling block: one request for several replies with probabilities, as JSON (paper, Section 3)."""

BLOCK = """\
[Do not answer with one message. Write $candidates different messages that the $speaker could send next, each with the \
probability that a real $speaker would send it. The probabilities add up to 1. Answer with a JSON list of $candidates \
objects and nothing else: [{"text": ..., "probability": ...}, ...]]"""
"""No example texts: a small model copies them ("First message") instead of writing a customer's words."""

GRAMMAR = r"""
root ::= "[" item (", " item){$more} "]"
item ::= "{\"text\": \"" text "\", \"probability\": 0." [0-9] [0-9] "}"
text ::= [A-Z] [A-Za-z0-9 ,.?!'#-]{1,$characters}
"""
"""EBNF for the same list. Everything is bounded: with a JSON schema alone, one number was seen to run on for ever."""
