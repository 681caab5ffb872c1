"""Runs a thinker on vLLM in this process and writes what it made; a script, since vLLM binds its process.

Reads a JSON task from stdin: `model`, `engine` (EngineArgs), `rounds` (lists of requests, each round run to its end:
`id`, `prompt`, `max_tokens`, `wants`, `logprobs`), `stock` (vLLM's own worker). Writes JSON to the path in argv.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    task = json.loads(sys.stdin.read())
    from omni_cli.compat.torchvision import ensure_torchvision_importable

    ensure_torchvision_importable()

    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from omni_cli.engine.stages.output_processor import OmniOutputProcessor
    from omni_cli.engine.stages.vllm_stage import prepare_ranks
    from omni_cli.models.vllm_registry import register_models
    from omni_cli.worker.request_payloads import WANTS_HIDDEN_STATES

    ranks = task["engine"].get("tensor_parallel_size", 1) * task["engine"].get("pipeline_parallel_size", 1)
    prepare_ranks(ranks, "thinker")
    register_models()
    worker = {} if task["stock"] else {"worker_cls": "omni_cli.worker.cpu.CPUARWorker"}
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=task["model"],
            dtype="float32",
            enforce_eager=True,
            disable_log_stats=True,
            skip_mm_profiling=True,
            mm_processor_cache_gb=0,
            **worker,
            **task["engine"],
        )
    )
    processor = OmniOutputProcessor.adopt(engine.output_processor)
    preemptions = _count_preemptions(engine)
    results: dict[str, Any] = {}
    for requests in task["rounds"]:
        for request in requests:
            extra = {WANTS_HIDDEN_STATES: True} if request["wants"] else None
            params = SamplingParams(
                temperature=0,
                max_tokens=request["max_tokens"],
                ignore_eos=True,
                logprobs=request.get("logprobs"),
                extra_args=extra,
            )
            prompt: dict[str, Any] = {"prompt": request["prompt"]}
            if request["wants"]:
                prompt["cache_salt"] = "rows"
            (rendered,) = engine.renderer.render_cmpl([prompt])
            engine.add_request(request["id"], rendered, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    results[output.request_id] = _result(output, processor.take_hidden_rows(output.request_id))
    Path(sys.argv[1]).write_text(json.dumps({"results": results, "preemptions": preemptions[0]}))
    engine.engine_core.shutdown()


def _count_preemptions(engine: Any) -> list[int]:
    scheduler = engine.engine_core.engine_core.scheduler
    count = [0]
    preempt = scheduler._preempt_request

    def counted(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return preempt(*args, **kwargs)

    scheduler._preempt_request = counted
    return count


def _result(output: Any, rows: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    logprobs = completion.logprobs and [
        {str(token): round(entry.logprob, 4) for token, entry in step.items()} for step in completion.logprobs
    ]
    return {
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "logprobs": logprobs,
        "num_cached_tokens": output.num_cached_tokens,
        "rows": None if rows is None else rows.tolist(),
    }


if __name__ == "__main__":
    main()
