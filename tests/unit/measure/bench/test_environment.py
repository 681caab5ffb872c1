"""The fingerprint of a machine, and the variables that are kept out of it."""

from __future__ import annotations

import os
from pathlib import Path

from omni_cli.measure.bench.environment import read_environment, relevant_variables
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.bench.variant_process import child_environment
from omni_cli.stats.comparable import EXEMPT


def test_variables_that_matter_are_recorded_and_secrets_are_not() -> None:
    variables = {
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "TOKENIZERS_PARALLELISM": "false",
        "LD_PRELOAD": "/lib/a.so",
        "VLLM_API_KEY": "hidden",
        "HF_TOKEN": "hidden",
        "NCCL_SECRET": "hidden",
        "TORCH_PASSWORD": "hidden",
        "HOME": "/home/someone",
        "MY_OMP_NUM_THREADS": "1",
    }
    assert relevant_variables(variables) == {
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "TOKENIZERS_PARALLELISM": "false",
        "LD_PRELOAD": "/lib/a.so",
    }


def test_two_readings_differ_only_in_conditions() -> None:
    first, second = read_environment({}), read_environment({})
    assert {key for key in first if key not in EXEMPT} == {"machine", "versions", "variables"}
    for key in ("machine", "versions", "variables"):
        assert first[key] == second[key]
    assert first["machine"]["usable_cores"] >= 1 and first["versions"]["python"]


def test_the_environment_of_a_variant(monkeypatch) -> None:
    base = {"A": "1", "B": "2", "PYTHONPATH": "/else"}
    environment = child_environment(base, VariantConfig("v", environment={"A": "", "C": "3"}, code=Path("/other/code")))
    assert environment == {"B": "2", "C": "3", "PYTHONPATH": f"/other/code{os.pathsep}/else"}
    assert base["A"] == "1", "the command's own stays as it is"


def test_an_installed_omni_is_found_without_a_path(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "omni_cli.measure.bench.variant_process._site_folders", lambda: {str(Path(__file__).parents[4])}
    )
    assert "PYTHONPATH" not in child_environment({}, VariantConfig("v"))
