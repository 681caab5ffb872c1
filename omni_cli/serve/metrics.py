"""Prometheus metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector

from omni_cli.core.energy import EnergyMeter
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import AudioOutput, ImageOutput, RequestResult, StageInfo, StageProgress, VideoOutput
from omni_cli.serve.exchange import Exchange

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5, 10, 20)


def get_progress(event: object, text_stage: str) -> StageProgress | None:
    """Return the progress that an event tells of, of the stage `text_stage` for text; None for other events."""
    if isinstance(event, TextDelta):
        done, num_input = event.num_output_tokens, event.num_input_tokens
        return StageProgress(event.request_id, text_stage, done, None, "token", num_input)
    return event if isinstance(event, StageProgress) else None


class Metrics:
    """Metrics of one server; nothing here is global, so that two servers may share a process."""

    def __init__(self, max_requests: int) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.in_flight = self._gauge("omni_requests_in_flight", "Requests in flight, running or waiting.")
        self._gauge("omni_requests_in_flight_limit", "Limit of requests in flight; further ones get status 429.").set(
            max_requests
        )
        self.ready = self._gauge("omni_engine_ready", "1 while all stages are loaded.")
        self.restarts = self._counter("omni_stage_restarts", "Restarts of a stage.", "stage")
        self._requests = self._counter("omni_requests", "Answered requests.", "path", "status")
        self._errors = self._counter("omni_errors", "Failed requests by kind.", "kind")
        self._duration = self._histogram("omni_request_duration_seconds", "From arrival to the last byte.", "path")
        text = self._histogram("omni_time_to_first_token_seconds", "From arrival to the first text sent.", "path")
        audio = self._histogram("omni_time_to_first_audio_seconds", "From arrival to the first audio sent.", "path")
        self.first_sent = {"ttft_s": text, "ttfp_s": audio}
        self.real_time_factor = self._histogram(
            "omni_real_time_factor", "Seconds of work per second of speech.", "path", _RATIOS
        )
        self._stage_latency = self._histogram("omni_stage_latency_seconds", "Time of a request in a stage.", "stage")
        self._stage_ttft = self._histogram("omni_stage_time_to_first_token_seconds", "Until its first token.", "stage")
        self._prompt_tokens = self._counter("omni_prompt_tokens", "Input tokens.", "stage")
        self._tokens = self._counter("omni_generation_tokens", "Output tokens.", "stage")
        self._steps = self._counter("omni_denoising_steps", "Denoising steps of requests.", "stage")
        self._audio_s = self._counter("omni_audio_seconds", "Seconds of speech generated.")
        self._images = self._counter("omni_images", "Images generated.")
        self._videos = self._counter("omni_videos", "Videos generated.")
        self._energy: _DeviceEnergy | None = None
        self._frames = self._counter("omni_video_frames", "Frames of videos generated.")

    def watch_stages(self, stages: Callable[[], Iterable[StageInfo]]) -> None:
        """Export the memory of `stages()`, queried for each scrape."""
        self.registry.register(_StageMemory(stages))

    def watch_energy(self, meter: EnergyMeter) -> None:
        """Export the counters of devices."""
        self._energy = _DeviceEnergy(meter)
        self.registry.register(self._energy)

    def watch_videos(self, statuses: Callable[[], Mapping[str, int]], num_bytes: Callable[[], int]) -> None:
        """Export the number of jobs by status and the size of their files, queried for each scrape."""
        jobs = self._gauge("omni_video_jobs", "Video jobs that the server keeps.", "status")
        for status in ("queued", "in_progress", "completed", "failed"):
            jobs.labels(status).set_function(partial(lambda name: statuses().get(name, 0), status))
        self._gauge("omni_video_store_bytes", "Size of the videos that the server keeps.").set_function(num_bytes)

    def video_failed(self, kind: str) -> None:
        """Record a video job that failed."""
        self._errors.labels(kind).inc()

    async def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        if self._energy is not None:  # it takes milliseconds per device
            await asyncio.to_thread(self._energy.read)
        return generate_latest(self.registry)

    def on_end(self, exchange: Exchange) -> None:
        """Record a request that was answered, or whose client has disconnected (status `none`)."""
        path = exchange.route
        self._requests.labels(path, str(exchange.status or "none")).inc()
        self._duration.labels(path).observe(exchange.elapsed_s())
        if exchange.error is not None:
            self._errors.labels(exchange.error).inc()

    def result(self, result: RequestResult) -> None:
        """Record the stages' work for a request and its outputs, even for one that failed midway."""
        for trace in result.stages:
            self._stage_latency.labels(trace.name).observe(trace.latency_s)
            if trace.ttft_s is not None:
                self._stage_ttft.labels(trace.name).observe(trace.ttft_s)
            self._prompt_tokens.labels(trace.name).inc(trace.num_input_tokens or 0)
            self._tokens.labels(trace.name).inc(trace.num_output_tokens or 0)
            self._steps.labels(trace.name).inc(trace.num_inference_steps or 0)
        for output in result.outputs:
            if isinstance(output, AudioOutput):
                self._audio_s.inc(len(output.samples) / output.sample_rate)
            elif isinstance(output, ImageOutput):
                self._images.inc()
            elif isinstance(output, VideoOutput):
                self._videos.inc()
                self._frames.inc(output.num_frames)

    def on_unfinished(self, progress: StageProgress) -> None:
        """Record the work of a stage for a request that ended before its result, as vLLM counts it."""
        self._prompt_tokens.labels(progress.stage).inc(progress.num_input_tokens)
        (self._tokens if progress.unit == "token" else self._steps).labels(progress.stage).inc(progress.done)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, label: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        return Histogram(name, text, [label], buckets=buckets, registry=self.registry)


class _DeviceEnergy:
    """Energy of devices as it was last read."""

    def __init__(self, meter: EnergyMeter) -> None:
        self._meter = meter
        self._joules: Mapping[str, float] = {}

    def read(self) -> None:
        self._joules = self._meter.read().joules

    def collect(self) -> Iterator[CounterMetricFamily]:
        text = "Energy of a device that this server may use, since an arbitrary time."
        family = CounterMetricFamily("omni_energy_joules", text, labels=["device", "source"])
        for device, joules in self._joules.items():
            family.add_metric([device, self._meter.sources[device]], joules)
        yield family


class _StageMemory:
    """Peak memory of the stages' processes, sampled when scraped."""

    def __init__(self, stages: Callable[[], Iterable[StageInfo]]) -> None:
        self._stages = stages

    def collect(self) -> Iterator[GaugeMetricFamily]:
        peaks = GaugeMetricFamily(
            "omni_stage_peak_memory_bytes", "Peak memory of a stage's process.", labels=["stage", "where"]
        )
        for stage in self._stages():
            for where, peak in stage.peak_memory_bytes.items():
                peaks.add_metric([stage.name, where], peak)
        yield peaks
