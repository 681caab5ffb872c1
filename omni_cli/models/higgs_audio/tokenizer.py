"""transformers' Higgs Audio v2 tokenizer and processor, whose parts are in two folders.

The tokenizer, which is the codec, has a checkpoint of its own. processor_config.json names it: a folder inside that of
the language model, or another repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, DacFeatureExtractor, HiggsAudioV2Processor

from omni_cli.checkpoints.files import read_object
from omni_cli.checkpoints.missing import lacking, of_another_model
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.compat.torchvision import import_with_torchaudio
from omni_cli.errors import CheckpointError

PROCESSOR, SOURCE = "processor_config.json", "audio_tokenizer_name_or_path"
_MODULE = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
# Settings of the processor that are not parts with files of their own.
_NAMES = ("audio_token", "audio_bos_token", "audio_eos_token", "audio_delay_token")
_IDS = ("audio_stream_bos_id", "audio_stream_eos_id")


def tokenizer_class() -> Any:
    """Return `HiggsAudioV2TokenizerModel`, which transformers itself offers only with torchaudio."""
    return import_with_torchaudio(_MODULE).HiggsAudioV2TokenizerModel


def tokenizer_folder(model: str | Path) -> Path:
    """Return the folder of the codec that belongs to a language model, downloaded if necessary.

    Raises `CheckpointError`.
    """
    source = read_object(Path(model) / PROCESSOR).get("audio_tokenizer", {}).get(SOURCE)
    if not isinstance(source, str):
        raise CheckpointError(
            f"`{Path(model) / PROCESSOR}` names no audio tokenizer", hint=f"set `audio_tokenizer.{SOURCE}` in it"
        )
    inside = Path(model) / source
    return inside if inside.is_dir() else Path(resolve_model(source))


def load_tokenizer(model: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return the whole codec, for recordings in float32: their codes must not depend on a profile's dtype.

    Raises `CheckpointError` for one whose weights are missing or of another model.
    """
    folder = tokenizer_folder(model)
    codec, found = tokenizer_class().from_pretrained(
        folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
    )
    for name, shape, expected in found["mismatched_keys"]:
        raise of_another_model(folder, name, shape, expected)
    if found["missing_keys"]:
        raise lacking(folder, sorted(found["missing_keys"]))
    return codec.eval()


def load_processor(model: str | Path, audio_tokenizer: Any) -> Any:
    """Return transformers' processor with a loaded codec, which it would otherwise look for by itself."""
    settings = read_object(Path(model) / PROCESSOR)
    tokenizer = AutoTokenizer.from_pretrained(model)
    processor = HiggsAudioV2Processor(
        DacFeatureExtractor.from_pretrained(model),
        tokenizer,
        None,
        chat_template=tokenizer.chat_template,
        **{name: settings[name] for name in (*_NAMES, *_IDS) if name in settings},
    )
    processor.audio_tokenizer = audio_tokenizer
    return processor
