"""The plain text of `omni generate`: stages, files and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from omni_cli.report.records import RequestRecord, WrittenOutput
from omni_cli.report.tables import align
from omni_cli.report.units import count, memory, milliseconds, sample_rate, seconds
from omni_cli.requests.outputs import AudioOutput, ImageOutput, StageInfo, StageTrace, TensorOutput, VideoOutput


def file_line(written: WrittenOutput) -> str:
    """Format `out/0.wav   0.48 s audio, 24 kHz`, or the size of an image or a video."""
    output = written.output
    if isinstance(output, AudioOutput):
        duration = seconds(len(output.samples) / output.sample_rate)
        cut = ", cut" if output.finish_reason == "length" else ""
        return f"{written.path}   {duration} audio, {sample_rate(output.sample_rate)}{cut}"
    if isinstance(output, ImageOutput):
        height, width = output.pixels.shape[:2]
        return f"{written.path}   {width}x{height} image"
    if isinstance(output, VideoOutput):
        sound = "" if output.sound is None else f", with sound, {sample_rate(output.sound.sample_rate)}"
        size = f"{output.width}x{output.height} video"
        return f"{written.path}   {size}, {count(output.num_frames, 'frame')} at {float(output.fps):.6g} fps{sound}"
    if isinstance(output, TensorOutput):
        return f"{written.path}   {'x'.join(map(str, output.array.shape))} {output.array.dtype} tensor"
    raise TypeError("text has no file")


def loaded_lines(stages: Sequence[StageInfo]) -> list[str]:
    """Format one aligned line per stage: kind, mode, load time and memory."""
    rows = [
        (
            f"{index} {stage.name}",
            stage.kind,
            _execution(stage),
            f"copy {stage.effective['output_copy']}" if "output_copy" in stage.effective else "",
            f"loaded in {seconds(stage.load_s)}",
            memory(_peak_bytes(stage)),
        )
        for index, stage in enumerate(stages)
    ]
    return align(rows)


def summary_line(records: Sequence[RequestRecord], stages: Iterable[StageInfo], total_s: float, seed: int) -> str:
    """Format the time of each stage of a single request, or how many of several succeeded."""
    peak = f"peak {memory(sum(_peak_bytes(stage) for stage in stages))}   seed {seed}"
    if len(records) == 1:
        record = records[0]
        total_s = total_s if record.total_s is None else record.total_s
        parts = [f"{trace.name} {seconds(trace.latency_s)}{_cut(trace)}" for trace in record.stages]
        line = "  " + " · ".join([*parts, f"total {seconds(total_s)}"])
        ttft = [trace.ttft_s for trace in record.stages if trace.ttft_s is not None]
        return line + (f"   TTFT {milliseconds(ttft[0])}" if ttft else "") + f"   {peak}"
    failed = sum(record.error is not None for record in records)
    outcome = f"{failed} failed" if failed else "all ok"
    return f"  {count(len(records), 'request')} in {seconds(total_s)} · {outcome}   {peak}"


def cut_text(record: RequestRecord) -> str | None:
    """Format `thinker cut at 64 tokens`, for each stage that reached its maximum; None if none did."""
    cut = [f"{trace.name}{_cut(trace)}" for trace in record.stages if _cut(trace)]
    return ", ".join(cut) or None


def _cut(trace: StageTrace) -> str:
    return f" cut at {count(trace.num_output_tokens or 0, 'token')}" if trace.finish_reason == "length" else ""


def _execution(stage: StageInfo) -> str:
    effective = stage.effective
    mode = str(effective.get("execution", ""))
    if "cudagraph_mode" in effective:
        mode = f"cudagraph {effective['cudagraph_mode']}"
    return f"{mode}, MPS" if effective.get("mps") else mode


def _peak_bytes(stage: StageInfo) -> int:
    """Return device memory if the stage has a device, else host memory."""
    return stage.peak_memory_bytes.get("device") or stage.peak_memory_bytes.get("host", 0)
