"""The options of `omni loadtest`, read and checked before the first request is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from omni_cli.bench.treatments import MAX_VARIANTS, split_values
from omni_cli.cli.loadtest.options import MAX_CONCURRENCY
from omni_cli.errors import UsageError
from omni_cli.loadtest.endpoints import Endpoint, chat, images, parse_modalities, speech
from omni_cli.loadtest.traffic import ClosedLoop, OpenLoop, Traffic
from omni_cli.text import visible

_CONCURRENCY, _RATE = "concurrency", "request_rate"


def check_counts(urls: Sequence[str], traffics: Sequence[Traffic], num_requests: int) -> int:
    """Return the number of variants. Raises `UsageError` for too many, or for idle clients."""
    if len(urls) > 1 and len(traffics) > 1:
        raise UsageError("several servers and `--vary` cannot be combined", hint="choose one of them")
    count = len(urls) * len(traffics)
    if count > MAX_VARIANTS:
        raise UsageError(f"these are {count} variants, and at most {MAX_VARIANTS} can be compared at once")
    clients = max((traffic.concurrency for traffic in traffics if isinstance(traffic, ClosedLoop)), default=0)
    if num_requests < clients:
        message = f"a window of {num_requests} requests does not keep {clients} clients busy"
        raise UsageError(message, hint="raise `--num-requests` to several times as many")
    return count


def read_endpoint(name: str, modalities: str, output_len: int, *, ignore_eos: bool) -> Endpoint:
    wanted = parse_modalities(modalities)
    if name != "chat" and modalities != "text":
        raise UsageError("`--modalities` applies to chats only", hint="omit it, or use `--endpoint chat`")
    match name:
        case "speech":
            return speech()
        case "images":
            return images()
    return chat(wanted, output_len, ignore_eos=ignore_eos)


def read_traffics(
    vary: Sequence[str] | None, concurrency: int | None, request_rate: str | None, seed: int
) -> list[Traffic]:
    """Return one load, or those that `--vary` compares. Raises `UsageError`."""
    if concurrency is not None and request_rate is not None:
        raise UsageError(
            "`--concurrency` and `--request-rate` exclude each other",
            hint="with a rate, requests are sent when they are due, however many are in flight",
        )
    if not vary:
        if request_rate is not None:
            return [OpenLoop(_rate("--request-rate", request_rate), seed)]
        return [ClosedLoop(concurrency or 1)]
    key, equals, raw = vary[0].partition("=")
    if len(vary) > 1 or not equals or key not in (_CONCURRENCY, _RATE):
        hint = f"write `--vary {_CONCURRENCY}=A,B` or `--vary {_RATE}=A,B`, once"
        raise UsageError(f"`--vary {visible(vary[-1], 80)}` cannot be varied on a running server", hint=hint)
    if concurrency is not None or request_rate is not None:
        message = f"`--vary {key}=...` sets the load, and so does another option"
        raise UsageError(message, hint="omit `--concurrency` and `--request-rate`")
    values = split_values(raw)
    if len(values) < 2:
        raise UsageError(f"`--vary {visible(vary[0], 80)}` has a single value, so there is nothing to compare")
    if key == _RATE:
        return [OpenLoop(_rate("--vary", value), seed) for value in values]
    return [ClosedLoop(_concurrency(value)) for value in values]


def _rate(option: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        message = f"invalid value for `{option}`: `{visible(text, 80)}` is not a number of requests per second"
        raise UsageError(message, hint="give a number greater than 0, or `inf`")
    return rate


def _concurrency(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_CONCURRENCY):
        raise UsageError(f"invalid value for `--vary`: `{visible(text, 80)}` is not from 1 to {MAX_CONCURRENCY}")
    return int(text)


def read_tokenizer(folder: Path | None) -> str | None:
    if folder is not None and not (folder / "tokenizer.json").is_file():
        raise UsageError(f"`--tokenizer {visible(str(folder), 80)}`: it has no `tokenizer.json`")
    return None if folder is None else str(folder)


def read_extra_body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"`--extra-body` is not a JSON object: {error}") from error
