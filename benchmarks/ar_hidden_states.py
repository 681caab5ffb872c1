"""Cost of hidden states: tokens per second of our AR runner, with and without them, against stock vLLM.

    python benchmarks/ar_hidden_states.py [--rounds 40] [--num-requests 8] [--max-tokens 64] [--json]
        [--clock wall] [--model DIR] [--dtype float32] [--cudagraph-mode none] [--output-copy async]

One engine over the thinker of `small-omni`. For the stock side its model runner and output processor get vLLM's own
classes back, of which ours are subclasses. Both sides so have the same weights at the same place in memory; two engines
in one process differ by more than what is measured here (up to 18 % of speed, either way).

A round runs the same concurrent requests three times, interleaved (stock, without, with; with, without, stock; ...),
greedy and with a fixed number of tokens; `with` means that every request wants its hidden states, and that they are
read when it ends. Every run has its own cache salt, so that nothing comes from the prefix cache. The tokens must be the
same on all sides, or nothing is printed. Two rounds warm up, and so does a run before each that is timed: when the
runner's class has changed, Python's interpreter specializes its code again, which no engine does that keeps its class.

`--clock cpu` measures this process's processor time instead, which a busy machine disturbs less; it is meaningful on a
CPU with one thread (`VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1`), since waiting threads spin.

Prints tokens per second, and both ratios to stock vLLM with the 95 % interval that `omni bench` would give: rounds are
the blocks. Goals: at least 0.97 with hidden states, 0.99 without.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Scripts have their own folder on the path, and omni_cli may not be installed.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import numpy as np
from chain_workload import PROMPTS
from common import interleaved, machine, machine_line, ratio_of_pairs

# stdout is for the result; vLLM logs there.
os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")

from omni_cli.core.compat.libraries import prepare_libraries

prepare_libraries()

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor

from omni_cli.backends.vllm.device_settings import execution_args
from omni_cli.backends.vllm.outputs import OmniOutputProcessor, TextEngine
from omni_cli.backends.vllm.registry import register_models, resolve_in_process
from omni_cli.backends.vllm.stage import VllmStage
from omni_cli.checkpoints.files import read_model_kind
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.stage.request_payloads import WANTS_HIDDEN_STATES

STOCK, WITHOUT, WITH = "stock", "without", "with"
GOALS = {WITHOUT: 0.99, WITH: 0.97}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Engine:
    """One engine, in our configuration or in vLLM's."""

    def __init__(self, llm: LLMEngine, clock: Callable[[], float]) -> None:
        self._llm = llm
        self._clock = clock
        self._processors = (OutputProcessor, OmniOutputProcessor)

    def execution_counters(self) -> dict[str, float]:
        self._llm.collective_rpc(_be_ours)
        (counters,) = filter(None, self._llm.collective_rpc("execution_counters"))
        return counters

    def run(self, side: str, turn: int, count: int, max_tokens: int) -> tuple[float, list[list[int]]]:
        """Seconds from the first request in to the last one out, and every request's tokens."""
        self._llm.collective_rpc(_be_vllms if side == STOCK else _be_ours)
        self._llm.output_processor.__class__ = self._processors[side != STOCK]
        self._timed(side, f"{side} {turn}, to warm up", turn, count, max_tokens)
        return self._timed(side, f"{side} {turn}", turn, count, max_tokens)

    def _timed(self, side: str, salt: str, turn: int, count: int, max_tokens: int) -> tuple[float, list[list[int]]]:
        wants = side == WITH
        params = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            extra_args={WANTS_HIDDEN_STATES: True} if wants else None,
        )
        prompts = [f"Round {turn}: {PROMPTS[i % len(PROMPTS)]}" for i in range(count)]
        salted = [{"prompt": prompt, "cache_salt": salt} for prompt in prompts]
        rendered = self._llm.renderer.render_cmpl(salted)
        tokens: dict[str, list[int]] = {}
        began_s = self._clock()
        for index, prompt in enumerate(rendered):
            self._llm.add_request(str(index), prompt, params)
        while self._llm.has_unfinished_requests():
            for output in self._llm.step():
                if output.finished:
                    (completion,) = output.outputs
                    tokens[output.request_id] = list(completion.token_ids)
                    if wants:
                        rows = self._llm.output_processor.take_hidden_rows(output.request_id)
                        consumed = len(output.prompt_token_ids) + len(completion.token_ids) - 1
                        assert rows.shape[0] == consumed, f"{rows.shape[0]} rows for {consumed} tokens"
        seconds = self._clock() - began_s
        self._llm.step()  # reports ended requests to the runner while it is still on this side
        return seconds, [tokens[str(index)] for index in range(count)]


def main() -> int:
    arguments = _arguments()
    model = resolve_model(arguments.model)
    register_models()
    resolve_in_process(read_model_kind(model))
    engine = _start(arguments, model)
    times: dict[str, list[float]] = {side: [] for side in (STOCK, WITHOUT, WITH)}
    expected: dict[int, list[list[int]]] = {}
    warm_up = 2
    for turn, side in interleaved(list(times), warm_up + arguments.rounds):
        seconds, tokens = engine.run(side, turn, arguments.num_requests, arguments.max_tokens)
        if expected.setdefault(turn, tokens) != tokens:
            sys.stderr.write(f"error: {side} produced different tokens than the previous side\n")
            return 2
        if turn >= warm_up:
            times[side].append(seconds)
    return _report(arguments, times, engine.execution_counters())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--num-requests", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS))
    parser.add_argument("--model", default="builtin:small-omni")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cudagraph-mode", default="none")
    parser.add_argument("--output-copy", default="async", choices=["async", "sync"])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _start(arguments: argparse.Namespace, model: str) -> Engine:
    llm = TextEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype=arguments.dtype,
            max_model_len=2048,
            max_num_seqs=arguments.num_requests,
            kv_cache_memory_bytes=512 << 20,
            disable_log_stats=True,
            skip_mm_profiling=True,
            mm_processor_cache_gb=0,
            worker_cls=VllmStage.worker_cls("ar"),
            kernel_config={"enable_jit_warmup": False},  # as in our stages: all requests are greedy
            **execution_args(arguments.cudagraph_mode),
        )
    )
    llm.collective_rpc("use_output_copy", args=(arguments.output_copy,))
    return Engine(llm, CLOCKS[arguments.clock])


def _be_vllms(wrapper: Any) -> None:
    runner = wrapper.worker.model_runner
    runner.__class__ = next(cls for cls in type(runner).__mro__ if cls.__module__.startswith("vllm."))


def _be_ours(wrapper: Any) -> None:
    wrapper.worker.model_runner.__class__ = wrapper.worker.runner_cls


def _report(arguments: argparse.Namespace, times: dict[str, list[float]], execution_counters: dict[str, float]) -> int:
    """Print the result; return 1 if a goal is missed."""
    tokens = arguments.num_requests * arguments.max_tokens
    rates = {side: tokens / float(np.median(seconds)) for side, seconds in times.items()}
    ratios = {side: ratio_of_pairs(times[STOCK], times[side]) for side in GOALS}  # of tokens per second
    missed = any(ratio.value < GOALS[side] for side, ratio in ratios.items())
    if arguments.json:
        record = {
            "machine": machine(),
            "goals": GOALS,
            "times_s": times,
            "tokens_per_second": rates,
            "ratios": {side: asdict(ratio) for side, ratio in ratios.items()},
            "execution_counters": execution_counters,
        }
        sys.stdout.write(json.dumps(record) + "\n")
        return int(missed)
    sys.stdout.write(f"{STOCK:8} {rates[STOCK]:9.1f} tokens/s\n")
    for side, ratio in ratios.items():
        shown = f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
        verdict = "met" if ratio.value >= GOALS[side] else "missed"
        sys.stdout.write(
            f"{side:8} {rates[side]:9.1f} tokens/s   {shown} of stock   goal: at least {GOALS[side]}, {verdict}\n"
        )
    copied = ", ".join(f"{name} {value:g}" for name, value in execution_counters.items())
    sys.stdout.write(f"{arguments.rounds} rounds of {arguments.num_requests} requests, {arguments.max_tokens} tokens ")
    sys.stdout.write(f"each   {arguments.clock} clock   tokens identical\n{copied}\n{machine_line()}\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
