"""Many replies to a history: the sampler with shared prefixes against transformers' own ``generate``, same prompts.

SmolLM2-135M-Instruct at the shapes of ``scope-lite simulator replies``: 64 replies of at most 40 tokens to a history.
Only tokens up to a reply's end are counted. Prints the CPU seconds that 1,000 of them take with both, and the ratio,
measured alternately in one process.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from scope_lite.envs.prompts import persuadee_chat
from scope_lite.models.generate import TextSampler
from scope_lite.models.pretrained import load_model
from scope_lite.models.replies import SamplingConfig

HISTORIES, REPLIES, TOKENS, REPEATS = 2, 64, 40, 2
LINES = (
    "Hello, how are you today?",
    "I am fine, thank you. And you?",
    "Great! Have you ever heard of the charity Save the Children? They help children in need all around the world.",
    "No, I have not. What do they do with the money?",
    "They pay for food, schools and doctors where a war or a storm has taken them. Would you like to give something?",
)


def main() -> None:
    torch.set_num_threads(1)
    loaded = load_model(device="cpu")
    sampler = TextSampler(loaded)
    chats = [persuadee_chat(LINES[: 2 * i + 3]) for i in range(HISTORIES)]
    stops = sorted(sampler.stop_ids)

    def ours(seed: int) -> int:
        sampler.readings.forget()
        drawn = sampler.sample(chats, REPLIES, SamplingConfig(max_new_tokens=TOKENS, seed=seed))
        return sum(len(reply.token_ids) for group in drawn for reply in group)

    @torch.inference_mode()
    def theirs(seed: int) -> int:
        torch.manual_seed(seed)
        written = 0
        for chat in chats:
            ids = torch.tensor([sampler.prompt_ids(chat, TOKENS)])
            rows = loaded.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                num_return_sequences=REPLIES, max_new_tokens=TOKENS, eos_token_id=stops, pad_token_id=stops[0],
            )[:, ids.shape[1] :].tolist()  # fmt: skip
            written += sum(next((i + 1 for i, token in enumerate(row) if token in stops), len(row)) for row in rows)
        return written

    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in range(REPEATS):
        for name, draw in (("ours", ours), ("theirs", theirs)):
            began = time.process_time()
            tokens = draw(seed)
            seconds[name].append(1000 * (time.process_time() - began) / tokens)
    ratio = np.array(seconds["theirs"]) / np.array(seconds["ours"])
    for name, took in seconds.items():
        print(f"{name}: {np.median(took):.2f} CPU seconds for 1,000 tokens")
    print(f"ratio {np.median(ratio):.2f} (from {ratio.min():.2f} to {ratio.max():.2f}), {REPEATS} pairs")


if __name__ == "__main__":
    main()
