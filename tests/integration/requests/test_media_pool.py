"""Media are decoded by processes that a hostile file can at worst end, and nobody else waits for that."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from support.media_samples import clip, write_lossless

from omni_cli.core.errors import InputError, OmniError
from omni_cli.requests.media import reading
from omni_cli.requests.media.reading import MediaPool, Requester, in_memory, media_pool
from omni_cli.requests.media.worker import ImageJob, VideoJob, receive

WAIT_S = 60.0


@pytest.fixture
def pool() -> Iterator[MediaPool]:
    media_pool().end_all()  # whose workers earlier tests of this process left
    pool = MediaPool()
    yield pool
    pool.end_all()
    assert not workers()


def workers() -> list[psutil.Process]:
    processes = psutil.process_iter(["ppid", "cmdline"])
    ours = [process for process in processes if process.info["ppid"] == os.getpid()]
    return [process for process in ours if "omni_cli.requests.media.worker" in (process.info["cmdline"] or ())]


def encoded(pixels: np.ndarray, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


SMALL = encoded(np.arange(48, dtype=np.uint8).reshape(4, 4, 3), "PNG")


def decode(pool: MediaPool, content: bytes, requester: Requester | None = None, **fields) -> np.ndarray:
    with in_memory(content) as file:
        found = pool.decode(ImageJob("image", **{"max_pixels": 2**26, **fields}), file, requester)
    assert found is not None
    return found[1]


def wait_for(condition) -> None:
    latest = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.01)


@pytest.fixture
def stopped(pool: MediaPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Workers that stop as soon as they are started, as if their decoders never ended, until the event is set."""
    resume, start = threading.Event(), subprocess.Popen

    def popen(*args, **kwargs) -> subprocess.Popen:
        process = start(*args, **kwargs)
        if not resume.is_set():
            os.kill(process.pid, signal.SIGSTOP)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    yield resume
    pool.end_all()


def test_a_worker_decodes_one_medium_after_another(pool: MediaPool) -> None:
    assert decode(pool, SMALL).tolist() == np.arange(48).reshape(4, 4, 3).tolist()
    (worker,) = workers()
    with pytest.raises(InputError, match="cannot read the image"):
        decode(pool, b"no image")
    decode(pool, SMALL)
    assert workers() == [worker]


def test_the_limit_of_processor_time(pool: MediaPool) -> None:
    """Noise in a progressive JPEG, whose scans come eight times: twice the second that the smallest limit leaves."""
    noise = np.random.default_rng(0).integers(0, 256, (3000, 3000, 3), np.uint8)
    once = encoded(noise, "JPEG", quality=95, progressive=True)
    frame, tables, end = b"\xff\xc2", b"\xff\xc4", b"\xff\xd9"
    scans = once.index(tables, once.index(frame))
    content = once[:scans] + once[scans : -len(end)] * 8 + end
    with pytest.raises(InputError, match="the image takes longer than 0 s to decode"):
        decode(pool, content, max_pixels=2**27, max_cpu_s=0)
    decode(pool, SMALL)


def test_a_start_is_not_part_of_the_time_to_decode(pool: MediaPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a process may need minutes for its imports; later imports are not part of it, either."""
    limits: list[float | None] = []

    def noted(channel: socket.socket) -> bytes:
        limits.append(channel.gettimeout())
        return receive(channel)

    monkeypatch.setattr(reading, "receive", noted)
    decode(pool, SMALL)
    assert limits == [300.0, 6.0 * (1 + 10)]
    assert resource.prlimit(workers()[0].pid, resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY


def test_a_process_that_does_not_start_is_no_fault_of_the_medium(
    pool: MediaPool, stopped: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_START_S", 0.1)
    with pytest.raises(OmniError, match="the process that decodes media could not start") as caught:
        decode(pool, SMALL)
    assert not isinstance(caught.value, InputError)


def test_the_limit_of_memory() -> None:
    program = (
        "import numpy as np\n"
        "from omni_cli.requests.media import worker\n"
        "job = worker.ImageJob('image', 2**20)\n"
        "worker._limit(job)\n"
        "np.ones(job.max_bytes // 2, np.uint8)\n"
        "np.ones(job.max_bytes, np.uint8)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "MemoryError" in ended.stderr and "line 6" in ended.stderr


def test_a_decoder_that_crashes_fails_its_own_medium(pool: MediaPool, stopped: threading.Event) -> None:
    with ThreadPoolExecutor() as threads:
        crashing = threads.submit(decode, pool, SMALL)
        wait_for(workers)
        stopped.set()
        worker = workers()[0]
        worker.send_signal(signal.SIGSEGV)
        with contextlib.suppress(psutil.NoSuchProcess):  # it was not stopped yet
            worker.resume()
        with pytest.raises(InputError, match="cannot read the image: its decoder ended with signal 11"):
            crashing.result(WAIT_S)
    decode(pool, SMALL)


def test_an_idle_worker_that_was_killed_is_replaced(pool: MediaPool) -> None:
    decode(pool, SMALL)
    (worker,) = workers()
    worker.kill()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # its first thread may end before the others
    decode(pool, SMALL)


def test_a_cancelled_requester_ends_its_decoding(pool: MediaPool, stopped: threading.Event) -> None:
    hanging, waiting = Requester(), Requester()
    with ThreadPoolExecutor(16) as threads:
        futures = [threads.submit(decode, pool, SMALL, hanging) for _ in range(8)]
        wait_for(lambda: len(workers()) >= 4)
        last = threads.submit(decode, pool, SMALL, waiting)
        stopped.set()
        pool.cancel(hanging)
        for future in futures:
            with pytest.raises(OmniError):
                future.result(WAIT_S)
        last.result(WAIT_S)
    with pytest.raises(OmniError, match="cancelled"):
        decode(pool, SMALL, hanging)


def test_images_do_not_wait_for_videos(pool: MediaPool, stopped: threading.Event) -> None:
    requester = Requester()

    def video() -> object:
        with in_memory(write_lossless(clip(0))) as file:
            return pool.decode(VideoJob("video", 2**26, 600.0, None), file, requester)

    with ThreadPoolExecutor(8) as threads:
        videos = [threads.submit(video) for _ in range(8)]
        wait_for(lambda: len(workers()) == 2)
        stopped.set()
        decode(pool, SMALL)
        pool.cancel(requester)
        assert all(isinstance(future.exception(WAIT_S), OmniError) for future in videos)


def test_a_flood_of_media_is_decoded_by_few_processes(pool: MediaPool) -> None:
    with ThreadPoolExecutor(32) as threads:
        for pixels in threads.map(lambda _: decode(pool, SMALL), range(64)):
            assert pixels.shape == (4, 4, 3)
    assert len(workers()) <= 2


def test_workers_end_with_a_killed_command(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from omni_cli.requests.media.reading import load_image\n"
        "load_image(pathlib.Path(sys.argv[1]), print)\n"
        "print('decoded', flush=True)\n"
        "time.sleep(600)\n"
    )
    (tmp_path / "a.png").write_bytes(SMALL)
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "a.png"], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None and command.stdout.readline() == b"decoded\n"
        children = psutil.Process(command.pid).children()
        command.kill()
    assert len(children) == 1
    _, alive = psutil.wait_procs(children, WAIT_S)
    assert not alive
