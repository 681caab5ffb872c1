"""The scheduler with two steps under way at a time, as it is on CUDA: no engine, and a model that is played here.

What vLLM's asynchronous scheduler plans is planned before the tokens of the step before are there.
"""

from __future__ import annotations

import random
from collections import deque
from functools import partial

import pytest
import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from omni_cli.backends.vllm.input_embeds_stage import talker_part
from omni_cli.backends.vllm.registry import register_models, resolve_in_process
from omni_cli.backends.vllm.schedulers import InputEmbedsAsyncScheduler, make_scheduler

TALKER = "Qwen2_5OmniTalkerForConditionalGeneration"
BLOCK = 32
STEPS_UNDER_WAY = 2
NUM_PROMPT, MAX_TOKENS = 40, 30


@pytest.fixture
def make(tiny_omni_path):
    """`make(num_blocks)` -> a scheduler."""
    register_models()
    resolve_in_process(TALKER)

    def scheduler(num_blocks: int) -> InputEmbedsAsyncScheduler:
        config = EngineArgs(
            model=str(tiny_omni_path), dtype="float32", hf_overrides=partial(talker_part, TALKER),
            skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=48,
            block_size=BLOCK, enable_prefix_caching=False,
        ).create_engine_config()  # fmt: skip
        # A CPU's engine has one step in progress, as its configuration shows.
        config.scheduler_config.async_scheduling = True
        config.cache_config.num_gpu_blocks = num_blocks
        attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
        made = make_scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
        )
        assert isinstance(made, InputEmbedsAsyncScheduler)
        return made

    return scheduler


class Talker:
    """Runs scheduled steps: checks that each position has its row, and samples where a request's tokens end."""

    def __init__(self, names: list[str]) -> None:
        self.num_rows = dict.fromkeys(names, NUM_PROMPT)
        self.is_whole = dict.fromkeys(names, False)
        self.num_tokens = dict.fromkeys(names, NUM_PROMPT)

    def run(self, planned: SchedulerOutput) -> ModelRunnerOutput:
        for name, arrived in planned.omni_arrived.items():
            self.num_rows[name] += arrived.rows.shape[0]
            self.is_whole[name] = arrived.is_last
        starts = {new.req_id: new.num_computed_tokens for new in planned.scheduled_new_reqs}
        cached = planned.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        names, sampled = list(planned.num_scheduled_tokens), []
        for name in names:
            end = starts[name] + planned.num_scheduled_tokens[name]
            assert self.is_whole[name] or end <= self.num_rows[name], f"{name}: no row for position {end - 1}"
            is_sampled = end == self.num_tokens[name]
            self.num_tokens[name] += is_sampled
            sampled.append([7] if is_sampled else [])
        return ModelRunnerOutput(names, {name: place for place, name in enumerate(names)}, sampled)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_blocks", [64, 8], ids=["roomy", "pressed"])
def test_no_step_is_planned_without_its_row_and_all_requests_end(make, num_blocks, seed):
    scheduler, draw = make(num_blocks), random.Random(seed)
    names = [str(number) for number in range(6)]
    talker, rows_to_come = Talker(names), {name: draw.randrange(1, 2 * MAX_TOKENS) for name in names}
    for name in names:
        params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
        scheduler.add_request(Request(name, [0] * NUM_PROMPT, params, None))
        scheduler.expect_embeds(name, NUM_PROMPT)
    under_way: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
    num_stalls = 0
    while scheduler.requests:
        stalled = scheduler.is_stalled
        num_stalls += stalled
        hungry = [name for name in names if rows_to_come[name]]
        if hungry and (stalled or draw.random() < 0.3):
            name = draw.choice(hungry)
            rows_to_come[name] -= 1
            scheduler.append_embeds(name, torch.zeros(1, 4), is_last=not rows_to_come[name])
        else:
            assert not stalled, "nothing runs, and nothing more will come"
        planned = scheduler.schedule()
        under_way.append((planned, talker.run(planned)))
        if len(under_way) == STEPS_UNDER_WAY:
            scheduler.update_from_output(*under_way.popleft())
    assert talker.num_tokens == dict.fromkeys(names, NUM_PROMPT + MAX_TOKENS)
    assert num_stalls > 0
