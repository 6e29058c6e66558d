"""Rollouts by vLLM, for both seats: one base model in memory, LoRA adapters on it, and a proof that they are new.

    engine    vLLM itself: token ids in, ids and log probabilities out; one adapter a call, a new name a version
    seat      a seat with a transcript of its own (the policy; ``seats.ModelSeat`` is its counterpart in transformers)
    sampler   replies to histories (the prompted simulators; the counterpart of ``generate.TextSampler``)
    sync      the trainer's newest adapter into the engine, and the probe that the engine serves it

vLLM is imported when an engine starts, so everything else works without it.
"""
