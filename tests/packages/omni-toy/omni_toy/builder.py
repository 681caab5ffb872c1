"""`builtin:tiny-toy`: a complete checkpoint with random weights."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from omni_cli.checkpoints.tokenizer import train_tokenizer
from omni_cli.checkpoints.weights import normal_tensor, random_state_dict
from omni_toy.family import WRITER

_VOCAB_SIZE = 512


def build(output_dir: Path, seed: int) -> None:
    """Write config.json, tokenizer and weights; the same seed gives the same bytes."""
    tokenizer = train_tokenizer(_VOCAB_SIZE, model_max_length=256)
    config = LlamaConfig(
        vocab_size=_VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        architectures=[WRITER],
        dtype="float32",
        image_size=16,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = random_state_dict(model, seed)
    weights["painter.palette.weight"] = normal_tensor("painter.palette", (_VOCAB_SIZE, 3), 0.0, 2.0, seed)
    output_dir.mkdir(parents=True, exist_ok=True)
    save_file(weights, output_dir / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(output_dir)
    config.save_pretrained(output_dir)
