"""The options of `omni loadtest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from omni_cli.cli.bench.options import MAX_LEN, MeasureOptions
from omni_cli.cli.options import (
    DEFAULT_MARGIN,
    AllowDifferenceOption,
    MarginOption,
    WaitOption,
    argument,
    option,
    seconds_option,
    shared_option,
)
from omni_cli.config.bounds import MAX_NUMPY_SEED

MAX_CONCURRENCY = 4096
MAX_REQUESTS = 2**17
DEFAULT_LEN = 32

_KEY_OPTION = "--api-key"
ApiKeyOption = Annotated[
    str | None,
    shared_option(
        f"{_KEY_OPTION} KEY",
        "Sent as `Authorization: Bearer KEY`; never recorded.",
        envvar="OPENAI_API_KEY",
        show_envvar=True,
    ),
]


@dataclass(frozen=True, kw_only=True)
class LoadtestOptions(MeasureOptions):
    """The servers, the requests and the load."""

    takes_weights = True

    url: list[str] = argument("URL...", "OpenAI-compatible servers; further ones are compared with the first.")
    wait: WaitOption = None
    endpoint: Literal["chat", "speech", "images", "transcriptions"] = option(
        "--endpoint", "The endpoint to call.", default="chat"
    )
    modalities: str = option("--modalities LIST", "Modalities of chats: `text`, or `text,audio`.", default="text")
    concurrency: int | None = option(
        "--concurrency N",
        "Closed loop: this many clients, each with one request at a time. Default: 1.",
        min=1,
        max=MAX_CONCURRENCY,
    )
    request_rate: str | None = option(
        "--request-rate R",
        "Open loop: this many requests per second, as a Poisson process, however long answers take; `inf` sends "
        "all of them immediately.",
    )
    vary: list[str] | None = option(
        "--vary KEY=A,B", "Compare values of `concurrency` or of `request_rate` on one server."
    )
    num_requests: int | None = option(
        "--num-requests N",
        "Requests per window; `--num-iters` sets the number of windows. Default: 4 per client, or 4 s of "
        "traffic; minimum 8.",
        min=1,
        max=MAX_REQUESTS,
    )
    slo: list[str] | None = option(
        "--slo METRIC:LIMIT",
        "Count the requests that meet it, such as `ttft:200ms` or `wer:10%`; metrics are ttft, tpot, itl, e2e, "
        "ttfp, heard, stutter, underruns, longest_gap, rtf, wer and deletions. Repeatable.",
    )
    sample_rate: int | None = option("--sample-rate HZ", "Rate of speech that states none. Default: 24000.", min=1000)
    find_max_rate: str | None = option(
        "--find-max-rate PERCENT",
        "Find the highest rate at which this share of the requests meets every `--slo`, such as 90%. "
        "`--request-rate` is the first one; `--time-budget` limits each.",
    )
    margin: MarginOption = DEFAULT_MARGIN
    allow_difference: AllowDifferenceOption = None
    strict: bool = option(
        "--strict", "Give no verdict on servers that were measured under unequal conditions.", default=False
    )
    requests: Path | None = option(
        "--requests FILE",
        "Send these instead of generated prompts: ShareGPT's JSON, lines of `omni generate --requests`, OpenAI's "
        "batch files, or a trace with arrival times, such as those of Mooncake, AIPerf and GuideLLM.",
    )
    time_unit: Literal["seconds", "milliseconds"] | None = option(
        "--time-unit",
        "Unit of the arrival times in `--requests`. Default: milliseconds for `timestamp`, otherwise seconds.",
    )
    input_len: int | None = option(
        "--input-len N", "Words per prompt; tokens with `--tokenizer`. Default: 32.", min=1, max=MAX_LEN
    )
    output_len: int | None = option(
        "--output-len N",
        "Text tokens per chat answer, no fewer. Default: 32, or the lengths in `--requests`.",
        min=1,
        max=MAX_LEN,
    )
    tokenizer: Path | None = option(
        "--tokenizer DIR", "Folder with a `tokenizer.json`, by which `--input-len` counts tokens."
    )
    ignore_eos: bool = option(
        "--ignore-eos/--no-ignore-eos",
        "Ask for exactly `--output-len` tokens with vLLM's `ignore_eos`, which not every server accepts.",
        default=True,
    )
    extra_body: str | None = option("--extra-body JSON", 'Fields to set in every request, such as `{"size": "64x64"}`.')
    model: str | None = option("--model NAME", "The model to request. Default: the first one of the server.")
    api_key: ApiKeyOption = None
    request_timeout: float = seconds_option("--request-timeout SECONDS", "Time limit per request.", default=600.0)
    seed: int = option("--seed N", "Seed of prompts, arrival times and requests.", default=0, min=0, max=MAX_NUMPY_SEED)


def without_key(arguments: Sequence[str]) -> list[str]:
    """Return the command line for the record, with the key replaced by `***`."""
    shown: list[str] = []
    for word in arguments:
        if shown and shown[-1] == _KEY_OPTION:
            shown.append("***")
        else:
            shown.append(f"{_KEY_OPTION}=***" if word.startswith(f"{_KEY_OPTION}=") else word)
    return shown
