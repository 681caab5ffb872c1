"""The document of `omni generate --json`, against the one that the contract shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from support.profile_text import make_config

from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import StageError
from omni_cli.report.generate_results import (
    RequestRecord,
    WrittenOutput,
    file_line,
    generate_document,
    loaded_lines,
    summary_line,
)
from omni_cli.requests.outputs import AudioOutput, ImageOutput, StageInfo, StageTrace, TensorOutput, TextOutput

CONFIG = make_config("tiny-omni", "builtin:tiny-omni", ARStageConfig.create("thinker"), seed=3)
STAGE = StageInfo(
    "thinker", "ar", 4.1, {"device": 0, "host": 123 * 2**20}, {"cudagraph_mode": "none", "output_copy": "async"}
)
OUTPUTS = (
    WrittenOutput(TextOutput("hä", (1, 2), "stop")),
    WrittenOutput(AudioOutput(np.zeros(11520, np.float32), 24000), Path("out/0.wav")),
    WrittenOutput(ImageOutput(np.zeros((48, 64, 3), np.uint8)), Path("out/0.png")),
)
TRACES = (
    StageTrace(
        "thinker",
        "ar",
        0.1,
        ttft_s=0.03,
        num_input_tokens=12,
        num_output_tokens=2,
        output_token_ids=(1, 2),
        effective={"cudagraph_mode": "none", "output_copy": "async"},
    ),
    StageTrace("token2wav", "diffusion", 0.2, num_inference_steps=10),
)


def test_document_of_the_contract() -> None:
    document = generate_document(CONFIG, [RequestRecord("0", OUTPUTS, TRACES)], [STAGE])
    assert json.loads(json.dumps(document, allow_nan=False)) == {
        "schema": "omni.generate/1",
        "profile": "tiny-omni",
        "model": "builtin:tiny-omni",
        "seed": 3,
        "random_weights": True,
        "results": [
            {
                "request_id": "0",
                "status": "ok",
                "outputs": [
                    {"type": "text", "text": "hä", "token_ids": [1, 2], "finish_reason": "stop"},
                    {
                        "type": "audio",
                        "path": "out/0.wav",
                        "sample_rate": 24000,
                        "num_samples": 11520,
                        "finish_reason": "stop",
                    },
                    {"type": "image", "path": "out/0.png", "width": 64, "height": 48},
                ],
                "stages": [
                    {
                        "name": "thinker",
                        "kind": "ar",
                        "latency_s": 0.1,
                        "ttft_s": 0.03,
                        "num_input_tokens": 12,
                        "num_output_tokens": 2,
                        "output_token_ids": [1, 2],
                        "effective": {"cudagraph_mode": "none", "output_copy": "async"},
                    },
                    {
                        "name": "token2wav",
                        "kind": "diffusion",
                        "latency_s": 0.2,
                        "num_inference_steps": 10,
                        "effective": {},
                    },
                ],
            }
        ],
        "stages": [{"name": "thinker", "load_s": 4.1, "peak_memory_bytes": {"device": 0, "host": 123 * 2**20}}],
    }


def results(records: list[RequestRecord]) -> Any:
    return generate_document(CONFIG, records, [])["results"]


def test_log_probabilities_that_a_request_asks_for() -> None:
    trace = StageTrace("thinker", "ar", 0.1, output_logprobs=(((7, -0.5, "a"), (8, -np.inf, None)),))
    (result,) = results([RequestRecord("0", (), (trace,))])
    assert json.loads(json.dumps(result, allow_nan=False))["stages"][0]["output_logprobs"] == [
        [[7, -0.5, "a"], [8, -9999.0, None]]
    ]


def test_a_failed_request_has_a_reason_and_keeps_its_outputs() -> None:
    error = StageError("no memory left", stage="talker", hint="use fewer requests")
    record = RequestRecord("b", OUTPUTS[:1], (), error, place="r.jsonl:3")
    (result,) = results([record])
    assert result == {
        "request_id": "b",
        "status": "error",
        "place": "r.jsonl:3",
        "message": "no memory left",
        "hint": "use fewer requests",
        "stage": "talker",
        "outputs": [{"type": "text", "text": "hä", "token_ids": [1, 2], "finish_reason": "stop"}],
        "stages": [],
    }


def test_numpy_integers_become_json_numbers() -> None:
    text = TextOutput("a", tuple(np.array([5, 6])), "stop")
    trace = StageTrace("t", "ar", 0.1, output_token_ids=tuple(np.array([5])))
    document = generate_document(CONFIG, [RequestRecord("0", (WrittenOutput(text),), (trace,))], [])
    assert json.loads(json.dumps(document))["results"][0]["outputs"][0]["token_ids"] == [5, 6]


def test_a_tensor_has_its_field_s_name() -> None:
    tensor = WrittenOutput(TensorOutput("image_embeds", np.zeros((1, 32), np.float32)), Path("out/0.image_embeds.npy"))
    (result,) = results([RequestRecord("0", (tensor,))])
    described = {"name": "image_embeds", "path": "out/0.image_embeds.npy", "shape": [1, 32], "dtype": "float32"}
    assert result["outputs"] == [{"type": "tensor", **described}]
    assert file_line(tensor) == "out/0.image_embeds.npy   1x32 float32 tensor"


def test_lines_for_people() -> None:
    assert file_line(OUTPUTS[1]) == "out/0.wav   0.48 s audio, 24 kHz"
    assert file_line(OUTPUTS[2]) == "out/0.png   64x48 image"
    effective = {"device": "cpu", "execution": "eager", "mps": True}
    second = StageInfo("token2wav", "diffusion", 14.94, {"device": 3 * 2**30, "host": 5}, effective)
    assert loaded_lines([STAGE, second], {}) == [
        "  0 thinker    ar         cudagraph none  copy async  loaded in 4.10 s  123 MiB",
        "  1 token2wav  diffusion  eager, MPS                  loaded in 14.9 s  3.0 GiB",
    ]
    one = RequestRecord("0", OUTPUTS, TRACES, total_s=0.35)
    assert summary_line([one], [STAGE], 9.0, 7) == (
        "  thinker 0.10 s · token2wav 0.20 s · total 0.35 s   TTFT 30 ms   peak 123 MiB   seed 7"
    )
    failed = RequestRecord("1", error=StageError("x", stage="talker"))
    assert summary_line([one, failed], [STAGE], 9.0, 7) == "  2 requests in 9.00 s · 1 failed   peak 123 MiB   seed 7"
