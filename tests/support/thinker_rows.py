"""Answers of a thinker on vLLM in this process."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs

from omni_cli.backends.vllm.device_settings import with_given_cache
from omni_cli.backends.vllm.outputs import TextEngine
from omni_cli.backends.vllm.registry import register_models, resolve_in_process
from omni_cli.backends.vllm.workers import prepare_ranks
from omni_cli.stage.request_payloads import WANTS_HIDDEN_STATES

DEFAULTS = {
    "dtype": "float32",
    "enforce_eager": True,
    "disable_log_stats": True,
    "skip_mm_profiling": True,
    "mm_processor_cache_gb": 0,
}


def answer(
    model: str,
    engine: dict[str, Any],
    rounds: list[list[dict[str, Any]]],
    stock: bool,
    late: bool,
    compile_cache: str | None = None,
) -> dict[str, Any]:
    """Run each round of requests to its end, on an engine with these EngineArgs.

    A request has `id`, `prompt`, `max_tokens`, `wants`, `logprobs`, `repetition_penalty` and `abort_after` steps.
    `stock`: vLLM's own worker. `late`: outputs travel through an asynchronous copy on a device that is late, and what
    they are copied from is overwritten at once. With `compile_cache` the answer has where Triton's kernels go once vLLM
    has used that folder to compile, with a `speculative_config` how many draft tokens were scheduled and how many of
    them accepted.
    """
    ranks = _prepare_ranks(engine)
    register_models()
    resolve_in_process("Qwen2_5OmniModel")
    worker = {} if stock else {"worker_cls": _worker()}
    arguments = with_given_cache({"model": model, **DEFAULTS, **worker, **engine})
    thinker = TextEngine.from_engine_args(EngineArgs(**arguments))
    drafts = _count_drafts(thinker)
    processor = thinker.output_processor
    if late:
        _be_late(_runner(thinker))
    preemptions = _count_preemptions(thinker)
    results: dict[str, Any] = {}
    for requests in rounds:
        for request in requests:
            _add(thinker, request)
        aborts = {request["id"]: request["abort_after"] for request in requests if "abort_after" in request}
        for step in itertools.count(1):
            for output in thinker.step():
                if output.finished:
                    results[output.request_id] = _result(output, processor.take_hidden_rows(output.request_id))
            for name in (name for name, after in aborts.items() if after == step):
                thinker.abort_request([name])
                processor.forget(name)
            if not thinker.has_unfinished_requests():
                break
    content = {"results": results, "preemptions": preemptions[0], "drafts": drafts}
    if ranks == 1 and not stock:
        # One more step passes the ended requests to the runner.
        thinker.engine_core.engine_core.step()
        content["left"] = _left(_runner(thinker)) + len(processor.hidden_rows)
    content["triton_cache"] = _triton_cache(thinker, compile_cache)
    if not stock:
        (content["execution_counters"],) = filter(None, thinker.collective_rpc("execution_counters"))
    thinker.engine_core.shutdown()
    return content


def _add(engine: Any, request: dict[str, Any]) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=request["max_tokens"],
        ignore_eos=True,
        logprobs=request.get("logprobs"),
        repetition_penalty=request.get("repetition_penalty", 1.0),
        extra_args={WANTS_HIDDEN_STATES: True} if request["wants"] else None,
    )
    prompt: dict[str, Any] = {"prompt": request["prompt"]}
    if request["wants"]:
        prompt["cache_salt"] = "rows"
    (rendered,) = engine.renderer.render_cmpl([prompt])
    engine.add_request(request["id"], rendered, params)


def _prepare_ranks(engine: dict[str, Any]) -> int:
    ranks: int = engine.get("tensor_parallel_size", 1) * engine.get("pipeline_parallel_size", 1)
    if ranks > 1:
        from vllm.v1.executor import multiproc_executor

        prepare_ranks(ranks, "thinker")
        # On a CPU vLLM spawns ranks, which import everything again; how they start is not what is tested here.
        multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")
    return ranks


def _runner(engine: Any) -> Any:
    return engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def _left(runner: Any) -> int:
    """Number of requests of which the runner still holds something."""
    return len(runner.request_payloads) + len(runner.hidden_states.requests)


def _triton_cache(engine: Any, compile_cache: str | None) -> list[str | None]:
    """Triton's folder: the process's, then vLLM's while it compiles, and that after the run which compiled."""
    if compile_cache is None:
        return []
    from vllm.compilation.compiler_interface import InductorAdaptor

    folders = [os.environ.get("TRITON_CACHE_DIR")]
    InductorAdaptor().initialize_cache(compile_cache)
    folders.append(os.environ.get("TRITON_CACHE_DIR"))
    _runner(engine)._dummy_run(1)
    return [*folders, os.environ.get("TRITON_CACHE_DIR")]


def _be_late(runner: Any) -> None:
    from vllm.v1.outputs import AsyncModelRunnerOutput
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    from omni_cli.backends.execution.copies import AsyncCopy
    from support.late_device import LateDevice

    runner.output_copy = AsyncCopy(LateDevice(bytes_per_s=1e6))
    sample_tokens, vllms = runner.sample_tokens, CPUModelRunner.sample_tokens

    class Later(AsyncModelRunnerOutput):
        """vLLM's output, as if its tokens were on their way too."""

        def __init__(self, output: Any) -> None:
            self._output = output

        def get_output(self) -> Any:
            return self._output

    def overwrite_after(grammar_output: Any) -> Any:
        hidden_states = runner.execute_model_state.hidden_states
        output = sample_tokens(grammar_output)
        hidden_states.fill_(float("nan"))
        return output

    CPUModelRunner.sample_tokens = lambda self, grammar_output: Later(vllms(self, grammar_output))
    runner.sample_tokens = overwrite_after


def _count_preemptions(engine: Any) -> list[int]:
    scheduler = engine.engine_core.engine_core.scheduler
    count = [0]
    preempt = scheduler._preempt_request

    def counted(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return preempt(*args, **kwargs)

    scheduler._preempt_request = counted
    return count


def _worker() -> str:
    from vllm.platforms import current_platform

    device = "cpu.CPU" if current_platform.is_cpu() else "gpu.GPU"
    return f"omni_cli.backends.vllm.{device}ARWorker"


def _count_drafts(engine: Any) -> dict[str, int]:
    """Draft tokens that the scheduler planned, and those that the runner's samples accept; filled while it runs."""
    scheduler = engine.engine_core.engine_core.scheduler
    drafts = {"scheduled": 0, "accepted": 0}
    update = scheduler.update_from_output

    def counted(planned: Any, output: Any) -> Any:
        for request_id, tokens in planned.scheduled_spec_decode_tokens.items():
            drafts["scheduled"] += len(tokens)
            drafts["accepted"] += len(output.sampled_token_ids[output.req_id_to_index[request_id]]) - 1
        return update(planned, output)

    scheduler.update_from_output = counted
    return drafts


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
