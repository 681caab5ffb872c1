"""The requests of a JSONL file as a workload: all at once, in every iteration."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omni_cli.config.schema import EngineConfig
from omni_cli.engine.describing import frame_chooser, get_capabilities
from omni_cli.errors import InputError, UsageError
from omni_cli.inputs.jsonl import read_requests
from omni_cli.inputs.request_spec import BadRequest, RequestSpec, build_request
from omni_cli.outputs import GenerateRequest

# Keys of `sampling` that change the amount of work, which `--output-len` fixes.
_LENGTHS = ("max_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids")


@dataclass(frozen=True)
class RequestFile:
    """`sha256` is that of the file and of all media that its lines name."""

    path: Path
    num_requests: int
    sha256: str


@dataclass(frozen=True)
class MeasuredRequest:
    """`has_seed`: the line sets a seed, which then is used in every iteration."""

    request: GenerateRequest
    has_seed: bool


def describe_requests(path: Path, config: EngineConfig, warn: Callable[[str], None]) -> RequestFile:
    """Check a file before anything is loaded. Raises `UsageError` or `InputError` for the first invalid line."""
    specs = _read_specs(path, config)
    digest = hashlib.sha256(path.read_bytes())
    for spec in specs:
        for note in _build(spec, config).notes:
            warn(note)
        for file in spec.files:
            digest.update(file.read_bytes())
    return RequestFile(path.absolute(), len(specs), digest.hexdigest())


def measured_requests(path: Path, config: EngineConfig) -> tuple[MeasuredRequest, ...]:
    """Return the requests of a checked file, with their media decoded."""
    return tuple(MeasuredRequest(_build(spec, config), spec.has_seed) for spec in _read_specs(path, config))


def _read_specs(path: Path, config: EngineConfig) -> list[RequestSpec]:
    specs = []
    for spec in read_requests(path, get_capabilities(config), {}):
        if isinstance(spec, BadRequest):
            raise _at(spec.place, spec.error)
        if spec.request.modalities is not None:
            hint = "choose the stages with `--stage`, and remove the key"
            raise UsageError(f"{spec.place}: `modalities` has no effect in a measurement", hint=hint)
        fixed = next((name for name in _LENGTHS if name in spec.request.sampling), None)
        if fixed is not None:
            hint = "set it for all requests: `--output-len`, or `--set STAGE.sampling.max_tokens=N`"
            raise UsageError(f"{spec.place}: `sampling.{fixed}` would change the work between requests", hint=hint)
        specs.append(spec)
    return specs


def _build(spec: RequestSpec, config: EngineConfig) -> GenerateRequest:
    try:
        return build_request(spec, config, partial(frame_chooser, config))
    except InputError as error:
        raise _at(spec.place, error) from error


def _at(place: str | None, error: UsageError) -> UsageError:
    return type(error)(f"{place}: {error.message}", hint=error.hint)
