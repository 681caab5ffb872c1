"""`omni bench --url`: what is measured of which servers, checked before the first request that counts."""

from __future__ import annotations

import math
import resource
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from omni_cli.bench.environment import read_environment
from omni_cli.bench.session import Session
from omni_cli.bench.variants import MAX_VARIANTS, Variant, split_values
from omni_cli.bench.verdicts import Question
from omni_cli.cli.bench.report import check_writable
from omni_cli.cli.bench.run import measure
from omni_cli.cli.loadtest.options import MAX_CONCURRENCY, ServerOptions
from omni_cli.errors import ExitCode, UsageError
from omni_cli.loadtest.endpoints import Endpoint, chat, images, parse_modalities, speech
from omni_cli.loadtest.slo import parse_slos
from omni_cli.loadtest.target import Target, find_targets, parse_url
from omni_cli.loadtest.traffic import ClosedLoop, OpenLoop, Traffic
from omni_cli.loadtest.variant import ServerVariant
from omni_cli.loadtest.workload import ServerWorkload
from omni_cli.text import visible

if TYPE_CHECKING:
    from omni_cli.cli.bench.command import Settings

_SPARE_FILES = 64
_CONCURRENCY, _RATE = "concurrency", "request_rate"


def run_server_bench(
    options: ServerOptions,
    question_for: Callable[[int], Question],
    settings_for: Callable[[int], Settings],
    *,
    command: tuple[str, ...],
) -> ExitCode:
    """Measure and report. Raises `OmniError` where nothing at all was measured.

    `question_for` and `settings_for` take the number of variants.
    """
    urls = [parse_url(text) for text in options.urls]
    traffics = _traffics(options)
    if len(urls) > 1 and len(traffics) > 1:
        raise UsageError("several `--url` and `--vary` ask two things at once", hint="choose one of them")
    count = len(urls) * len(traffics)
    if count > MAX_VARIANTS:
        raise UsageError(f"these are {count} variants, and at most {MAX_VARIANTS} can be compared at once")
    workload = _workload(options, traffics)
    question, settings = question_for(count), settings_for(count)
    check_writable(settings.files)
    _allow_open_files(traffics, workload.num_requests)
    targets = find_targets(urls, options.model, options.api_key)
    plans = [(target, traffic) for target in targets for traffic in traffics]
    variants = _variants(plans, varied=len(traffics) > 1)
    environment = read_environment()
    environment["versions"]["aiohttp"] = version("aiohttp")
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as folder:
        session = Session(
            variants, command=command, environment=environment, workload=workload.describe(), folder=Path(folder)
        )

        def launch(index: int) -> ServerVariant:
            target, traffic = plans[index]
            return ServerVariant(
                variants[index].name, target, workload, traffic,
                api_key=options.api_key, request_timeout_s=options.request_timeout_s,
            )  # fmt: skip

        return measure(session, question, settings, launch=launch, load=lambda _index: None)


def _workload(options: ServerOptions, traffics: list[Traffic]) -> ServerWorkload:
    endpoint = _endpoint(options)
    # The same work for all variants.
    num_requests = options.num_requests or max(traffic.default_requests for traffic in traffics)
    clients = max((traffic.concurrency for traffic in traffics if isinstance(traffic, ClosedLoop)), default=0)
    if num_requests < clients:
        message = f"a window of {num_requests} requests does not keep {clients} clients busy"
        raise UsageError(message, hint="raise `--num-requests`, to a few times as many")
    return ServerWorkload(
        endpoint=endpoint,
        num_requests=num_requests,
        input_len=options.input_len,
        output_len=options.output_len if endpoint.name == "chat" else None,
        seed=options.seed,
        load=traffics[0].settings if len(traffics) == 1 else {},
        slos=parse_slos(options.slos, endpoint.metrics),
        tokenizer=_tokenizer(options.tokenizer),
        extra_body=_extra_body(options.extra_body),
    )


def _endpoint(options: ServerOptions) -> Endpoint:
    modalities = parse_modalities(options.modalities)
    if options.endpoint != "chat" and options.modalities != "text":
        raise UsageError("`--modalities` is about chats", hint="leave it out, or `--endpoint chat`")
    match options.endpoint:
        case "speech":
            return speech()
        case "images":
            return images()
    return chat(modalities, options.output_len, ignore_eos=options.ignore_eos)


def _traffics(options: ServerOptions) -> list[Traffic]:
    """One, or those that `--vary` compares. Raises `UsageError`."""
    if options.concurrency is not None and options.request_rate is not None:
        raise UsageError(
            "`--concurrency` and `--request-rate` exclude each other",
            hint="with a rate, requests are sent when they are due, however many are open",
        )
    if not options.vary:
        if options.request_rate is not None:
            return [OpenLoop(_rate("--request-rate", options.request_rate), options.seed)]
        return [ClosedLoop(options.concurrency or 1)]
    key, equals, raw = options.vary[0].partition("=")
    if len(options.vary) > 1 or not equals or key not in (_CONCURRENCY, _RATE):
        hint = f"with `--url` it is `--vary {_CONCURRENCY}=A,B` or `--vary {_RATE}=A,B`, once"
        raise UsageError(f"`--vary {visible(options.vary[-1], 80)}` cannot be changed in a running server", hint=hint)
    if options.concurrency is not None or options.request_rate is not None:
        raise UsageError(f"`--vary {key}=...` says how much is sent", hint="leave `--concurrency`/`--request-rate` out")
    values = split_values(raw)
    if len(values) < 2:
        raise UsageError(f"`--vary {visible(options.vary[0], 80)}` has a single value, so there is nothing to compare")
    if key == _RATE:
        return [OpenLoop(_rate("--vary", value), options.seed) for value in values]
    return [ClosedLoop(_concurrency(value)) for value in values]


def _rate(option: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        message = f"invalid value for `{option}`: `{visible(text, 80)}` is no number of requests a second"
        raise UsageError(message, hint="a number greater than 0, or `inf`")
    return rate


def _concurrency(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_CONCURRENCY):
        raise UsageError(f"invalid value for `--vary`: `{visible(text, 80)}` is not from 1 to {MAX_CONCURRENCY}")
    return int(text)


def _tokenizer(folder: Path | None) -> str | None:
    if folder is not None and not (folder / "tokenizer.json").is_file():
        raise UsageError(f"`--tokenizer {visible(str(folder), 80)}`: there is no `tokenizer.json` in it")
    return None if folder is None else str(folder)


def _extra_body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"`--extra-body` is no JSON object: {error}") from error


def _variants(plans: list[tuple[Target, Traffic]], *, varied: bool) -> list[Variant]:
    """Named by what is compared; a name that comes again is A against A."""
    found: list[Variant] = []
    for target, traffic in plans:
        # An address may change from run to run; what is compared with a baseline is what was asked of it.
        settings = {"url": target.url, "model": target.model}
        name = target.url.partition("//")[2]
        if varied:
            settings |= traffic.settings
            (value,) = traffic.settings.items()
            name = "=".join(map(str, value))
        earlier = sum(variant.name.partition(" (")[0] == name for variant in found)
        found.append(Variant(f"{name} ({earlier + 1})" if earlier else name, settings=settings))
    return found


def _allow_open_files(traffics: list[Traffic], num_requests: int) -> None:
    """Every open request is a connection, and every connection a file. Raises `UsageError` where they are too many."""
    open_at_once = max(t.concurrency if isinstance(t, ClosedLoop) else num_requests for t in traffics)
    needed = min(open_at_once, num_requests) + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        message = f"up to {open_at_once} requests at once need more open files than this system allows ({hard})"
        raise UsageError(message, hint="raise the limit with `ulimit -Hn`, or send fewer: `--num-requests`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
