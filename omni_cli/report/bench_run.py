"""The report of `omni bench` on its own measurement: a heading and one paragraph per variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_cli.record import Record, Variant, get_counters, is_of_server, num_requests
from omni_cli.report.bench_server import server_heading, server_lines, server_title
from omni_cli.report.bench_text import summary_lines
from omni_cli.report.bench_units import percent, ratio
from omni_cli.report.units import count
from omni_cli.results import SelfCheck, Summary
from omni_cli.text import visible

_INTERLEAVING = {
    "iterations": "interleaved",
    "loads": "loaded alternately",
    "none": "",
}


def short_title(workload: Mapping[str, object]) -> str:
    """Describe the workload in a few words."""
    if workload.get("kind") == "server":
        return server_title(workload)
    return f"{workload['profile']} {workload['stage']}"


def heading(record: Record, warmup: int) -> str:
    """`token2wav of tiny-omni, batch 1, 32 tokens in, 32 out, AMD EPYC 7B13, 3 warm-up + 30 runs in 15 blocks`."""
    how = _INTERLEAVING.get(record.environment.get("conditions", {}).get("interleaving", ""), "")
    turns, device = f" {how}" if how else "", _device(record.environment.get("machine", {}))
    if is_of_server(record):
        return server_heading(record, warmup, device, turns)
    workload = record.workload
    stages = " + ".join(workload["stages"]) if workload["stage"] != "all" else "end to end"
    runs = max((len(variant.samples) for variant in record.variants), default=0)
    blocks = len({sample.block for variant in record.variants for sample in variant.samples})
    parts = [
        f"{workload['profile']}: {stages}",
        f"batch {workload['batch_size']}",
        _lengths(workload),
        device,
        f"{warmup} warm-up + {count(runs, 'run')} each in {count(blocks, 'block')}{turns}",
    ]
    return ", ".join(parts)


def variant_text(number: int, variant: Variant, summaries: Mapping[str, Summary]) -> str:
    """Format latency, range, further metrics and memory of one variant, and what of it failed."""
    if num_requests(variant):
        lines = server_lines(number, variant, summaries)
    elif variant.samples:
        did = "; ".join(filter(None, (_work(variant), *_mode_used(variant))))
        lines = summary_lines(number, variant, summaries, did)
    else:
        lines = [f"Benchmark {number}: {variant.name}", "  no runs"]
    return "\n".join([*lines, *([f"  failed: {visible(variant.failure, 500)}"] if variant.failure else [])])


def self_check_text(check: SelfCheck) -> str:
    """Format the result of A against A on this machine."""
    return "\n".join(
        [
            "Self-check, A against A",
            f"  ratio {ratio(check.ratio, check.ci95)}, expected: 1",
            f"  the smallest regression that {count(check.blocks, 'block')} show in 4 of 5 cases: "
            f"{percent(check.detectable)}",
        ]
    )


def _work(variant: Variant) -> str:
    """Format `32 output tokens, 10 denoise steps, 0.64 s audio` per run; empty if runs differ."""
    works = [sample.work for sample in variant.samples]
    if any(work != works[0] for work in works):
        return ""
    words = {
        "output_tokens": "output tokens",
        "denoise_steps": "denoise steps",
        "audio_s": "s audio",
        "pixels": "pixels",
    }
    return ", ".join(f"{works[0][name]:g} {word}" for name, word in words.items() if works[0].get(name))


def _mode_used(variant: Variant) -> list[str]:
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


def _lengths(workload: Mapping[str, Any]) -> str:
    """Format `32 tokens in, 32 out`; without an output length if no stage generates tokens."""
    stages = workload["settings"]["stages"].values()
    out = f", {workload['output_len']} out" if any(stage["kind"] == "ar" for stage in stages) else ""
    into = f"{workload['input_len']} tokens" if "input_len" in workload else workload.get("input", "given requests")
    return f"{into} in{out}"


def _device(machine: Mapping[str, Any]) -> str:
    gpus = [gpu["name"] for gpu in machine.get("gpus", ())]
    if gpus:
        return f"{len(gpus)} x {gpus[0]}" if len(gpus) > 1 else gpus[0]
    return f"{machine.get('cpu', 'unknown processor')} ({count(machine.get('usable_cores', 1), 'core')})"
