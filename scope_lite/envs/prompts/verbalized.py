"""The Verbalized Sampling block: one request for several replies with probabilities, as JSON (paper, Section 3)."""

BLOCK = """\
[Do not answer with one message. Write $candidates different messages that the $speaker could send next, each with the \
probability that a real $speaker would send it. The probabilities add up to 1. Answer with a JSON list of $candidates \
objects and nothing else: [{"text": ..., "probability": ...}, ...]]"""
"""No example texts: a small model copies them ("First message") instead of writing a customer's words."""
