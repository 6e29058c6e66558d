"""scope_lite: see simulator collapse happen, understand why, and test two ways to fix it.

Nine rooms; each imports only from those before it in its line (``tests/test_imports.py`` holds that)::

    store <- envs, models <- method <- measure <- experiments <- figures <- cli        theory: store only

Read ``method`` first: config, train, grpo, learner, dialogue, partner, cotraining, rewards, panel. ``envs`` says who is
talked to and what is paid, ``models`` what computes, ``store`` what is on disk. ``measure`` says how collapsed and how
sure, ``theory`` proves and checks the paper's statements, ``experiments`` says which runs make which table, and
``figures`` and ``cli`` are what readers see. Beside the rooms stand this file and ``__main__``.
"""

__version__ = "0.1.0"

MAX_SEED = 2**31 - 1
"""the largest that every library takes (NumPy, and with it vLLM and Unsloth, ends at 2^32), also with an offset"""
