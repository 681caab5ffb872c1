"""Adapters take their part of the planned memory: the size of their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.profile_text import make_config

from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, StageConfig
from omni_cli.core.machine import HostMemory
from omni_cli.engine.devices import Devices
from omni_cli.engine.memory_plan import MemoryPlan, plan_memory
from omni_cli.report.tables import memory_lines

MIB, GIB = 1 << 20, 1 << 30


def planned(stage: StageConfig) -> MemoryPlan:
    config = make_config("one", "model", stage, dtype="bfloat16")
    host = HostMemory(24 * GIB, 24 * GIB, None)
    return plan_memory(config, {stage.name: {"": GIB}}, {}, host, Devices((), ()))


@pytest.mark.parametrize("kind", [ARStageConfig, DiffusionStageConfig])
def test_the_plan_counts_them_and_shows_a_column(
    kind: type[ARStageConfig] | type[DiffusionStageConfig], tmp_path: Path
) -> None:
    (tmp_path / "own.safetensors").write_bytes(bytes(100 * MIB))
    lora = {"whole": str(tmp_path), "half": f"{tmp_path}@0.5", "file": f"{tmp_path}/own.safetensors"}
    base, adapted = planned(kind.create("model")), planned(kind.create("model", lora=lora))
    (row,) = adapted.stages
    assert row.adapters_bytes == 300 * MIB
    assert adapted.uses[0].needed_bytes == base.uses[0].needed_bytes + 300 * MIB
    assert "ADAPTERS" not in memory_lines(base.stages)[0]
    header, line = memory_lines(adapted.stages)
    assert header.split()[3] == "ADAPTERS" and "300 MiB" in line
    missing = kind.create("model", lora={**lora, "missing": str(tmp_path / "nowhere")})
    (unknown,) = planned(missing).stages
    assert unknown.adapters_bytes is None and memory_lines([unknown])[1].split().count("unknown") == 1
