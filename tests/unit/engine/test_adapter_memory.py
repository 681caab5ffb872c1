"""Adapters take their part of the planned memory: vLLM's slots, and the files of pipelines."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from support.profile_text import make_config

from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, StageConfig
from omni_cli.engine.adapter_memory import adapter_bytes
from omni_cli.engine.devices import Devices
from omni_cli.engine.memory_plan import MemoryPlan, plan_memory
from omni_cli.machine import HostMemory
from omni_cli.report.memory_text import memory_lines

MIB, GIB = 1 << 20, 1 << 30
# The Qwen3 of tests/support/tiny_models.py.
DECODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 700,
}
# Inputs and outputs of each slice of vLLM 0.32's `lora_a_stacked` and `lora_b_stacked` for it.
ATTENTION = [(64, 64), (64, 32), (64, 32), (64, 64)]
FEED_FORWARD = [(64, 128), (64, 128), (128, 64)]
VOCABULARY = [(700, 64), (64, 700)]
NUM_VALUES = sum(map(sum, [*2 * ATTENTION, *2 * FEED_FORWARD, *VOCABULARY]))


@pytest.mark.parametrize(
    ("keys", "is_cuda", "slots"), [({}, True, 2 * 16), ({}, False, 3 * 16), ({"max_lora_rank": 64}, True, 2 * 64)]
)
def test_a_slot_for_each_adapter_in_every_module(keys: dict, is_cuda: bool, slots: int) -> None:
    stage = ARStageConfig.named("model", lora={"a": "x", "b": "y"}, **keys)
    assert adapter_bytes(stage, DECODER, "float32", is_cuda=is_cuda) == 4 * slots * NUM_VALUES
    assert adapter_bytes(stage, DECODER, "bfloat16", is_cuda=is_cuda) == 2 * slots * NUM_VALUES


def test_experts_have_slots_of_their_own() -> None:
    stage = ARStageConfig.named("model", lora={"a": "x"})
    decoder = {**DECODER, "num_experts": 4, "moe_intermediate_size": 32}
    expected = NUM_VALUES + 2 * (4 * 3 * (64 + 32) - 3 * (64 + 128))
    assert adapter_bytes(stage, decoder, "float32", is_cuda=True) == 4 * 16 * expected


def save(folder: Path, **shapes: tuple[int, int]) -> Path:
    """Save an adapter of zeros in float16."""
    folder.mkdir()
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    (folder / "own.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return folder


def test_a_pipeline_loads_files_in_the_type_of_its_denoiser(tmp_path: Path) -> None:
    folder = save(tmp_path / "own", lora_A=(4, 100), lora_B=(50, 4))
    lora = {"whole": str(folder), "half": f"{folder}@0.5", "file": f"{folder}/own.safetensors"}
    stage = DiffusionStageConfig.named("image", lora=lora)
    assert adapter_bytes(stage, {}, "bfloat16", is_cuda=True) == 3 * 600 * 2
    typed = stage.model_copy(update={"torch_dtype": {"transformer": "float32"}})
    assert adapter_bytes(typed, {}, "bfloat16", is_cuda=True) == 3 * 600 * 4
    missing = DiffusionStageConfig.named("image", lora={**lora, "missing": str(tmp_path / "nowhere")})
    assert adapter_bytes(missing, {}, "bfloat16", is_cuda=True) is None


def planned(stage: StageConfig, decoder: dict) -> MemoryPlan:
    config = make_config("one", "model", stage, dtype="bfloat16")
    host = HostMemory(24 * GIB, 24 * GIB, None)
    return plan_memory(config, {stage.name: {"": GIB}}, {stage.name: decoder}, host, Devices((), ()))


def test_the_plan_counts_them_and_shows_a_column() -> None:
    decoder = {**DECODER, "hidden_size": 4096, "vocab_size": 150_000}
    base = planned(ARStageConfig.named("model"), decoder)
    stage = ARStageConfig.named("model", lora={"a": "x"}, max_lora_rank=512)
    adapted = planned(stage, decoder)
    (row,) = adapted.stages
    assert row.adapters_bytes is not None and row.adapters_bytes > 300 * MIB
    assert adapted.uses[0].needed_bytes == base.uses[0].needed_bytes + row.adapters_bytes
    assert "ADAPTERS" not in memory_lines(base.stages)[0]
    header, line = memory_lines(adapted.stages)
    assert header.split()[3] == "ADAPTERS" and f"{row.adapters_bytes / MIB:.0f} MiB" in line
    (unknown,) = planned(stage, {}).stages
    assert unknown.adapters_bytes is None and memory_lines([unknown])[1].split().count("unknown") == 1
