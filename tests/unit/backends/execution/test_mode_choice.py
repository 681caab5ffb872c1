"""The choice of an execution mode from measured times; those of an H200 are in milliseconds as measured there."""

from __future__ import annotations

import pytest

from omni_cli.backends.diffusers.execution import CallTime, choose_execution


def call(host_ms: float, total_ms: float) -> CallTime:
    return CallTime(host_ms / 1e3, total_ms / 1e3)


@pytest.mark.parametrize(
    ("eager", "compiled", "with_graphs", "chosen"),
    [
        pytest.param(call(40.88, 40.97), call(15.17, 15.23), True, "compile_cudagraph", id="1.4B-512"),
        pytest.param(call(40.88, 40.97), call(15.17, 15.23), False, "compile", id="1.4B-512-with-adapters"),
        pytest.param(call(143.13, 173.47), call(80.58, 134.73), True, "compile", id="20B-1024"),
        pytest.param(call(10.0, 50.0), call(9.0, 49.5), True, "eager", id="compiling-gains-nothing"),
        pytest.param(call(10.0, 10.0), call(10.0, 10.0), True, "compile_cudagraph", id="graphs-alone-gain"),
        pytest.param(call(10.0, 10.0), call(10.0, 10.0), False, "eager", id="graphs-alone-would-gain"),
    ],
)
def test_the_mode_follows_from_who_waits_for_whom(eager, compiled, with_graphs, chosen):
    mode, reason = choose_execution(eager, compiled, with_graphs=with_graphs)
    assert mode == chosen
    assert reason.startswith("a compiled call takes ") and reason.count(" ms") == 3


def test_the_reason_names_the_times():
    _, reason = choose_execution(call(143.13, 173.47), call(80.58, 134.73), with_graphs=True)
    assert reason == "a compiled call takes 135 ms, 80.6 ms of it on the host, an eager one 173 ms"
