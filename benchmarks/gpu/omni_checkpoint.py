"""Write a Qwen2.5-Omni checkpoint of real size with random weights, to run a bundled profile without a hub.

    PYTHONPATH=. python benchmarks/gpu/omni_checkpoint.py DIR [--size 7b|3b]

Needs torch, transformers and 20 GB on the disk and on the device. Weights are bfloat16, drawn on the device. Sizes are
those of the released configuration, and so are the codecs' ids; the text's are those of a small tokenizer in a
vocabulary of the real size, so answers can be read and heard, but are meaningless.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path

from omni_cli.core.compat.torchvision import ensure_torchvision_importable  # isort: skip

ensure_torchvision_importable()

import torch

from omni_cli.checkpoints.tiny import DecoderSizes
from omni_cli.checkpoints.tiny_qwen import EncoderSizes, OmniSizes, qwen2_5_omni
from omni_cli.checkpoints.tokenizer import train_tokenizer

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
THREE_B = SEVEN_B._replace(
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
    checkpoint = qwen2_5_omni(sizes, tokenizer)
    config = checkpoint.models[""].config
    config["talker_config"] |= CODEC_IDS
    config |= {"token2wav_config": {}, "dtype": "bfloat16"}
    options.folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write(options.folder, seed=0, draw=drawn_on_device)


def drawn_on_device(name: str, shape: tuple[int, ...], mean: float, std: float, seed: int) -> torch.Tensor:
    """bfloat16, on a CUDA device if there is one; the values depend on the device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()) + (seed << 32))
    drawn = torch.empty(shape, dtype=torch.bfloat16, device=device)
    return drawn.normal_(mean, std, generator=generator)


if __name__ == "__main__":
    main()
