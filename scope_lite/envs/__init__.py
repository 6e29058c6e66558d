"""Who is talked to, and what is paid: tasks and worlds as plain data, without torch.

``nano`` holds the worlds of dialogue acts, known exactly (a new one: a Python file there and its name in
``nano.WORLDS``, then ``scope-lite nano build`` for its models and panel); ``p4g*`` are Persuasion for Good,
``donation`` reads an amount out of words, ``tau2`` is tau2-bench, ``cooperbench`` is CooperBench, ``turns`` is an
episode of theirs, ``prompts`` is what a model is told. A ``.yaml`` of the same name holds words, numbers and patterns,
the ``.py`` the rules. What is not here: who plays (``method``) and what computes (``models``).
"""
