"""Write a Qwen2.5-Omni checkpoint of real size with random weights, to run a bundled profile without a hub.

    PYTHONPATH=. python benchmarks/gpu/omni_checkpoint.py DIR [--size 7b|3b]

Needs torch, transformers and 20 GB on the disk and on the device. Weights are bfloat16, drawn on the device. Sizes are
those of the released configuration, and so are the codecs' ids; the text's are those of a small tokenizer in a
vocabulary of the real size, so answers can be read and heard, but are meaningless.
"""

from __future__ import annotations

import argparse
import zlib
from dataclasses import replace
from pathlib import Path

from omni_cli.compat.torchvision import ensure_torchvision_importable  # isort: skip

ensure_torchvision_importable()

import torch
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniToken2WavConfig

from omni_cli.checkpoints.output_files import quiet_transformers
from omni_cli.checkpoints.sizes import DecoderSizes
from omni_cli.checkpoints.tokenizer import train_tokenizer
from omni_cli.models.qwen2_5_omni.checkpoint.builder import omni_config, write_checkpoint
from omni_cli.models.qwen2_5_omni.checkpoint.sizes import EncoderSizes, OmniSizes

# token2wav's are transformers' defaults.
SEVEN_B = OmniSizes(
    vocab_size=152064,
    num_codes=8192,
    max_position_embeddings=32768,
    thinker=DecoderSizes(3584, 18944, 28, 28, 4, 128),
    talker=DecoderSizes(896, 18944, 24, 12, 4, 128),
    audio=EncoderSizes(1280, 5120, 32, 20),
    vision=EncoderSizes(1280, 3420, 32, 16),
)
# Parts as of Qwen2.5 3B and 0.5B; encoders as in the 7B.
THREE_B = replace(
    SEVEN_B,
    thinker=DecoderSizes(2048, 11008, 36, 16, 2, 128),
    talker=DecoderSizes(896, 4864, 24, 14, 2, 64),
)
SIZES = {"7b": SEVEN_B, "3b": THREE_B}
TOKENIZER_SIZE = 2048
CODEC_IDS = {
    "vocab_size": 8448, "tts_codec_pad_token_id": 8292, "tts_codec_start_token_id": 8293,
    "tts_codec_end_token_id": 8294, "tts_codec_mask_token_id": 8296,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--size", choices=SIZES, default="7b")
    parser.add_argument("--tiny", action="store_true", help="small decoders, to try it on any machine")
    options = parser.parse_args()
    sizes = OmniSizes(vocab_size=152064, num_codes=8192) if options.tiny else SIZES[options.size]
    tokenizer = train_tokenizer(TOKENIZER_SIZE, sizes.max_position_embeddings)
    with quiet_transformers():
        parts = omni_config(sizes, tokenizer).to_dict()
        talker = {**parts["talker_config"], **CODEC_IDS}
        token2wav = Qwen2_5OmniToken2WavConfig().to_dict()
        config = Qwen2_5OmniConfig(
            **{**parts, "talker_config": talker, "token2wav_config": token2wav, "dtype": "bfloat16"}
        )
    options.folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(options.folder, config, tokenizer, seed=0, draw=drawn_on_device)


def drawn_on_device(name: str, shape: tuple[int, ...], mean: float, std: float, seed: int) -> torch.Tensor:
    """bfloat16, on a CUDA device if there is one; the values depend on the device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()) + (seed << 32))
    drawn = torch.empty(shape, dtype=torch.bfloat16, device=device)
    return drawn.normal_(mean, std, generator=generator)


if __name__ == "__main__":
    main()
