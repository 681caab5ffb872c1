"""A run of `omni generate`: its requests' results, as text, as the document of `--json`, and as `results.jsonl`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from omni_cli.config.families import has_random_weights
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import OmniError, OutputError
from omni_cli.report.tables import align
from omni_cli.report.units import count, memory, milliseconds, sample_rate, seconds
from omni_cli.requests.contents import Transcript
from omni_cli.requests.fields import FIELDS
from omni_cli.requests.outputs import (
    AudioOutput,
    ImageOutput,
    Output,
    StageInfo,
    StageTrace,
    TensorOutput,
    TextOutput,
    VideoOutput,
)
from omni_cli.requests.request_spec import RequestSpec
from omni_cli.requests.sampling import describe, with_request

SCHEMA = "omni.generate/1"

_OPTIONAL_OF_TRACE = (
    "ttft_s",
    "num_input_tokens",
    "num_output_tokens",
    "finish_reason",
    "sampling",
    "output_token_ids",
    "output_codes",
    *(name for name, row in FIELDS.items() if row.is_traced),
    "encode_s",
)
RESULTS_FILE = "results.jsonl"


def preview_path(video: Path) -> Path:
    """The preview of a video, beside it."""
    return video.with_suffix(".preview.webp")


class WrittenOutput(msgspec.Struct, frozen=True):
    """An output and its file; `path` is None for text."""

    output: Output
    path: Path | None = None


class RequestRecord(msgspec.Struct, frozen=True):
    """`error` is None for a finished request; a failed one keeps the outputs that were complete.

    `place` is FILE:LINE of a JSONL line; `total_s` is from submission to the end, as the user experiences it.
    `earlier` is the entry of `results` that an earlier run wrote for a request that need not run again. `notes` are
    sentences on what was changed about the request.
    """

    request_id: str
    outputs: tuple[WrittenOutput, ...] = ()
    stages: tuple[StageTrace, ...] = ()
    error: OmniError | None = None
    place: str | None = None
    total_s: float | None = None
    earlier: Mapping[str, object] | None = None
    notes: tuple[str, ...] = ()


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


def loaded_lines(stages: Sequence[StageInfo], sampling: Mapping[str, Any]) -> list[str]:
    """Format one aligned line per stage: kind, mode, sampling (the first stage's with that of a request), load time and
    memory.
    """
    sampled = [
        describe(with_request(stage.default_sampling, {} if index else sampling)) for index, stage in enumerate(stages)
    ]
    rows = [
        (
            f"{index} {stage.name}",
            stage.kind,
            _execution(stage),
            f"copy {stage.effective['output_copy']}" if "output_copy" in stage.effective else "",
            *([sampled[index]] if any(sampled) else []),
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


def generate_document(
    config: EngineConfig, records: Iterable[RequestRecord], stages: Iterable[StageInfo]
) -> dict[str, object]:
    """Return a run as plain JSON types; a key that does not apply (`ttft_s` of a diffusion stage) is absent."""
    return {
        "schema": SCHEMA,
        "profile": config.name,
        "model": config.model,
        "seed": config.seed,
        **({"random_weights": True} if has_random_weights(config.model) else {}),
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
    described = {"message": error.message, "hint": error.hint or None, "stage": getattr(error, "stage", None)}
    return {name: value for name, value in described.items() if value is not None}


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
        {"start_s": segment.start_s, "end_s": segment.end_s, "text": segment.text.strip()}
        | ({} if segment.language is None else {"language": segment.language})
        for segment in transcript.segments
    ]
    words = {} if transcript.words is None else {"words": [dataclasses.asdict(word) for word in transcript.words]}
    duration_s = round(transcript.duration_s, 3)
    return {"language": transcript.language, "duration_s": duration_s, "segments": segments, **words}


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
    if trace.output_logprobs is not None:  # as over HTTP, JSON has no infinity
        found = trace.output_logprobs
        stage["output_logprobs"] = [[(token, max(nats, -9999.0), text) for token, nats, text in each] for each in found]
    stage["effective"] = dict(trace.effective)
    return stage


def _integers(value: Any) -> Any:
    """Return token ids, or frames of codes, as lists of Python integers."""
    return [_integers(item) for item in value] if isinstance(value, Sequence) else int(value)


class FinishedRequests:
    """One line per finished request in `FOLDER/results.jsonl`: `{"key": ..., "result": ...}`.

    `result` is as in the document of `--json`. `key` identifies everything that the result depends on: the request,
    its files and the profile. A request whose key or files have changed is run again.
    """

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        self.path = folder / RESULTS_FILE
        self._config = _digest([config.model_dump(), config.trust_remote_code])

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the results by key whose files still exist; empty if there is no `results.jsonl`.

        Raises `OutputError` for a file that cannot be read.
        """
        results: dict[str, dict[str, Any]] = {}
        try:
            with self.path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    entry = _entry(line)
                    if entry is not None and all(_has_file(output) for output in entry["result"]["outputs"]):
                        results[entry["key"]] = entry["result"]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise OutputError(f"cannot read `{self.path}`: {error.strerror}") from error
        return results

    def key(self, spec: RequestSpec) -> str:
        """Return a key that changes with the request, with a modified file of it, and with the profile."""
        described: dict[str, Any] = dataclasses.asdict(dataclasses.replace(spec, place=None))
        request = described["request"]
        request["modalities"] = sorted(spec.request.modalities or ())
        # As in files of earlier versions, whose requests had no parts.
        for part in ("text", "media", "speech", "transcription", "stage"):
            request |= request.pop(part)
        request["stage_output"], request["wants_stage_output"] = request.pop("input"), request.pop("wants_output")
        described["files"] = [_state(path) for path in spec.files]
        return _digest([described, self._config])

    def add(self, key: str, record: RequestRecord) -> None:
        """Append a finished request and sync it to the disk. Raises `OutputError`."""
        line = json.dumps({"key": key, "result": result_document(record)}, ensure_ascii=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                # A full disk or a power failure may have cut the previous line short.
                file.write(f"{line}\n".encode() if _ends_whole(file) else f"\n{line}\n".encode())
        except OSError as error:
            raise OutputError(f"cannot write `{self.path}`: {error.strerror}") from error


def _ends_whole(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _entry(line: str) -> dict[str, Any] | None:
    """Parse a line; None if it was cut short or has another format."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
        return None
    result = entry.get("result")
    if not isinstance(result, dict) or result.get("status") != "ok" or not isinstance(result.get("outputs"), list):
        return None
    return entry


def _has_file(output: object) -> bool:
    if not isinstance(output, Mapping):
        return False
    path = output.get("path")
    return path is None or (isinstance(path, str) and Path(path).is_file())


def _state(path: Path) -> list[object]:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return [str(path)]
    return [str(path.absolute()), status.st_size, status.st_mtime_ns]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(_without_keys(value), default=str).encode()).hexdigest()


def _without_keys(value: object) -> object:
    """Return objects as sorted pairs: a key that is a number is not the same as its text."""
    if isinstance(value, Mapping):
        return sorted(([repr(key), _without_keys(item)] for key, item in value.items()), key=lambda pair: str(pair[0]))
    return [_without_keys(item) for item in value] if isinstance(value, list | tuple) else value
