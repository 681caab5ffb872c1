"""What `omni bench --url` says of a server: one heading, a line on the requests of each variant, warnings."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from omni_cli.record import E2E, Record, Variant, failures_of, request_values, values_of
from omni_cli.report.bench_text import shown
from omni_cli.report.bench_units import percent, quantity, quantity_interval, title
from omni_cli.report.tables import aligned
from omni_cli.report.units import count
from omni_cli.stats.summary import PERCENTILES, Summary, samples_for

_TAIL = re.compile(r"_p\d+_s$")

LATE_S = 0.005
"""A request that is sent so much after its time was held up by the client."""

_LATE_SHARE = 0.01
_BURST_S = 1e-5
_BUSY_CORES = 0.8
_BUSY_SHARE = 0.1


def is_server(record: Record) -> bool:
    return record.workload.get("kind") == "server"


def server_title(workload: Mapping[str, Any]) -> str:
    """`chat of a server`."""
    return f"{shown(workload.get('endpoint', '?'))} of a server"


def load_text(workload: Mapping[str, Any]) -> str:
    """`concurrency 8`, `4 requests a second`; nothing where the variants differ in it."""
    load = workload.get("load")
    if isinstance(load, Mapping) and "concurrency" in load:
        return f"concurrency {shown(load['concurrency'])}"
    rate = _rate(load)
    if rate is None:
        return ""
    return "all at once" if rate == "inf" else f"{shown(rate)} requests a second"


def request_text(workload: Mapping[str, Any]) -> str:
    """`32 words in, 32 tokens out`."""
    into = f"{shown(workload.get('input_len', '?'))} {shown(workload.get('input_unit', 'tokens'))} in"
    out = workload.get("output_len")
    return into if out is None else f"{into}, {shown(out)} tokens out"


def slo_text(workload: Mapping[str, Any]) -> str:
    """`SLO ttft 200 ms, rtf 1`; nothing where there is none."""
    slo = workload.get("slo")
    if not isinstance(slo, Mapping) or not slo:
        return ""
    return "SLO " + ", ".join(
        f"{metric} {limit:g}" if metric == "rtf" else f"{metric} {limit * 1000:g} ms" for metric, limit in slo.items()
    )


def server_heading(record: Record, warmup: int, device: str, turns: str) -> str:
    """`chat of a server, concurrency 8, 32 words in, ..., 3 warm-up + 30 windows of 32 requests each in 15 blocks`."""
    workload = record.workload
    windows = max((len(variant.samples) for variant in record.variants), default=0)
    blocks = len({sample.block for variant in record.variants for sample in variant.samples})
    size = count(workload["num_requests"], "request")
    parts = [
        server_title(workload),
        load_text(workload),
        request_text(workload),
        slo_text(workload),
        f"client: {device}",
        f"{warmup} warm-up + {count(windows, 'window')} of {size} each in {count(blocks, 'block')}" + turns,
    ]
    return ", ".join(filter(None, parts))


def server_lines(number: int, variant: Variant, summaries: Sequence[Summary]) -> list[str]:
    """What is said of one server: its requests, then a line a metric; percentiles are those of single requests."""
    rows = [("", "median [95% CI]", *(f"p{percentile}" for percentile in PERCENTILES))]
    for summary in summaries:
        if _TAIL.search(summary.metric) and not summary.metric.startswith("itl"):
            continue  # of a window; the percentiles beside the median are of all requests
        median = quantity(summary.metric, summary.median)
        bounds = quantity_interval(summary.metric, summary.ci95, summary.median)
        rows.append((title(summary.metric), f"{median} {bounds}", *_percentiles(summary)))
    return [f"Benchmark {number}: {variant.name}", f"  {server_note(variant)}", *aligned(rows)]


def _percentiles(summary: Summary) -> list[str]:
    """Nothing for what only a whole window has."""
    if summary.requests is None:
        return ["" for _ in PERCENTILES]
    return [
        f"n < {samples_for(p)}" if summary.percentiles[p] is None else quantity(summary.metric, summary.percentiles[p])
        for p in PERCENTILES
    ]


def server_note(variant: Variant) -> str:
    """`tiny-omni, 640 requests, 2 failed, 61 tokens in, 32 out, 1.28 s audio`: of one request the means."""
    parts = [shown(variant.settings.get("model", "unknown model")), count(num_requests(variant), "request")]
    failed = sum(found.count for found in failures_of(variant.samples).values())
    parts.append(f"{failed} failed" if failed else "none failed")
    words = {"input_tokens": "tokens in", "output_tokens": "tokens out", "audio_s": "s audio", "pixels": "pixels"}
    answered = sum(sample.work.get("requests", 0) for sample in variant.samples)
    for name, word in words.items():
        amounts = [sample.work[name] for sample in variant.samples if name in sample.work]
        if answered and len(amounts) == len(variant.samples) and any(amounts):
            parts.append(f"{round(sum(amounts) / answered, 2):g} {word}")
    return ", ".join(parts)


def num_requests(variant: Variant) -> int:
    """All that were sent, also those that failed."""
    return sum(len(next(iter(sample.requests.values()), ())) for sample in variant.samples)


def late_requests(variant: Variant) -> tuple[float, float]:
    """(share of the requests that were sent `LATE_S` after their time or later, the longest delay in seconds)."""
    lags = request_values(variant, "lag_s")
    return (sum(lag >= LATE_S for lag in lags) / len(lags), max(lags)) if lags else (0.0, 0.0)


def server_warnings(record: Record) -> list[tuple[str, str | None]]:
    """(message, hint) for what makes the numbers other than they seem."""
    found: list[tuple[str, str | None]] = []
    for variant in record.variants:
        share, longest_s = late_requests(variant)
        # Nobody can send all at once.
        if "inf" not in (_rate(record.workload.get("load")), _rate(variant.settings)) and share > _LATE_SHARE:
            message = (
                f"{variant.name}: the client was late with {percent(share).lstrip('+')} of the requests, by up to "
                f"{quantity('lag_s', longest_s)}, which is in their times"
            )
            found.append((message, "lower the rate, or measure from a machine with nothing else to do"))
        if record.workload.get("endpoint") == "chat" and _lacks_usage(variant):
            message = f"{variant.name}: the server does not say how many tokens it made: no tpot, no tokens per second"
            found.append((message, None))
        gaps = [value for _, value in values_of(variant, "itl_s")]
        if gaps and statistics.median(gaps) < _BURST_S:
            message = f"{variant.name}: most pieces of text came together with others: ttft and itl are those of bursts"
            found.append((message, "the server sends them so, or this machine was too busy to read them one by one"))
    busy = _busy_share(record)
    if busy > _BUSY_SHARE:
        message = f"the client itself used a whole core in {busy:.0%} of the time: the times may be its own"
        found.append((message, "send less at once, or measure from several machines"))
    return found


def _rate(load: Any) -> Any:
    return load.get("request_rate") if isinstance(load, Mapping) else None


def _lacks_usage(variant: Variant) -> bool:
    return bool(variant.samples) and bool(request_values(variant, E2E)) and not request_values(variant, "output_tokens")


def _busy_share(record: Record) -> float:
    own = record.utilisation.own_cores if record.utilisation is not None else ()
    return statistics.fmean(cores > _BUSY_CORES for cores in own) if own else 0.0
