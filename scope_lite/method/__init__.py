"""READ THIS FIRST: the paper's method, from a config to a trained policy.

``config`` lists every number; ``train`` is the one loop (play, score, centre, update, log); ``grpo`` and ``learner``
are the update; ``simulators``, ``sampling``, ``cotraining`` and ``rewards`` say who plays the user and what a learning
one is paid; ``rollouts``, ``episodes`` and ``seats`` play a dialogue; ``panel`` and ``members`` are whom the policy is
evaluated with, ``alarm`` tells when it collapses; ``scene`` joins them for worlds of acts (``nano``) and of text
(``text*``). What is not here: what a world is (``envs``), how tokens are computed (``models``), files (``store``), and
which runs make a table (``experiments``).
"""
