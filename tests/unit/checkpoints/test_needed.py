"""Which files of a repository are downloaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_cli.checkpoints.hub import needed_files

MODEL = {"config.json": {"architectures": ["LlamaForCausalLM"]}}
PIPELINE = {
    "model_index.json": {
        "_class_name": "QwenImagePipeline",
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLQwenImage"],
        "safety_checker": [None, None],
    }
}
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = {"model.safetensors.index.json": {"weight_map": dict(zip("ab", SHARDS, strict=True))}}


@pytest.mark.parametrize(
    ("json_files", "needed", "others"),
    [
        (
            MODEL,
            ["model.safetensors", "merges.txt", "chat_template.jinja", "speech/model.safetensors"],
            ["pytorch_model.bin", "model.fp16.safetensors", "onnx/model.onnx", "original/a.pth", "README.md", "x.gguf"],
        ),
        (MODEL, ["pytorch_model.bin"], ["tf_model.h5", "flax_model.msgpack"]),
        (MODEL | INDEX, SHARDS, ["consolidated.safetensors", "pytorch_model-00001-of-00002.bin"]),
        (
            PIPELINE,
            ["transformer/diffusion.safetensors", "vae/config.txt", "vae/model.safetensors"],
            ["vae/model.fp16.safetensors", "vae/model.bin", "whole.safetensors", "safety_checker/a.safetensors"],
        ),
        (PIPELINE, ["vae/model.fp16.safetensors"], ["vae/model.fp16.bin"]),
    ],
)
def test_only_what_is_loaded(
    json_files: dict[str, object], needed: list[str], others: list[str], tmp_path: Path
) -> None:
    for name, value in json_files.items():
        (tmp_path / name).write_text(json.dumps(value))
    names = [*json_files, *needed, *others]
    assert needed_files(tmp_path, names) == sorted([*json_files, *needed])
