"""Tasks on threads of their own."""

from __future__ import annotations

import threading

import pytest
import torch

from omni_cli.backends.execution.ranges import listen, mark
from omni_cli.backends.execution.worker_pool import WorkerPool
from omni_cli.engine.recording.recorder import RangeLog

pytestmark = [pytest.mark.usefixtures("num_threads"), pytest.mark.parametrize("num_threads", [4], indirect=True)]


def where() -> tuple[int, int]:
    """The thread of a task, and its number of torch's threads."""
    return threading.get_ident(), torch.get_num_threads()


def test_tasks_run_at_the_same_time_and_share_the_threads_of_the_caller():
    meeting = threading.Barrier(2, timeout=60)

    def task() -> tuple[int, int, bool]:
        meeting.wait()
        return *where(), torch.is_inference_mode_enabled()

    workers: WorkerPool[tuple[int, int, bool]] = WorkerPool(4)
    for is_inference in (True, False):
        with torch.inference_mode(is_inference):
            workers.start([task, task])
        workers.wait_for_all()
        (here, *of_first), (there, *of_second) = workers.finished()
        assert of_first == of_second == [2, is_inference]
        assert len({here, there, threading.get_ident()}) == 3
    assert torch.get_num_threads() == 4


def test_a_single_task_and_those_of_a_single_worker_have_all_threads():
    several: WorkerPool[tuple[int, int]] = WorkerPool(4)
    several.start([where])
    ((_, num_threads),) = several.finished()
    assert num_threads == 4
    one: WorkerPool[tuple[int, int]] = WorkerPool(1)
    one.start([where, where])
    assert one.finished() == [(threading.get_ident(), 4)] * 2, "in the caller's thread"
    assert one.finished() == []


def test_a_task_that_ends_is_returned_and_another_starts_while_the_first_goes_on():
    release = threading.Event()

    def lasts() -> str:
        assert release.wait(60)
        return "lasts"

    workers: WorkerPool[str] = WorkerPool(2)
    workers.start([lasts, lambda: "short"])
    assert workers.finished() == ["short"] and workers.num_idle == 1
    workers.start([lambda: f"short, {torch.get_num_threads()} threads"])
    assert workers.finished() == ["short, 2 threads"]
    release.set()
    assert workers.finished() == ["lasts"] and workers.num_idle == 2


def test_the_thread_whose_ranges_are_recorded_is_a_worker_while_they_are():
    log = RangeLog()
    log.start()
    listen(log)

    def task() -> int:
        with mark("task"):
            return threading.get_ident()

    workers: WorkerPool[int] = WorkerPool(2)
    try:
        workers.start([task, task])
        workers.wait_for_all()
        here, there = workers.finished()
    finally:
        listen(None)
    assert here == threading.get_ident() != there
    assert [each.name for each in log.stop().ranges] == ["task"], "of one worker, which is never idle"


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_is_raised_when_the_other_tasks_have_ended(failing, is_recorded, monkeypatch):
    monkeypatch.setattr("omni_cli.backends.execution.worker_pool.is_recorded", lambda: is_recorded)
    began, ended = threading.Event(), threading.Event()

    def fails() -> None:
        began.wait(60)
        raise ValueError("no")

    def lasts() -> None:
        began.set()
        # The other task fails meanwhile.
        for _ in range(100):
            torch.ones(100, 100) @ torch.ones(100, 100)
        ended.set()

    tasks = [lasts, lasts]
    tasks[failing] = fails
    workers: WorkerPool[None] = WorkerPool(2)
    workers.start(tasks)
    with pytest.raises(ValueError, match="no"):
        while True:
            workers.finished()
    assert ended.is_set() and workers.num_idle == 2 and torch.get_num_threads() == 4
