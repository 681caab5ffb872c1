"""Answers of a diffusion on several ranks: vLLM binds its process."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from pathlib import Path
from typing import Any

import psutil
import rank_diffusion
import torch
from vllm import PoolingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from omni_cli.backends.execution.stacks import SIGNAL, stacks_in
from omni_cli.backends.vllm.device_settings import use_whole_float32, with_given_cache
from omni_cli.backends.vllm.workers import prepare_ranks
from omni_cli.stage.payloads import encode_additional_information
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION

LENGTHS = [5, 17, 1, 8]
TIMEOUT_S = 100


def answer(model: str, cases: dict[str, dict[str, Any]], folder: str) -> dict[str, Any]:
    """Return for each case, by its EngineArgs, the tensor of each request. A case runs in a fork of this process."""
    prepare_ranks(2, "ranks")
    use_whole_float32()
    # As in a stage's process.
    os.environ["VLLM_RPC_BASE_PATH"] = folder
    stacks_in(Path(folder)).touch()
    return {name: run_case(model, case) for name, case in cases.items()}


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


def run_diffusion(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One tensor per request."""
    options = {
        "model": model, "worker_cls": "rank_diffusion.RankDiffusionWorker", "dtype": "float32", "runner": "pooling",
        "hf_overrides": {"architectures": [rank_diffusion.ARCHITECTURE]}, "enforce_eager": True, "max_model_len": 256,
        "max_num_seqs": 8, "kv_cache_memory_bytes": 16 << 20, "skip_tokenizer_init": True, "disable_log_stats": True,
        "enable_prefix_caching": False, "enable_chunked_prefill": False,
    }  # fmt: skip
    engine = LLMEngine.from_engine_args(EngineArgs(**with_given_cache({**options, **arguments})))
    draw = torch.Generator().manual_seed(0)
    for number, length in enumerate(LENGTHS):
        information = {name: torch.randn(length, rank_diffusion.SIZE, generator=draw) for name in ("scale", "shift")}
        extra = {ADDITIONAL_INFORMATION: encode_additional_information(information)}
        ids = torch.randint(0, 200, (length,), generator=draw).tolist()
        (rendered,) = engine.renderer.render_cmpl([{"prompt_token_ids": ids}])
        engine.add_request(str(number), rendered, PoolingParams(task="plugin", extra_kwargs=extra))
    results: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            results[output.request_id] = output.outputs.data.tolist()
    if arguments.get("distributed_executor_backend") == "mp":
        check_stacks(Path(os.environ["VLLM_RPC_BASE_PATH"]), num_ranks=2)
    engine.engine_core.shutdown()
    return results


def check_stacks(folder: Path, num_ranks: int) -> None:
    """Send the ranks the signal on which a hung stage's processes write their stacks."""
    ranks = [child for child in psutil.Process().children() if not any("tracker" in word for word in child.cmdline())]
    assert len(ranks) == num_ranks, ranks
    for rank in ranks:
        rank.send_signal(SIGNAL)
    deadline_s = time.monotonic() + TIMEOUT_S
    while stacks_in(folder).read_text().count("Current thread") < num_ranks:
        assert time.monotonic() < deadline_s, "ranks wrote no stacks"
        time.sleep(0.1)
