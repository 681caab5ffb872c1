"""Answers of token2wav on vLLM with a model that answers wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.requests.contents import StageIO
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import RequestDone
from omni_cli.stage.payloads import encode_additional_information
from support.stage_specs import load, run_requests

CODES = {"first": [1, 2, 3, 4, 5, 6], "second": [7, 8, 9, 1], "third": [5, 4, 3, 2, 1, 0, 6, 7]}
WRONG: dict[str, Callable[[list[Any]], Any]] = {
    "nothing": lambda made: [made[0], None, made[2]],
    "shape": lambda made: [made[0], made[1].reshape(2, -1), made[2]],
    "dtype": lambda made: [made[0], made[1].long(), made[2]],
    "empty": lambda made: [made[0], made[1][:0], made[2]],
    "count": lambda made: made[:2],
    "text": lambda made: "text",
}


def answer(model: str) -> dict[str, Any]:
    """Return `alone` and `after`, the samples of each request, and `rounds`, by what is wrong with the second one.

    A round has what became of each request: its number of samples, or its error.
    """
    config = Token2WavConfig.create("token2wav", backend="vllm", input="talker", max_num_seqs=4, num_inference_steps=2)
    stage = load(config, model)
    runner = stage.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    sample = runner._diffuse

    def whole(inputs: list[Any]) -> list[Any]:
        """Do all steps in one, so that all requests end in the same."""
        made: dict[str, Any] = {}
        while len(made) < len(inputs):
            made.update({name: each for name, each in sample(inputs).items() if isinstance(each, torch.Tensor)})
        return [made[each.request_id] for each in inputs]

    answers: dict[str, Any] = {"alone": run(stage, "alone"), "rounds": {}}
    for name, spoil in WRONG.items():
        runner._diffuse = lambda inputs, spoil=spoil: spoil(whole(inputs))
        answers["rounds"][name] = run(stage, name)
    runner._diffuse = sample
    answers["after"] = run(stage, "after")
    running = [request.request_id for batch in stage._scheduler._batches for request in batch.requests]
    answers["left"] = [*stage.active, *stage._scheduler._waiting, *running]
    stage.close()
    return answers


def run(stage: Any, prefix: str) -> dict[str, Any]:
    """By a request's name: its number of samples, or what it failed with."""
    inputs = {name: encode_additional_information({"codec_token_ids": codes}) for name, codes in CODES.items()}
    requests = [GenerateRequest(f"{prefix} {name}", stage=StageIO(input=given)) for name, given in inputs.items()]
    return dict(zip(CODES, map(_read, run_requests(stage, requests)), strict=True))


def _read(end: str | list[Any]) -> str | int:
    if isinstance(end, str):
        return end
    (done,) = [report for report in end if isinstance(report, RequestDone)]
    return int(done.audio.samples.shape[0])
