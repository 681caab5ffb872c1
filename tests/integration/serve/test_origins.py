"""Pages of sites that `--allow-origin` names get all answers, those of others none."""

from __future__ import annotations

from typing import Any

import pytest
from support.omni_server import IMAGES, KEY, Answer, OmniServer

ORIGIN = "https://app.example"
FROM_PAGE = {"origin": ORIGIN, "sec_fetch_site": "cross-site", "authorization": f"Bearer {KEY}"}


def check_allowed(answer: Answer) -> None:
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/v1/models", None, {}, 200),
        ("GET", "/v1/models", None, {"authorization": "Bearer wrong"}, 401),
        ("GET", "/nothing", None, {}, 404),
        ("POST", IMAGES, {"prompt": "x", "style": "vivid"}, {}, 400),
        ("POST", IMAGES, {"prompt": "x" * 100_000}, {}, 413),
        ("POST", IMAGES, {"prompt": "x", "num_inference_steps": 2}, {}, 200),
    ],
)
def test_an_allowed_page_can_read_every_answer(
    limited: OmniServer, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str], status: int
) -> None:
    answer = limited.request(method, path, body, **{**FROM_PAGE, **headers})
    assert answer.status == status, answer.body
    check_allowed(answer)
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


def test_a_preflight_needs_no_key(limited: OmniServer) -> None:
    asked: Any = {
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type",
    }
    answer = limited.request("OPTIONS", IMAGES, origin=ORIGIN, **asked)
    assert answer.status == 200
    check_allowed(answer)
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in answer.headers["access-control-allow-methods"]
    limited.wait_until(lambda: any(line["method"] == "OPTIONS" for line in limited.log("request")))
    other = limited.request("OPTIONS", IMAGES, origin="https://evil.example", **asked)
    assert other.status == 403 and "access-control-allow-origin" not in other.headers


def test_without_the_option_no_page_is_allowed(image_server: OmniServer) -> None:
    answer = image_server.request("GET", "/v1/models", origin=ORIGIN)
    assert answer.status == 403 and "access-control-allow-origin" not in answer.headers
    assert "--allow-origin" in answer.error["message"]
    assert "vary" not in image_server.request("GET", "/v1/models").headers
