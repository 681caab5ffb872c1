"""The description of a model at `/v1/models`, and probes, which the log leaves out."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.requests.outputs import StageInfo
from omni_cli.serve.exchange import AccessLog, Exchange
from omni_cli.serve.limits import ServerSettings
from omni_cli.serve.metrics import Metrics
from omni_cli.serve.routes.operations import _describe_models
from omni_cli.serve.service import Service


class Loaded:
    def __init__(self, media: tuple[str, ...] | None) -> None:
        self.stages = (StageInfo("first", "ar", 1.0, {}, media=media),)
        self.state = "ready"


@pytest.mark.parametrize(
    ("profile", "media", "inputs"),
    [
        ("tiny-omni", (), ["text"]),
        ("tiny-omni", ("audio", "image"), ["text", "image", "audio"]),
        ("tiny-edit", None, ["text", "image"]),
        ("tiny-image", None, ["text"]),
        ("tiny-csm", None, ["text"]),
    ],
)
def test_inputs_are_those_of_the_loaded_model(profile: str, media: tuple[str, ...] | None, inputs: list[str]) -> None:
    supervisor, unused = Loaded(media), None
    given: tuple[Any, ...] = (supervisor, ServerSettings(), Metrics(64), unused)
    service = Service(load_profile(profile), *given)
    (model,) = _describe_models(service, 0).values()
    assert model["input_modalities"] == inputs


@pytest.mark.parametrize(("path", "error", "logged"), [
    ("/ready", None, False), ("/health", None, False), ("/ready", "internal_error", True), ("/v1/models", None, True),
])  # fmt: skip
def test_probes_are_logged_only_where_they_fail(path: str, error: str | None, logged: bool) -> None:
    stream = io.StringIO()
    exchange = Exchange("r", "GET", path, None, 0.0, 60.0)
    exchange.status, exchange.error = 200, error

    async def log() -> None:
        AccessLog(stream).request(exchange)

    asyncio.run(log())
    assert [json.loads(line)["path"] for line in stream.getvalue().splitlines()] == [path] * logged
