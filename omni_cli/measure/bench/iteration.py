"""An iteration of a workload: its metrics and its work, from the traces of its requests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from omni_cli.measure.bench.listener import listen
from omni_cli.measure.bench.slo import check_limits_apply
from omni_cli.records.metrics import (
    ITL,
    PERCENTILES,
    RTF,
    SPEECH,
    TPOT,
    TTFT,
    Row,
    Timeline,
    goodput,
    rates,
    summarise_values,
    time_gaps,
    values_by_metric,
)  # fmt: skip
from omni_cli.requests.outputs import AudioOutput, ImageOutput, RequestResult, StageTrace, VideoOutput, audio_seconds

_PARTS = ("text_encode_s", "vae_encode_s", "vae_decode_s", "vocoder_s", "encode_s")  # beside denoising steps
SLACK_S = 0.005
"""Time allowed for messages between processes, which does not shrink with the work."""


@dataclass(frozen=True)
class Finished:
    """A finished request of an iteration; `seconds` is its time from end to end."""

    result: RequestResult
    seconds: float


@dataclass(frozen=True)
class Iteration:
    """`e2e_s` is from the first request's start to the last one's end; `stages` are (name, kind) in order.

    `prompts` are those of the requests, empty where a stage in the middle of the chain runs.
    """

    e2e_s: float
    requests: tuple[Finished, ...]
    stages: tuple[tuple[str, str], ...]
    prompts: tuple[str, ...] = ()

    def traces(self, name: str) -> list[StageTrace]:
        return [trace for request in self.requests for trace in request.result.stages if trace.name == name]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the stages changed about its requests, such as an argument that is ignored."""
        return tuple(dict.fromkeys(note for request in self.requests for note in request.result.notes))


def get_metrics(iteration: Iteration, slo: Mapping[str, float] = MappingProxyType({})) -> dict[str, float]:
    """Compute medians over the iteration's requests, and rates.

    The first AR stage has `ttft_s`, `tpot_s` and `itl_s`; those of further stages are prefixed with the stage's name.
    If several stages run, each has a `NAME.latency_s`. With limits on values of a request (`slo`), good requests are
    counted as well.
    """
    metrics: dict[str, float] = {}
    seen_kinds: set[str] = set()
    latencies = stage_latencies(iteration)
    for name, kind in iteration.stages:
        prefix = f"{name}." if kind in seen_kinds else ""
        seen_kinds.add(kind)
        traces = iteration.traces(name)
        of_stage = _ar_metrics(traces) if kind == "ar" else _diffusion_metrics(traces)
        metrics |= {prefix + metric: value for metric, value in of_stage.items()}
        if len(iteration.stages) > 1:
            metrics[latency_metric(name)] = latencies[latency_metric(name)]
    timelines = _timelines(iteration)
    rows = [timeline.row() for timeline in timelines]
    check_limits_apply(rows, slo, "this setting")
    return metrics | _rates(iteration, timelines) | goodput(rows, slo, iteration.e2e_s)


def latency_metric(stage: str) -> str:
    return f"{stage}.latency_s"


def stage_latencies(iteration: Iteration) -> dict[str, float]:
    """Return `NAME.latency_s` of each stage, the median over its requests."""
    return {
        latency_metric(name): statistics.median(trace.latency_s for trace in iteration.traces(name))
        for name, _ in iteration.stages
    }


def _timelines(iteration: Iteration) -> list[Timeline]:
    """Return the timelines of the requests; tokens are those of the first AR stage."""
    first = next((name for name, kind in iteration.stages if kind == "ar"), None)
    timelines = []
    for request in iteration.requests:
        traces = [_stage_timeline(trace) for trace in request.result.stages if trace.name == first]
        timeline = traces[0] if traces else Timeline(end_s=request.seconds)
        result = request.result
        timeline = replace(timeline, end_s=request.seconds, audio_s=audio_seconds(result.outputs))
        timelines.append(replace(timeline, first_audio_s=result.ttfp_s, heard=_listen(result)))
    return timelines


def _listen(result: RequestResult) -> Row:
    """Return the metrics of a listener; empty without audio, and for outputs that do not follow one another."""
    sounds = [output for output in result.outputs if isinstance(output, AudioOutput)]
    if len({(sound.sample_rate, sound.samples.shape[1:]) for sound in sounds}) != 1:
        return {}
    return listen(np.concatenate([sound.samples for sound in sounds]), sounds[0].sample_rate, result.audio_arrivals)


def _stage_timeline(trace: StageTrace) -> Timeline:
    return Timeline(
        end_s=trace.latency_s,
        first_token_s=trace.ttft_s,
        streaming_s=None if trace.ttft_s is None else trace.latency_s - trace.ttft_s,
        gaps_s=time_gaps(trace.token_times_s or ()),
        later_tokens=None if trace.num_output_tokens is None else trace.num_output_tokens - 1,
    )


def get_work(iteration: Iteration) -> dict[str, float]:
    """Compute the amount of work: tokens, steps, pixels, seconds of audio."""
    work: dict[str, float] = {"requests": float(len(iteration.requests))}
    for name, kind in iteration.stages:
        traces = iteration.traces(name)
        if kind == "ar":
            work.setdefault("input_tokens", _total(trace.num_input_tokens for trace in traces))
            work["output_tokens"] = work.get("output_tokens", 0.0) + _total(t.num_output_tokens for t in traces)
        elif any(trace.num_inference_steps is not None for trace in traces):
            work["denoise_steps"] = work.get("denoise_steps", 0.0) + _total(t.num_inference_steps for t in traces)
    produced = _get_produced(iteration)
    return work | {name: produced[name] for name in ("audio_s", "pixels", "frames") if produced[name]}


def _ar_metrics(traces: Sequence[StageTrace]) -> dict[str, float]:
    values = values_by_metric([_stage_timeline(trace) for trace in traces])
    chosen = {name: values[name] for name in (TTFT, TPOT, ITL)}
    for name in ("code_predictor_s", "backbone_s"):
        chosen[name] = [step for trace in traces for step in getattr(trace, name) or ()]
    return summarise_values(chosen, tails=(ITL,), percentiles=PERCENTILES[:1])


def _diffusion_metrics(traces: Sequence[StageTrace]) -> dict[str, float]:
    values = {"denoise_step_s": [step for trace in traces for step in trace.denoise_step_s or ()]}
    for name in _PARTS:
        values[name] = [value for trace in traces if (value := getattr(trace, name)) is not None]
    return summarise_values(values)


def _rates(iteration: Iteration, timelines: Sequence[Timeline]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    produced, e2e_s = _get_produced(iteration), iteration.e2e_s
    if [kind for _, kind in iteration.stages] == ["ar"]:
        tokens = _total(trace.num_output_tokens for trace in iteration.traces(iteration.stages[0][0]))
        metrics |= rates({"output_tokens": tokens}, e2e_s)
    if produced["audio_s"]:
        metrics[RTF] = e2e_s / produced["audio_s"]
        metrics |= rates({"audio_seconds": produced["audio_s"]}, e2e_s)
        values = values_by_metric(timelines)
        metrics |= summarise_values({name: values[name] for name in SPEECH if name != RTF})
    counts = {name: produced[name] for name in ("images", "frames") if produced[name]}
    return metrics | rates(counts, e2e_s)


def _get_produced(iteration: Iteration) -> dict[str, float]:
    """Return the amounts of all outputs; `pixels` are those of the images and of the frames of videos."""
    outputs = [output for request in iteration.requests for output in request.result.outputs]
    shapes = [output.pixels.shape for output in outputs if isinstance(output, ImageOutput)]
    videos = [output for output in outputs if isinstance(output, VideoOutput)]
    pixels = sum(height * width for height, width, _ in shapes)
    return {
        "audio_s": audio_seconds(outputs),
        "images": len(shapes),
        "pixels": float(pixels + sum(video.num_frames * video.height * video.width for video in videos)),
        "frames": float(sum(video.num_frames for video in videos)),
    }


def _total(values: Iterable[float | None]) -> float:
    return float(sum(value or 0 for value in values))


def get_accounted(iteration: Iteration) -> Mapping[str, float]:
    """Return the share of each time that its parts add up to, `median_share` over requests; 1 is all of it.

    `stages`: the stages' latencies within the request's time, what two have in common once. `steps`: the parts of a
    diffusion stage within its latency. `tokens`: the last token's time within an AR stage's latency. The first two
    exist only for a request that is alone and whose audio is not streamed; otherwise stages wait for one another in
    between. Up to `SLACK_S` of each difference is accounted for.
    """
    shares: dict[str, list[float]] = {}
    for request in iteration.requests:
        streams = any(trace.num_chunks is not None for trace in request.result.stages)
        is_alone = len(iteration.requests) == 1 and not streams
        if is_alone:
            shares.setdefault("stages", []).append(_share(_covered_s(request.result.stages), request.seconds))
        for trace in request.result.stages:
            if trace.token_times_s:
                shares.setdefault("tokens", []).append(_share(trace.token_times_s[-1], trace.latency_s))
            if trace.denoise_step_s and is_alone:
                parts = sum(trace.denoise_step_s) + sum(getattr(trace, name) or 0.0 for name in _PARTS)
                shares.setdefault("steps", []).append(_share(parts, trace.latency_s))
    return {name: median_share(values) for name, values in shares.items()}


def median_share(shares: Sequence[float]) -> float:
    """Return the median by distance from 1; of two in the middle the nearer, as one run with a delay is no fault."""
    return sorted(shares, key=lambda share: abs(share - 1))[(len(shares) - 1) // 2]


def _covered_s(traces: Iterable[StageTrace]) -> float:
    """Return the sum of the stages' latencies, without what one that starts early has in common with those before."""
    covered_s, end_s = 0.0, 0.0
    for trace in traces:
        is_early = trace.effective.get("early_start", False)
        begin_s = trace.began_s if is_early and trace.began_s is not None else end_s
        until_s = begin_s + trace.latency_s
        covered_s += max(0.0, until_s - max(begin_s, end_s))
        end_s = max(end_s, until_s)
    return covered_s


def _share(parts_s: float, whole_s: float) -> float:
    missing_s = whole_s - parts_s
    return 1 - math.copysign(max(0.0, abs(missing_s) - SLACK_S), missing_s) / whole_s
