"""The metrics of measurements: one declaration of each, and their derivation from the timelines of requests.

A metric's name ends in its unit. It begins with a stage (`talker.ttft_s`) where several stages have the metric, and
contains the percentile, if it is one (`ttft_p90_s`).
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

E2E, TTFT, TPOT, ITL, ITL_MAX = "e2e_s", "ttft_s", "tpot_s", "itl_s", "itl_max_s"
TTFP, RTF, DENOISE_STEP = "ttfp_s", "rtf", "denoise_step_s"
HEARD, STUTTER, UNDERRUNS, LONGEST_GAP = "heard_s", "stutter_s", "underruns", "longest_gap_s"
GOODPUT, ATTAINMENT = "goodput_per_second", "slo_attainment"
BACKLOG_GROWTH = "backlog_growth"
ENERGY = "energy_j"
WER, DELETIONS, INSERTIONS, SUBSTITUTIONS = "wer", "deletions", "insertions", "substitutions"
WORDS, SENTENCE = "words", "sentence"
"""Values of a request: the words that its answer should have, and the number of these among those of the run."""
ALLOCATED, RESERVED, HOST_RSS = "peak_allocated_bytes", "peak_reserved_bytes", "peak_host_rss_bytes"

SPEECH = (TTFP, HEARD, STUTTER, UNDERRUNS, LONGEST_GAP, RTF)
"""Metrics of a request that makes audio."""

ENERGY_PER = {
    "energy_per_request_j": "requests",
    "energy_per_output_token_j": "output_tokens",
    "energy_per_audio_second_j": "audio_s",
    "energy_per_image_j": "images",
}
"""Shares of the energy, by the amount of work that each is of."""

COUNTED_METRICS = frozenset({GOODPUT, ATTAINMENT})
"""Metrics that are counts of requests: summed over all samples, where others have a median."""

WORD_ERRORS = (WER, DELETIONS, INSERTIONS, SUBSTITUTIONS)
"""Shares of the words that answers should have: all wrong ones, and their kinds."""

RESOLUTION = {STUTTER: 0.001, UNDERRUNS: 0.01, **dict.fromkeys(WORD_ERRORS, 0.01)}
"""Metrics that are usually 0: means over requests, and compared as if values were at least this large."""

WAITS = frozenset({E2E, TTFT, TTFP, HEARD})
"""Times of a request that contain its wait in a server's queue."""

GATED_MEMORY = (ALLOCATED, HOST_RSS)
REPORTED_MEMORY = (ALLOCATED, RESERVED, HOST_RSS)
PERCENTILES = (90, 99)
_CONFIDENCE = 0.99

Unit = Literal["s", "bytes", "per second", "J", "1"]
Row = dict[str, float | None]
"""The values of one request by metric; None, or no entry, for unknown values. A row without `e2e_s` failed."""


@dataclass(frozen=True)
class Metric:
    """`description` continues the name: "time to the first token". `is_part` is a time within a stage's request;
    reports draw parts in the order of their declarations.
    """

    name: str
    description: str
    higher_is_better: bool = False
    is_part: bool = False


METRICS = {
    metric.name: metric
    for metric in (
        Metric(E2E, "time of a request, or of an iteration of `omni bench`, from end to end"),
        Metric(TTFT, "time to the first token; of a server to its first output of any kind"),
        Metric(TPOT, "time per output token after the first; of a server after those of its first chunk"),
        Metric(ITL, "time between tokens; of a server between chunks with output"),
        Metric(ITL_MAX, "longest time between tokens of a request, which `--slo itl:LIMIT` limits"),
        Metric(TTFP, "time to the first packet of audio"),
        Metric(HEARD, "time to the first audible sample, as a listener hears it"),
        Metric(STUTTER, "time for which a listener's playback stalls; mean of the requests"),
        Metric(UNDERRUNS, "times that a listener's playback stalls; mean of the requests"),
        Metric(LONGEST_GAP, "longest time between arrivals of pieces of audio"),
        Metric(RTF, "seconds per second of audio"),
        Metric("latency_s", "time of a request in a stage"),
        Metric("backbone_s", "time of a talker's step in the forward pass"),
        Metric("code_predictor_s", "time of a talker's step for all codes after the first"),
        Metric("text_encode_s", "time for the encoding of the prompt", is_part=True),
        Metric("vae_encode_s", "time for the encoding of input images", is_part=True),
        Metric(DENOISE_STEP, "time of a denoising step", is_part=True),
        Metric("vae_decode_s", "time for the decoding of latents", is_part=True),
        Metric("vocoder_s", "time for the waveform", is_part=True),
        Metric("encode_s", "time for the encoding of a video file"),
        Metric("requests_per_second", "requests that were answered", higher_is_better=True),
        Metric("output_tokens_per_second", "output tokens of all requests", higher_is_better=True),
        Metric("audio_seconds_per_second", "seconds of audio of all requests", higher_is_better=True),
        Metric("images_per_second", "images of all requests", higher_is_better=True),
        Metric("frames_per_second", "frames of the videos of all requests", higher_is_better=True),
        Metric(GOODPUT, "requests that meet every limit of `--slo`", higher_is_better=True),
        Metric(ATTAINMENT, "share of the requests that meet every limit of `--slo`", higher_is_better=True),
        Metric(WER, "words that are wrong, as a share of those that the answers should have; in `--slo` of one answer"),
        Metric(DELETIONS, "words that are left out, as a share of the same"),
        Metric(INSERTIONS, "words that are added, as a share of the same"),
        Metric(SUBSTITUTIONS, "words that are replaced by others, as a share of the same"),
        Metric(BACKLOG_GROWTH, "seconds that answers fall behind per second of arrivals; 0 if the server keeps up"),
        Metric(ENERGY, "energy of an iteration of `omni bench`, or of a window of `omni loadtest`, of all devices"),
        Metric("energy_per_request_j", "energy per answered request"),
        Metric("energy_per_output_token_j", "energy per output token, of all AR stages that were measured"),
        Metric("energy_per_audio_second_j", "energy per second of audio"),
        Metric("energy_per_image_j", "energy per image"),
        Metric("rtfx", "seconds of audio per second, in earlier records", higher_is_better=True),
        Metric(ALLOCATED, "peak of allocated device memory"),
        Metric(RESERVED, "peak of reserved device memory"),
        Metric(HOST_RSS, "peak of resident host memory"),
    )
}


def get_unit(metric: str) -> Unit:
    """Return the unit that a name ends in; `1` for ratios and shares."""
    if metric.endswith("_per_second"):
        return "per second"
    units: dict[str, Unit] = {"_bytes": "bytes", "_s": "s", "_j": "J"}
    return next((unit for ending, unit in units.items() if metric.endswith(ending)), "1")


def is_total(metric: str) -> bool:
    """True for the metrics that windows of requests have in total: counts, rates and means. Of others they have a
    median."""
    return metric in COUNTED_METRICS or metric in RESOLUTION or get_unit(metric) == "per second"


def worsening(metric: str, ratio: float) -> float:
    """Return by how much a ratio of levels is worse: 0.05 is 5 %, below 0 is better."""
    return (1 / ratio if higher_is_better(metric) else ratio) - 1


def higher_is_better(metric: str) -> bool:
    """True for rates, `rtfx` and `slo_attainment`; everything else is a time, a size or a ratio to one."""
    declared = METRICS.get(metric.rpartition(".")[2])
    return get_unit(metric) == "per second" if declared is None else declared.higher_is_better


def percentile_name(metric: str, percentile: int) -> str:
    """Name a percentile of a time: `ttft_p90_s`."""
    return f"{metric.removesuffix('_s')}_p{percentile}_s"


def is_percentile(metric: str) -> bool:
    return re.search(r"_p\d+_s$", metric) is not None


def samples_for(percentile: int) -> int:
    """Return the number of samples of which, with 99 % confidence, at least one exceeds the percentile (90: 44)."""
    return math.ceil(math.log(1 - _CONFIDENCE) / math.log(percentile / 100))


def get_percentile(values: Sequence[float], percentile: int) -> float | None:
    """Return a percentile of single values, as `numpy.percentile` does by default (`linear`): at the place
    `(n - 1) * percentile / 100` of the sorted values, between two of them in proportion. None for fewer than
    `samples_for`.
    """
    if len(values) < samples_for(percentile):
        return None
    return statistics.quantiles(values, n=100, method="inclusive")[percentile - 1]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The times of one answered request on one clock, or those in one stage.

    `gaps_s` are the times between tokens, or between the chunks in which a server sends them, and `streaming_s` is the
    time from the first of them to the last; of several answers, the sum. `later_tokens` are those that came in
    `streaming_s`: all but the first, of a server all that were not in the first chunk. None if they are not known.
    `heard` are the metrics of a listener.
    """

    start_s: float = 0.0
    end_s: float
    first_token_s: float | None = None
    streaming_s: float | None = None
    gaps_s: Sequence[float] = ()
    later_tokens: float | None = None
    first_audio_s: float | None = None
    audio_s: float = 0.0
    heard: Mapping[str, float | None] = field(default_factory=dict)

    def row(self) -> Row:
        """Return the values of the request."""
        e2e_s = self.end_s - self.start_s
        return {
            E2E: e2e_s,
            TTFT: None if self.first_token_s is None else self.first_token_s - self.start_s,
            TPOT: time_per_output_token(self.streaming_s, self.later_tokens),
            ITL_MAX: max(self.gaps_s, default=None),
            TTFP: None if self.first_audio_s is None else self.first_audio_s - self.start_s,
            **self.heard,
            RTF: e2e_s / self.audio_s if self.audio_s else None,
        }


def time_per_output_token(streaming_s: float | None, later_tokens: float | None) -> float | None:
    """Return the seconds per token after those that came first; None if there is none, or something is not known."""
    return None if streaming_s is None or not later_tokens or later_tokens <= 0 else streaming_s / later_tokens


def time_gaps(times_s: Sequence[float]) -> list[float]:
    """Return the times between neighbours."""
    return [later - earlier for earlier, later in itertools.pairwise(times_s)]


def get_energy(joules: Mapping[str, float], work: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the energy metrics of `count` iterations that did this work; `joules` are by device, of which several have
    a metric of their own."""
    total = sum(joules.values())
    per = {name: total / work[kind] for name, kind in ENERGY_PER.items() if work.get(kind)}
    each = {f"{device}.{ENERGY}": value / count for device, value in joules.items()} if len(joules) > 1 else {}
    return {ENERGY: total / count, **per, **each}


def is_energy(metric: str) -> bool:
    return metric.rpartition(".")[2] in (ENERGY, *ENERGY_PER)


def known_values(rows: Sequence[Row], metric: str) -> list[float]:
    """Return the values of the requests that have the metric."""
    return [value for row in rows if (value := row.get(metric)) is not None]


def values_by_metric(timelines: Sequence[Timeline]) -> dict[str, list[float]]:
    """Return the values that are summarised: one per request, for `itl_s` all times between tokens."""
    rows = [timeline.row() for timeline in timelines]
    values = {name: known_values(rows, name) for name in (E2E, TTFT, TPOT)}
    values[ITL] = [gap for timeline in timelines for gap in timeline.gaps_s]
    return values | {name: known_values(rows, name) for name in SPEECH}


def columns(rows: Sequence[Row]) -> dict[str, tuple[float | None, ...]]:
    """Return the rows by metric, without those that no request has."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    return {name: tuple(row.get(name) for row in rows) for name in names}


def summarise_values(
    values: Mapping[str, Sequence[float]], tails: Collection[str] = (), percentiles: Sequence[int] = PERCENTILES
) -> dict[str, float]:
    """Return the median of each metric that has values, of those that are usually 0 the mean; of `tails` also the
    percentiles that they are enough for."""
    metrics: dict[str, float] = {}
    for name in values:
        if values[name]:
            metrics[name] = (statistics.fmean if name in RESOLUTION else statistics.median)(values[name])
        for percentile in percentiles if name in tails else ():
            value = get_percentile(values[name], percentile)
            if value is not None:
                metrics[percentile_name(name, percentile)] = value
    return metrics


def rates(amounts: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return `NAME_per_second` of each amount."""
    return {f"{name}_per_second": amount / seconds for name, amount in amounts.items()}


def word_errors(rows: Sequence[Row]) -> dict[str, float]:
    """Return the shares of all words that the answers should have; empty if nobody looked."""
    shares = [(row.get(WORDS) or 0.0, row) for row in rows]
    total = sum(words for words, _ in shares)
    return {name: sum(words * (row.get(name) or 0.0) for words, row in shares) / total for name in WORD_ERRORS if total}


def find_idle_limit(rows: Sequence[Row], limits: Iterable[str]) -> str | None:
    """Return a metric of the limits that no answered request has; None if there is none, and without answers."""
    answered = [row for row in rows if row.get(E2E) is not None]
    return next((name for name in limits if answered and not any(_is_limited(row, name) for row in answered)), None)


def _is_limited(row: Row, name: str) -> bool:
    """Return True if a limit applies to an answer: one token has no time per token, but a sound that is never heard
    misses any limit on the time until then."""
    return row.get(name) is not None or (name == HEARD and row.get(TTFP) is not None)


def goodput(rows: Sequence[Row], limits: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the rate and the share of the requests that were answered within all limits that apply to them; empty
    without limits."""
    if not limits:
        return {}

    def is_within(row: Row, name: str, limit: float) -> bool:
        value = row.get(name)
        return not _is_limited(row, name) if value is None else value <= limit

    good = sum(
        row.get(E2E) is not None and all(is_within(row, name, limit) for name, limit in limits.items()) for row in rows
    )
    return {GOODPUT: good / seconds, ATTAINMENT: good / len(rows)}
