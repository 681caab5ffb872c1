"""Killed and hung stages: only their own requests fail, and they restart."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.omni_server import CHAT, IMAGES, Answer, OmniServer

HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
SPOKEN = {**HELLO, "modalities": ["text", "audio"], "audio": {"format": "pcm16"}}


@pytest.fixture(scope="module")
def mortal(start_server: Any) -> OmniServer:
    return start_server()


@pytest.fixture(scope="module")
def hanging(start_server: Any) -> OmniServer:
    return start_server("--profile", "tiny-image", "--hang-timeout", "3")


def stage_process(server: OmniServer, index: int) -> psutil.Process:
    return server.stage_processes()[index]


def check_unavailable(answer: Answer) -> None:
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.error["code"] == "engine_unavailable"
    assert "Traceback" not in answer.error["message"] and "/" not in answer.error["message"]


def test_a_killed_talker_takes_only_its_own_requests_with_it(mortal: OmniServer) -> None:
    _, talker, _ = mortal.stage_processes()
    with ThreadPoolExecutor(8) as pool:
        spoken = [pool.submit(mortal.request, "POST", CHAT, SPOKEN) for _ in range(4)]
        mortal.wait_until(lambda: mortal.metric("omni_requests_in_flight") >= 4)
        mortal.wait_until(lambda: sum(talker.cpu_times()[:2]) > 0.5)
        talker.kill()
        mortal.wait_until(lambda: not mortal.is_ready())
        ready = mortal.request("GET", "/ready")
        if ready.status == 503:
            assert ready.document["stages"]["talker"] == "failed"
        # Text needs no talker.
        text = mortal.request("POST", CHAT, HELLO)
        assert text.status == 200
        check_unavailable(mortal.request("POST", CHAT, SPOKEN))
        for answer in spoken:
            check_unavailable(answer.result())
    mortal.wait_until(mortal.is_ready)
    assert mortal.request("POST", CHAT, SPOKEN).status == 200
    (lost,) = mortal.log("stage_lost")
    assert lost["stage"] == "talker" and "SIGKILL" in lost["reason"]
    assert mortal.metric("omni_stage_restarts_total", stage="talker") == 1


@pytest.mark.nightly
def test_the_same_stage_may_die_again(mortal: OmniServer) -> None:
    for index in (0, 1):
        name = ("thinker", "talker")[index]
        before = mortal.metric("omni_stage_restarts_total", stage=name)
        # The order of the processes is that of their start, which a restart changes.
        victim = mortal.stage_processes()[0]
        victim.kill()
        mortal.wait_until(lambda: not mortal.is_ready())
        mortal.wait_until(mortal.is_ready)
        assert mortal.metric("omni_stage_restarts_total", stage=name) >= before
        assert mortal.request("POST", CHAT, SPOKEN).status == 200


def test_a_hanging_stage_is_replaced(hanging: OmniServer) -> None:
    (stage,) = hanging.stage_processes()
    stage.send_signal(signal.SIGSTOP)
    # The server itself goes on answering, also where the pipe to the stage is full.
    with ThreadPoolExecutor(4) as pool:
        stuck = [pool.submit(hanging.request, "POST", IMAGES, {"prompt": "x" * 150_000}) for _ in range(4)]
        hanging.wait_until(lambda: hanging.metric("omni_requests_in_flight") == 4, timeout_s=2)
        for answer in stuck:
            check_unavailable(answer.result())
    hanging.wait_until(hanging.is_ready)
    assert hanging.request("POST", IMAGES, {"prompt": "x"}).status == 200
    (lost,) = hanging.log("stage_lost")
    assert "no progress on its requests for 3 s" in lost["reason"]
    assert stage.pid not in [process.pid for process in hanging.stage_processes()]


def test_an_idle_stage_is_not_considered_hung(hanging: OmniServer) -> None:
    import time

    before = [process.pid for process in hanging.stage_processes()]
    time.sleep(4)
    assert hanging.request("POST", IMAGES, {"prompt": "x"}).status == 200
    assert [process.pid for process in hanging.stage_processes()] == before


@pytest.mark.nightly
def test_a_stage_that_hangs_while_it_is_loaded_again(start_server: Any, tmp_path: Path) -> None:
    when = tmp_path / "hang now"
    environment = {"PLANTED_FAULT": "hang@load weights@image", "PLANTED_WHEN": str(when)}
    limit = ("--set", "image.load_timeout_s=25")
    server = start_server("--profile", "tiny-image", *limit, planted="planted_faults", environment=environment)
    when.touch()
    stage_process(server, 0).kill()
    server.wait_until(lambda: server.log("stage_not_started"))
    assert "not loaded after 2" in server.log("stage_not_started")[0]["reason"]
    when.unlink()
    server.wait_until(server.is_ready)
    assert server.request("POST", IMAGES, {"prompt": "x"}).status == 200
    for stacks in server.process.temporary.glob("omni-image-stacks-*"):
        stacks.unlink()
