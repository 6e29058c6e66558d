"""READ THIS FIRST: the paper's method, from a config to a trained policy.

``config`` lists every number and every choice; ``train`` is the one loop (play, score, centre, update, log), and says
what a step logs and when a checkpoint is written; ``grpo`` and ``learner`` are the update; ``dialogue`` lets two
``seats`` speak in turn. ``partner`` plays the simulator, ``cotraining`` is one that learns: its pool, and its credit by
``rewards``; ``sampling`` and ``prompted`` are how a simulator is asked for words. ``panel`` evaluates the policy with
the members that a ``panel_file`` lists (who they are: ``experiments.nano_models.panels``, and ``data/panels`` for
text); ``alarm`` tells when it collapses. ``scene`` joins them for worlds of acts (``nano``) and of text (``text*``).
What is not here: what a world is (``envs``), how tokens are computed (``models``), files (``store``), and which runs
make a table (``experiments``).
"""
