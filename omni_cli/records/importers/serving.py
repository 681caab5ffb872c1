"""Files of `vllm bench serve`, SGLang's `bench_serving` and AIPerf."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from omni_cli.core.errors import InputError
from omni_cli.core.text import visible
from omni_cli.records.importers.building import (
    FailedRun,
    Imported,
    count_failures,
    make_record,
    request_variant,
    summary_variant,
)
from omni_cli.records.importers.timings import NO_ORIGIN
from omni_cli.records.metrics import E2E, TPOT, TTFT, Row, time_per_output_token
from omni_cli.records.record import Variant, failure_sentence

_MS = 1e-3
_NS = 1e-9
_GUIDE_VERSION = 2
_VLLM_SETTINGS = ("backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency")
_SGLANG_SETTINGS = ("backend", "dataset_name", "random_input_len", "random_output_len", "sharegpt_output_len",
                    "request_rate", "max_concurrency")  # fmt: skip


class ServingRun(msgspec.Struct):
    """The fields with the same name in files of `vllm bench serve` and `bench_serving`. Lists have an item per request,
    0 or an empty list for one that failed. SGLang and older versions of vLLM do not count `failed`."""

    completed: int
    failed: int | None = None
    num_prompts: int | None = None
    latencies: list[float | None] | None = None
    ttfts: list[float | None] | None = None
    itls: list[list[float | None] | None] | None = None
    input_lens: list[int | None] | None = None
    output_lens: list[int | None] | None = None
    errors: list[str | None] | None = None
    start_times: list[float | None] | None = None
    request_rate: Any = None
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    median_e2el_ms: float | None = None
    median_e2e_latency_ms: float | None = None
    median_ttft_ms: float | None = None
    median_tpot_ms: float | None = None


def vllm_serve(document: Any) -> list[Imported]:
    """Read `vllm bench serve --save-result`, with single requests if it has them."""
    try:
        created: datetime | None = datetime.strptime(str(document.get("date")), "%Y%m%d-%H%M%S")
    except ValueError:
        created = None
    ramp = [name for name in document if name.startswith("ramp_up_")]
    settings = {name: _to_json_value(document.get(name)) for name in (*_VLLM_SETTINGS, *ramp)}
    return [_serving("vllm bench serve", document, created, settings, "--save-detailed")]


def sglang_serving(document: Any) -> list[Imported]:
    """Read a line of SGLang's `bench_serving --output-file`, with single requests if it has them."""
    settings = {name: _to_json_value(document.get(name)) for name in _SGLANG_SETTINGS}
    return [_serving("sglang bench_serving", document, None, settings, "--output-details")]


def _serving(tool: str, document: Any, created: datetime | None, settings: dict[str, Any], option: str) -> Imported:
    run = msgspec.convert(document, ServingRun)
    name = str(settings.get("model_id") or settings.get("backend"))
    missing = [NO_ORIGIN]
    rows = _rows(run)
    if rows:
        answers = [row for row in rows if isinstance(row, dict)]
        empty = [row for row in answers if row[E2E] == 0]
        if empty and run.latencies is None and run.completed == len(answers):
            rows = [row for row in rows if row not in empty]
            missing.append(f"{len(empty)} of {len(answers)} answers are empty, so that they have no times: left out")
        variant = request_variant(name, rows, max(run.failed or 0, len(rows) - run.completed))
        if run.ttfts is None:
            missing.append(f"it has no time to first token of single requests: run it with `{option}`")
    else:
        variant = _of_medians(name, run, option)
        missing.append(f"it has only medians of the whole run, from which no interval follows: run it with `{option}`")
        if run.failed is None and run.num_prompts is None:
            missing.append(f"it does not say whether requests failed: run it with `{option}`")
    return Imported(make_record(tool, created, [variant], settings), tuple(missing))


def _of_medians(name: str, run: ServingRun, option: str) -> Variant:
    failed = max((run.num_prompts or 0) - run.completed, 0) if run.failed is None else run.failed
    error = f"{failed} of {run.completed + failed} requests failed" if failed else None
    e2e_ms = run.median_e2el_ms or run.median_e2e_latency_ms
    if e2e_ms is None and error is None:
        raise InputError("it has no latency from end to end", hint=f"run the benchmark with `{option}`")
    medians = {TTFT: run.median_ttft_ms, TPOT: run.median_tpot_ms}
    # SGLang's time per token falls below 0 where all of them came at once.
    metrics = {key: value * _MS for key, value in medians.items() if value and not (key == TPOT and value < 0)}
    return summary_variant(name, e2e_ms and e2e_ms * _MS, metrics, error)


def _rows(run: ServingRun) -> list[Row | FailedRun]:
    """Return one row per request; empty if the file has none."""
    ttfts, itls = run.ttfts, run.itls
    columns = (run.latencies, ttfts, itls, run.input_lens, run.output_lens, run.errors, run.start_times)
    lengths = {len(column) for column in columns if column is not None}
    if run.latencies is None and (ttfts is None or itls is None):
        return []
    if len(lengths) != 1:
        raise InputError(f"its lists of requests have different lengths: {', '.join(map(str, sorted(lengths)))}")
    latencies = run.latencies or [
        None if ttft is None or gaps is None else ttft + sum(gap or 0.0 for gap in gaps)
        for ttft, gaps in zip(ttfts or (), itls or (), strict=True)
    ]
    starts = run.start_times
    if _to_json_value(run.request_rate) == "inf" and run.ramp_up_strategy is None:
        # The client may need longer to send all of them than the server for its first answer.
        starts = starts if (run.max_concurrency or math.inf) < len(latencies) else [0.0] * len(latencies)
    others: list[Any] = [column or () for column in (ttfts, itls, run.input_lens, run.output_lens, run.errors, starts)]
    return [_row(*values) for values in itertools.zip_longest(latencies, *others)]


def _row(
    latency: float | None, ttft: float | None, gaps: list[float | None] | None, into: int | None, out: int | None,
    error: str | None, start_s: float | None,
) -> Row | FailedRun:  # fmt: skip
    if error:
        # The reason of a status, or a whole traceback, which ends with the exception.
        message = error.strip().rpartition("\n")[2] or "error"
        return FailedRun(message.partition(":")[0], message)
    wrong = [gap for gap in gaps or () if gap is None or not 0 <= gap < math.inf]
    if wrong:
        return FailedRun("no duration", f"an inter-token latency of {wrong[0]}")
    # The file does not say how many tokens the first of several chunks had: as many as the others on average.
    first = 1.0 if out is None or gaps is None else max(1.0, out / (len(gaps) + 1))
    streaming_s = latency - ttft if ttft and latency else None
    tpot_s = time_per_output_token(streaming_s, None if out is None else out - first)
    tokens = {"input_tokens": into, "output_tokens": out}
    return {"start_s": start_s, E2E: latency, TTFT: ttft or None, TPOT: tpot_s, **tokens}


class AIPerfValue(msgspec.Struct):
    value: Any
    unit: str


class AIPerfMetadata(msgspec.Struct):
    request_start_ns: int
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class AIPerfRequest(msgspec.Struct):
    metadata: AIPerfMetadata
    metrics: dict[str, AIPerfValue]
    error: Any = None


_AIPERF_TIMES = {E2E: "request_latency", TTFT: "time_to_first_token", TPOT: "inter_token_latency"}
_AIPERF_COUNTS = {"input_tokens": "input_sequence_length", "output_tokens": "output_sequence_length"}
_SCALES = {"ns": _NS, "us": 1e-6, "ms": _MS, "sec": 1.0, "s": 1.0}


def aiperf_requests(lines: list[Any]) -> list[Imported]:
    """Read AIPerf's `profile_export.jsonl`, a request per line."""
    requests = [msgspec.convert(line, AIPerfRequest) for line in lines]
    requests = sorted(
        (item for item in requests if item.metadata.benchmark_phase == "profiling"),
        key=lambda item: item.metadata.request_start_ns,
    )
    variant = request_variant("requests", [_aiperf_row(item) for item in requests])
    created = datetime.fromtimestamp(requests[0].metadata.request_start_ns * _NS, UTC) if requests else None
    return [Imported(make_record("aiperf", created, [variant], {}), (NO_ORIGIN,))]


def _aiperf_row(item: AIPerfRequest) -> Row | FailedRun:
    if item.error is not None:
        return _aiperf_failure(item.error)
    if item.metadata.was_cancelled:
        return FailedRun("cancelled", "cancelled")
    row: Row = {"start_s": item.metadata.request_start_ns * _NS}
    for name, metric in (*_AIPERF_TIMES.items(), *_AIPERF_COUNTS.items()):
        measured = item.metrics.get(metric)
        if measured is None or measured.value is None:
            row[name] = None
        else:
            row[name] = float(measured.value) * (1.0 if name in _AIPERF_COUNTS else _scale(metric, measured.unit))
    return row


def _scale(metric: str, unit: object) -> float:
    """Return the seconds of a unit. Raises `InputError`."""
    if str(unit) not in _SCALES:
        raise InputError(f"`{metric}` has the unit `{visible(str(unit), 40)}`: known are {', '.join(_SCALES)}")
    return _SCALES[str(unit)]


def _aiperf_failure(error: Any) -> FailedRun:
    details = error if isinstance(error, dict) else {"message": error}
    code = details.get("code")
    kind = details.get("type") or "error" if code is None else f"HTTP {code}"
    return FailedRun(str(kind), str(details.get("message") or kind))


def aiperf_summary(document: Any) -> list[Imported]:
    """Read AIPerf's `profile_export_aiperf.json`, which has percentiles of all answered requests."""
    version = str(document.get("schema_version", "1"))
    if version.partition(".")[0] != "1":
        raise InputError(
            f"AIPerf's schema version is {visible(version, 40)}, known is 1", hint="write it with AIPerf 0.13"
        )
    medians: dict[str, float] = {}
    for name, metric in _AIPERF_TIMES.items():
        value = document.get(metric)
        if isinstance(value, dict) and isinstance(value.get("p50"), int | float):
            medians[name] = value["p50"] * _scale(metric, value.get("unit"))
    error = _aiperf_error(document)
    if E2E not in medians and error is None:
        raise InputError("it has no median of `request_latency`", hint="pass `profile_export.jsonl` beside it")
    version = str(document.get("aiperf_version"))
    started = document.get("start_time")
    record = make_record(
        "aiperf",
        datetime.fromisoformat(started) if isinstance(started, str) else None,
        [summary_variant("requests", medians.pop(E2E, None), medians, error)],
        {"summary": True},
        versions={"aiperf": version},
    )
    note = "it has only percentiles of all requests, from which no interval follows: pass `profile_export.jsonl`"
    return [Imported(record, (note, NO_ORIGIN))]


class AIPerfCount(msgspec.Struct, frozen=True):
    avg: float = 0.0


class AIPerfErrors(msgspec.Struct):
    error_details: Any
    count: int


class AIPerfOutcome(msgspec.Struct):
    """The failures of a run; a count of 0 is not written."""

    request_count: AIPerfCount = AIPerfCount()
    error_request_count: AIPerfCount = AIPerfCount()
    request_error_rate: AIPerfCount = AIPerfCount()
    error_summary: list[AIPerfErrors] = []
    was_cancelled: bool = False
    is_complete: bool = True


def _aiperf_error(document: Any) -> str | None:
    outcome = msgspec.convert(document, AIPerfOutcome)
    failed = [replace(_aiperf_failure(item.error_details), count=item.count) for item in outcome.error_summary]
    unnamed = int(outcome.error_request_count.avg) - sum(item.count for item in failed)
    failures = count_failures([*failed, *([FailedRun("error", "error", unnamed)] if unnamed > 0 else [])])
    total = int(outcome.request_count.avg) + sum(item.count for item in failures.values())
    if failures:
        return failure_sentence(failures, total, "requests")
    if outcome.request_error_rate.avg:
        return f"{outcome.request_error_rate.avg:g}% of its requests failed"
    return "it was cancelled" if outcome.was_cancelled else None if outcome.is_complete else "it is not complete"


class GuideRequest(msgspec.Struct):
    info: dict[str, Any]
    request_start_time: float | None
    request_latency: float | None
    time_to_first_token_ms: float | None
    inter_token_latency_ms: float | None
    prompt_tokens: int | None
    output_tokens: int | None


def guidellm(document: Any) -> list[Imported]:
    """Read GuideLLM's report, a variant per benchmark. Raises `InputError` for a version that is not known."""
    version = document["metadata"].get("version")
    if version != _GUIDE_VERSION:
        message = f"the version of GuideLLM's report is {visible(str(version), 40)}, known is {_GUIDE_VERSION}"
        raise InputError(message, hint="write it with GuideLLM 0.8")
    missing, variants = [NO_ORIGIN], []
    for item in document["benchmarks"]:
        strategy, totals = item["config"]["strategy"], item["metrics"]["request_totals"]
        name = "@".join([strategy["type_"], *(f"{strategy[key]:g}" for key in ("rate", "streams") if key in strategy)])
        kept = [*item["requests"]["successful"], *item["requests"]["errored"]]
        left_out = totals["total"] - len(kept)
        if left_out:
            missing.append(f"{name}: {left_out} of {totals['total']} requests had not ended, or are not kept: left out")
        requests = msgspec.convert(kept, list[GuideRequest])
        requests.sort(key=lambda request: request.request_start_time or 0.0)
        limit = 0 if strategy.get("rampup_duration") else strategy.get("max_concurrency") or 0
        if strategy["type_"] in ("throughput", "concurrent") and limit >= len(requests):
            requests = [replace(request, request_start_time=0.0) for request in requests]
        variants.append(request_variant(name, list(map(_guide_row, requests)), totals["errored"]))
    created = datetime.fromtimestamp(document["benchmarks"][0]["start_time"], UTC) if variants else None
    spec, versions = document["config"]["spec"], {"guidellm": document["metadata"]["guidellm_version"]}
    settings = {name: spec.get(name) for name in ("profile", "constraints", "data")}
    settings |= {name: spec["backend"].get(name) for name in ("model", "request_format")}
    return [Imported(make_record("guidellm", created, variants, settings, versions=versions), tuple(missing))]


def _guide_row(request: GuideRequest) -> Row | FailedRun:
    if error := request.info.get("error"):
        return FailedRun(str(error).partition("(")[0], str(error))
    ttft, tpot = (ms and ms * _MS for ms in (request.time_to_first_token_ms, request.inter_token_latency_ms))
    times = {"start_s": request.request_start_time, E2E: request.request_latency, TTFT: ttft, TPOT: tpot}
    return {**times, "input_tokens": request.prompt_tokens, "output_tokens": request.output_tokens}


def _to_json_value(value: Any) -> Any:
    """Return a setting as JSON can hold it: `Infinity` is none of its numbers."""
    return "inf" if value in (float("inf"), "inf") else value
