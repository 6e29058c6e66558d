"""The Verbalized Sampling block: one request for several replies with probabilities, as JSON (paper, Section 3)."""

BLOCK = """\
[Do not answer with one message. Write $candidates different messages that the $speaker could send next, each with the \
probability that a real $speaker would send it. The probabilities add up to 1. Answer with a JSON list of $candidates \
objects and nothing else: [{"text": ..., "probability": ...}, ...]]"""
"""No example texts: a small model copies them ("First message") instead of writing a customer's words."""

GRAMMAR = r"""
root ::= "[" item (", " item){$more} "]"
item ::= "{\"text\": \"" text "\", \"probability\": 0." [0-9] [0-9] "}"
text ::= [A-Za-z0-9$$] [ !#-\[\]-~]{1,$characters}
"""
"""EBNF for the same list, in which everything is bounded.

A JSON schema, the only form that endpoints know, bounds less: the spaces and line ends between its parts are free, and
a number may have any digits (.69 came as 0.68999999999999995), so a small model runs into its token limit. Of 24 lists
of three by SmolLM2 on vLLM (four chats, 160 tokens) the strict parser read 24 under the grammar (then of fewer
characters); 21 under a schema that bounds numbers and texts, 19 where it lists the 99 probabilities, 2 under a plain
one; and none without any. So there is one way to hold a list to its form, and an endpoint is asked without.

A text has every printable ASCII character but the two that JSON escapes, and begins with a letter, a digit or $. A
smaller alphabet is not neutral: without $ and %, and with a capital at the start, SmolLM2's lists that were asked for a
donation (4 chats, 24 lists) stated an amount with probability .05, with the three .12, and 24 direct replies .33.
"""
