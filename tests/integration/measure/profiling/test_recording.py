"""Recording inside a stage's process, on small modules in this one."""

from __future__ import annotations

import json
import mmap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from omni_cli.backends.execution.modes import make_execution_mode
from omni_cli.backends.execution.precision import OneDnnLinear
from omni_cli.backends.execution.ranges import listen, mark, request_began, request_ended
from omni_cli.backends.execution.worker_pool import WorkerPool
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
from omni_cli.engine.recording.recorder import RangeLog
from omni_cli.engine.recording.target import get_residents
from omni_cli.engine.recording.tracer import ModuleMarks, Tracer, WorkCounter, measure_rates
from omni_cli.measure.profiling.activity import get_waits
from omni_cli.measure.profiling.operators import read_operators, read_trace

MIB = 2**20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.conv = nn.Conv1d(8, 4, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        x = self.conv(x.transpose(1, 2))
        return nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])


@pytest.fixture
def model() -> Model:
    return Model().eval()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_work_is_counted_by_module(model: Model, mode) -> None:
    x = torch.randn(2, 5, 8)
    with mode():
        expected = model(x)
        counter = WorkCounter({"model": model})
        counter.start()
        counted = model(x)
        parts, unknown = counter.stop()
    assert torch.equal(counted, expected), "counting changes nothing"
    found = {part.module: part for part in parts}
    up = found["model.blocks.*.up"]
    assert (up.calls, up.flops) == (3, 3 * 2 * 10 * 8 * 16)
    assert up.moved_bytes == 3 * 4 * (10 * 8 + 8 * 16 + 10 * 16), "inputs, weights and outputs, once"
    assert found["model.conv"].flops == 2 * 2 * 4 * 5 * 8 * 3
    assert found["model"].flops == 2 * 2 * 2 * 4 * 4 * 5, "attention: two products of (4, 5) with (5, 4), twice"
    assert unknown == ()


def test_products_of_onednn_and_tasks_of_workers_are_counted_as_others_are(model: Model) -> None:
    layer = model.blocks[0].up
    packed: Any = OneDnnLinear(layer)
    tasks = [partial(packed, torch.randn(5, 8)), partial(layer, torch.randn(5, 8))]
    with torch.inference_mode():
        counter = WorkCounter({"model": model})
        counter.start()
        WorkerPool(2).start(tasks)
        parts, unknown = counter.stop()
    assert sorted(part.module for part in parts) == ["(outside modules)", "model.blocks.*.up"]
    assert {part.flops for part in parts} == {2 * 5 * 8 * 16} and unknown == ()


def test_weights_are_listed_once_with_those_in_onednns_layout(model: Model) -> None:
    model.packed, model.tied = OneDnnLinear(model.blocks[0].up), nn.Linear(8, 16, bias=False)
    model.tied.weight = nn.Parameter(model.blocks[1].up.weight.detach())
    target: Any = SimpleNamespace(modules=lambda: {"model": model}, caches=lambda: iter(()))
    names = [resident.name.removeprefix("model.") for resident in get_residents(target)]
    assert "packed.weight" in names and "blocks.1.up.weight" in names and "tied.weight" not in names


def test_marks_of_modules_are_closed_after_an_error(model: Model) -> None:
    opened: list[str] = []
    entered: list[str] = []

    def enter(path: str) -> None:
        opened.append(path)
        entered.append(path)

    marks = ModuleMarks({"model": model}, enter, opened.pop)
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 5, 7))
    assert opened == []
    assert entered.pop() == "model.blocks.0.up"
    entered.clear()
    with ThreadPoolExecutor() as pool:
        pool.submit(model, torch.randn(2, 5, 8)).result()
    assert entered == [], "calls in other threads are not marked"
    marks.close()
    model(torch.randn(2, 5, 8))
    other = nn.Linear(2, 2)
    other(torch.randn(1, 2))
    assert opened == [], "no calls after the end, or for modules that are not the stage's"


def test_a_trace_with_ranges_modules_and_allocations(model: Model, tmp_path: Path) -> None:
    tracer, log = Tracer({"model": model}), RangeLog()
    tracer.start()
    log.start()
    listen(log)
    request_began("7")
    with mark("engine step"), torch.inference_mode(), mark("denoising step", 1):
        model(torch.randn(2, 5, 8))
        held = torch.ones(3 * MIB, dtype=torch.uint8)
    request_ended("7")
    listen(None)
    recording = log.stop()
    tracer.stop()
    tracer.write(tmp_path / "trace.json")
    assert [(item.name, item.depth) for item in recording.ranges] == [("engine step", 0), ("denoising step 1", 1)]
    (request,) = recording.requests
    step, denoising = recording.ranges
    assert request.began_ns <= step.began_ns <= denoising.began_ns < denoising.ended_ns <= step.ended_ns
    operators = read_operators(read_trace(tmp_path / "trace.json", "image"), recording)
    inside = [call for call in operators.calls if call.module == "model.blocks.1.up" and call.top is None]
    assert [call.event.name for call in inside] == ["aten::linear"]
    assert recording.ranges[inside[0].range_index].name == "denoising step 1", "both on one clock"
    largest = max(operators.allocations, key=lambda allocation: allocation.num_bytes)
    assert (largest.num_bytes, largest.operator) == (held.nbytes, "aten::ones")


def test_memory_and_processor_time_are_noted() -> None:
    log = RangeLog()
    log.start()
    listen(log)
    with mark("quiet"):
        # Long enough for a reading of the memory, even if the reading thread is late.
        time.sleep(0.5)
    with mark("vae decode"):
        until = time.process_time() + 0.5
        # Mapped here, because torch may reuse memory that this process already has.
        kept = mmap.mmap(-1, 64 * MIB)
        kept.write(bytes(64 * MIB))
        while time.process_time() < until:
            pass
    listen(None)
    recording = log.stop()
    kept.close()
    quiet, decode = recording.ranges
    levels = {
        item.name: [s.host_rss_bytes for s in recording.samples if item.began_ns <= s.at_ns <= item.ended_ns]
        for item in (quiet, decode)
    }
    assert max(levels["vae decode"]) - max(levels["quiet"]) > 60 * MIB
    assert 0.5e9 <= recording.cpu_ns < recording.ended_ns - recording.began_ns + 1e9
    assert recording.waited_ns is None or recording.waited_ns >= 0


def test_rates_of_this_machine() -> None:
    rates = measure_rates(torch.device("cpu"), torch.float32)
    assert rates.dtype == "float32"
    assert 1e8 < rates.flops_per_second < 1e14
    assert 1e8 < rates.copied_bytes_per_second < 1e13


def test_a_compiled_module_runs_eagerly_while_it_is_watched(model: Model) -> None:
    execution_mode = make_execution_mode(model, "compile", stage="image", device="cpu")
    replaced = model.forward
    compiled = [block.forward for block in model.blocks]
    with pytest.raises(ValueError), execution_mode.eagerly():
        model(torch.randn(1, 2, 8))
        assert execution_mode.counters.compiled_graphs == 0
        raise ValueError
    assert model.forward is replaced
    assert [block.forward for block in model.blocks] == compiled
    model(torch.randn(1, 2, 8))
    assert execution_mode.counters.compiled_graphs > 0, "compiled once it is no longer watched"
    execution_mode.close()


def test_a_trace_is_json_in_chromes_format(model: Model, tmp_path: Path) -> None:
    tracer = Tracer({})
    tracer.start()
    model(torch.randn(1, 2, 8))
    tracer.stop()
    tracer.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert not any(event["name"].startswith("module ") for event in events), "no marks were asked for"
    assert any(event["name"] == "aten::linear" for event in events)


@pytest.mark.parametrize(("name", "reads"), [("DDIMScheduler", True), ("FlowMatchEulerDiscreteScheduler", False)])
def test_numbers_that_a_step_reads_are_counted_by_step(tmp_path: Path, name: str, reads: bool) -> None:
    ensure_torchvision_importable()
    import diffusers

    scheduler = getattr(diffusers, name)()
    scheduler.set_timesteps(4)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)  # as pipelines do
    sample = torch.ones(1, 4, 8, 8)
    log, tracer = RangeLog(), Tracer({})
    tracer.start()
    log.start()
    listen(log)
    sample.sum().item()  # outside of the steps
    for number, timestep in enumerate(scheduler.timesteps):
        with mark("denoising step", number + 1):
            sample = scheduler.step(sample, timestep, sample, return_dict=False)[0]
    listen(None)
    recording = log.stop()
    tracer.stop()
    tracer.write(tmp_path / "trace.json")
    waits = get_waits([read_operators(read_trace(tmp_path / "trace.json", "image"), recording)])
    assert bool(waits) == reads, waits
    assert not reads or 1 <= sum(waits.values()) < 20, "per step, not in all"
