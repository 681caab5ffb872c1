"""Traces read back: operators in their modules and ranges, allocations, and all stages' traces as one."""

from __future__ import annotations

import gzip
import json
import mmap
from pathlib import Path
from typing import Any

import pytest

from omni_cli.backends.execution.ranges import listen, mark
from omni_cli.core.errors import OutputError
from omni_cli.engine.recording.recorder import RangeLog
from omni_cli.measure.bench.iteration import Iteration
from omni_cli.measure.profiling.activity import get_waits, launch_gaps, measure_activity
from omni_cli.measure.profiling.chrome_trace import merged_trace
from omni_cli.measure.profiling.memory import added_by_step, stage_memory
from omni_cli.measure.profiling.operators import (
    TraceFile,
    get_copies,
    kernel_name,
    operator_times,
    read_operators,
    read_trace,
)
from omni_cli.measure.profiling.session import Profiled
from omni_cli.stage.recording import MemoryReading, Range, Recording, RequestSpan, StageDescription

MS = 10**6
MIB = 2**20


def op(name: str, begin_us: float, end_us: float, tid: int = 7, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": tid, "ts": begin_us, "dur": end_us - begin_us,
        "args": {"External id": int(begin_us), **args},
    }  # fmt: skip


def allocation(at_us: float, address: int, num_bytes: int) -> dict[str, Any]:
    args = {"Bytes": num_bytes, "Addr": address, "Device Type": 0}
    return {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": 7, "tid": 7, "ts": at_us, "args": args}


def write(path: Path, events: list[dict[str, Any]]) -> TraceFile:
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    return read_trace(path, "image")


def recording(*ranges: Range, cpu_ns: int = 0) -> Recording:
    return Recording(0, 10 * MS, (RequestSpan("0", 0, 10 * MS),), ranges, (), cpu_ns, None)


STEPS = recording(Range("engine step", 0, 10 * MS, 0), Range("vae decode", 4 * MS, 10 * MS, 1), cpu_ns=12 * MS)

# 1 ms to 3 ms in the first range; a convolution with a copy inside it in the second.
EVENTS = [
    op("module vae", 4_000, 9_000),
    op("module vae.blocks.3.conv", 5_000, 8_500),
    op("aten::conv2d", 5_000, 8_000),
    op("aten::contiguous", 5_000, 6_000),
    op("aten::copy_", 5_500, 6_000, 7, **{"Input Dims": [[4, 256], []], "Input type": ["float", ""]}),
    op("aten::add", 1_000, 3_000),
    op("aten::add", 1_000, 3_000, tid=8),
    allocation(1_500, 1, 4 * MIB),
    allocation(5_200, 2, 200 * MIB),
    allocation(7_000, 2, -200 * MIB),
    allocation(8_000, 3, 16 * MIB),
]


@pytest.fixture
def operators(tmp_path: Path):
    return read_operators(write(tmp_path / "trace.json", EVENTS), STEPS)


def description(device: str = "cpu") -> StageDescription:
    return StageDescription(
        device=device, dtype="float32", num_threads=2, ranks_elsewhere=0, marks_modules=True,
        load=recording(), residents=(),
    )  # fmt: skip


def test_operators_know_their_module_range_and_own_time(operators) -> None:
    found = {call.event.name: call for call in operators.calls}
    assert set(found) == {"aten::add", "aten::conv2d", "aten::contiguous", "aten::copy_"}, "modules are no operators"
    copy, conv = found["aten::copy_"], found["aten::conv2d"]
    assert (copy.module, copy.outermost, copy.self_ns) == ("vae.blocks.3.conv", "aten::conv2d", 500_000)
    assert (conv.self_ns, conv.top, copy.top) == (2 * MS, None, conv)
    assert (found["aten::add"].module, found["aten::add"].range_index, conv.range_index) == (None, 0, 1)
    assert sum(call.self_ns for call in operators.calls) == 5 * MS, "each moment counts once"


def test_operators_are_grouped_by_kind_of_module(operators) -> None:
    rows = {(row.module, row.operator): row for row in operator_times([operators])}
    assert rows["vae.blocks.*.conv", "aten::conv2d"].seconds == pytest.approx(0.002)
    assert rows["(outside modules)", "aten::add"].fraction == pytest.approx(0.4)


def test_copies_are_named_by_where_they_come_from(operators) -> None:
    (place,) = get_copies([operators], [{"copies": 2, "copied_bytes": 24, "copy_hidden_s": 0.5}]).places
    assert (place.range, place.operator, place.module) == ("vae decode", "aten::conv2d", "vae.blocks.*.conv")
    assert (place.calls, place.copied_bytes, place.seconds) == (1, 4096, pytest.approx(0.0005))


def test_activity_of_a_cpu_adds_up(operators) -> None:
    activity = measure_activity([operators], description())
    assert activity.busy_fraction == pytest.approx(0.6), "12 ms of two threads' 20"
    assert sum(activity.idle_s.values()) == pytest.approx(activity.capacity_s - activity.busy_s)
    assert activity.idle_s["between operators"] == pytest.approx(0.005), "the other thread, while one prepares"
    gaps = launch_gaps([operators], description())
    assert (gaps.count, gaps.total_s, gaps.largest_s) == (3, pytest.approx(0.005), pytest.approx(0.002))
    assert gaps.fraction_of_steps == pytest.approx(0.5)


def test_activity_of_a_device_is_when_its_kernels_run(tmp_path: Path) -> None:
    kernels = [
        {
            "ph": "X", "cat": "kernel", "name": f"void ns::k<{n}>(int)", "pid": 0, "tid": 3, "ts": begin, "dur": 1_000,
            "args": {"External id": 1_000},
        }
        for n, begin in enumerate((2_000, 2_500, 6_000))
    ]  # fmt: skip
    copied = {
        "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "pid": 0, "tid": 4, "ts": 6_500, "dur": 200,
        "args": {"bytes": 64, "External id": 5_000},
    }  # fmt: skip
    waits = [
        {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 7, "tid": 7, "ts": at, "dur": 9, "args": args}
        for name, at, args in (
            ("cudaStreamSynchronize", 1_500, {"External id": 1_000}),
            ("cudaStreamSynchronize", 9_000, {"External id": 1_000}),
            ("cudaLaunchKernel", 1_600, {"External id": 1_000}),
            ("cudaDeviceSynchronize", 7_000, {}),
        )
    ]
    trace = write(tmp_path / "trace.json", [op("aten::add", 1_000, 3_000), *kernels, copied, *waits])
    operators = read_operators(trace, recording(Range("engine step", 0, 8 * MS, 0)))
    activity = measure_activity([operators], description("cuda"))
    assert activity.busy_s == pytest.approx(0.0025) and activity.window_s == pytest.approx(0.010)
    assert activity.idle_s == pytest.approx({"between operators": 0.0055, "between steps": 0.002})
    assert operator_times([operators])[0].operator == "aten::add", "the operator that launched them"
    assert get_waits([operators]) == {"aten::add": 1, "cudaDeviceSynchronize": 1}, "those within the step"
    (place,) = get_copies([operators], []).places
    assert (place.operator, place.copied_bytes) == ("Memcpy DtoH", 64)


def test_names_of_kernels_without_their_arguments() -> None:
    assert kernel_name("void at::native::(anonymous namespace)::norm<float>(int)") == "at::native::norm"
    assert kernel_name("sgemm_128") == "sgemm_128"


def test_memory_at_the_peak_and_by_phase(operators) -> None:
    samples = tuple(MemoryReading(at * MS, 100 * MIB + (200 * MIB if at == 5 else 0)) for at in range(10))
    request = Recording(0, 10 * MS, STEPS.requests, STEPS.ranges, samples, 0, None)
    quiet = Recording(0, MS, (), (), (MemoryReading(0, 90 * MIB),), 0, None)
    described = description()
    described = StageDescription(
        **{name: getattr(described, name) for name in described.__struct_fields__} | {"load": quiet}
    )
    memory = stage_memory(described, quiet, request, [operators], None)
    assert (memory.peak_bytes, memory.peak_phase) == (300 * MIB, "vae decode")
    phases = {phase.name: phase for phase in memory.phases}
    assert phases["vae decode"].added_bytes == 200 * MIB
    assert phases["engine step"].added_bytes == 4 * MIB, "without what is added in the range within"
    assert phases["first request"].peak_host_rss_bytes == 90 * MIB
    largest, other = memory.largest
    assert (largest.size_bytes, largest.where) == (200 * MIB, "vae decode: vae.blocks.3.conv (aten::conv2d)")
    assert (other.size_bytes, other.where) == (4 * MIB, "engine step (aten::add)")
    assert added_by_step(operators, "cpu") == [204 * MIB], "one step of the engine"


def test_a_range_is_a_phase_however_short_it_is() -> None:
    log = RangeLog()
    log.start()
    listen(log)
    kept = []
    with mark("engine step"):
        for number in range(20):
            with mark("nothing", number):
                pass
            with mark("holds", number):
                kept.append(mmap.mmap(-1, MIB))
                kept[-1].write(bytes(MIB))
    listen(None)
    request = log.stop()
    phases = {phase.name: phase for phase in stage_memory(description(), request, request, [], None).phases}
    assert {f"nothing {number}" for number in range(20)} | {f"holds {number}" for number in range(20)} < set(phases)
    for number in range(20):
        assert phases[f"holds {number}"].added_bytes >= 0.9 * MIB, "as soon as it ends, and not what comes after it"
        assert phases[f"nothing {number}"].added_bytes <= 0.1 * MIB
    for held in kept:
        held.close()


@pytest.mark.parametrize("content", ["", '{"traceEvents": [{"ph": "X"', "[]"])
def test_a_trace_that_is_cut_off_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(OutputError, match="could not save the trace of stage `image`"):
        read_trace(path, "image")


def test_one_trace_of_all_stages(tmp_path: Path) -> None:
    """Stages with the same process numbers stay apart, and requests that overlap get tracks of their own."""
    overlapping = Recording(
        0, 10 * MS, (RequestSpan("0", 0, 5 * MS), RequestSpan("1", MS, 6 * MS)), STEPS.ranges, (), 0, None
    )
    later = Recording(0, 20 * MS, (RequestSpan("0", 7 * MS, 9 * MS),), (), (), 0, None)
    profiled = Profiled(0, Iteration(0.01, (), ()), {"a": overlapping, "b": later}, {}, {})
    flow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 5, "pid": 7, "tid": 7, "ts": 5_000}
    own = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 0, "dur": 1}
    trace = write(tmp_path / "trace.json", [*EVENTS, flow, own])
    document = json.loads(gzip.decompress(merged_trace([profiled], {0: {"a": trace, "b": trace}})))
    events = document["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(names.values()) == {"iterations", "a", "a: requests", "a: requests 2", "b: requests", "connectors"}
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert len(processes) == 3 and processes[0] == "omni"
    assert len({e["id"] for e in events if e["ph"] == "s"}) == 2
    assert not any(e["name"] == "PyTorch Profiler (0)" for e in events)
    (connector,) = (e for e in events if e["name"] == "a -> b")
    assert (connector["ts"], connector["dur"]) == (5_000, 2_000)
    conv = [e for e in events if e["name"] == "aten::copy_"]
    assert len(conv) == 2 and conv[0]["args"]["Input Dims"] == [[4, 256], []]
