"""The options of `omni bench --url`, and which of the others make no sense beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from omni_cli.cli.options import positive_seconds
from omni_cli.errors import UsageError

MAX_CONCURRENCY = 4096
MAX_REQUESTS = 2**17
PANEL = "Options for a server"

_KEY_OPTION = "--api-key"
# Parameters of the command that need, or exclude, a `--url`.
_SERVER_ONLY = frozenset({
    "endpoint", "modalities", "concurrency", "request_rate", "num_requests", "slo", "api_key", "request_timeout",
    "tokenizer", "ignore_eos", "extra_body",
})  # fmt: skip
_PROFILE_ONLY = frozenset({
    "stage", "against", "batch_size", "profile", "set_", "trust_remote_code", "max_memory_regression",
})  # fmt: skip


def _option(name: str, metavar: str | None, help_text: str, **rules: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=help_text, rich_help_panel=PANEL, **rules)


UrlOption = Annotated[
    list[str] | None,
    _option(
        "--url",
        "URL",
        "Measure a running OpenAI-compatible server; `--model` is then the name of its model, its first one if absent. "
        "Repeatable: further servers are compared with the first.",
    ),
]
EndpointOption = Annotated[Literal["chat", "speech", "images"], _option("--endpoint", None, "What to ask it for.")]
ModalitiesOption = Annotated[str, _option("--modalities", "LIST", "Of chats: `text`, or `text,audio`.")]
ConcurrencyOption = Annotated[
    int | None,
    _option(
        "--concurrency",
        "N",
        "Closed loop: so many clients, each with one request at a time; 1 if absent. `--vary concurrency=1,8` "
        "compares.",
        min=1,
        max=MAX_CONCURRENCY,
    ),
]
RequestRateOption = Annotated[
    str | None,
    _option(
        "--request-rate",
        "R",
        "Open loop: so many requests a second, as a Poisson process, however long answers take; `inf`: all at once. "
        "`--vary request_rate=2,4` compares.",
    ),
]
NumRequestsOption = Annotated[
    int | None,
    _option(
        "--num-requests",
        "N",
        "Requests of a window, which is one iteration; 4 a client, or those of 4 s, and at least 8 if absent.",
        min=1,
        max=MAX_REQUESTS,
    ),
]
SloOption = Annotated[
    list[str] | None,
    _option(
        "--slo",
        "METRIC:LIMIT",
        "Count the requests that keep it, such as `ttft:200ms`; metrics are ttft, tpot, itl, e2e, ttfp and rtf. "
        "Repeatable.",
    ),
]
BenchApiKeyOption = Annotated[
    str | None,
    _option(
        _KEY_OPTION, "KEY", "Sent as `Authorization: Bearer KEY`; never recorded.", envvar="OPENAI_API_KEY",
        show_envvar=True,
    ),
]  # fmt: skip
RequestTimeoutOption = Annotated[
    float, _option("--request-timeout", "SECONDS", "Longest time for one request.", callback=positive_seconds)
]
TokenizerOption = Annotated[
    Path | None,
    _option("--tokenizer", "DIR", "Folder with a `tokenizer.json`; without it `--input-len` counts words."),
]
IgnoreEosOption = Annotated[
    bool,
    _option(
        "--ignore-eos/--no-ignore-eos",
        None,
        "Ask for exactly `--output-len` tokens with vLLM's `ignore_eos`, which not every server knows.",
    ),
]
ExtraBodyOption = Annotated[
    str | None, _option("--extra-body", "JSON", 'Put over every request, such as `{"size": "64x64"}`.')
]


@dataclass(frozen=True)
class ServerOptions:
    """What `--url` measures, as it was given."""

    urls: tuple[str, ...]
    endpoint: str
    modalities: str
    model: str | None
    concurrency: int | None
    request_rate: str | None
    num_requests: int | None
    slos: tuple[str, ...]
    api_key: str | None
    request_timeout_s: float
    tokenizer: Path | None
    ignore_eos: bool
    extra_body: str | None
    input_len: int
    output_len: int
    seed: int
    vary: tuple[str, ...]

    def __repr__(self) -> str:
        # The key must not get into a traceback.
        return f"ServerOptions(urls={self.urls})"


def check_given(context: typer.Context, *, has_url: bool) -> None:
    """Raise `UsageError` for options that mean nothing with `--url`, or nothing without it."""
    misplaced = _PROFILE_ONLY if has_url else _SERVER_ONLY
    for param in context.command.params:
        source = context.get_parameter_source(param.name)
        if param.name not in misplaced or source is None or source.name != "COMMANDLINE":
            continue
        option = max(param.opts, key=len)
        if not has_url:
            raise UsageError(f"`{option}` is about a server", hint="name one with `--url`")
        if param.name == "max_memory_regression":
            raise UsageError(f"`{option}` cannot be judged with `--url`: a server does not say how much memory it uses")
        raise UsageError(f"`{option}` has no meaning with `--url`", hint="start the server with that setting")


def without_key(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be recorded."""
    shown: list[str] = []
    for argument in arguments:
        if shown and shown[-1] == _KEY_OPTION:
            shown.append("***")
        else:
            shown.append(f"{_KEY_OPTION}=***" if argument.startswith(f"{_KEY_OPTION}=") else argument)
    return shown
