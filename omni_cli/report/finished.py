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
from omni_cli.errors import OutputError
from omni_cli.inputs.request_spec import RequestSpec
from omni_cli.report.generate_json import result_document
from omni_cli.report.records import RequestRecord

FILE_NAME = "results.jsonl"


class FinishedRequests:
    """One line a finished request in `FOLDER/results.jsonl`: `{"key": ..., "result": ...}`.

    `result` is as in the document of `--json`. `key` identifies everything that the result depends on: what the
    request asks for, its files, and the profile; a request whose key or files are others is run again.
    """

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        self.path = folder / FILE_NAME
        self._config = _digest([config.model_dump(), config.trust_remote_code])

    def read(self) -> dict[str, dict[str, Any]]:
        """Results by key, those whose files are still there; empty where there is no such file.

        Raises `OutputError` for a file that cannot be read.
        """
        results: dict[str, dict[str, Any]] = {}
        try:
            with self.path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    entry = _entry(line)
                    if entry is not None and all(_is_there(output) for output in entry["result"]["outputs"]):
                        results[entry["key"]] = entry["result"]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise OutputError(f"cannot read `{self.path}`: {error.strerror}") from error
        return results

    def key(self, spec: RequestSpec) -> str:
        """Changes with the request, with a file of it that has been written to since, and with the profile."""
        described: dict[str, object] = dataclasses.asdict(dataclasses.replace(spec, place=None))
        described["modalities"] = None if spec.modalities is None else sorted(spec.modalities)
        described["files"] = [_state(path) for path in spec.files]
        return _digest([described, self._config])

    def add(self, key: str, record: RequestRecord) -> None:
        """Write a finished request down, through to the system. Raises `OutputError`."""
        line = json.dumps({"key": key, "result": result_document(record)}, ensure_ascii=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                # The line before may have been cut short by a full disk or a power failure.
                file.write(f"{line}\n".encode() if _ends_whole(file) else f"\n{line}\n".encode())
        except OSError as error:
            raise OutputError(f"cannot write `{self.path}`: {error.strerror}") from error


def _ends_whole(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _entry(line: str) -> dict[str, Any] | None:
    """The entry of a line; None for one that was cut short or is not ours."""
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


def _is_there(output: object) -> bool:
    if not isinstance(output, Mapping):
        return False
    path = output.get("path")
    return path is None or (isinstance(path, str) and Path(path).is_file())


def _state(path: Path) -> list[object]:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return [str(path)]
    return [str(path.absolute()), found.st_size, found.st_mtime_ns]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
