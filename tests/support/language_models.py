"""Runs language models' stages in this process, one after another; a script: vLLM binds its process.

Reads a JSON task from stdin: by name, a checkpoint `folder` and its `requests` (`prompt`, and seeds of `image`,
`audio` and `video` samples). Writes JSON to the path in argv: by name the media that the model `takes`, and for each
request its token ids when it runs `alone` and when it runs with the others at `once`, or its error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_TOKENS = 12


def main() -> None:
    task = json.loads(sys.stdin.read())
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    Path(sys.argv[1]).write_text(json.dumps({name: answers(**model) for name, model in task.items()}))


def answers(folder: str, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    from stage_specs import get_spec

    from omni_cli.checkpoints.derive import derive_profile
    from omni_cli.config.families import Machine
    from omni_cli.config.schema import EngineConfig
    from omni_cli.engine.memory_plan import plan_start
    from omni_cli.engine.process.stage_process import load_stage

    plan = plan_start(EngineConfig.model_validate(derive_profile(Path(folder), Machine("cpu"), folder)), Path(folder))
    assert plan is not None
    config = plan.config
    stage: Any = load_stage(get_spec(config.stages[0], folder), lambda report: None)
    stage.run_warm_up()
    alone = [run(stage, [request])[0] for request in requests]
    once = run(stage, requests)
    stage.close()
    return {"takes": sorted(stage.prompts.takes), "alone": alone, "once": once}


def run(stage: Any, requests: Sequence[dict[str, Any]]) -> list[Any]:
    """Token ids, or the error."""
    from omni_cli.core.errors import OmniError
    from omni_cli.stage.messages import Failure, RequestDone

    done: dict[str, Any] = {}
    for number, request in enumerate(requests):
        try:
            stage.add(stage_request(str(number), **request))
        except OmniError as error:
            done[str(number)] = f"{type(error).__name__}: {error.message}"
    while stage.has_work():
        for report in stage.step():
            if isinstance(report, Failure):
                done[str(report.request_id)] = report.message
            elif isinstance(report, RequestDone):
                done[report.request_id] = list(report.text.token_ids)
    return [done[str(number)] for number in range(len(requests))]


def stage_request(
    request_id: str, prompt: str, image: Sequence[int] = (), audio: Sequence[int] = (), video: Sequence[int] = ()
) -> Any:
    from media_samples import clip, image_of, tone

    from omni_cli.requests.contents import Media
    from omni_cli.requests.outputs import GenerateRequest

    return GenerateRequest(
        request_id,
        prompt=prompt,
        media=Media(images=tuple(map(image_of, image)), audio=tuple(map(tone, audio)), videos=tuple(map(clip, video))),
        sampling={"temperature": 0.0, "max_tokens": MAX_TOKENS},
    )


if __name__ == "__main__":
    main()
