"""Default profiles: every family's is valid on every machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_cli.checkpoints.derive import derive_profile, weights_bytes
from omni_cli.config.families import Machine
from omni_cli.config.loader import check_profile
from omni_cli.core.errors import CheckpointError

DECODER = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}
CONFIGS: dict[str, list[dict[str, Any]]] = {
    "config.json": [
        {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", **DECODER},
        {"architectures": ["MambaForCausalLM"], "dtype": "float16"},
        {
            "architectures": ["Qwen2_5OmniModel"],
            "thinker_config": {"torch_dtype": "bfloat16", "text_config": DECODER},
            "talker_config": DECODER,
        },
    ],
    "model_index.json": [{"_class_name": "StableDiffusionPipeline"}],
}
CASES = [(file, config) for file, configs in CONFIGS.items() for config in configs]


@pytest.mark.parametrize("machine", [Machine("cpu"), Machine("cuda")], ids=str)
@pytest.mark.parametrize(("file", "config"), CASES, ids=lambda value: str(value)[:60])
def test_a_derived_profile_is_valid(tmp_path: Path, file: str, config: dict, machine: Machine) -> None:
    (tmp_path / file).write_text(json.dumps(config))
    data = derive_profile(tmp_path, machine, "some/model of mine")
    path = tmp_path / "derived.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    assert [diagnostic.message for diagnostic in check_profile(path)] == []
    assert data["name"] == "model-of-mine"
    modes = [stage.get("cudagraph_mode", stage.get("execution")) for stage in data["stages"].values()]
    assert machine.device == "cuda" or set(modes) <= {"none", "eager", None}


@pytest.mark.parametrize(("device", "mode"), [("cpu", "none"), ("cuda", "full_decode_only")])
def test_an_encoder_decoder_has_the_graphs_that_vllm_captures_of_it(tmp_path: Path, device: Any, mode: str) -> None:
    config = {"architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True, **DECODER}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (stage,) = derive_profile(tmp_path, Machine(device), "whisper")["stages"].values()
    assert stage["cudagraph_mode"] == mode


def test_weights_that_are_not_downloaded_count(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(10))
    assert weights_bytes(tmp_path) == 10
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 5000}}))
    assert weights_bytes(tmp_path) == 5000


def test_weights_without_file_and_index_are_estimated(tmp_path: Path) -> None:
    """SmolLM2-135M: 134.5 M parameters with one matrix for both ends of the vocabulary, 162.8 M with two."""
    decoder = {**DECODER, "intermediate_size": 1536, "vocab_size": 49152}
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16", "text_config": decoder}))
    assert weights_bytes(tmp_path) == pytest.approx(2 * 162.8e6, rel=0.1)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Qwen2_5OmniModel"]},
        {"architectures": ["Qwen2_5OmniModel"], "thinker_config": 1, "talker_config": 2},
        {"architectures": ["LlamaForCausalLM"], "text_config": "none"},
        {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": "many"},
    ],
    ids=str,
)
def test_an_unusual_configuration(tmp_path: Path, config: dict) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="cannot derive a profile from the configuration in"):
        derive_profile(tmp_path, Machine("cpu"), "x")


def test_a_checkpoint_that_has_no_data(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="does not name a model class"):
        derive_profile(tmp_path, Machine("cpu"), "x")
