"""`results.jsonl`: the finished requests of a file, so that another run can skip them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import OutputError
from omni_cli.report.generate_json import result_document
from omni_cli.report.records import RequestRecord
from omni_cli.requests.request_spec import RequestSpec

FILE_NAME = "results.jsonl"


class FinishedRequests:
    """One line per finished request in `FOLDER/results.jsonl`: `{"key": ..., "result": ...}`.

    `result` is as in the document of `--json`. `key` identifies everything that the result depends on: the request,
    its files and the profile. A request whose key or files have changed is run again.
    """

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        self.path = folder / FILE_NAME
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
                    if entry is not None and all(_exists(output) for output in entry["result"]["outputs"]):
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


def _exists(output: object) -> bool:
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
