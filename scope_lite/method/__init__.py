"""READ THIS FIRST: the paper's method, from a config to a trained policy.

``config`` lists every number and every choice (a new one begins there), ``recipes`` the paper's values of them;
``train`` is the one loop (play, score, centre, update, log), and says what a step logs and when a checkpoint is
written. The rest in the order in which the files import each other (one way, ``tests/test_imports.py`` holds that):
``grpo`` and ``learner`` are the update; ``dialogue`` lets two ``seats`` speak in turn, sampled by a rule of
``sampling`` or asked for their words (``prompted``). A ``panel_file`` lists the simulators of a world (who they are:
``experiments.nano_models.panels`` at nano, ``data/panels`` for text). A ``scene`` is where dialogues happen: worlds of
acts (``nano``) or of text (``text*``). ``partner`` plays the simulator there, ``cotraining`` is one that learns: its
pool, and its pay by ``rewards``. ``panel`` evaluates the policy with the members of the file; ``alarm`` tells when it
collapses. What is not here: what a world is (``envs``), how tokens are computed (``models``), files (``store``), and
which runs make a table (``experiments``).
"""
