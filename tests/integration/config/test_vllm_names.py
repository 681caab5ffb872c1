"""The keys of a profile are vLLM's own names, with vLLM's own limits."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from omni_cli.config.schema import ARStageConfig, CudagraphMode, DiffusionStageConfig
from omni_cli.config.stage_keys import Sampling

vllm = pytest.importorskip("vllm")

# Keys of an AR stage that are omni's, or are a part of one of vLLM's configurations.
OURS = {
    "kind",
    "backend",
    "input",
    "output_copy",
    "devices",
    "sampling",
    "cudagraph_mode",
    "aligner",
    "lora",  # vLLM has a switch, and a request for each adapter
    "system_prompt",
    "tool_call_parser",
    "load_timeout_s",
    "step_timeout_s",
    "max_payload_bytes",
    "max_payload_tensor_bytes",
    "max_payload_entries",
    "max_payload_items",
}


def test_keys_of_an_ar_stage_are_engine_arguments() -> None:
    from vllm.engine.arg_utils import EngineArgs

    from omni_cli.backends.vllm.adapters import EngineAdapters
    from omni_cli.backends.vllm.stage import VllmStage

    arguments = {item.name for item in fields(EngineArgs)}
    assert ARStageConfig.model_fields.keys() - OURS <= arguments
    # The stage passes on whatever both have.
    assert not OURS & arguments
    shared = {
        "enable_sleep_mode",
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "pipeline_parallel_size",
        "tensor_parallel_size",
    }
    of_pipelines = {"attention_backend", "quantization"}
    assert DiffusionStageConfig.model_fields.keys() & arguments == shared | of_pipelines
    stage = DiffusionStageConfig.create("vocoder", max_num_seqs=3)
    spec: Any = SimpleNamespace(stage=stage, model="m", dtype="float32", seed=0, trust_remote_code=False)
    role = SimpleNamespace(architecture=None)
    unbuilt: Any = SimpleNamespace(spec=spec, role=role, worker_cls=VllmStage.worker_cls, adapters=EngineAdapters(spec))
    passed = VllmStage.engine_args(unbuilt)
    assert passed["max_num_seqs"] == 3 and not of_pipelines & passed.keys()


def test_cudagraph_modes() -> None:
    from vllm.config import CUDAGraphMode

    assert {mode.upper() for mode in get_args(CudagraphMode)} <= set(CUDAGraphMode.__members__)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": 1.5, "top_p": 1, "top_k": -1, "min_p": 1},
        {"top_k": 0, "top_p": 0.001, "min_p": 0},
        {"repetition_penalty": 0.01, "presence_penalty": -2, "frequency_penalty": 2},
        {"max_tokens": 4, "min_tokens": 4, "ignore_eos": True, "seed": 0},
        {"stop": "a", "stop_token_ids": [0]},
        {"stop": ["a", "b"], "logprobs": -1},
    ],
)
def test_vllm_accepts_what_the_schema_accepts(sampling: dict[str, Any]) -> None:
    params = vllm.SamplingParams(**Sampling.model_validate(sampling).model_dump(exclude_none=True))
    for key, value in sampling.items():
        assert getattr(params, key) in (value, [value])


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": -0.1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"min_p": 1.1},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"stop": ""},
        {"logprobs": -2},
    ],
)
def test_the_schema_rejects_what_vllm_rejects(sampling: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(sampling))):
        Sampling.model_validate(sampling)
    from vllm.exceptions import VLLMValidationError

    with pytest.raises((VLLMValidationError, ValueError), match=r"\w"):
        vllm.SamplingParams(**sampling)


def test_parsers_are_vllms() -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    from omni_cli.backends.vllm.reply_parsing import _FORMATS
    from omni_cli.cli.serve import _REASONING_PARSERS, _TOOL_PARSERS

    assert sorted(ToolParserManager.list_registered()) == _TOOL_PARSERS
    assert sorted(ReasoningParserManager.list_registered()) == _REASONING_PARSERS
    assert {name for _, name in _FORMATS} <= set(_TOOL_PARSERS)
