"""The options of `omni loadtest`, read and checked before the first request is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from omni_cli.cli.loadtest.options import MAX_CONCURRENCY, LoadtestOptions
from omni_cli.cli.options import read_fraction
from omni_cli.core.errors import UsageError
from omni_cli.core.text import visible
from omni_cli.measure.bench.prompts import token_counter
from omni_cli.measure.bench.slo import OF_WORDS
from omni_cli.measure.bench.variant_configs import MAX_VARIANTS, split_values
from omni_cli.measure.loadtest.dataset import Dataset, read_dataset
from omni_cli.measure.loadtest.traffic import ClosedLoop, OpenLoop, Traffic, trace_rate
from omni_cli.measure.loadtest.workload import Endpoint, EndpointName
from omni_cli.records.metrics import WER

_CONCURRENCY, _RATE = "concurrency", "request_rate"


def check_counts(urls: Sequence[str], traffics: Sequence[Traffic], num_requests: int | None) -> int:
    """Return the number of variants. Raises `UsageError` for too many, or for idle clients."""
    if len(urls) > 1 and len(traffics) > 1:
        raise UsageError("several servers and `--vary` cannot be combined", hint="choose one of them")
    count = len(urls) * len(traffics)
    if count > MAX_VARIANTS:
        raise UsageError(f"these are {count} variants, and at most {MAX_VARIANTS} can be compared at once")
    clients = max((traffic.concurrency for traffic in traffics if isinstance(traffic, ClosedLoop)), default=0)
    if num_requests is not None and num_requests < clients:
        message = f"a window of {num_requests} requests does not keep {clients} clients busy"
        raise UsageError(message, hint="raise `--num-requests` to several times as many")
    return count


def read_endpoint(name: EndpointName, modalities: str, output_len: int, *, ignore_eos: bool) -> Endpoint:
    """Return the endpoint to call; `modalities` are as in `text,audio`. Raises `UsageError`."""
    names = tuple(name.strip() for name in modalities.split(","))
    if not set(names) <= {"text", "audio"} or "text" not in names or len(set(names)) < len(names):
        raise UsageError(f"invalid value for `--modalities`: `{modalities}`", hint="`text` or `text,audio`")
    if name != "chat" and modalities != "text":
        raise UsageError("`--modalities` applies to chats only", hint="omit it, or use `--endpoint chat`")
    return Endpoint(name, names, output_len, ignore_eos)


def read_traffics(
    vary: Sequence[str] | None,
    concurrency: int | None,
    request_rate: str | None,
    seed: int,
    trace: tuple[float, ...] | None = None,
    *,
    option: str = "--vary",
) -> list[Traffic]:
    """Return one load, or those that `--vary`, or the `option` like it, compares; `trace` are arrival times.

    Raises `UsageError`.
    """
    if trace is not None:
        if concurrency is not None or any(text.startswith(_CONCURRENCY) for text in vary or ()):
            message = "`--concurrency` and requests with arrival times exclude each other"
            raise UsageError(message, hint="`--request-rate` sends a trace faster or slower")
        if not vary:
            rate = trace_rate(trace) if request_rate is None else _rate("--request-rate", request_rate)
            return [OpenLoop(rate, seed, trace)]
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
        hint = f"write `{option} {_CONCURRENCY}=A,B` or `{option} {_RATE}=A,B`, once"
        raise UsageError(f"`{option} {visible(vary[-1], 80)}` cannot be varied on a running server", hint=hint)
    if concurrency is not None or request_rate is not None:
        message = f"`--vary {key}=...` sets the load, and so does another option"
        raise UsageError(message, hint="omit `--concurrency` and `--request-rate`")
    values = split_values(raw)
    if len(values) < 2:
        raise UsageError(f"`{option} {visible(vary[0], 80)}` has a single value, so there is nothing to compare")
    if key == _RATE:
        return [OpenLoop(_rate(option, value), seed, trace) for value in values]
    return [ClosedLoop(_concurrency(value, option)) for value in values]


def check_speech(options: LoadtestOptions) -> None:
    """Raise `UsageError` for options that have no effect on requests to transcribe the package's sentences."""
    given = {"--input-len": options.input_len, "--tokenizer": options.tokenizer}
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"`{name}` has no effect with `--endpoint {options.endpoint}`, which sends sounds",
                hint="omit it",
            )


def find_recogniser(options: LoadtestOptions, called: Endpoint, dataset: Dataset | None) -> str | None:
    """Return the folder of the Whisper that hears the words of answers, "" for transcripts without one; None if nobody
    looks at words. Raises `UsageError` where nobody can."""
    from omni_cli.measure.bench.quality import parse_weights

    weights = parse_weights(options.weights)
    if weights.keys() - {WER} or any(text.startswith((f"{WER}<", f"{WER}>")) for text in options.quality or ()):
        message = "a load test takes `--quality wer=FOLDER`, and no other model or limit on one"
        raise UsageError(message, hint="`--slo wer:10%`, or of two servers `--metric wer --max-regression 10%`")
    if weights and not called.has_words:
        raise UsageError("`--quality wer=FOLDER` has no effect: these answers are not spoken", hint="omit it")
    limit = next((text for text in options.slo or () if text.partition(":")[0] in OF_WORDS), None)
    if not called.has_words or not (weights or limit):
        return None
    if not called.sends_speech and not weights:
        message = f"`--slo {visible(limit or WER, 80)}` needs a model that hears the answers"
        raise UsageError(message, hint="name the folder of a Whisper: `--quality wer=FOLDER`")
    unknown = sum(item.sound[2] is None for item in dataset.requests) if dataset and called.sends_speech else 0
    if unknown:
        message = f"{unknown} of the requests have no `reference`, and `wer` compares with it"
        raise UsageError(message, hint='write the words of each sound: {"audio": "a.wav", "reference": "hello"}')
    return str(weights.get(WER, ""))


def read_requests_file(options: LoadtestOptions) -> Dataset | None:
    """Return the requests of `--requests`. Raises `UsageError` or `InputError`."""
    if options.requests is None:
        if options.time_unit is not None:
            raise UsageError("`--time-unit` has no effect without `--requests`", hint="omit it")
        return None
    if options.input_len is not None:
        raise UsageError("`--input-len` and `--requests` exclude each other", hint="remove one of them")
    count_tokens = token_counter(read_tokenizer(options.tokenizer))
    dataset = read_dataset(
        options.requests,
        count_tokens=count_tokens,
        output_len=options.output_len,
        seed=options.seed,
        endpoint=options.endpoint,
        # A given rate replaces that of the trace, whatever its unit.
        time_unit=options.time_unit or ("seconds" if options.request_rate or options.vary else None),
    )
    if options.tokenizer is None and any(item.prompt is None for item in dataset.requests):
        note = "the lengths of the file are tokens, and its prompts have as many words: add `--tokenizer DIR`"
        dataset = replace(dataset, notes=(*dataset.notes, note))
    if dataset.arrivals_s is None:
        return dataset
    dataset = dataset.first(options.num_requests or len(dataset.requests))
    if (options.num_requests or 1) > len(dataset.requests) or not (dataset.arrivals_s or (0.0,))[-1]:
        message = f"`--num-requests {options.num_requests}` does not fit a trace of {len(dataset.requests)} requests"
        raise UsageError(
            message, hint="a window sends its first requests, once: give 2 or more, and no more than it has"
        )
    return dataset


def check_max_rate(options: LoadtestOptions) -> float:
    """Return the share of `--find-max-rate`. Raises `UsageError` for options that have no effect with it."""
    share = read_fraction("--find-max-rate", options.find_max_rate or "")
    if not 0 < share < 1:
        message = "invalid value for `--find-max-rate`: the share is not between 0% and 100%"
        raise UsageError(message, hint="`--find-max-rate 90%`; a share of all requests cannot be proved")
    if not options.slo:
        raise UsageError("`--find-max-rate` needs a limit to meet", hint="for example `--slo ttft:200ms`")
    others = {
        "a second URL": len(options.url) > 1, "--vary": options.vary, "--concurrency": options.concurrency,
        "--baseline": options.baseline, "--metric": options.metric, "--junit": options.junit,
        "--markdown": options.markdown, "--request-rate inf": options.request_rate == "inf",
    }  # fmt: skip
    for name, is_given in others.items():
        if is_given:
            raise UsageError(f"`--find-max-rate` and {name} exclude each other", hint="run them one after the other")
    return share


def _rate(option: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        message = f"invalid value for `{option}`: `{visible(text, 80)}` is not a number of requests per second"
        several = f"`--vary request_rate={visible(text, 80)}` compares several" if "," in text else None
        raise UsageError(message, hint=several or "give a number greater than 0, or `inf`")
    return rate


def _concurrency(text: str, option: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_CONCURRENCY):
        raise UsageError(f"invalid value for `{option}`: `{visible(text, 80)}` is not from 1 to {MAX_CONCURRENCY}")
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
