"""What computes: token transcripts, keyed randomness, transformers, Unsloth, vLLM and endpoints.

``records`` and ``rng`` are what every rollout is made of; ``hf``, ``unsloth`` and ``vllm`` hold a trainable model in a
seat; ``replies`` says what a sampler of replies is, ``generate`` and ``api`` are two; ``chat`` writes a model's chat
template; ``verbalized`` reads the lists of Verbalized Sampling (``envs.prompts`` asks for them); ``registry`` knows
models by name and gets them, ``pretrained`` finds one, ``folders`` loads it or says why not, ``adapters`` has all of
LoRA. What is not here: losses and advantages (``method``), and anything that knows a task.
"""
