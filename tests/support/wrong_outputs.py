"""Runs token2wav on vLLM with a model that answers wrongly; a script.

Reads a JSON task from stdin: `model`. Writes JSON to the path in argv: `alone`, the number of samples of each request;
`rounds`, by what was wrong with the second request, what became of each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CODES = {"first": [1, 2, 3, 4, 5, 6], "second": [7, 8, 9, 1], "third": [5, 4, 3, 2, 1, 0, 6, 7]}
WRONG: dict[str, Callable[[list[Any]], Any]] = {
    "nothing": lambda made: [made[0], None, made[2]],
    "shape": lambda made: [made[0], made[1].reshape(2, -1), made[2]],
    "dtype": lambda made: [made[0], made[1].long(), made[2]],
    "empty": lambda made: [made[0], made[1][:0], made[2]],
    "count": lambda made: made[:2],
    "text": lambda made: "text",
}


def main() -> None:
    task = json.loads(sys.stdin.read())
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    import torch
    from stage_specs import get_spec

    from omni_cli.engine.process.stage_process import load_stage
    from omni_cli.models.qwen2_5_omni.family import Token2WavConfig

    config = Token2WavConfig.create("token2wav", backend="vllm", input="talker", max_num_seqs=4, num_inference_steps=2)
    stage: Any = load_stage(get_spec(config, task["model"]), lambda report: None)

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
    Path(sys.argv[1]).write_text(json.dumps(answers))
    stage.close()


def add(stage: Any, prefix: str) -> None:
    from omni_cli.requests.contents import StageIO
    from omni_cli.requests.outputs import GenerateRequest
    from omni_cli.stage.payloads import encode_additional_information

    for name, codes in CODES.items():
        stage_output = encode_additional_information({"codec_token_ids": codes})
        stage.add(GenerateRequest(f"{prefix} {name}", stage=StageIO(input=stage_output)))


def finish(stage: Any) -> dict[str, Any]:
    """By the last word of a request's name: its number of samples, or what it failed with."""
    from omni_cli.stage.messages import Failure, RequestDone

    ends: dict[str, Any] = {}
    while stage.has_work():
        for report in stage.step():
            name = report.request_id.split()[-1]
            if isinstance(report, Failure):
                ends[name] = report.message
            elif isinstance(report, RequestDone):
                ends[name] = report.audio.samples.shape[0]
    return ends


def run(stage: Any, prefix: str) -> dict[str, Any]:
    add(stage, prefix)
    return finish(stage)


if __name__ == "__main__":
    main()
