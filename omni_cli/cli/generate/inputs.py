"""Read requests from the command line: checked immediately, decoded before any engine starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omni_cli.cli.generate.run import PendingRequest
from omni_cli.cli.terminal import console
from omni_cli.config.schema import DiffusionStageConfig, EngineConfig, ImageSize, StageConfig
from omni_cli.core.errors import InputError, UsageError
from omni_cli.engine.describing import frame_chooser
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.contents import get_items
from omni_cli.requests.jsonl import read_requests
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.request_spec import FILE_FIELDS, BadRequest, RequestSpec, build_request, check_fields, get_spec

MAX_STDIN_BYTES = 16 * 1024 * 1024
# Decoded inputs beyond this size are dropped, and decoded again when their request begins.
MAX_HELD_BYTES = 512 * 1024 * 1024


def read_specs(
    fields: Mapping[str, Any], requests: Path | None, capabilities: Capabilities
) -> Sequence[RequestSpec | BadRequest]:
    """Build the requests of a command line, with all checks that need none of their files.

    `fields` are the request options that the user has set, by field name.
    Raises `UsageError` for a wrong option or file; a wrong line of `requests` becomes a `BadRequest`.
    """
    if requests is None:
        prompt = _read_prompt(fields, capabilities)
        checked = check_fields(fields if prompt is None else {**fields, "prompt": prompt}, capabilities, _label)
        capabilities.check_together(checked, _label)
        return [get_spec(checked, request_id="0", folder=Path())]
    for name in ("prompt", *FILE_FIELDS):
        if name in fields:
            raise UsageError(
                f"{_label(name)} and `--requests` exclude each other", hint=f"put the {name} into the lines of the file"
            )
    defaults = check_fields(fields, capabilities, _label)
    if "voice" in defaults:  # files of a line are relative to the folder of the lines
        defaults["voice"] = tuple(voice if isinstance(voice, str) else voice.absolute() for voice in defaults["voice"])
    return read_requests(requests, capabilities, defaults)


def decode_specs(
    specs: Sequence[RequestSpec | BadRequest],
    config: EngineConfig,
    capabilities: Capabilities,
    *,
    verbose: bool = False,
) -> list[PendingRequest | BadRequest]:
    """Read and decode the files of all requests, so that invalid ones are reported before any load.

    A JSONL line with a file that cannot be used becomes a `BadRequest`; for the request of the command line
    itself `InputError` is raised.
    """
    held_bytes, choose = 0, partial(frame_chooser, config, verbose=verbose)
    pending: list[PendingRequest | BadRequest] = []
    for spec in specs:
        if isinstance(spec, BadRequest):
            pending.append(spec)
            continue
        try:
            request = build_request(spec, config, choose)
            capabilities.check_request(request, config)
            for note in request.notes:
                console.print_warning(note if spec.place is None else f"{spec.place}: {note}")
        except InputError as error:
            if spec.place is None:
                raise
            pending.append(BadRequest(spec.request_id, error, spec.place))
            continue
        size = _decoded_bytes(request)
        if held_bytes + size <= MAX_HELD_BYTES:
            held_bytes += size
            build = partial(_hold_media, request)
        else:
            build = partial(build_request, spec, config, choose)
        writes_files = capabilities.makes_files(request.modalities)
        pending.append(PendingRequest(spec.request_id, build, writes_files, spec.place, request.notes))
    return pending


def _read_prompt(fields: Mapping[str, Any], capabilities: Capabilities) -> str | None:
    """Read the prompt from the command line, or from stdin if it is `-` or piped; None for a request without one."""
    prompt = fields.get("prompt")
    if prompt is not None and prompt != "-":
        return str(prompt)
    if prompt is None and not capabilities.takes_prompt(fields):
        return None
    is_missing = sys.stdin is None or (prompt is None and sys.stdin.isatty())
    content = b"" if is_missing else sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    # An empty prompt, which some pipelines allow, has to be meant.
    if is_missing or (prompt is None and not content):
        if not capabilities.needs_prompt:
            return None
        example = "a red cube" if "image" in capabilities.modalities else "hello"
        raise UsageError("there is no prompt", hint=f'give one, as `omni generate "{example}"`, or pipe it in')
    if len(content) > MAX_STDIN_BYTES:
        raise InputError(f"the prompt on stdin is longer than {MAX_STDIN_BYTES // 2**20} MiB")
    try:
        return content.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError("the prompt on stdin is not UTF-8 text") from error


def _label(name: str) -> str:
    return "the prompt" if name == "prompt" else f"`--{name.replace('_', '-')}`"


def _decoded_bytes(request: GenerateRequest) -> int:
    masks = () if request.media.mask is None else (request.media.mask,)
    images = (*request.media.images, *masks, *request.media.control_images)
    sounds = (*(samples for samples, _ in request.media.audio), *(voice.samples for voice in request.speech.voices))
    videos = (video.frames for video in request.media.videos)
    in_call = (file.array for files in request.media.call_files.values() for file in get_items(files))
    return sum(array.nbytes for array in (*sounds, *images, *videos, *in_call))


def _hold_media(request: GenerateRequest) -> GenerateRequest:
    return request


_MIN_REQUESTS_TO_CHOOSE = 8


def fit_to_requests(
    config: EngineConfig, specs: Sequence[RequestSpec | BadRequest], *, makes_video: bool
) -> EngineConfig:
    """Warm up at the size that all requests ask for, and choose no execution mode for a few of them.

    To choose one, a pipeline compiles first, which fewer than eight requests do not repay; a video alone does.
    """
    good = [spec.request for spec in specs if isinstance(spec, RequestSpec)]
    keys: dict[str, Any] = {}
    for name in ImageSize.model_fields:
        asked = {request.diffusion.get(name) for request in good}
        if len(asked) == 1 and None not in asked:
            keys[name] = asked.pop()

    def fit_stage(stage: StageConfig) -> StageConfig:
        if not isinstance(stage, DiffusionStageConfig) or stage.backend != "diffusers":
            return stage
        is_open = stage.execution is None and len(good) < _MIN_REQUESTS_TO_CHOOSE and not makes_video
        return stage.model_copy(update=keys | ({"execution": "eager"} if is_open else {}))

    return config.with_stages(map(fit_stage, config.stages))
