"""The document of `omni generate --json`, schema `omni.generate/1`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import OmniError
from omni_cli.report.records import RequestRecord, WrittenOutput, preview_path
from omni_cli.requests.contents import Transcript
from omni_cli.requests.fields import FIELDS
from omni_cli.requests.outputs import AudioOutput, StageInfo, StageTrace, TensorOutput, TextOutput, VideoOutput

SCHEMA = "omni.generate/1"

_OPTIONAL_OF_TRACE = (
    "ttft_s",
    "num_input_tokens",
    "num_output_tokens",
    "finish_reason",
    "output_token_ids",
    "output_codes",
    *(name for name, row in FIELDS.items() if row.is_traced),
    "encode_s",
)


def generate_document(
    config: EngineConfig, records: Iterable[RequestRecord], stages: Iterable[StageInfo]
) -> dict[str, object]:
    """Return a run as plain JSON types; a key that does not apply (`ttft_s` of a diffusion stage) is absent."""
    return {
        "schema": SCHEMA,
        "profile": config.name,
        "model": config.model,
        "seed": config.seed,
        "results": [result_document(record) for record in records],
        "stages": [
            {"name": stage.name, "load_s": stage.load_s, "peak_memory_bytes": dict(stage.peak_memory_bytes)}
            for stage in stages
        ],
    }


def result_document(record: RequestRecord) -> dict[str, object]:
    """Return one entry of `results`; for a request that an earlier run finished, that run's entry."""
    if record.earlier is not None:
        return dict(record.earlier)
    result: dict[str, object] = {"request_id": record.request_id, "status": "ok" if record.error is None else "error"}
    if record.place is not None:
        result["place"] = record.place
    if record.error is not None:
        result.update(_error(record.error))
    if record.notes:
        result["notes"] = list(record.notes)
    result["outputs"] = [_output(output) for output in record.outputs]
    result["stages"] = [_trace(trace) for trace in record.stages]
    return result


def _error(error: OmniError) -> dict[str, object]:
    described: dict[str, object] = {"message": error.message}
    if error.hint:
        described["hint"] = error.hint
    stage = getattr(error, "stage", None)
    if stage is not None:
        described["stage"] = stage
    return described


def _output(written: WrittenOutput) -> dict[str, object]:
    output = written.output
    if isinstance(output, TextOutput):
        return {
            "type": "text",
            "text": output.text,
            "token_ids": [int(token) for token in output.token_ids],
            "finish_reason": output.finish_reason,
            **({} if output.transcript is None else {"transcript": _transcript(output.transcript)}),
        }
    assert written.path is not None
    path = str(written.path)
    if isinstance(output, AudioOutput):
        return {
            "type": "audio",
            "path": path,
            "sample_rate": int(output.sample_rate),
            "num_samples": len(output.samples),
            "finish_reason": output.finish_reason,
        }
    if isinstance(output, VideoOutput):
        return _video(output, written.path)
    if isinstance(output, TensorOutput):
        shape, dtype = list(output.array.shape), output.array.dtype.name
        return {"type": "tensor", "name": output.name, "path": path, "shape": shape, "dtype": dtype}
    height, width = output.pixels.shape[:2]
    return {"type": "image", "path": path, "width": int(width), "height": int(height)}


def _transcript(transcript: Transcript) -> dict[str, object]:
    segments = [
        {"start_s": segment.start_s, "end_s": segment.end_s, "text": segment.text} for segment in transcript.segments
    ]
    return {"language": transcript.language, "duration_s": round(transcript.duration_s, 3), "segments": segments}


def _video(output: VideoOutput, path: Path) -> dict[str, object]:
    described: dict[str, object] = {
        "type": "video",
        "path": str(path),
        "preview": str(preview_path(path)),
        "width": output.width,
        "height": output.height,
        "num_frames": output.num_frames,
        "fps": float(output.fps),
    }
    if output.sound is not None:
        described["audio"] = {"sample_rate": output.sound.sample_rate, "num_samples": output.sound.num_samples}
    return described


def _trace(trace: StageTrace) -> dict[str, object]:
    stage: dict[str, object] = {"name": trace.name, "kind": trace.kind, "latency_s": trace.latency_s}
    for name in _OPTIONAL_OF_TRACE:
        value = getattr(trace, name)
        if value is not None:
            stage[name] = _integers(value) if name in ("output_token_ids", "output_codes") else value
    stage["effective"] = dict(trace.effective)
    return stage


def _integers(value: Any) -> Any:
    """Return token ids, or frames of codes, as lists of Python integers."""
    return [_integers(item) for item in value] if isinstance(value, Sequence) else int(value)
