"""The inputs of `omni generate`: listed by `--help-inputs`; read from the command line, checked and decoded."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.cli.terminal import console
from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig, EngineConfig, ImageSize, StageConfig
from omni_cli.core.errors import InputError, UsageError
from omni_cli.engine.describing import frame_chooser
from omni_cli.report.tables import align
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.contents import get_items
from omni_cli.requests.fields import FIELDS
from omni_cli.requests.jsonl import read_requests
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.pipeline_call import SOUND_FIELDS
from omni_cli.requests.request_spec import FILE_FIELDS, BadRequest, RequestSpec, build_request, check_fields, get_spec
from omni_cli.requests.value_types import describe_types

if TYPE_CHECKING:
    from omni_cli.cli.generate.run import PendingRequest

_INPUTS_SCHEMA = "omni.inputs/1"
_ARG_VALUES = {"image": "@FILE", "media": "@FILE", "tensor": "@FILE.npy"}
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
    from omni_cli.cli.generate.run import PendingRequest

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
            build = partial(lambda held: held, request)
        else:
            build = partial(build_request, spec, config, choose)
        writes_files = capabilities.makes_files(request.modalities)
        shown = (request.notes, request.sampling)
        pending.append(PendingRequest(spec.request_id, build, writes_files, spec.place, *shown))
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
        if not capabilities.lacks_prompt(fields):
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
        execution = "compile" if stage.quantization == "float8_dynamic" else "eager"  # which it is refused with
        return stage.model_copy(update=keys | ({"execution": execution} if is_open else {}))

    return config.with_stages(map(fit_stage, config.stages))


@dataclass(frozen=True)
class InputRow:
    """One input: the option that sets it, its name in the model's call or in a request line, its type and default.

    `default` is the profile's, else the call's as source text; None if there is none.
    """

    option: str
    name: str
    type: str
    default: str | None
    required: bool


def show_inputs(config: EngineConfig, capabilities: Capabilities, *, as_json: bool) -> None:
    """Print the inputs and outputs of a profile, as a table or as one JSON document."""
    call = capabilities.call
    known = call is not None and call.pipeline is not None
    rows = _call_rows(config, capabilities) if known else _field_rows(capabilities)
    pipeline = None if call is None else call.pipeline
    if as_json:
        document = {"schema": _INPUTS_SCHEMA, "profile": config.name, "model": config.model, "pipeline": pipeline}
        console.print_json({**document, "makes": capabilities.modalities, "inputs": [asdict(row) for row in rows]})
        return
    outputs = " and ".join(capabilities.modalities)
    if call is not None and outputs == "video" and set(SOUND_FIELDS) & set(call.outputs):
        outputs = "video with sound"
    title = f"{config.name} ({pipeline or config.model}) makes {outputs}"
    header = ("option", "name", "type", "default")
    cells = [(row.option, row.name, row.type, "required" if row.required else row.default or "") for row in rows]
    console.print_text("\n".join([title, "", *align([header, *cells])]))


def _call_rows(config: EngineConfig, capabilities: Capabilities) -> list[InputRow]:
    """Return the arguments of a pipeline's call, those with a separate option first."""
    call = capabilities.call
    assert call is not None
    stage = config.stages[0]
    assert isinstance(stage, DiffusionStageConfig)
    preset = {**stage.call, **{name: getattr(stage, name) for name in PIPELINE_ARGUMENTS}}
    options = _options()
    rows = []
    for name in sorted(filter(call.is_listed, call.arguments), key=lambda name: call.get_field(name) == "arg"):
        argument, field, own = call.arguments[name], call.get_field(name), preset.get(name)
        default = None if argument.is_required else repr(argument.default)
        value = _ARG_VALUES.get(argument.file_kind or "", "VALUE")
        option = f"--arg {name}={value}" if field == "arg" else options[field][0]
        shown = default if own is None else json.dumps(own)
        rows.append(InputRow(option, name, describe_types(argument.types), shown, argument.is_required and own is None))
    listed = {row.option for row in rows}
    # A video has a rate and a length, whatever its call takes.
    for field in ("duration", "fps"):
        option, kind = options[field]
        if field in capabilities.fields and option not in listed:
            rows.append(InputRow(option, field, kind, None, False))
    seed = InputRow("--seed N", "seed", "int", str(config.seed), False)
    return [*rows, seed]


def _field_rows(capabilities: Capabilities) -> list[InputRow]:
    """Return the request fields that have an effect."""
    options = {name: shown for name, shown in _options().items() if name in capabilities.fields}
    return [
        InputRow(option, name, kind, None, name == "prompt" and capabilities.needs_prompt)
        for name, (option, kind) in options.items()
    ]


def _options() -> dict[str, tuple[str, str]]:
    """Return the options of a request by field: their form in the help, and their types."""
    options = {}
    for name, row in FIELDS.items():
        if row.option is not None:
            flag, _, _ = row.option.flags.partition(" ")
            kind = row.type.__name__ if row.type in (str, int, float, bool) else str(row.type)
            options[name] = (" ".join(filter(None, (flag, row.option.metavar))), kind)
    return options
