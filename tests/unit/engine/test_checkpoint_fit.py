"""A checkpoint that lacks a part: the error names it, before anything is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from omni_cli.checkpoints.architectures import check_known
from omni_cli.checkpoints.derive import derive_profile
from omni_cli.checkpoints.files import check_checkpoint
from omni_cli.config.families import Machine
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import CheckpointError
from omni_cli.core.machine import HostMemory
from omni_cli.engine import checkpoint_fit
from omni_cli.engine.checkpoint_fit import check_fit

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
FILES = ("model.safetensors", "tokenizer.json", "preprocessor_config.json")


def write_checkpoint(folder: Path, *files: str, **parts: Any) -> Path:
    config = {"architectures": ["SmolVLMForConditionalGeneration"], "max_position_embeddings": 512, **parts}
    (folder / "config.json").write_text(json.dumps(config))
    for name in files:
        content = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8) if name.endswith(".safetensors") else b"{}"
        (folder / name).write_bytes(content)
    return folder


def check(folder: Path) -> None:
    check_checkpoint(folder)
    profile = derive_profile(folder, Machine("cpu"), str(folder))
    check_fit(EngineConfig.model_validate(profile), folder)


@pytest.mark.parametrize("encoder", ["vision_config", "audio_config"])
def test_a_whole_one_fits(tmp_path: Path, encoder: str) -> None:
    check(write_checkpoint(tmp_path, *FILES, **{encoder: {"hidden_size": 8}}))


def test_a_model_of_text_needs_no_processor(tmp_path: Path) -> None:
    check(write_checkpoint(tmp_path, *FILES[:2]))


@pytest.mark.parametrize(
    ("lacking", "part"),
    [
        ("model.safetensors", "weights"),
        ("tokenizer.json", "tokenizer.json, which stage `model` needs"),
        ("preprocessor_config.json", "preprocessor_config.json, which stage `model` needs"),
    ],
)
def test_the_part_that_is_missing_is_named(tmp_path: Path, lacking: str, part: str) -> None:
    write_checkpoint(tmp_path, *(name for name in FILES if name != lacking), vision_config={"hidden_size": 8})
    with pytest.raises(CheckpointError, match=f"`{tmp_path}` has no {part}") as caught:
        check(tmp_path)
    assert caught.value.exit_code == 2
    assert caught.value.hint == "the folder is incomplete: download or copy it again"


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A whole checkpoint of an architecture that nothing has."""
    write_checkpoint(tmp_path, *FILES[:2], architectures=["FooBarForCausalLM"], model_type="foobar")
    return tmp_path


def test_an_architecture_that_nothing_knows_is_named(unknown: Path) -> None:
    with pytest.raises(CheckpointError, match="is a FooBarForCausalLM, which neither vLLM nor transformers knows"):
        check(unknown)


def test_code_of_the_checkpoint_needs_permission(tmp_path: Path) -> None:
    own = {"AutoConfig": "configuration_foo.FooConfig", "AutoModelForCausalLM": "modeling_foo.Foo"}
    parts: dict[str, Any] = {"architectures": ["FooBarForCausalLM"], "model_type": "foobar", "auto_map": own}
    write_checkpoint(tmp_path, *FILES[:2], **parts)
    profile = EngineConfig.model_validate(derive_profile(tmp_path, Machine("cpu"), str(tmp_path)))
    with pytest.raises(CheckpointError, match="needs code of its own repository") as caught:
        check_fit(profile, tmp_path)
    assert caught.value.hint is not None and "--trust-remote-code" in caught.value.hint
    check_fit(profile.trusting_remote_code(), tmp_path)
    write_checkpoint(tmp_path, architectures=["LlamaForCausalLM"], model_type="llama", auto_map=own)
    check(tmp_path)  # code that vLLM does not need


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "LlamaModel", "GPT2LMHeadModel", "SmolVLMForConditionalGeneration"]
)
def test_architectures_of_vllm_and_of_transformers_are_known(tmp_path: Path, architecture: str) -> None:
    check_known(write_checkpoint(tmp_path, architectures=[architecture]), trusts_code=False)


def test_a_pipeline_that_diffusers_lacks_is_named_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "QwenImagePipelin"}))
    with pytest.raises(CheckpointError, match="diffusers has no class `QwenImagePipelin`") as caught:
        derive_profile(tmp_path, Machine("cpu"), str(tmp_path))
    assert caught.value.hint == "did you mean `QwenImagePipeline`?"


def test_weights_are_read_ahead_whole_unless_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {"transformer": "QwenImageTransformer2DModel", "vae": "AutoencoderKLQwenImage"}
    parts = {name: ["diffusers", kind] for name, kind in classes.items()}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "QwenImagePipeline", **parts}))
    for part in (*parts, "other"):
        (tmp_path / part).mkdir()
    unused = {"whole.safetensors": 2**24, "vae/model.fp16.safetensors": 2**24, "other/model.safetensors": 2**24}
    sizes = {"transformer/model.safetensors": 5 * 2**20 // 2, "vae/model.safetensors": 9, **unused}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    asked: list[tuple[str, int, int]] = []

    def note(file: int, start: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        asked.append((str(Path(f"/proc/self/fd/{file}").readlink().relative_to(tmp_path)), start, length))

    monkeypatch.setattr(os, "posix_fadvise", note)
    monkeypatch.setattr(checkpoint_fit, "read_memory", lambda: HostMemory(2**23, 2**20, None))
    checkpoint_fit.read_ahead(tmp_path)
    assert not asked
    monkeypatch.setattr(checkpoint_fit, "read_memory", lambda: HostMemory(2**23, 2**23, None))
    checkpoint_fit.read_ahead(tmp_path)
    mib = 2**20
    whole = [("transformer/model.safetensors", number * mib, mib) for number in range(3)]
    assert asked == [*whole, ("vae/model.safetensors", 0, mib)], "once each, and nothing that no stage loads"
