"""Runs a model on several ranks, and writes what each of them made; a script: vLLM binds its process.

Reads a JSON task from stdin: `model` and `cases`, by name: `kind` ("thinker", "talker" or "diffusion") and `engine`
(EngineArgs). Each case runs in processes that are forked after the imports: with `external_launcher` one a rank, in the
environment that torchrun would give it. Writes JSON to the path in argv: for each case a list with each process's
results.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PROMPTS = ["hello", "Tell me about the rain on a tin roof, and about the long road home.", "a"]
MAX_TOKENS = 16
LENGTHS = [5, 17, 1, 8]
TALKER_REQUESTS = [
    {"id": "first", "num_prompt": 20, "num_reply": 12, "max_tokens": 24},
    {"id": "one token", "num_prompt": 15, "num_reply": 1, "max_tokens": 16},
    {"id": "long reply", "num_prompt": 9, "num_reply": 30, "max_tokens": 20},
]
TIMEOUT_S = 100


def main() -> None:
    task = json.loads(sys.stdin.read())
    from omni_cli.compat.libraries import prepare_libraries

    prepare_libraries()
    import rank_diffusion  # noqa: F401 - imported once, for all processes
    from vllm.v1.engine.llm_engine import LLMEngine  # noqa: F401

    from omni_cli.execution.stacks import stacks_in
    from omni_cli.vllm_integration.device_settings import use_whole_float32
    from omni_cli.vllm_integration.workers import prepare_ranks

    prepare_ranks(2, "ranks")
    use_whole_float32()
    # As in a stage's process.
    os.environ["VLLM_RPC_BASE_PATH"] = str(Path(sys.argv[1]).parent)
    stacks_in(Path(sys.argv[1]).parent).touch()
    answers = {name: run_case(task["model"], case) for name, case in task["cases"].items()}
    Path(sys.argv[1]).write_text(json.dumps(answers))


def run_case(model: str, case: dict[str, Any]) -> list[Any]:
    engine = case["engine"]
    launched = engine.get("distributed_executor_backend") == "external_launcher"
    size = engine.get("tensor_parallel_size", 1) * engine.get("pipeline_parallel_size", 1) if launched else 1
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
        variables["MASTER_PORT"] = port
        process = context.Process(target=run_rank, args=(theirs, model, case, variables if launched else {}))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        return [pipe.recv() if pipe.poll(TIMEOUT_S) else "it never answered" for pipe in pipes]
    finally:
        for process in processes:
            process.join(10)
            process.kill()


def run_rank(pipe: Any, model: str, case: dict[str, Any], variables: dict[str, Any]) -> None:
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        run = {"thinker": run_thinker, "talker": run_talker, "diffusion": run_diffusion}[case["kind"]]
        pipe.send(run(model, case["engine"]))
    except Exception:  # noqa: BLE001 - whatever it is, the test shows it
        pipe.send(traceback.format_exc())
    finally:
        os._exit(0)  # this process's copies of the parent's resources are not its own to clean up


def make_engine(engine_cls: Any, **arguments: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    from omni_cli.vllm_integration.device_settings import with_given_cache

    given = {"dtype": "float32", "enforce_eager": True, "disable_log_stats": True, "max_model_len": 256}
    given |= {"max_num_seqs": 8, "kv_cache_memory_bytes": 16 << 20}
    return engine_cls.from_engine_args(EngineArgs(**with_given_cache({**given, **arguments})))


def run_thinker(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Tokens and hidden-state rows by request id; rows are None on ranks that hand none out."""
    from vllm import SamplingParams

    from omni_cli.models.qwen2_5_omni.family import FAMILY
    from omni_cli.stage.request_payloads import WANTS_HIDDEN_STATES
    from omni_cli.vllm_integration.outputs import TextEngine
    from omni_cli.vllm_integration.registry import resolve_in_process
    from omni_cli.vllm_integration.stage import VllmStage

    for architecture in (FAMILY.architectures[0], *FAMILY.inner_architectures):
        resolve_in_process(architecture)
    worker = VllmStage.worker_cls("ar")
    engine = make_engine(
        TextEngine, model=model, worker_cls=worker, skip_mm_profiling=True, mm_processor_cache_gb=0, **arguments
    )
    processor = engine.output_processor
    params = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, extra_args={WANTS_HIDDEN_STATES: True}
    )
    for number, text in enumerate(PROMPTS):
        (rendered,) = engine.renderer.render_cmpl([{"prompt": text, "cache_salt": "rows"}])
        engine.add_request(str(number), rendered, params.clone())
    results: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                rows = processor.take_hidden_rows(output.request_id)
                tokens = list(output.outputs[0].token_ids)
                results[output.request_id] = {"tokens": tokens, "made": None if rows is None else rows.tolist()}
    engine.engine_core.shutdown()
    return results


def run_talker(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Tokens by request id, of rows that come late: every rank's engine gets them at the same steps."""
    from stage_specs import get_spec
    from talker_rows import Runs, feeding_at_random

    from omni_cli.models.qwen2_5_omni.settings import TalkerConfig
    from omni_cli.models.registry import load_stage

    stage = TalkerConfig.named(
        "talker", input="thinker", max_model_len=256, max_num_seqs=8, kv_cache_memory_bytes=16 << 20,
        sampling={"temperature": 0.0},
    )  # fmt: skip
    # A profile cannot ask for ranks that a program has launched.
    stage = stage.model_copy(update=arguments)
    made = Runs(load_stage(get_spec(stage, model), lambda report: None), TALKER_REQUESTS).run(feeding_at_random())
    return {name: {"tokens": tokens, "made": None} for name, tokens in made["tokens"].items()}


def run_diffusion(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One tensor per request."""
    import torch
    from rank_diffusion import ARCHITECTURE, SIZE
    from vllm import PoolingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    from omni_cli.stage.payloads import encode_additional_information
    from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION

    engine = make_engine(
        LLMEngine,
        model=model, worker_cls="rank_diffusion.RankDiffusionWorker", hf_overrides={"architectures": [ARCHITECTURE]},
        runner="pooling", skip_tokenizer_init=True, enable_prefix_caching=False, enable_chunked_prefill=False,
        **arguments,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    for number, length in enumerate(LENGTHS):
        information = {name: torch.randn(length, SIZE, generator=draw) for name in ("scale", "shift")}
        extra = {ADDITIONAL_INFORMATION: encode_additional_information(information)}
        ids = torch.randint(0, 200, (length,), generator=draw).tolist()
        (rendered,) = engine.renderer.render_cmpl([{"prompt_token_ids": ids}])
        engine.add_request(str(number), rendered, PoolingParams(task="plugin", extra_kwargs=extra))
    results: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            results[output.request_id] = {"tokens": [], "made": output.outputs.data.tolist()}
    if arguments.get("distributed_executor_backend") == "mp":
        check_stacks(num_ranks=2)
    engine.engine_core.shutdown()
    return results


def check_stacks(num_ranks: int) -> None:
    """Send the ranks the signal on which a hung stage's processes write their stacks."""
    import psutil

    from omni_cli.execution.stacks import SIGNAL, stacks_in

    ranks = [child for child in psutil.Process().children() if not any("tracker" in word for word in child.cmdline())]
    assert len(ranks) == num_ranks, ranks
    for rank in ranks:
        rank.send_signal(SIGNAL)
    deadline_s = time.monotonic() + TIMEOUT_S
    while stacks_in(Path(sys.argv[1]).parent).read_text().count("Current thread") < num_ranks:
        assert time.monotonic() < deadline_s, "ranks wrote no stacks"
        time.sleep(0.1)


if __name__ == "__main__":
    main()
