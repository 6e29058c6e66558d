"""One GRPO step after the other with TRL's own trainer, on the workload that ``speed.py`` describes.

Runs in an environment of its own that has ``trl`` (1.16); reads one JSON line (the workload), then does a step for
every line ``go`` and answers with one JSON line of seconds and tokens. What is TRL's is stock: GRPOTrainer, its
``rollout_func`` for dialogues of several turns, its single-turn generation for the policy, its loss on a CPU. The
simulator is asked by transformers' ``generate``. Each turn reads the whole dialogue again, as that facility does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Confined:
    """A logits processor: only these tokens."""

    def __init__(self, ids: list[int]):
        self.ids = torch.tensor(ids)

    def __call__(self, _: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, self.ids] = scores[:, self.ids]
        return kept


class Dialogues:
    """TRL's hook for dialogues of several turns: prompts in, transcripts with a mask out."""

    def __init__(self, work: dict[str, Any], tokenizer: Any, simulator: Any):
        self.work, self.tokenizer, self.simulator = work, tokenizer, simulator
        self.seconds, self.tokens = 0.0, 0

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        began = time.perf_counter()
        work, rows = self.work, len(prompts)
        opening = {seat: work[seat]["opening"] for seat in ("policy", "simulator")}
        policy = [list(opening["policy"]) for _ in range(rows)]
        mask = [[0] * len(ids) for ids in policy]
        simulator = [list(opening["simulator"]) for _ in range(rows)]
        for turn in range(work["turns"]):
            said = self._policy(trainer, policy)
            for row, ids in enumerate(said):
                policy[row] += ids
                mask[row] += [1] * len(ids)
                simulator[row] += self._heard("simulator", ids)
            answers = self._ask(simulator, work["simulator"]["ids"])
            for row, ids in enumerate(answers):
                simulator[row] += ids
                if turn + 1 < work["turns"]:
                    heard = self._heard("policy", ids)
                    policy[row] += heard
                    mask[row] += [0] * len(heard)
        if work["nano"]:
            self._ask([ids + self._heard("simulator", work["close"]) for ids in simulator], work["outcomes"])
        first = len(opening["policy"])
        self.seconds = time.perf_counter() - began
        self.tokens = sum(map(len, policy))
        return {
            "prompt_ids": [ids[:first] for ids in policy],
            "completion_ids": [ids[first:] for ids in policy],
            "env_mask": [m[first:] for m in mask],
            "logprobs": None,
        }

    def _policy(self, trainer: GRPOTrainer, rows: list[list[int]]) -> list[list[int]]:
        return [list(ids) for ids in trainer._generate_single_turn(rows, None, {}, self.work["group_size"])[0]]

    def _heard(self, seat: str, ids: list[int]) -> list[int]:
        """Markup of the chat template around what the other said."""
        stops, around = set(self.work["stops"]), self.work[seat]["around"]
        return [*around[0], *(i for i in ids if i not in stops), *around[1]]

    @torch.no_grad()
    def _ask(self, rows: list[list[int]], allowed: list[int]) -> list[list[int]]:
        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        real = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        out = self.simulator.generate(
            input_ids=ids,
            attention_mask=real,
            max_new_tokens=self.work["reply_tokens"],
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            pad_token_id=pad,
            eos_token_id=self.work["stops"] or None,
            logits_processor=[Confined(allowed)] if allowed else None,
        )[:, width:]
        return [_until(row, self.work["stops"]) for row in out.tolist()]


def _until(ids: list[int], stops: list[int]) -> list[int]:
    end = next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))
    return ids[:end]


class OnCommand(TrainerCallback):
    """Waits for ``go`` before each step, and reports the one that is done."""

    def __init__(self, dialogues: Dialogues):
        self.dialogues = dialogues
        self.began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            print("ready", flush=True)
        if not sys.stdin.readline():
            control.should_training_stop = True
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        whole = time.perf_counter() - self.began
        rollouts = self.dialogues.seconds
        print(
            json.dumps({"rollouts": rollouts, "training": whole - rollouts, "tokens": self.dialogues.tokens}),
            flush=True,
        )


def reward(completions: list[Any], **_: Any) -> list[float]:
    """Any that differs within a group: what is measured does not depend on it."""
    return [float(i % 2) for i in range(len(completions))]


def main() -> None:
    work = json.loads(sys.stdin.readline())
    torch.set_num_threads(work["threads"])
    dtype = getattr(torch, work["dtype"])
    load = lambda: AutoModelForCausalLM.from_pretrained(work["model"], dtype=dtype)  # noqa: E731
    tokenizer = AutoTokenizer.from_pretrained(work["model"])
    tokenizer.eos_token = tokenizer.eos_token or "close"  # a nano model names none, and never says it
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    dialogues = Dialogues(work, tokenizer, load().eval())
    rows = work["groups"] * work["group_size"]
    args = GRPOConfig(
        output_dir=work["folder"],
        max_steps=work["steps"],
        per_device_train_batch_size=work["micro_batch"],
        gradient_accumulation_steps=rows // work["micro_batch"],
        num_generations=work["group_size"],
        max_completion_length=work["max_new_tokens"],
        learning_rate=work["learning_rate"],
        beta=0.0,
        temperature=1.0,
        top_k=0,
        use_cpu=True,
        bf16=dtype == torch.bfloat16,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        disable_dropout=True,
    )
    lora = LoraConfig(r=work["lora_rank"], lora_alpha=2 * work["lora_rank"], target_modules=MATRICES)
    trainer = GRPOTrainer(
        model=load(),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["x"] * work["groups"] * (work["steps"] + 1)}),
        processing_class=tokenizer,
        peft_config=lora,
        rollout_func=dialogues,
        callbacks=[OnCommand(dialogues)],
    )
    if work["nano"]:
        confined = Confined(work["policy"]["ids"])
        generate = trainer.model.generate
        trainer.model.generate = lambda *a, **k: generate(*a, **k, logits_processor=[confined])
    trainer.train()


if __name__ == "__main__":
    main()
