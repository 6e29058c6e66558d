"""Random models of two layers that speak in bytes: for tests of how text is sampled, not of what it says."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from scope_lite.models.pretrained import LoadedModel

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}<s>assistant: "


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and three specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    return fast


def tiny(kind: str = "qwen3", **changes: object) -> LoadedModel:
    """A random model of two layers; ``changes`` are settings of its config."""
    tokenizer = byte_tokenizer()
    shape = dict(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=256,
                 eos_token_id=2, bos_token_id=1, pad_token_id=0, initializer_range=0.3) | changes  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**shape)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**shape))
    with torch.no_grad():
        model.lm_head.weight[2] *= 1.5  # so that some replies end early
    return LoadedModel(model.eval(), tokenizer, f"tiny-{kind}", f"{kind} {sorted(changes.items())}")
