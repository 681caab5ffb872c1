"""Builder of a complete FLUX.2 klein pipeline folder, which makes and edits images."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
)
from transformers import Qwen3Config, Qwen3ForCausalLM

from omni_cli.checkpoints.output_files import save_pipeline
from omni_cli.checkpoints.sizes import DecoderSizes
from omni_cli.checkpoints.tokenizer import train_tokenizer

_VOCAB_SIZE = 1024
_TEXT = DecoderSizes(64, 128, 3, 2, 1, 32)
_LATENT_CHANNELS = 8
_PATCH = 4  # latent pixels, whose channels are one token
# The scheduler of the released FLUX.2 klein.
_SCHEDULER = {"shift": 3.0, "use_dynamic_shifting": True, "num_train_timesteps": 1000}
# The turns of Qwen3, with an empty thought before the answer, as `enable_thinking=False` has it.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
# Large enough that the prompt and the image affect the result next to the initial noise.
_GAINS = {"to_out": 2.0, "to_add_out": 2.0, "proj_out": 3.0}


def tiny_edit(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-edit`: everything that `Flux2KleinPipeline.from_pretrained` reads."""
    tokenizer = train_tokenizer(_VOCAB_SIZE, model_max_length=512)
    tokenizer.chat_template = _CHAT_TEMPLATE
    text = Qwen3Config(
        vocab_size=_VOCAB_SIZE,
        **_TEXT.config,
        max_position_embeddings=1024,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.device("meta"):
        parts = {
            "text_encoder": Qwen3ForCausalLM(text),
            "transformer": Flux2Transformer2DModel(
                in_channels=_PATCH * _LATENT_CHANNELS,
                num_layers=1,
                num_single_layers=2,
                attention_head_dim=32,
                num_attention_heads=2,
                # The pipeline joins the hidden states of three layers of the text encoder.
                joint_attention_dim=3 * _TEXT.hidden_size,
                timestep_guidance_channels=32,
                axes_dims_rope=(8, 8, 8, 8),
                guidance_embeds=False,
            ),
            "vae": AutoencoderKLFlux2(
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                block_out_channels=(16, 32, 32, 32),
                layers_per_block=1,
                latent_channels=_LATENT_CHANNELS,
                norm_num_groups=8,
                sample_size=64,
            ),
        }
    others = {"scheduler": FlowMatchEulerDiscreteScheduler(**_SCHEDULER), "tokenizer": tokenizer, "is_distilled": True}
    save_pipeline(output_dir, Flux2KleinPipeline, parts, seed, _GAINS, **others)
