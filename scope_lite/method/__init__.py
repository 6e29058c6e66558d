"""READ THIS FIRST: the paper's method, from a config to a trained policy.

``config`` lists every number; ``train`` is the one loop (play, score, centre, update, log); ``grpo`` and ``learner``
are the update; ``dialogue`` lets two ``seats`` speak in turn. ``partner`` plays the simulator, ``cotraining`` is one
that learns, with its pool and its ``rewards``; ``sampling`` and ``prompted`` are how a simulator is asked for words.
``panel`` and ``members`` are whom the policy is evaluated with, ``alarm`` tells when it collapses. ``scene`` joins them
for worlds of acts (``nano``) and of text (``text*``). What is not here: what a world is (``envs``), how tokens are
computed (``models``), files (``store``), and which runs make a table (``experiments``).
"""
