"""The folder of video jobs: what it keeps, for how long, and what a restart finds."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omni_cli.core.errors import OmniError, OutputError, UsageError
from omni_cli.serve.errors import APIError
from omni_cli.serve.limits import Limits
from omni_cli.serve.video_jobs import JobError, VideoStore

LIMITS = Limits(max_videos=4, max_videos_bytes=100, max_videos_age_s=60)
FAILURE = JobError("stage_failed", "it failed")


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., VideoStore]]:
    """`open_store()` -> a store in the same folder each time, after the one before has been closed."""
    opened: list[VideoStore] = []

    def open_store(limits: Limits = LIMITS) -> VideoStore:
        for store in opened:
            store.close()
        opened.append(VideoStore(tmp_path / "videos", limits, clock))
        assert opened[-1].open() == ()
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def add(store: VideoStore, prompt: str = "a cat") -> str:
    return store.add("tiny-video", prompt, seconds="auto", size="auto").id


def finish(store: VideoStore, job_id: str, num_bytes: int = 10) -> None:
    store.finish(job_id, b"x" * (num_bytes - 1), b"y", seconds="0.5", size="64x32")


def names(store: VideoStore) -> set[str]:
    return {path.name for path in store.folder.iterdir()} - {".omni-serve"}


def test_a_restart_finds_finished_jobs_and_reports_interrupted_ones_as_failed(open_store: Callable[..., VideoStore]):
    store = open_store()
    made, failed, running, queued = (add(store, prompt) for prompt in "abcd")
    finish(store, made)
    store.fail(failed, FAILURE)
    store.progress(running, 40)
    assert [job.status for job in store.jobs] == ["completed", "failed", "in_progress", "queued"]
    again = open_store()
    assert again.jobs[:2] == store.jobs[:2]
    assert (again.jobs[0].seconds, again.jobs[0].size, again.jobs[0].num_bytes) == ("0.5", "64x32", 10)
    for job_id in (running, queued):
        job = again.get(job_id)
        assert job is not None and job.status == "failed" and job.error is not None
        assert job.error.code == "server_stopped" and job.completed_at is not None
    assert again.path(made, "mp4").read_bytes() == b"x" * 9 and again.path(made, "webp").read_bytes() == b"y"
    assert again.jobs == open_store().jobs, "they stay failed"


def test_progress_never_goes_back_and_is_whole_only_at_the_end(open_store: Callable[..., VideoStore]) -> None:
    store = open_store()
    job_id = add(store)
    for percent, expected in ((10, 10), (5, 10), (100, 99)):
        store.progress(job_id, percent)
        assert store.jobs[0].progress == expected
    finish(store, job_id)
    store.progress(job_id, 50)
    store.fail(job_id, FAILURE)
    assert (store.jobs[0].status, store.jobs[0].progress) == ("completed", 100)


def test_the_oldest_that_have_ended_make_room(open_store: Callable[..., VideoStore]) -> None:
    store = open_store()
    running, failed, made, queued = (add(store) for _ in range(4))
    finish(store, made)
    store.fail(failed, FAILURE)
    fifth, sixth = add(store), add(store)
    assert [job.id for job in store.jobs] == [running, queued, fifth, sixth]
    assert names(store) == {f"{job_id}.json" for job_id in (running, queued, fifth, sixth)}
    with pytest.raises(APIError, match="all videos"):
        add(store)


def test_files_are_limited_together(open_store: Callable[..., VideoStore]) -> None:
    store = open_store()
    first, second, third = (add(store) for _ in range(3))
    finish(store, first, 40)
    finish(store, second, 60)
    assert store.num_bytes == 100
    finish(store, third, 50)
    assert [job.id for job in store.jobs] == [third] and store.num_bytes == 50
    fourth = add(store)
    with pytest.raises(OmniError, match="this server keeps"):
        finish(store, fourth, 101)
    assert store.path(third, "mp4").exists(), "nothing is removed for what does not fit at all"


def test_jobs_are_removed_some_time_after_their_end(open_store: Callable[..., VideoStore], clock: Clock) -> None:
    store = open_store()
    made, running = add(store), add(store)
    finish(store, made)
    expires_at = store.expires_at(store.jobs[0])
    assert expires_at is not None and store.jobs[0].completed_at is not None
    assert expires_at - store.jobs[0].completed_at == 60
    clock.now = expires_at - 5
    assert store.get(made) is not None
    clock.now = expires_at
    assert store.get(made) is None and names(store) == {f"{running}.json"}
    finish(store, running)
    clock.now += 100
    assert open_store().jobs == () and names(store) == set()


def test_pages(open_store: Callable[..., VideoStore]) -> None:
    store = open_store()
    ids = [add(store) for _ in range(4)]

    def page(after: str | None, limit: int, *, newest_first: bool) -> tuple[list[int], bool]:
        jobs, has_more = store.page(after, limit, newest_first=newest_first)
        return [ids.index(job.id) for job in jobs], has_more

    assert page(None, 3, newest_first=True) == ([3, 2, 1], True)
    assert page(ids[1], 3, newest_first=True) == ([0], False)
    assert page(None, 4, newest_first=False) == ([0, 1, 2, 3], False)
    store.remove(ids[2])
    assert page(ids[2], 2, newest_first=True) == ([1, 0], False), "a page continues after one that is gone"


def test_one_removed_while_it_is_made_stays_removed(open_store: Callable[..., VideoStore]) -> None:
    store = open_store()
    job_id = add(store)
    store.remove(job_id)
    finish(store, job_id)
    store.progress(job_id, 10)
    store.fail(job_id, FAILURE)
    assert store.jobs == () and names(store) == set()


def test_what_a_killed_server_left_behind(open_store: Callable[..., VideoStore]) -> None:
    store = open_store()
    made = add(store)
    finish(store, made)
    lost = f"video_{0:032x}"
    ours = [f"{lost}.mp4", f"{lost}.webp", ".omni-0123456789abcdef.tmp"]
    others = ["notes.txt", "video_1.mp4", f"{lost}.mp4.part"]
    for name in (*ours, *others):
        (store.folder / name).write_bytes(b"x")
    open_store()
    assert names(store) == {f"{made}.json", f"{made}.mp4", f"{made}.webp", *others}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": 1}', b"\xff", None])
def test_a_record_that_cannot_be_read_is_named_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
    store = VideoStore(tmp_path, LIMITS)
    store.open()
    made = add(store)
    finish(store, made)
    store.close()
    other = f"video_{1:032x}"
    content = (tmp_path / f"{made}.json").read_bytes() if content is None else content
    for name in (f"{other}.json", f"{other}.mp4"):
        (tmp_path / name).write_bytes(content)
    again = VideoStore(tmp_path, LIMITS)
    assert again.open() == (f"{other}.json",)
    again.close()
    assert [job.id for job in again.jobs] == [made]
    assert (tmp_path / f"{other}.mp4").read_bytes() == content


def test_two_servers_do_not_share_a_folder(open_store: Callable[..., VideoStore]) -> None:
    store = open_store()
    job_id = add(store)
    with pytest.raises(UsageError, match="another server keeps its videos in"):
        VideoStore(store.folder, LIMITS).open()
    assert store.jobs[0].id == job_id and store.jobs[0].status == "queued"


@pytest.mark.parametrize("folder", ["/proc/videos", "/dev/null/videos", "/proc"])
def test_a_folder_that_cannot_be_written(folder: str) -> None:
    with pytest.raises(OutputError, match=f"cannot write `{folder}`") as caught:
        VideoStore(Path(folder), LIMITS).open()
    assert caught.value.hint is not None and "--output-dir" in caught.value.hint


def test_a_full_folder(open_store: Callable[..., VideoStore], tmp_path: Path) -> None:
    """As on a full disk, writes fail halfway: nothing is left of them, and a job that cannot be recorded is refused."""
    store = open_store()
    job_id = add(store)
    before = names(store)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            finish(store, job_id, 50)
        with pytest.raises(OSError, match="File too large"):
            add(store)
        with pytest.raises(OutputError, match="File too large"):
            VideoStore(tmp_path / "new", LIMITS).open()
        store.fail(job_id, FAILURE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert names(store) == before
    assert os.listdir(tmp_path / "new") == [".omni-serve"]  # noqa: PTH208 - names, not paths
    assert [job.error for job in store.jobs] == [FAILURE]
    assert [job.status for job in open_store().jobs] == ["failed"]
