"""The report of `omni loadtest`: a heading and one paragraph per server."""

from __future__ import annotations

from collections.abc import Mapping

from omni_cli.metrics import PERCENTILES, is_percentile, is_total, samples_for
from omni_cli.record import Record, Variant, get_failures, num_requests
from omni_cli.report.bench_text import shown
from omni_cli.report.bench_units import quantity, quantity_interval, title
from omni_cli.report.tables import aligned
from omni_cli.report.units import count
from omni_cli.results import Summary


def server_title(workload: Mapping[str, object]) -> str:
    """Format `chat of a server`."""
    return f"{shown(workload.get('endpoint', '?'))} of a server"


def load_text(workload: Mapping[str, object]) -> str:
    """Format `concurrency 8` or `4 requests per second`; empty if the variants differ in it."""
    load = workload.get("load")
    if isinstance(load, Mapping) and "concurrency" in load:
        return f"concurrency {shown(load['concurrency'])}"
    rate = load.get("request_rate") if isinstance(load, Mapping) else None
    if not isinstance(load, Mapping) or rate is None:
        return ""
    times = " as in the trace" if "arrivals" in load else ""
    return "all at once" if rate == "inf" else f"{shown(rate)} requests per second{times}"


def request_text(workload: Mapping[str, object]) -> str:
    """Format `32 words in, 32 tokens out`, or `given requests`."""
    if "requests_sha256" in workload:
        return "given requests"
    if "input" in workload:
        return f"{shown(workload['input'])} in"
    into = f"{shown(workload.get('input_len', '?'))} {shown(workload.get('input_unit', 'tokens'))} in"
    out = workload.get("output_len")
    return into if out is None else f"{into}, {shown(out)} tokens out"


def slo_text(workload: Mapping[str, object]) -> str:
    """Format `SLO ttft 200 ms, rtf 1`; empty without an SLO."""
    slo = workload.get("slo")
    if not isinstance(slo, Mapping) or not slo:
        return ""
    return "SLO " + ", ".join(
        f"{metric} {limit:g}" if metric == "rtf" else f"{metric} {limit * 1000:g} ms" for metric, limit in slo.items()
    )


def server_heading(record: Record, warmup: int, device: str, turns: str) -> str:
    """Format `chat of a server, concurrency 8, 32 words in, ..., 3 warm-up + 30 windows of 32 requests each in 15
    blocks`."""
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


def server_lines(number: int, variant: Variant, summaries: Mapping[str, Summary]) -> list[str]:
    """Format the paragraph on one server: its requests, then one line per metric, with percentiles of the requests."""
    rows = [("", "median [95% CI]", *(f"p{percentile}" for percentile in PERCENTILES))]
    for metric, summary in summaries.items():
        if is_percentile(metric) and not metric.startswith("itl"):
            continue  # a window's percentile; those beside the median are of all requests
        median = quantity(metric, summary.median)
        bounds = quantity_interval(metric, summary.ci95, summary.median)
        percentiles = ["of all", ""] if is_total(metric) else _percentiles(metric, summary)
        rows.append((title(metric), f"{median} {bounds}", *percentiles))
    return [f"Benchmark {number}: {variant.name}", f"  {server_note(variant)}", *aligned(rows)]


def _percentiles(metric: str, summary: Summary) -> list[str]:
    """Format percentiles; empty for metrics that only a whole window has."""
    if not summary.requests:
        return ["" for _ in PERCENTILES]
    values = [(p, summary.percentile(p)) for p in PERCENTILES]
    return [f"n < {samples_for(p)}" if value is None else quantity(metric, value) for p, value in values]


def server_note(variant: Variant) -> str:
    """Format `tiny-omni, 640 requests, 2 failed, 9 cut, 61 tokens in, 1.28 s audio`, with means per request."""
    parts = [shown(variant.settings.get("model", "unknown model")), count(num_requests(variant), "request")]
    failed = sum(item.count for item in get_failures(variant.samples).values())
    parts.append(f"{failed} failed" if failed else "none failed")
    if cut := sum(filter(None, (value for sample in variant.samples for value in sample.requests.get("is_cut", ())))):
        parts.append(f"{cut:g} cut")
    words = {"input_tokens": "tokens in", "output_tokens": "tokens out", "audio_s": "s audio", "pixels": "pixels"}
    answered = sum(sample.work.get("requests", 0) for sample in variant.samples)
    for name, word in words.items():
        amounts = [sample.work[name] for sample in variant.samples if name in sample.work]
        if answered and len(amounts) == len(variant.samples) and any(amounts):
            parts.append(f"{round(sum(amounts) / answered, 2):g} {word}")
    return ", ".join(parts)
