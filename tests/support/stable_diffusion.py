"""A checkpoint that omni has no builder for: a tiny Stable Diffusion."""

from __future__ import annotations

import json
from pathlib import Path


def build_stable_diffusion(folder: Path, *, attention: bool = True) -> None:
    """A tiny Stable Diffusion, random weights: a UNet with classifier-free guidance, 77 CLIP tokens, DDIM.

    Without `attention` the UNet has no repeated blocks.
    """
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    blocks = ("CrossAttn", "CrossAttn") if attention else ("", "")
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=tuple(f"{kind}DownBlock2D" for kind in blocks),
        up_block_types=tuple(f"{kind}UpBlock2D" for kind in blocks),
        mid_block_type="UNetMidBlock2DCrossAttn" if attention else None,
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )
    text_config = CLIPTextConfig(
        vocab_size=514,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=512,
        eos_token_id=513,
    )
    StableDiffusionPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(text_config).eval(),
        tokenizer=_tokenizer(folder),
        unet=unet,
        scheduler=DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


def _tokenizer(folder: Path):
    """Every byte a token, alone or at the end of a word; no merges."""
    from transformers import CLIPTokenizer

    # CLIP's byte alphabet: printable bytes stand for themselves, the others for characters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + index) for index in range(256 - len(printable)))
    letters = [chr(byte) if byte in printable else next(others) for byte in range(256)]
    vocab = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    files = folder / "tokenizer"
    files.mkdir(parents=True)
    (files / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(vocab)}))
    (files / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(vocab=str(files / "vocab.json"), merges=str(files / "merges.txt"), model_max_length=77)
