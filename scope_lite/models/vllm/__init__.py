"""Rollouts by vLLM, for both seats: one base model in memory, LoRA adapters on it, and a proof that they are new.

``engine`` is vLLM itself (token ids in, ids and log probabilities out), ``speakers`` the seats and samplers that speak
through it, ``sync`` brings the trainer's newest adapter into it and probes that it is served. vLLM is imported when an
engine starts, so everything else works without it.
"""
