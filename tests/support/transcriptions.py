"""Runs a speech recognition stage in this process; a script: vLLM binds its process.

Reads a JSON task from stdin: a checkpoint `folder` and its `requests` (`seed` and `seconds` of a sound, or a
`file`; and other fields). Writes JSON to the path in argv: for each request what it gives `alone`, and `once`
with the others: token ids, the text, that of its chunks joined, language and segments, or its error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main() -> None:
    task = json.loads(sys.stdin.read())
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    Path(sys.argv[1]).write_text(json.dumps(answers(**task)))


def answers(folder: str, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    from stage_specs import get_spec

    from omni_cli.checkpoints.derive import derive_profile
    from omni_cli.config.families import Machine
    from omni_cli.config.schema import EngineConfig
    from omni_cli.engine.memory_plan import plan_start
    from omni_cli.engine.process.stage_process import load_stage

    plan = plan_start(EngineConfig.model_validate(derive_profile(Path(folder), Machine("cpu"), folder)), Path(folder))
    assert plan is not None
    stage: Any = load_stage(get_spec(plan.config.stages[0], folder), lambda report: None)
    stage.run_warm_up()
    alone = [run(stage, [request])[0] for request in requests]
    once = run(stage, requests)
    left = [len(stage.active), len(stage._transcriptions)]
    stage.close()
    return {"alone": alone, "once": once, "left": left}


def run(stage: Any, requests: Sequence[dict[str, Any]]) -> list[Any]:
    """Return what each request gives, or its error."""
    from omni_cli.core.errors import OmniError
    from omni_cli.stage.messages import Failure, RequestDone, TextChunk

    done: dict[str, Any] = {}
    chunks: dict[str, str] = {}
    for number, request in enumerate(requests):
        try:
            stage.add(stage_request(str(number), **request))
        except OmniError as error:
            done[str(number)] = f"{type(error).__name__}: {error.message}"
    while stage.has_work():
        for report in stage.step():
            match report:
                case Failure():
                    done[str(report.request_id)] = report.message
                case TextChunk():
                    chunks[report.request_id] = chunks.get(report.request_id, "") + report.text
                case RequestDone():
                    text = report.text
                    transcript = text.transcript
                    done[report.request_id] = {
                        "token_ids": list(text.token_ids),
                        "text": text.text,
                        "chunks": chunks.get(report.request_id, ""),
                        "language": transcript.language,
                        "segments": [[part.start_s, part.end_s, part.text] for part in transcript.segments],
                        "num_input_tokens": report.trace["num_input_tokens"],
                    }
    return [done[str(number)] for number in range(len(requests))]


def stage_request(request_id: str, **fields: Any) -> Any:
    """Return a greedy request."""
    from omni_cli.requests.media.reading import load_audio
    from omni_cli.requests.outputs import GenerateRequest
    from support.request_fields import with_fields

    seed, seconds, file = fields.pop("seed", None), fields.pop("seconds", 0.5), fields.pop("file", None)
    sounds = (load_audio(Path(file), lambda note: None),) if file else ()
    sounds = sounds if seed is None else (voice(seed, seconds),)
    sampling = {"max_tokens": fields.pop("max_tokens", 12)}
    return with_fields(GenerateRequest(request_id), audio=sounds, sampling=sampling, **fields)


def voice(seed: int, seconds: float, sample_rate: int = 22_050) -> tuple[Any, int]:
    """Return tones that change twice per second, with pauses."""
    import numpy as np

    rng = np.random.default_rng(seed)
    times = np.arange(round(seconds * sample_rate)) / sample_rate
    pitches = rng.uniform(100, 2000, size=int(seconds * 2) + 1)[(times * 2).astype(int)]
    return (0.4 * np.sin(2 * np.pi * pitches * times) * (times % 1 < 0.8)).astype(np.float32), sample_rate


if __name__ == "__main__":
    main()
