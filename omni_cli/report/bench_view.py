"""A measurement of `omni bench` or `omni loadtest` as a view: its variants, their comparison, and what ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from omni_cli.core.text import visible
from omni_cli.records.labels import get_facts
from omni_cli.records.metrics import (
    ALLOCATED,
    E2E,
    HOST_RSS,
    METRICS,
    PERCENTILES,
    get_unit,
    higher_is_better,
    is_percentile,
    is_total,
    samples_for,
)
from omni_cli.records.record import Record, Variant, get_counters, get_failures, is_of_server, mapping, num_requests
from omni_cli.records.results import SelfCheck, Summary
from omni_cli.report.bench_figures import latency_parts, memory_figure, utilisation_figure, waterfall_figure
from omni_cli.report.comparison_view import comparison_parts, comparison_verdict, get_mismatches, get_pairs
from omni_cli.report.comparison_words import Labels, comparison_notes
from omni_cli.report.disturbance_words import disturbance_warnings
from omni_cli.report.shared_parts import (
    energy_text,
    get_device,
    notes_on_variants,
    origin_sections,
    output_parts,
    workload_title,
)
from omni_cli.report.units import count, one_line, percent, quantity, quantity_interval, ratio, title
from omni_cli.report.view import Element, Note, Paragraph, Section, Table, Verdict, View
from omni_cli.stats.referee import tokens_per_chunk
from omni_cli.stats.verdicts import BenchmarkReport, ComparisonResult

LABELS = Labels("baseline", "this run")

_WORK = {
    "output_tokens": "output tokens", "denoise_steps": "denoise steps", "audio_s": "s audio", "pixels": "pixels"
}  # fmt: skip
_INTERLEAVING = {
    "iterations": " interleaved",
    "turns": " with turns of {turn_s:g} s",
    "loads": " loaded alternately",
}


def bench_view(report: BenchmarkReport, num_warmup: int | None = None, missing: Sequence[str] = ()) -> View:
    """Return the view of a measurement, `missing` being what the file of another tool lacks.

    `num_warmup` is known, and gives a heading, where it was just made.
    """
    record, summaries = report.record, report.summaries
    results = _get_results(report)
    (runs, blocks), each = _amounts(record), " each" if len(record.variants) > 1 else ""
    compared = [
        part for result in results for part in (get_mismatches(result, LABELS), *comparison_parts(result, LABELS))
    ]
    verdict = _verdict(record, results, summaries)
    counters = tuple((variant.name, text) for variant in record.variants if (text := energy_text(variant)))
    energy = Table("Counters of energy", ("Variant", "Devices"), counters) if counters else None
    notes = [note for result in report.results for note in comparison_notes(result)]
    notes += [*disturbance_warnings(report.disturbances, record), *notes_on_variants(record.variants)]
    texts = []
    if num_warmup is not None:
        named = enumerate(record.variants, start=1)
        texts = [variant_section(number, variant, summaries[variant.name]) for number, variant in named]
    return View(
        kind="Benchmark",
        title=workload_title(record.workload),
        details=" · ".join([*_conditions(record), runs + each, blocks]),
        created=record.created,
        facts=get_facts(record.environment, record.workload, record.created, record.variants),
        verdict=verdict,
        heading="" if num_warmup is None else _heading(record, num_warmup),
        closing="" if results or verdict.tone != "plain" else verdict.sentences[0],
        notes=(*notes, *map(Note, missing)),
        sections=[
            *texts,
            Section("Results", [_results_table(record, summaries)], only="page"),
            Section("Comparison", compared),
            Section("Energy", [energy], only="page"),
            Section("Outputs", output_parts(record), only="page"),
            Section("Latency", latency_parts(record, summaries, report.block_medians), only="page"),
            Section("Where a request waits", [waterfall_figure(record)]),
            Section("Memory", [memory_figure(record)]),
            Section("Machine", [utilisation_figure(record.utilisation)]),
            Section("What ran", [_counters_table(record)], only="page"),
            *origin_sections(record.environment, record.workload, record.command),
        ],
    )


def _get_results(report: BenchmarkReport) -> list[ComparisonResult]:
    """Return the comparisons, for a saved record with its gate, and with a baseline whose samples are in another
    file."""
    record, results = report.record, list(report.results)
    names = {(pair.a.name, pair.b.name) for result in results for pair in result.pairs}
    others = get_pairs([item for item in record.comparisons if (item.a, item.b) not in names])
    if others or (record.gate is not None and not results):
        results.append(ComparisonResult(others, is_saved=True))
    if record.gate is not None:
        results[-1] = replace(results[-1], gate=record.gate)
    return results


def _heading(record: Record, num_warmup: int) -> str:
    """Format `tiny-omni: token2wav, batch 1, 32 tokens in, 32 out, AMD EPYC (8 cores), 3 warm-up + 30 runs each in 15
    blocks`."""
    conditions = record.environment.get("conditions", {})
    turns = _INTERLEAVING.get(conditions.get("interleaving", ""), "").format(turn_s=conditions.get("turn_s"))
    turns += ", loaded in both orders" if conditions.get("loading_orders") == 2 else ""
    runs, blocks = _amounts(record)
    if is_of_server(record):
        runs += f" of {count(record.workload['num_requests'], 'request')}"
    amount = f"{num_warmup} warm-up + {runs} each in {blocks}{turns}"
    return ", ".join([workload_title(record.workload, ": "), *_conditions(record), amount])


def _amounts(record: Record) -> tuple[str, str]:
    """Format `30 runs` or `30 windows`, and `15 blocks`."""
    runs = max((len(variant.samples) for variant in record.variants), default=0)
    blocks = len({sample.block for variant in record.variants for sample in variant.samples})
    return count(runs, "window" if is_of_server(record) else "run"), count(blocks, "block")


def _conditions(record: Record) -> list[str]:
    """Return the load, the requests, their limits and the machine."""
    workload, device = record.workload, get_device(record.environment)
    if is_of_server(record):
        client = f"client: {device or 'unknown processor'}"
        return [*filter(None, (load_text(workload), request_text(workload), slo_text(workload), client))]
    batch = f"batch {one_line(workload['batch_size'])}" if "batch_size" in workload else ""
    return [*filter(None, (batch, _lengths(workload), device))]


def _lengths(workload: Mapping[str, object]) -> str:
    """Format `32 tokens in, 32 out`; without an output length if no stage generates tokens; empty if unknown."""
    stages = mapping(mapping(workload.get("settings")).get("stages")).values()
    if not stages:
        return ""
    is_ar = any(mapping(stage).get("kind") == "ar" for stage in stages)
    into = one_line(workload.get("input", "given requests"))
    into = f"{one_line(workload['input_len'])} tokens" if "input_len" in workload else into
    return f"{into} in" + (f", {one_line(workload.get('output_len'))} out" if is_ar else "")


def load_text(workload: Mapping[str, object]) -> str:
    """Format `concurrency 8` or `4 requests per second`; empty if the variants differ in it."""
    load = mapping(workload.get("load"))
    if "concurrency" in load:
        return f"concurrency {one_line(load['concurrency'])}"
    if (rate := load.get("request_rate")) is None:
        return ""
    times = " as in the trace" if "arrivals" in load else ""
    return "all at once" if rate == "inf" else f"{one_line(rate)} requests per second{times}"


def request_text(workload: Mapping[str, object]) -> str:
    """Format `32 words in, 32 tokens out`, or `given requests`."""
    if "requests_sha256" in workload:
        return "given requests"
    if "input" in workload:
        return f"{one_line(workload['input'])} in"
    into = f"{one_line(workload.get('input_len', '?'))} {one_line(workload.get('input_unit', 'tokens'))} in"
    out = workload.get("output_len")
    return into if out is None else f"{into}, {one_line(out)} tokens out"


def slo_text(workload: Mapping[str, object]) -> str:
    """Format `SLO ttft 200 ms, rtf 1`; empty without an SLO."""
    limits = mapping(workload.get("slo"))
    texts = [
        f"{name} {limit:g}" if name in METRICS else f"{name} {limit * 1000:g} ms" for name, limit in limits.items()
    ]
    return f"SLO {', '.join(texts)}" if texts else ""


def variant_section(number: int, variant: Variant, summaries: Mapping[str, Summary]) -> Section:
    """Format latency, range, further metrics and memory of one variant, and what of it failed."""
    heading, parts = f"Benchmark {number}: {variant.name}", list[Element | None]()
    if num_requests(variant):
        failed = sum(item.count for item in get_failures(variant.samples).values())
        parts = [Paragraph(_server_note(variant)), _server_table(variant.name, summaries, failed)]
    elif variant.samples:
        heading = f"{heading}   {'; '.join(filter(None, (_work(variant), *_modes_used(variant))))}".rstrip()
        parts = [Table(variant.name, (), tuple(_summary_rows(variant, summaries)))]
    else:
        parts = [Paragraph("no runs")]
    failure = Paragraph(f"failed: {visible(variant.failure, 500)}") if variant.failure else None
    return Section("", [*parts, failure], heading, only="text")


def _summary_rows(variant: Variant, summaries: Mapping[str, Summary]) -> Iterator[tuple[str, str, str]]:
    for metric, summary in summaries.items():
        name = "Latency" if metric == E2E else title(metric)
        bounds = "[n/a]" if summary.ci95 is None else quantity_interval(metric, summary.ci95, summary.median)
        p90 = "" if summary.p90 is None else f"p90 {quantity(metric, summary.p90, summary.median)}"
        yield f"{name} (median, 95% CI):", f"{quantity(metric, summary.median)}  {bounds}", p90
        if metric == E2E:
            extremes = " … ".join(quantity(E2E, v, summary.median) for v in (summary.minimum, summary.maximum))
            yield "Range (min … max):", extremes, count(summary.n, "run")
    memory = variant.memory
    if memory.peak_allocated_bytes:
        yield "Memory (peak allocated):", quantity(ALLOCATED, memory.peak_allocated_bytes), ""
    elif memory.peak_host_rss_bytes:
        yield "Memory (peak host RSS):", quantity(HOST_RSS, memory.peak_host_rss_bytes), ""
    if counters := energy_text(variant):
        yield "Energy counters:", "", counters


def _server_table(name: str, summaries: Mapping[str, Summary], num_failed: int) -> Table:
    """List one metric per row, with percentiles of the `n` answers that have it; a window's percentiles are left out.

    Where requests failed, a second row has percentiles that count them as slower than all answers.
    """
    rows: list[tuple[str, ...]] = []
    few = [f"n < {samples_for(p)}" for p in PERCENTILES]
    for metric, summary in summaries.items():
        if is_percentile(metric) and not metric.startswith("itl"):
            continue
        median = f"{quantity(metric, summary.median)} {quantity_interval(metric, summary.ci95, summary.median)}"
        if not summary.requests:
            # Metrics that only a whole window has.
            rows.append((title(metric), median, "", "", "all" if is_total(metric) else ""))
            continue
        values = [summary.percentile(p) for p in PERCENTILES]
        shown = [text if value is None else quantity(metric, value) for value, text in zip(values, few, strict=True)]
        rows.append((title(metric), median, *shown, str(summary.requests)))
        if num_failed and values != [None] * len(values):
            of_all = zip(values, (summary.p90_of_all, summary.p99_of_all), few, strict=True)
            cells = [
                quantity(metric, value) if isinstance(value, float) else text if known is None else "failed"
                for known, value, text in of_all
            ]
            rows.append(("  with failed", "", *cells, str(summary.requests + num_failed)))
    columns = ("", "median [95% CI]", *(f"p{percentile}" for percentile in PERCENTILES), "n")
    # No column for a percentile that no metric has enough values for.
    kept = [n for n in range(len(columns)) if n not in (2, 3) or any(row[n] not in ("", *few) for row in rows)]
    return Table(name, tuple(columns[n] for n in kept), tuple(tuple(row[n] for n in kept) for row in rows))


def _server_note(variant: Variant) -> str:
    """Format `tiny-omni, 640 requests, 2 failed, 9 cut, 61 tokens in, 1.28 s audio`, with means per request."""
    parts = [one_line(variant.settings.get("model", "unknown model")), count(num_requests(variant), "request")]
    failed = sum(item.count for item in get_failures(variant.samples).values())
    parts.append(f"{failed} failed" if failed else "none failed")
    if cut := sum(filter(None, (value for sample in variant.samples for value in sample.requests.get("is_cut", ())))):
        parts.append(f"{cut:g} cut")
    words = {"input_tokens": "tokens in", **_WORK, "output_tokens": "tokens out"}
    answered = sum(sample.work.get("requests", 0) for sample in variant.samples)
    for name, word in words.items():
        amounts = [sample.work[name] for sample in variant.samples if name in sample.work]
        if answered and len(amounts) == len(variant.samples) and any(amounts):
            parts.append(f"{round(sum(amounts) / answered, 2):g} {word}")
    per_chunk = tokens_per_chunk(variant)
    if per_chunk is not None and per_chunk > 1.05:
        parts.append(f"{per_chunk:.3g} tokens per chunk")
    return ", ".join(filter(None, [*parts, energy_text(variant)]))


def _work(variant: Variant) -> str:
    """Format `32 output tokens, 10 denoise steps, 0.64 s audio` per run; empty if runs differ."""
    works = [sample.work for sample in variant.samples]
    if any(work != works[0] for work in works):
        return ""
    return ", ".join(f"{works[0][name]:g} {word}" for name, word in _WORK.items() if works[0].get(name))


def _modes_used(variant: Variant) -> list[str]:
    """Format `talker replayed 840 of 840 calls, hid 100% of the copying`: what ran in the counted runs.

    A single stage is not named.
    """
    by_stage = get_counters(variant)
    sentences = []
    for stage, total in by_stage.items():
        parts = []
        ran = [sample.execution_counters.get(stage, {}) for sample in variant.samples]
        replays, eager = (sum(counters.get(name, 0) for counters in ran) for name in ("graph_replays", "eager_calls"))
        if replays:
            parts.append(f"replayed {replays:g} of {replays + eager:g} calls")
        if total.get("compiled_graphs"):
            parts.append(f"compiled {count(int(total['compiled_regions']), 'region')}")
        hidden, copied = (sum(counters.get(name, 0) for counters in ran) for name in ("copy_hidden_s", "copy_s"))
        if hidden and copied:
            parts.append(f"hid {hidden / copied:.0%} of the copying")
        if parts:
            sentences.append((f"{stage} " if len(by_stage) > 1 else "") + ", ".join(parts))
    return sentences


def self_check_text(check: SelfCheck) -> str:
    """Format the result of A against A on this machine."""
    shown = f"the smallest regression that {count(check.blocks, 'block')} show in 4 of 5 cases"
    found = f"  ratio {ratio(check.ratio, check.ci95)}, expected: 1\n  {shown}: {percent(check.detectable)}"
    return f"Self-check, A against A\n{found}"


def _verdict(
    record: Record, results: Sequence[ComparisonResult], summaries: Mapping[str, Mapping[str, Summary]]
) -> Verdict:
    broken = tuple(
        f"{variant.name}: {visible(variant.failure, 500)}." for variant in record.variants if variant.failure
    )
    if broken:
        return Verdict("failed" if record.gate is None else f"gate: {record.gate.verdict}", "bad", broken)
    pairs = [pair for result in results for pair in result.pairs]
    verdict = comparison_verdict(record.gate, pairs, LABELS)
    if verdict is not None:
        return verdict
    (name, by_metric), *_ = summaries.items()
    if E2E not in by_metric:
        return Verdict("nothing measured", "open")
    latency = by_metric[E2E]
    bounds = quantity_interval(E2E, latency.ci95, latency.median)
    reach = f", with a 95% interval of {bounds}" if latency.ci95 else ""
    median = quantity(E2E, latency.median)
    return Verdict(median, "plain", (f"The median latency of {name} is {median}{reach}.",))


def _results_table(record: Record, summaries: Mapping[str, Mapping[str, Summary]]) -> Table:
    rows = []
    for variant in record.variants:
        summary = summaries[variant.name].get(E2E)
        memory = variant.memory
        metric = ALLOCATED if memory.peak_allocated_bytes else HOST_RSS
        rows.append(
            (
                variant.name,
                "-" if summary is None else quantity(E2E, summary.median),
                "-" if summary is None else quantity_interval(E2E, summary.ci95, summary.median),
                str(len(variant.samples)),
                f"{quantity(metric, getattr(memory, metric))}",
            )
        )
    device = any(variant.memory.peak_allocated_bytes for variant in record.variants)
    peak = "Peak allocated" if device else "Peak host RSS"
    return Table("From end to end", ("Variant", "Median", "95% CI", "Runs", peak), tuple(rows), frozenset({1, 2, 3, 4}))


def _counters_table(record: Record) -> Table | None:
    """List the counters by stage at the end of the variant's last run."""
    counters = {variant.name: get_counters(variant) for variant in record.variants}
    names = dict.fromkeys(
        (stage, name) for by_stage in counters.values() for stage, counted in by_stage.items() for name in counted
    )
    rows = [
        (stage, title(name), *(_counter(name, by_stage.get(stage, {}).get(name)) for by_stage in counters.values()))
        for stage, name in names
    ]
    happened = tuple(row for row in rows if set(row[2:]) - {"0", "-"})
    columns = ("Stage", "Counter", *counters)
    return Table("Counted since loading", columns, happened, frozenset(range(2, len(columns)))) if happened else None


def _counter(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return quantity(name, value) if value and name.endswith(("_s", "_bytes")) else f"{value:g}"


def smaller_is_better_json(variant: Variant, summaries: dict[str, Summary]) -> list[dict[str, object]]:
    """Return medians as github-action-benchmark's `customSmallerIsBetter`, without metrics where more is better."""
    blocks = {
        metric: {sample.block for sample in variant.samples if metric in (E2E, *sample.metrics)} for metric in summaries
    }
    return [
        {
            "name": f"{variant.name}: {title(metric)}",
            "unit": get_unit(metric),
            "value": summary.median,
            **({} if summary.ci95 is None else {"range": f"{summary.ci95[0]:.6g} to {summary.ci95[1]:.6g}"}),
            "extra": f"median of {summary.n} runs in {len(blocks[metric])} blocks",
        }
        for metric, summary in summaries.items()
        if not higher_is_better(metric)
    ]
