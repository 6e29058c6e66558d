"""scope_lite: see simulator collapse happen, understand why, and fix it two ways.

The modules read in the order of the data flow, and each imports only earlier ones::

    config -> tasks -> rollouts (policy x simulator) -> rewards -> advantages
           -> loss -> metrics -> run folder -> figures
"""

__version__ = "0.1.0"

MAX_SEED = 2**31 - 1
"""the largest that every library takes (NumPy, and with it vLLM and Unsloth, ends at 2^32), also with an offset"""
