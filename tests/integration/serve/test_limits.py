"""The key, and limits on sizes, numbers and times."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import openai
import pytest
from support.omni_server import IMAGES, KEY, OmniServer

BODY = b'{"prompt": "a cube"}'
SLOW = {"prompt": "a cube", "num_inference_steps": 1000}
ENDLESS = json.dumps({**SLOW, "size": "512x512"}).encode()


@pytest.fixture(autouse=True)
def nothing_left_inside(limited: OmniServer) -> Iterator[None]:
    yield
    limited.wait_until(lambda: inside(limited) == 0, timeout_s=5)


def inside(server: OmniServer) -> float:
    body = server.request("GET", "/metrics", authorization=f"Bearer {KEY}").body.decode()
    (line,) = [line for line in body.splitlines() if line.startswith("omni_requests_in_flight ")]
    return float(line.split()[1])


def ask(server: OmniServer, body: Any, **headers: str) -> Any:
    return server.request("POST", IMAGES, body, authorization=f"Bearer {KEY}", **headers)


def without_body(server: OmniServer, length: int = len(BODY)) -> HTTPConnection:
    """Send a request whose body is still to come."""
    connection = HTTPConnection(server.ready["host"], server.ready["port"])
    connection.putrequest("POST", IMAGES)
    for name, value in {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(length))
    connection.endheaders()
    return connection


@contextmanager
def at_work(server: OmniServer, count: int) -> Iterator[None]:
    """Until the clients disconnect, these requests are inside: they take longer than the server's time limit."""
    connections = [without_body(server, len(ENDLESS)) for _ in range(count)]
    for connection in connections:
        connection.send(ENDLESS)
    server.wait_until(lambda: inside(server) == count)
    yield
    assert inside(server) == count
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": KEY}])
@pytest.mark.parametrize(("method", "path"), [("POST", IMAGES), ("GET", "/v1/models"), ("GET", "/metrics")])
def test_nothing_without_the_key(limited: OmniServer, method: str, path: str, headers: dict[str, str]) -> None:
    answer = limited.request(method, path, {"prompt": "x"} if method == "POST" else None, **headers)
    assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert answer.error["code"] == "invalid_api_key"


def test_the_key_is_read_from_the_header_only_and_never_logged(limited: OmniServer) -> None:
    assert limited.request("GET", f"/v1/models?api_key={KEY}").status == 401
    assert len(limited.client(KEY).models.list().data) == 1
    with pytest.raises(openai.AuthenticationError):
        limited.client("wrong").models.list()
    assert KEY not in limited.raw_log


def test_health_and_readiness_need_no_key(limited: OmniServer) -> None:
    assert limited.request("GET", "/health").document == {"status": "ok"}
    ready = limited.request("GET", "/ready")
    assert ready.status == 200 and ready.document == {"status": "ready", "stages": {"image": "ready"}}


def test_a_large_body_is_refused_whether_announced_or_not(limited: OmniServer) -> None:
    body = b'{"prompt": "' + b"x" * 200_000 + b'"}'
    announced = ask(limited, body, content_type="application/json")
    assert announced.status == 413 and announced.error["code"] == "body_too_large"
    chunked = ask(limited, iter([body[:90_000], body[90_000:]]), content_type="application/json")
    assert chunked.status == 413
    assert ask(limited, {"prompt": "x", "user": "y" * 90_000}).status == 200


def test_a_long_prompt_and_many_images(limited: OmniServer) -> None:
    assert "the maximum is 500" in ask(limited, {"prompt": "x" * 501}).error["message"]
    assert "`n` may be at most 2" in ask(limited, {"prompt": "x", "n": 3}).error["message"]


def test_more_requests_than_may_be_in_flight_get_a_retry_time(limited: OmniServer) -> None:
    with at_work(limited, 3), ThreadPoolExecutor(5) as pool:
        refused = list(pool.map(lambda _: ask(limited, SLOW), range(5)))
    for answer in refused:
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.error["code"] == "queue_full" and answer.error["type"] == "rate_limit_error"


def test_a_deadline_of_the_clients_own(limited: OmniServer) -> None:
    began = time.monotonic()
    answer = ask(limited, SLOW, x_request_timeout="0.5")
    assert answer.status == 504 and answer.error["code"] == "deadline_exceeded"
    assert "not finish within 0.5 s" in answer.error["message"]
    assert time.monotonic() - began < 5


def test_a_client_cannot_extend_the_deadline(limited: OmniServer) -> None:
    answer = ask(limited, {**SLOW, "size": "512x512"}, x_request_timeout="9999")
    assert answer.status == 504 and "within 10 s" in answer.error["message"]


def test_a_body_that_arrives_late_takes_a_place_until_it_ends(limited: OmniServer) -> None:
    silent = [without_body(limited) for _ in range(3)]
    limited.wait_until(lambda: inside(limited) == 3)
    assert ask(limited, {"prompt": "x"}).status == 429
    silent[0].send(BODY)
    assert silent[0].getresponse().status == 200
    for connection in silent:
        connection.close()
    limited.wait_until(lambda: inside(limited) == 0, timeout_s=5)
    assert ask(limited, {"prompt": "x"}).status == 200


def test_a_slow_answer_does_not_delay_others(limited: OmniServer) -> None:
    with at_work(limited, 1):
        assert limited.request("GET", "/health").status == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "[::1]:80", "LocalHost:9"])
def test_a_server_without_a_key_is_addressed_as_this_machine(image_server: OmniServer, host: str) -> None:
    assert image_server.request("GET", "/v1/models", host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "8.8.8.8", "[::2]", ""]
)
def test_a_page_whose_name_was_made_to_mean_this_machine_gets_nothing(image_server: OmniServer, host: str) -> None:
    answer = image_server.request("POST", IMAGES, {"prompt": "x"}, host=host)
    assert answer.status == 403 and answer.error["code"] == "wrong_host"


def test_with_a_key_any_name_will_do(limited: OmniServer) -> None:
    assert limited.request("GET", "/v1/models", host="gpu.example", authorization=f"Bearer {KEY}").status == 200
