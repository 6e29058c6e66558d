"""A random Qwen2 of two layers that speaks in bytes, in one GGUF file with its matrices in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

ENDS = ("<|im_end|>", "<|endoftext|>")
TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SHAPE: dict[str, Any] = {
    "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(TOKENS), "tie_word_embeddings": False,
    "max_position_embeddings": 512, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def reference(seed: int = 0) -> Qwen2ForCausalLM:
    """The model as it was before it was quantised."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, initializer_range=0.3)).eval()


def in_8_bits(weight: torch.Tensor) -> torch.Tensor:
    """What a matrix's file holds of it."""
    kind = gguf.GGMLQuantizationType.Q8_0
    coded = gguf.quants.quantize(weight.detach().float().numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(coded, kind))


def write(path: Path, model: Qwen2ForCausalLM | None = None, template: str = TEMPLATE) -> Path:
    """Write the GGUF file as its makers would; the end of a turn is named in its tokens only."""
    model, layers = model or reference(), SHAPE["num_hidden_layers"]
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("Tiny")
    writer.add_block_count(layers)
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    writer.add_token_merges(["h e", "l l"])
    writer.add_chat_template(template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, layers)
    for name, weight in model.state_dict().items():
        stem, _, end = name.rpartition(".")
        values = weight.detach().float().numpy()
        kind = gguf.GGMLQuantizationType.Q8_0 if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        coded = gguf.quants.quantize(values, kind) if weight.ndim == 2 else values
        writer.add_tensor(f"{names.get_name(stem)}.{end}", coded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
