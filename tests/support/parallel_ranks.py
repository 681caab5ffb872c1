"""Runs a diffusion on several ranks, and writes what they made; a script: vLLM binds its process.

Reads a JSON task from stdin: `model` and `cases`, EngineArgs by name. Each case runs in a process that is forked after
the imports. Writes JSON to the path in argv: for each case the tensor of each request.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LENGTHS = [5, 17, 1, 8]
TIMEOUT_S = 100


def main() -> None:
    task = json.loads(sys.stdin.read())
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    import rank_diffusion  # noqa: F401 - imported once, for all processes
    from vllm.v1.engine.llm_engine import LLMEngine  # noqa: F401

    from omni_cli.backends.execution.stacks import stacks_in
    from omni_cli.backends.vllm.device_settings import use_whole_float32
    from omni_cli.backends.vllm.workers import prepare_ranks

    prepare_ranks(2, "ranks")
    use_whole_float32()
    # As in a stage's process.
    os.environ["VLLM_RPC_BASE_PATH"] = str(Path(sys.argv[1]).parent)
    stacks_in(Path(sys.argv[1]).parent).touch()
    answers = {name: run_case(task["model"], case) for name, case in task["cases"].items()}
    Path(sys.argv[1]).write_text(json.dumps(answers))


def run_case(model: str, arguments: dict[str, Any]) -> Any:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run_engine, args=(theirs, model, arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(TIMEOUT_S) else "it never answered"
    finally:
        process.join(10)
        process.kill()


def run_engine(pipe: Any, model: str, arguments: dict[str, Any]) -> None:
    try:
        pipe.send(run_diffusion(model, arguments))
    except Exception:  # noqa: BLE001 - whatever it is, the test shows it
        pipe.send(traceback.format_exc())
    finally:
        os._exit(0)  # this process's copies of the parent's resources are not its own to clean up


def make_engine(engine_cls: Any, **arguments: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    from omni_cli.backends.vllm.device_settings import with_given_cache

    given = {"dtype": "float32", "enforce_eager": True, "disable_log_stats": True, "max_model_len": 256}
    given |= {"max_num_seqs": 8, "kv_cache_memory_bytes": 16 << 20}
    return engine_cls.from_engine_args(EngineArgs(**with_given_cache({**given, **arguments})))


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
            results[output.request_id] = output.outputs.data.tolist()
    if arguments.get("distributed_executor_backend") == "mp":
        check_stacks(num_ranks=2)
    engine.engine_core.shutdown()
    return results


def check_stacks(num_ranks: int) -> None:
    """Send the ranks the signal on which a hung stage's processes write their stacks."""
    import psutil

    from omni_cli.backends.execution.stacks import SIGNAL, stacks_in

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
