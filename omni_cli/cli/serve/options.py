"""The options that only `omni serve` has, as types for its signature."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from omni_cli.cli.options import positive_seconds


def _option(name: str, metavar: str, help_text: str, **rules: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=help_text, **rules)


HostOption = Annotated[str, _option("--host", "ADDRESS", "Address to listen on. Default: loopback only.")]
PortOption = Annotated[int, _option("--port", "N", "Port to listen on; 0 picks a free one.", min=0, max=65535)]
ApiKeyOption = Annotated[
    str | None,
    _option(
        "--api-key",
        "KEY",
        "Require `Authorization: Bearer KEY`. Other users of this machine can read command lines, but not the "
        "environment.",
        envvar="OMNI_API_KEY",
        show_envvar=True,
    ),
]
RequestTimeoutOption = Annotated[
    float,
    _option("--timeout", "SECONDS", "Time limit of one request.", callback=positive_seconds),
]
DrainTimeoutOption = Annotated[
    float,
    _option(
        "--drain-timeout", "SECONDS", "Time for requests to finish after a stop signal.", callback=positive_seconds
    ),
]
HangTimeoutOption = Annotated[
    float | None,
    _option(
        "--hang-timeout",
        "SECONDS",
        "Restart a stage that makes no progress on its requests for this long; sets every stage's `step_timeout_s`.",
        callback=positive_seconds,
    ),
]
ReplicasOption = Annotated[
    int | None,
    _option(
        "--replicas",
        "N",
        "Run N engines through Ray Serve: on the cluster of RAY_ADDRESS, else on this machine.",
        min=1,
    ),
]
MaxRequestsOption = Annotated[
    int, _option("--max-requests", "N", "Limit of requests in flight; more get status 429.", min=1)
]
MaxBodyOption = Annotated[int, _option("--max-body-bytes", "N", "Size limit of a request's body.", min=1024)]
MaxPromptOption = Annotated[int, _option("--max-prompt-chars", "N", "Length limit of a prompt, in characters.", min=1)]
MaxImagePixelsOption = Annotated[
    int, _option("--max-image-pixels", "N", "Limit of pixels of all images in one request.", min=1)
]
MaxAudioOption = Annotated[
    float,
    _option("--max-audio-seconds", "SECONDS", "Length limit of all audio in one request.", callback=positive_seconds),
]
MaxNOption = Annotated[int, _option("--max-n", "N", "Limit of images per request.", min=1)]
