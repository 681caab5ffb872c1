"""The diffusers stage as its process drives it: aborts between batches and in the middle of one."""

from __future__ import annotations

import pytest
from support.stage_specs import get_spec, step_outputs

from omni_cli.backends.diffusers.stage import DiffusersStage
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import Progress, RequestDone
from omni_cli.stage.protocol import StageSpec


@pytest.fixture(scope="module")
def spec() -> StageSpec:
    stage = DiffusionStageConfig.create("image", height=64, width=64, num_inference_steps=6)
    return get_spec(stage, resolve_model("builtin:tiny-image"))


def test_an_interrupt_leaves_a_running_batch_at_the_next_step(spec):
    reports = []

    def emit(report):
        reports.append(report)
        # As the thread that reads commands does when an abort arrives.
        stage.interrupt("gone")

    stage = DiffusersStage(spec, emit)
    stage.add(GenerateRequest("gone", prompt="a red kite"))
    assert stage.step() == []
    assert [type(report) for report in reports] == [Progress]
    assert not stage.has_work()

    stage.add(GenerateRequest("next", prompt="a red kite"))
    (done,) = stage.step()
    assert isinstance(done, RequestDone) and done.images
    stage.close()


def test_an_interrupt_that_comes_before_the_executor_has_the_batch_is_not_lost(spec):
    reports = []
    stage = DiffusersStage(spec, reports.append)
    stage.add(GenerateRequest("gone", prompt="a red kite"))
    stage.interrupt("gone")
    assert stage.step() == reports == []
    assert not stage.has_work()

    stage.abort("gone")
    stage.add(GenerateRequest("gone", prompt="another one, of the same name"))
    (done,) = stage.step()
    assert isinstance(done, RequestDone) and len(reports) == 6
    stage.close()


def test_a_request_is_reported_when_it_is_done_while_others_of_its_batch_run(spec):
    reports = []
    stage = DiffusersStage(spec, reports.append)
    for name in ("a", "b", "c"):
        stage.add(GenerateRequest(name, prompt="snow"))
    reports += stage.step()
    ended = [number for number, report in enumerate(reports) if isinstance(report, RequestDone)]
    assert [reports[number].request_id for number in ended] == ["a", "b", "c"]
    for end, name in zip(ended, "bc", strict=False):
        assert reports[end + 1] == Progress(name, 1, reports[end + 1].total, "step")
    stage.close()


def test_an_abort_drops_a_waiting_request_and_leaves_the_others(spec):
    emitted: list[object] = []
    stage = DiffusersStage(spec, emitted.append)
    for name in ("a", "b", "c"):
        stage.add(GenerateRequest(name, prompt="snow"))
    stage.abort("b")
    stage.abort("never heard of")
    assert [report.request_id for report in step_outputs(stage, emitted)] == ["a", "c"]
    assert not stage.has_work() and not stage.waiting
    stage.close()
