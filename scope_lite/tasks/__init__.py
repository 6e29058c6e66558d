"""Real benchmarks as plain data: tau2-bench user scenarios (``tau2``) and human persuasion dialogues (``p4g``).

Torch and the benchmarks' code stay out.
"""
