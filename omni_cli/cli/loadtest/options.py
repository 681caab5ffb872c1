"""The options of `omni loadtest` that no other command has, as types for its signature."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from omni_cli.cli.options import MAX_SEED, positive_seconds

MAX_CONCURRENCY = 4096
MAX_REQUESTS = 2**17
MAX_TOKENS = 2**20

_KEY_OPTION = "--api-key"


def _option(name: str, metavar: str | None, help_text: str, **rules: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=help_text, **rules)


UrlArgument = Annotated[
    list[str],
    typer.Argument(metavar="URL...", help="OpenAI-compatible servers; further ones are compared with the first."),
]
EndpointOption = Annotated[Literal["chat", "speech", "images"], _option("--endpoint", None, "The endpoint to call.")]
ModalitiesOption = Annotated[str, _option("--modalities", "LIST", "Modalities of chats: `text`, or `text,audio`.")]
ServerModelOption = Annotated[
    str | None, _option("--model", "NAME", "The model to request. Default: the first one of the server.")
]
LoadVaryOption = Annotated[
    list[str] | None,
    _option("--vary", "KEY=A,B", "Compare values of `concurrency` or of `request_rate` on one server."),
]
PromptLenOption = Annotated[
    int, _option("--input-len", "N", "Words per prompt; tokens with `--tokenizer`.", min=1, max=MAX_TOKENS)
]
AnswerLenOption = Annotated[
    int, _option("--output-len", "N", "Text tokens per chat answer, no fewer.", min=1, max=MAX_TOKENS)
]
NumWindowsOption = Annotated[
    int | None, _option("--num-iters", "N", "Windows per variant. Default: until the verdict is reached.", min=1)
]
NumWarmupWindowsOption = Annotated[
    int, _option("--num-iters-warmup", "N", "Warm-up windows per variant, which are not counted; at least 1.", min=0)
]
RequestSeedOption = Annotated[
    int, _option("--seed", "N", "Seed of prompts, arrival times and requests.", min=0, max=MAX_SEED)
]
ConcurrencyOption = Annotated[
    int | None,
    _option(
        "--concurrency",
        "N",
        "Closed loop: this many clients, each with one request at a time. Default: 1.",
        min=1,
        max=MAX_CONCURRENCY,
    ),
]
RequestRateOption = Annotated[
    str | None,
    _option(
        "--request-rate",
        "R",
        "Open loop: this many requests per second, as a Poisson process, however long answers take; `inf`: all at "
        "once.",
    ),
]
NumRequestsOption = Annotated[
    int | None,
    _option(
        "--num-requests",
        "N",
        "Requests per window. Default: 4 per client, or 4 s of traffic; minimum 8.",
        min=1,
        max=MAX_REQUESTS,
    ),
]
SloOption = Annotated[
    list[str] | None,
    _option(
        "--slo",
        "METRIC:LIMIT",
        "Count the requests that meet it, such as `ttft:200ms`; metrics are ttft, tpot, itl, e2e, ttfp and rtf. "
        "Repeatable.",
    ),
]
ApiKeyOption = Annotated[
    str | None,
    _option(
        _KEY_OPTION, "KEY", "Sent as `Authorization: Bearer KEY`; never recorded.", envvar="OPENAI_API_KEY",
        show_envvar=True,
    ),
]  # fmt: skip
RequestTimeoutOption = Annotated[
    float, _option("--request-timeout", "SECONDS", "Time limit per request.", callback=positive_seconds)
]
TokenizerOption = Annotated[
    Path | None,
    _option("--tokenizer", "DIR", "Folder with a `tokenizer.json`, by which `--input-len` counts tokens."),
]
IgnoreEosOption = Annotated[
    bool,
    _option(
        "--ignore-eos/--no-ignore-eos",
        None,
        "Ask for exactly `--output-len` tokens with vLLM's `ignore_eos`, which not every server accepts.",
    ),
]
ExtraBodyOption = Annotated[
    str | None, _option("--extra-body", "JSON", 'Fields to set in every request, such as `{"size": "64x64"}`.')
]


def without_key(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be recorded: the key replaced by `***`."""
    shown: list[str] = []
    for argument in arguments:
        if shown and shown[-1] == _KEY_OPTION:
            shown.append("***")
        else:
            shown.append(f"{_KEY_OPTION}=***" if argument.startswith(f"{_KEY_OPTION}=") else argument)
    return shown
