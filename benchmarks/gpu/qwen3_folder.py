"""Write a Qwen3-Omni-30B-A3B without its weights, which `random_weights` draws where they are needed.

    PYTHONPATH=. python benchmarks/gpu/qwen3_folder.py DIR [--tiny]

Sizes and special ids are those of the release. The text's vocabulary has its size and a small tokenizer's 800 tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from omni_cli.core.compat.torchvision import ensure_torchvision_importable  # isort: skip

ensure_torchvision_importable()

import torch
from random_weights import NUM_READABLE_IDS, fill
from safetensors.torch import save_file
from tokenizers import AddedToken
from transformers import GenerationConfig, Qwen2Tokenizer, Qwen3OmniMoeConfig

from omni_cli.checkpoints.tiny import DecoderSizes, quiet_transformers
from omni_cli.checkpoints.tiny_qwen import EncoderSizes, write_bpe
from omni_cli.checkpoints.tiny_qwen3 import QWEN3_TOKENS as TOKENS
from omni_cli.checkpoints.tiny_qwen3 import CodecSizes, ExpertSizes, Qwen3OmniSizes, qwen3_omni
from omni_cli.checkpoints.tokenizer import train_bpe
from omni_cli.models.qwen3_omni.family import FAMILY

RELEASED = Qwen3OmniSizes(
    vocab_size=152064,
    num_codes=2048,
    num_code_groups=16,
    max_position_embeddings=65536,
    accept_hidden_layer=18,
    deepstack=(8, 16, 24),
    thinker=DecoderSizes(2048, 768, 48, 32, 4, 128),
    thinker_experts=ExpertSizes(128, 8, 768),
    talker=DecoderSizes(1024, 2048, 20, 16, 2, 128),
    talker_experts=ExpertSizes(128, 6, 384, shared_size=768),
    code_predictor=DecoderSizes(1024, 3072, 5, 16, 8, 128),
    audio=EncoderSizes(1280, 5120, 32, 20),
    vision=EncoderSizes(1152, 4304, 27, 16),
    code2wav=CodecSizes(1024, 3072, 8, 16, 16, 1536),
)
_NUM_WORDS = 800
_FIRST_SPECIAL = 151643
# Ids of special tokens before those of plain ones.
_NUM_BEFORE_PLAIN = 14
_ROLES = {"user": 872, "system": 8948, "assistant": 77091}
_CODEC_IDS = {
    "codec_pad_id": 2148, "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
    "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
}  # fmt: skip


def write_folder(folder: Path, *, tiny: bool) -> None:
    """Write configuration, tokenizer and processors, and the one weight that the talker's process reads."""
    sizes = Qwen3OmniSizes() if tiny else RELEASED
    checkpoint = qwen3_omni(sizes, None if tiny else _released_tokenizer(sizes.max_position_embeddings))
    tokenizer = checkpoint.processor.tokenizer
    with quiet_transformers():
        config = Qwen3OmniMoeConfig(**checkpoint.models[""].config, dtype="float32")
        config.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
        if not tiny:
            config.dtype = "bfloat16"
            vars(config).update({NUM_READABLE_IDS: _NUM_WORDS})
            vars(config.talker_config).update(_CODEC_IDS)
        config.save_pretrained(folder)
        GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(
            folder
        )
        checkpoint.processor.save_pretrained(folder)
    write_bpe(tokenizer, folder, seed=0)
    table = torch.empty(sizes.vocab_size, sizes.thinker.hidden_size, dtype=torch.float32 if tiny else torch.bfloat16)
    fill("embed", table)
    # A name for each part, since omni looks for them before it loads anything.
    parts = {f"{part}placeholder": torch.zeros(1) for role in FAMILY.roles for part in role.needed_weights}
    save_file({**parts, "thinker.model.embed_tokens.weight": table}, folder / "model.safetensors", {"format": "pt"})


def _released_tokenizer(model_max_length: int) -> Qwen2Tokenizer:
    vocab, merges = train_bpe(_NUM_WORDS)
    in_order = (*TOKENS.special[:_NUM_BEFORE_PLAIN], *TOKENS.plain, *TOKENS.special[_NUM_BEFORE_PLAIN:])
    given = {token: _FIRST_SPECIAL + index for index, token in enumerate(in_order)}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab | given | _ROLES, merges=merges, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None,
        extra_special_tokens=dict(TOKENS.roles), model_max_length=model_max_length, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    added = [AddedToken(token, special=token in TOKENS.special) for token in (*TOKENS.tokens, *_ROLES)]
    tokenizer.add_tokens(added)
    for token, token_id in {**given, **_ROLES}.items():
        assert tokenizer.convert_tokens_to_ids(token) == token_id, token
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a small model, to try it on any machine")
    options = parser.parse_args()
    write_folder(options.folder, tiny=options.tiny)


if __name__ == "__main__":
    main()
