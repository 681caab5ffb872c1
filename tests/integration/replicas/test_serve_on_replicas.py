"""`omni serve --replicas` on a Ray of its own: the same answers, also while a replica is killed and replaced."""

from __future__ import annotations

import base64
import hashlib
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from support.omni_server import CHAT, IMAGES, OmniServer

from omni_cli.encoding import encode_png
from omni_cli.outputs import GenerateRequest

NUM_REQUESTS = 12
STEPS = "image.num_inference_steps=12"
PROFILE = ("--profile", "tiny-image", "--set", STEPS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OmniServer]:
    server = OmniServer(tmp_path_factory.mktemp("server"), *PROFILE, "--replicas", "2")
    yield server
    server.process.popen.send_signal(signal.SIGTERM)
    ended = server.process.end()
    assert ended.code == 0, server.raw_log
    assert ended.leftovers == ()
    assert [line["event"] for line in server.log("stopped")] == ["stopped"], "and every line of the log is JSON"


@pytest.fixture(scope="module")
def alone(start_engine: Any) -> list[str]:
    """Digests of the images that one process makes."""
    requests = [GenerateRequest(str(number), f"image {number}", seed=number) for number in range(NUM_REQUESTS)]
    results = start_engine("tiny-image", STEPS).run_all(requests)
    return [digest(encode_png(result.outputs[0].pixels)) for result in results]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def image_from(server: OmniServer, number: int) -> str:
    answer = server.request("POST", IMAGES, {"prompt": f"image {number}", "seed": number})
    assert answer.status == 200, answer.body
    return digest(base64.b64decode(answer.document["data"][0]["b64_json"]))


def replicas(server: OmniServer) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if any("ServeReplica" in word for word in child.cmdline()[:1])]


def test_the_answers_are_those_of_one_process_and_both_replicas_work(server: OmniServer, alone: list[str]) -> None:
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        assert list(pool.map(lambda number: image_from(server, number), range(NUM_REQUESTS))) == alone
    assert len(replicas(server)) == 2
    assert server.metric("omni_engine_ready") == 1
    assert server.metric("omni_stage_peak_memory_bytes", where="host") > 0


@pytest.mark.nightly
def test_a_replica_that_is_killed_loses_nothing_and_is_replaced(server: OmniServer, alone: list[str]) -> None:
    killed = replicas(server)[0]
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        answers = [pool.submit(image_from, server, number) for number in range(NUM_REQUESTS)]
        time.sleep(0.3)
        killed.kill()
        assert [answer.result() for answer in answers] == alone
    server.wait_until(lambda: server.log("replicas"))
    assert server.log("replicas")[0]["up"] == 1
    assert server.request("GET", "/ready").status == 200, "one is enough"
    server.wait_until(lambda: server.log("replicas")[-1]["up"] == 2)
    assert killed.pid not in [process.pid for process in replicas(server)]
    assert image_from(server, 3) == alone[3]


@pytest.mark.nightly
def test_a_stage_that_is_killed_loses_nothing(server: OmniServer, alone: list[str]) -> None:
    server.wait_until(lambda: len(server.stage_processes()) == 2)
    known = len(server.log("replicas"))
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        answers = [pool.submit(image_from, server, number) for number in range(NUM_REQUESTS)]
        time.sleep(0.3)
        server.stage_processes()[0].kill()
        assert [answer.result() for answer in answers] == alone
    server.wait_until(lambda: server.log("replicas")[known:] and server.log("replicas")[-1]["up"] == 2)


def test_refusals_are_the_same(server: OmniServer) -> None:
    assert server.request("POST", CHAT, {"messages": [{"role": "user", "content": "x"}]}).status == 404
    assert server.request("POST", IMAGES, {"prompt": "x", "size": "1x1"}).status == 400


def test_a_client_that_leaves_frees_its_place(server: OmniServer) -> None:
    server.send_and_hang_up(IMAGES, {"prompt": "x"}, after_s=0.1)
    server.wait_until(lambda: server.metric("omni_requests_in_flight") == 0)
    assert image_from(server, 0)
