"""From the traces of one iteration to its metrics, under their established names, and to its work."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from omni_cli.outputs import AudioOutput, ImageOutput, RequestResult, StageTrace, VideoOutput
from omni_cli.stats.metrics import samples_for

_ITL_PERCENTILE = 90
SLACK_S = 0.005
"""Time allowed for messages between processes, which does not shrink with the work."""


@dataclass(frozen=True)
class Finished:
    """A finished request of an iteration; `e2e_s` is its time in seconds."""

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


def metrics_of(iteration: Iteration, slo: Mapping[str, float] = MappingProxyType({})) -> dict[str, float]:
    """Compute medians over the iteration's requests; units are in the names.

    The first AR stage has `ttft_s`, `tpot_s` and `itl_s`; those of further stages are prefixed with the stage's name.
    If several stages run, each has a `NAME.latency_s`. With limits on values of a request (`slo`), good requests are
    counted as well.
    """
    found: dict[str, float] = {}
    first_of_kind: set[str] = set()
    for name, kind in iteration.stages:
        traces = iteration.traces(name)
        prefix = f"{name}." if kind in first_of_kind else ""
        first_of_kind.add(kind)
        of_stage = _ar_metrics(traces) if kind == "ar" else _diffusion_metrics(traces)
        found |= {prefix + metric: value for metric, value in of_stage.items()}
        if len(iteration.stages) > 1:
            found[f"{name}.latency_s"] = statistics.median(trace.latency_s for trace in traces)
    return found | _rates(iteration) | _goodput(iteration, slo)


def _goodput(iteration: Iteration, slo: Mapping[str, float]) -> dict[str, float]:
    """Count the requests whose values are all within the limits; a missing value is not."""
    if not slo:
        return {}
    rows = [_values(request, iteration.stages) for request in iteration.requests]
    good = sum(all(row.get(name, math.inf) <= limit for name, limit in slo.items()) for row in rows)
    return {"goodput_per_second": good / iteration.e2e_s, "slo_attainment": good / len(rows)}


def _values(request: Finished, stages: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return one request's values under the names of `omni loadtest`."""
    result = request.result
    row = {"e2e_s": request.seconds}
    audio_s = sum(len(o.samples) / o.sample_rate for o in result.outputs if isinstance(o, AudioOutput))
    if audio_s:
        row["rtf"] = request.seconds / audio_s
    if result.ttfp_s is not None:
        row["ttfp_s"] = result.ttfp_s
    first = next((name for name, kind in stages if kind == "ar"), None)
    for trace in result.stages:
        if trace.name == first:
            of_trace = _ar_metrics([trace])
            row |= {name: of_trace[name] for name in ("ttft_s", "tpot_s") if name in of_trace}
            gaps = [later - earlier for earlier, later in itertools.pairwise(trace.token_times_s or ())]
            if gaps:
                row["itl_max_s"] = max(gaps)
    return row


def work_of(iteration: Iteration) -> dict[str, float]:
    """Compute the amount of work: tokens, steps, pixels, seconds of audio."""
    work: dict[str, float] = {"requests": float(len(iteration.requests))}
    for name, kind in iteration.stages:
        traces = iteration.traces(name)
        if kind == "ar":
            work.setdefault("input_tokens", _total(trace.num_input_tokens for trace in traces))
            work["output_tokens"] = work.get("output_tokens", 0.0) + _total(t.num_output_tokens for t in traces)
        elif any(trace.num_inference_steps is not None for trace in traces):
            work["denoise_steps"] = work.get("denoise_steps", 0.0) + _total(t.num_inference_steps for t in traces)
    made = _made(iteration)
    if made.audio_s:
        work["audio_s"] = made.audio_s
    if made.pixels:
        work["pixels"] = made.pixels
    if made.frames:
        work["frames"] = float(made.frames)
    return work


def _ar_metrics(traces: Sequence[StageTrace]) -> dict[str, float]:
    found: dict[str, float] = {}
    ttft = [trace.ttft_s for trace in traces if trace.ttft_s is not None]
    if ttft:
        found["ttft_s"] = statistics.median(ttft)
    tpot = [
        (trace.latency_s - trace.ttft_s) / (trace.num_output_tokens - 1)
        for trace in traces
        if trace.ttft_s is not None and trace.num_output_tokens is not None and trace.num_output_tokens > 1
    ]
    if tpot:
        found["tpot_s"] = statistics.median(tpot)
    gaps = sorted(
        later - earlier for trace in traces for earlier, later in itertools.pairwise(trace.token_times_s or ())
    )
    if gaps:
        found["itl_s"] = statistics.median(gaps)
    for name in ("code_predictor_s", "backbone_s"):
        steps = [step for trace in traces for step in getattr(trace, name) or ()]
        if steps:
            found[name] = statistics.median(steps)
    if len(gaps) >= samples_for(_ITL_PERCENTILE):
        found[f"itl_p{_ITL_PERCENTILE}_s"] = statistics.quantiles(gaps, n=100)[_ITL_PERCENTILE - 1]
    return found


def _diffusion_metrics(traces: Sequence[StageTrace]) -> dict[str, float]:
    found: dict[str, float] = {}
    steps = [step for trace in traces for step in trace.denoise_step_s or ()]
    if steps:
        found["denoise_step_s"] = statistics.median(steps)
    for name in ("text_encode_s", "vae_encode_s", "vae_decode_s", "vocoder_s", "encode_s"):
        values = [getattr(trace, name) for trace in traces if getattr(trace, name) is not None]
        if values:
            found[name] = statistics.median(values)
    return found


def _rates(iteration: Iteration) -> dict[str, float]:
    found: dict[str, float] = {}
    made = _made(iteration)
    if [kind for _, kind in iteration.stages] == ["ar"]:
        tokens = _total(trace.num_output_tokens for trace in iteration.traces(iteration.stages[0][0]))
        found["output_tokens_per_second"] = tokens / iteration.e2e_s
    if made.audio_s:
        found["rtf"] = iteration.e2e_s / made.audio_s
        found["audio_seconds_per_second"] = made.audio_s / iteration.e2e_s
        first = [request.result.ttfp_s for request in iteration.requests if request.result.ttfp_s is not None]
        if first:
            found["ttfp_s"] = statistics.median(first)
    if made.images:
        found["images_per_second"] = made.images / iteration.e2e_s
    if made.frames:
        found["frames_per_second"] = made.frames / iteration.e2e_s
    return found


@dataclass(frozen=True)
class _Made:
    """Amounts of all outputs; `pixels` are those of the images and of the frames of videos."""

    audio_s: float
    images: int
    frames: int
    pixels: float


def _made(iteration: Iteration) -> _Made:
    outputs = [output for request in iteration.requests for output in request.result.outputs]
    shapes = [output.pixels.shape for output in outputs if isinstance(output, ImageOutput)]
    videos = [output for output in outputs if isinstance(output, VideoOutput)]
    return _Made(
        audio_s=float(sum(len(o.samples) / o.sample_rate for o in outputs if isinstance(o, AudioOutput))),
        images=len(shapes),
        frames=sum(video.num_frames for video in videos),
        pixels=float(
            sum(height * width for height, width, _ in shapes)
            + sum(video.num_frames * video.height * video.width for video in videos)
        ),
    )


def _total(values: Iterable[float | None]) -> float:
    return float(sum(value or 0 for value in values))


def accounted_of(iteration: Iteration) -> Mapping[str, float]:
    """Return the share of each time that its parts add up to, as the median over requests; 1 is all of it.

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
                others = (trace.text_encode_s, trace.vae_encode_s, trace.vae_decode_s, trace.vocoder_s, trace.encode_s)
                parts = sum(trace.denoise_step_s) + sum(value or 0.0 for value in others)
                shares.setdefault("steps", []).append(_share(parts, trace.latency_s))
    return {name: statistics.median(values) for name, values in shares.items()}


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
