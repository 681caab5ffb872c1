"""Whether a measurement can be trusted: what was asked for is what ran, and its parts make up the whole."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni_cli.bench.protocol import LoadedStage
from omni_cli.bench.variants import ENVIRONMENT, Variant
from omni_cli.engine.devices import has_cuda_device
from omni_cli.loadtest.failures import sentence
from omni_cli.record import Sample, failures_of

TOLERANCE = 0.1
"""By how much the parts of a time may miss it or exceed it, as a share of it; the median over a variant's runs."""

SLACK_S = 0.005
"""And this much more: messages between processes take their time, however short the work is."""


@dataclass(frozen=True)
class Ineffective:
    """A key of a stage that was asked for as `requested`, and holds as `effective`."""

    stage: str
    key: str
    requested: object
    effective: object


def ineffective(stages: Sequence[LoadedStage]) -> tuple[Ineffective, ...]:
    """Where the engines that were loaded differ from their configuration."""
    found = []
    for stage in stages:
        read_back = {**stage.settings, **stage.effective}
        found += [
            Ineffective(stage.name, key, requested, read_back[key])
            for key, requested in stage.requested.items()
            if key in read_back and read_back[key] != requested
        ]
    return tuple(found)


def treatment_failure(variant: Variant, stages: Sequence[LoadedStage]) -> str | None:
    """A sentence where what this variant is about did not take effect: its times would be someone else's."""
    for item in ineffective(stages):
        if item.key in variant.varied_keys(item.stage):
            return (
                f"it asks for {item.stage}.{item.key} {_word(item.requested)}, and {_word(item.effective)} is what ran"
            )
    return None


def unaccounted(shares: Mapping[str, Sequence[float]], seconds: Sequence[float]) -> str | None:
    """A sentence where the parts of the times do not make them up; `shares` are by kind, `seconds` the whole times."""
    if not seconds:
        return None
    allowed = TOLERANCE + SLACK_S / statistics.median(seconds)
    words = {
        "stages": "the stages' times make up {:.0%} of the end-to-end time",
        "steps": "the parts of the diffusion stage make up {:.0%} of its time",
        "tokens": "the tokens' times make up {:.0%} of their stage's time",
    }
    for kind, values in shares.items():
        share = statistics.median(values)
        if abs(share - 1) > allowed:
            return f"{words[kind].format(share)}, more than {allowed:.0%} off"
    return None


def failed_requests(samples: Sequence[Sample]) -> str | None:
    """A sentence where a server did not answer all requests: the times are those of the others."""
    failures = failures_of(samples)
    if not failures:
        return None
    count = sum(len(next(iter(sample.requests.values()), ())) for sample in samples)
    failed = sum(found.count for found in failures.values())
    return f"{failed} of {count} requests failed: {sentence(failures)}"


def warnings(variant: Variant, stages: Sequence[LoadedStage]) -> list[str]:
    """Settings that this variant is not about, and that do not hold."""
    by_key: dict[tuple[str, str, str], list[str]] = {}
    for item in ineffective(stages):
        if (item.key, item.requested) == ("output_copy", "async") and not has_cuda_device():
            continue  # a default that does not apply: without a device the outputs are on the host already
        by_key.setdefault((item.key, _word(item.requested), _word(item.effective)), []).append(item.stage)
    found = [
        f"{key} is {effective}, not {requested} as configured ({', '.join(names)})"
        for (key, requested, effective), names in by_key.items()
    ]
    wanted = variant.environment.get("OMP_NUM_THREADS", "")
    threads = {stage.settings.get("num_threads") for stage in stages} - {None}
    if wanted.isdigit() and threads and threads != {int(wanted)}:
        used = ", ".join(str(number) for number in sorted(threads, key=str))
        found.append(f"{ENVIRONMENT}OMP_NUM_THREADS={wanted} does not hold: the engine chose {used} threads itself")
    return found


def _word(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
