"""Runs a thinker whose scheduler, vLLM's own, plans something wrong in the middle; a script.

Reads a JSON task from stdin: `model`. Writes JSON to the path in argv: `alone`, the text of each request, and `rounds`,
by what was wrong, the engine id of the second request and the error that the step raised.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPTS = {"first": "hello", "second": "the long road home", "third": "rain on a tin roof"}
MAX_TOKENS = 8


def zero_tokens(plan: Any, second: str) -> bool:
    """Once it runs."""
    if second not in plan.scheduled_cached_reqs.req_ids:
        return False
    plan.num_scheduled_tokens[second] = 0
    return True


def never_begun(plan: Any, second: str) -> bool:
    """Its beginning is not sent to the workers; its next step is."""
    began = [request for request in plan.scheduled_new_reqs if request.req_id == second]
    if began:
        plan.scheduled_new_reqs.remove(began[0])
    return bool(began)


def nobodys(plan: Any, second: str) -> bool:
    plan.num_scheduled_tokens["ghost"] = 3
    plan.total_num_scheduled_tokens += 3
    return True


WRONG: dict[str, Callable[[Any, str], bool]] = {
    "zero tokens": zero_tokens,
    "never begun": never_begun,
    "nobody's": nobodys,
}


def main() -> None:
    task = json.loads(sys.stdin.read())
    from omni_cli.compat.libraries import prepare_libraries

    prepare_libraries()
    from stage_specs import get_spec
    from vllm.v1.core.sched.scheduler import Scheduler

    from omni_cli.config.schema import ARStageConfig
    from omni_cli.models.registry import load_stage

    sampling = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    config = ARStageConfig.named("thinker", max_num_seqs=4, kv_cache_memory_bytes=64 << 20, sampling=sampling)
    stage = load_stage(get_spec(config, task["model"]), lambda report: None)
    answers: dict[str, Any] = {"alone": run(stage, "alone")}
    answers["rounds"] = {name: run_spoilt(stage, Scheduler, name, spoil) for name, spoil in WRONG.items()}
    Path(sys.argv[1]).write_text(json.dumps(answers))
    stage.close()


def run_spoilt(stage: Any, scheduler: Any, name: str, spoil: Callable[[Any, str], bool]) -> dict[str, Any]:
    """With the first plan that `spoil` can spoil for the second request."""
    plain, spoilt = scheduler.schedule, list[str]()

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        plan = plain(self, *args, **kwargs)
        second = stage.active.get(f"{name} second")
        if not spoilt and second is not None and spoil(plan, second.engine_id):
            spoilt.append(second.engine_id)
        return plan

    scheduler.schedule = schedule
    try:
        run(stage, name)
    except ValueError as error:  # in a stage's process this ends the stage
        return {"second": spoilt[0], "error": str(error)}
    finally:
        scheduler.schedule = plain
        for request_id in list(stage.active):
            stage.abort(request_id)
    raise AssertionError(f"{name}: no error")


def run(stage: Any, prefix: str) -> dict[str, Any]:
    """By the last word of a request's name: its text."""
    from omni_cli.outputs import GenerateRequest
    from omni_cli.stage.messages import RequestDone

    for name, prompt in PROMPTS.items():
        stage.add(GenerateRequest(f"{prefix} {name}", prompt=prompt))
    ends: dict[str, Any] = {}
    while stage.has_work():
        for report in stage.step():
            name = report.request_id.split()[-1]
            if isinstance(report, RequestDone):
                ends[name] = report.text.text
    return ends


if __name__ == "__main__":
    main()
