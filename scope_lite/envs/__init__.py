"""Who is talked to, and what is paid: tasks and worlds as plain data, without torch.

``nano`` holds the worlds of dialogue acts, known exactly (a new one: a file there and its name in ``nano.WORLDS``);
``p4g*`` and ``donation`` are Persuasion for Good, ``tau2`` is tau2-bench, ``cooperbench`` is CooperBench, ``turns`` is
an episode of theirs, ``prompts`` is what a model is told. What is not here: who plays (``method``) and what computes
(``models``).
"""
