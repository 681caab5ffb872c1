"""Files of `vllm bench serve`, SGLang's `bench_serving` and AIPerf."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from omni_cli.errors import InputError
from omni_cli.importers.building import Imported, Row, record_of, request_variant, summary_variant
from omni_cli.importers.timings import NO_ORIGIN
from omni_cli.record import E2E

_MS = 1e-3
_NS = 1e-9
_VLLM_SETTINGS = ("backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency")
_SGLANG_SETTINGS = ("backend", "dataset_name", "random_input_len", "random_output_len", "sharegpt_output_len",
                    "request_rate", "max_concurrency")  # fmt: skip


class ServingRun(msgspec.Struct):
    """The fields that `vllm bench serve` and `bench_serving` call alike; lists have an item per request."""

    completed: int
    latencies: list[float] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    input_lens: list[int] | None = None
    output_lens: list[int] | None = None
    errors: list[str | None] | None = None
    median_e2el_ms: float | None = None
    median_e2e_latency_ms: float | None = None
    median_ttft_ms: float | None = None
    median_tpot_ms: float | None = None


def vllm_serve(document: Any, written: str) -> list[Imported]:
    """Read `vllm bench serve --save-result`, with single requests if it has them."""
    try:
        created = f"{datetime.strptime(str(document.get('date')), '%Y%m%d-%H%M%S'):%Y-%m-%dT%H:%M:%SZ}"
    except ValueError:
        created = written
    settings = {name: _plain(document.get(name)) for name in _VLLM_SETTINGS}
    return [_serving("vllm bench serve", document, created, settings, "--save-detailed")]


def sglang_serving(document: Any, written: str) -> list[Imported]:
    """Read a line of SGLang's `bench_serving --output-file`, with single requests if it has them."""
    settings = {name: _plain(document.get(name)) for name in _SGLANG_SETTINGS}
    return [_serving("sglang bench_serving", document, written, settings, "--output-details")]


def _serving(tool: str, document: Any, created: str, settings: dict[str, Any], option: str) -> Imported:
    run = msgspec.convert(document, ServingRun)
    rows = _rows(run)
    name = str(settings.get("model_id") or settings.get("backend"))
    missing = [NO_ORIGIN]
    variant = request_variant(name, rows)
    if rows and variant is None:
        raise InputError(f"none of its {len(rows)} requests was answered")
    if variant is None:
        variant = _of_medians(name, run, option)
        missing.append(f"it has only medians of the whole run, from which no interval follows: run it with `{option}`")
    elif run.ttfts is None:
        missing.append(f"it has no time to first token of single requests: run it with `{option}`")
    return Imported(record_of(tool, created, [variant], settings), tuple(missing))


def _of_medians(name: str, run: ServingRun, option: str) -> Any:
    e2e_ms = run.median_e2el_ms or run.median_e2e_latency_ms
    if not e2e_ms:
        raise InputError("it has no latency from end to end", hint=f"run the benchmark with `{option}`")
    found = {"ttft_s": run.median_ttft_ms, "tpot_s": run.median_tpot_ms}
    return summary_variant(name, e2e_ms * _MS, {key: value * _MS for key, value in found.items() if value})


def _rows(run: ServingRun) -> list[Row]:
    """Return one row per request; empty if the file has none. A request without a latency failed."""
    columns: tuple[Sequence[Any] | None, ...] = (
        run.latencies, run.ttfts, run.itls, run.input_lens, run.output_lens, run.errors,
    )  # fmt: skip
    lengths = {len(column) for column in columns if column is not None}
    if run.latencies is None and (run.ttfts is None or run.itls is None):
        return []
    if len(lengths) != 1:
        raise InputError(f"its lists of requests have different lengths: {', '.join(map(str, sorted(lengths)))}")
    return [_row(*values) for values in itertools.zip_longest(*(column or () for column in columns))]


def _row(
    latency: float | None, ttft: float | None, gaps: list[float] | None, into: int | None, out: int | None, error: Any
) -> Row:
    e2e_s = latency if latency is not None else (ttft or 0.0) + sum(gaps or ())
    if error or e2e_s <= 0:
        return {E2E: None}
    many = out is not None and out > 1 and ttft is not None
    tpot_s = (e2e_s - ttft) / (out - 1) if many and ttft is not None and out is not None else None
    return {E2E: e2e_s, "ttft_s": ttft or None, "tpot_s": tpot_s, "input_tokens": into, "output_tokens": out}


class AIPerfValue(msgspec.Struct):
    value: Any
    unit: str


class AIPerfMetadata(msgspec.Struct):
    request_start_ns: int
    benchmark_phase: str = "profiling"


class AIPerfRequest(msgspec.Struct):
    metadata: AIPerfMetadata
    metrics: dict[str, AIPerfValue]
    error: Any = None


_AIPERF_TIMES = {E2E: "request_latency", "ttft_s": "time_to_first_token", "tpot_s": "inter_token_latency"}
_AIPERF_COUNTS = {"input_tokens": "input_sequence_length", "output_tokens": "output_sequence_length"}
_SCALES = {"ns": _NS, "us": 1e-6, "ms": _MS, "sec": 1.0, "s": 1.0}


def aiperf_requests(lines: list[Any], written: str) -> list[Imported]:
    """Read AIPerf's `profile_export.jsonl`, a request per line."""
    found = [msgspec.convert(line, AIPerfRequest) for line in lines]
    found = sorted(
        (item for item in found if item.metadata.benchmark_phase == "profiling"),
        key=lambda item: item.metadata.request_start_ns,
    )
    rows = [_aiperf_row(item) for item in found]
    variant = request_variant("requests", rows)
    if variant is None:
        raise InputError(f"none of its {len(rows)} requests was answered")
    created = f"{datetime.fromtimestamp(found[0].metadata.request_start_ns * _NS, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return [Imported(record_of("aiperf", created, [variant], {"num_requests": len(rows)}), (NO_ORIGIN,))]


def _aiperf_row(item: AIPerfRequest) -> Row:
    if item.error is not None:
        return {E2E: None}
    row: Row = {}
    for name, metric in (*_AIPERF_TIMES.items(), *_AIPERF_COUNTS.items()):
        value = item.metrics.get(metric)
        scale = 1.0 if value is None or name in _AIPERF_COUNTS else _SCALES.get(value.unit)
        row[name] = float(value.value) * scale if value is not None and scale is not None else None
    return row if row.get(E2E) is not None else {E2E: None}


def aiperf_summary(document: Any, written: str) -> list[Imported]:
    """Read AIPerf's `profile_export_aiperf.json`, which has percentiles of all requests."""
    medians: dict[str, float] = {}
    for name, metric in _AIPERF_TIMES.items():
        value = document.get(metric)
        if isinstance(value, dict) and isinstance(value.get("p50"), int | float) and value.get("unit") in _SCALES:
            medians[name] = value["p50"] * _SCALES[value["unit"]]
    if E2E not in medians:
        raise InputError("it has no median of `request_latency`", hint="pass `profile_export.jsonl` beside it")
    version = str(document.get("aiperf_version"))
    record = record_of(
        "aiperf", written, [summary_variant("requests", medians.pop(E2E), medians)], {"summary": True},
        versions={"aiperf": version},
    )  # fmt: skip
    note = "it has only percentiles of all requests, from which no interval follows: pass `profile_export.jsonl`"
    return [Imported(record, (note, NO_ORIGIN))]


def _plain(value: Any) -> Any:
    """Return a setting as JSON can hold it: `Infinity` is none of its numbers."""
    return "inf" if value in (float("inf"), "inf") else value
