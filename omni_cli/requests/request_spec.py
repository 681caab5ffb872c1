"""A request as its user described it: checked, its files named but not yet read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import InputError, UsageError
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.contents import (
    CallFile,
    Media,
    NestedCall,
    ReferenceVoice,
    SpeechOptions,
    TextOptions,
    TranscriptionOptions,
    changed_items,
    get_items,
    holds_files,
)
from omni_cli.requests.fields import FIELDS, Part
from omni_cli.requests.files import file_kind, load_tensor
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.voices import make_spoken_request, with_instructions

# Imported when a file is decoded, so that refusals of options are fast.
if TYPE_CHECKING:
    from omni_cli.requests.media.reading import ChooseFrames, Warn


def _fields_in(part: Part) -> tuple[str, ...]:
    return tuple(name for name, row in FIELDS.items() if row.part == part and not row.is_combined)


FILE_FIELDS = _fields_in("media")
# In request lines, they are keys of `sampling`.
OPTIONS_OF_SAMPLING = _fields_in("sampling")

Label = Callable[[str], str]
Choice = Callable[[Mapping[str, float]], "ChooseFrames | None"]


@dataclass(frozen=True)
class RequestSpec:
    """A checked request without its files: `media` by field, `call_files` by argument of the pipeline's call.

    `video_options` are vLLM's for the frames of videos. `ref_texts` are the words of the files in `media["voice"]`, or
    none. Without `has_seed`, its seed will be the profile's. `place` is FILE:LINE of a JSONL line.
    """

    request: GenerateRequest
    media: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    call_files: Mapping[str, NestedCall[Path]] = field(default_factory=dict)
    ref_texts: tuple[str, ...] = ()
    video_options: Mapping[str, float] = field(default_factory=dict)
    has_seed: bool = False
    place: str | None = None
    instructions: str | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def files(self) -> tuple[Path, ...]:
        """All of its files."""
        return tuple(get_items((self.media, self.call_files)))

    def with_files(self, change: Callable[[Path], Path]) -> RequestSpec:
        """Return the same request with other names for its files."""
        media, call_files = (changed_items(files, change) for files in (self.media, self.call_files))
        return replace(self, media=media, call_files=call_files)


def check_fields(fields: Mapping[str, Any], capabilities: Capabilities, label: Label) -> dict[str, Any]:
    """Check each field's value and that it has an effect with the profile; return the checked values.

    `label` maps a field to the user's name for it (an option, a JSON key). Raises `InputError` for a value and
    `UsageError` for a field or modality that has no effect with the profile.
    """
    checked = {}
    for name, value in fields.items():
        capabilities.check_field(name, label(name))
        try:
            checked[name] = FIELDS[name].check(value)
        except ValueError as error:
            raise InputError(f"{label(name)} {error}") from error
    if "speaker" in checked:  # the name of `voice` before voices were cloned
        if "voice" in checked:
            raise UsageError(f"{label('speaker')} and {label('voice')} are the same", hint="remove one of them")
        checked["voice"] = (checked.pop("speaker"),)
    if "modalities" in checked:
        capabilities.check_modalities(checked["modalities"], label("modalities"))
    capabilities.config.check_adapter(checked.get("lora"))
    call = capabilities.call
    if call is not None:
        arguments = {name: call.check_value(name, value) for name, value in checked.get("arg", {}).items()}
        for path in checked.get("mask", ()):
            argument = call.argument_for("mask")
            if file_kind(path) == "video" and argument is not None:
                del checked["mask"]  # a mask for each frame
                arguments[argument] = path
        checked["arg"] = arguments
    elif not capabilities.transcribes and not checked.get("prompt", "any").strip():
        raise InputError(f"{label('prompt')} is empty")
    return checked


def get_spec(checked: Mapping[str, Any], *, request_id: str, folder: Path, place: str | None = None) -> RequestSpec:
    """Build a request from checked fields; relative file names are relative to `folder`.

    `max_tokens` and `temperature` override the same keys of `sampling`.
    """
    arguments = checked.get("arg", {})
    files = {name: value for name, value in arguments.items() if holds_files(value)}
    voices = checked.get("voice", ())
    recordings = tuple(voice for voice in voices if isinstance(voice, Path))

    def values_of(part: Part) -> dict[str, Any]:
        return {name: checked[name] for name in _fields_in(part) if name in checked}

    heard = values_of("transcription")
    # A model that chats as well is asked by an option, or by a sound alone; speech to make has a language, too.
    with_sound = bool(checked.get("audio")) and (bool(heard) or not checked.get("prompt"))
    asked = with_sound or bool(heard.keys() - {"language"})
    request = GenerateRequest(
        **({"modalities": frozenset({"text"})} if asked else {}) | values_of("request") | {"request_id": request_id},
        text=TextOptions(**values_of("text")),
        sampling={**checked.get("sampling", {}), **values_of("sampling")},
        speech=SpeechOptions(**values_of("speech"), speaker=None if recordings or not voices else voices[0]),
        transcription=TranscriptionOptions(**heard, asked=asked),
        diffusion={**{name: value for name, value in arguments.items() if name not in files}, **values_of("diffusion")},
    )
    if checked.get("speak") and request.prompt is not None:
        request = make_spoken_request(request, request.prompt)
    media = {name: checked[name] for name in FILE_FIELDS if name in checked}
    if recordings:
        media["voice"] = recordings
    options = checked.get("media_io_kwargs", {})
    spec = RequestSpec(request, media, files, checked.get("ref_text", ()), options, "seed" in checked, place)
    return replace(spec.with_files(lambda path: folder / path), instructions=checked.get("instructions"))


def build_request(spec: RequestSpec, config: EngineConfig, choose: Choice | None = None) -> GenerateRequest:
    """Read and decode the files of a request for a profile, whose seed is the default. Raises `InputError`.

    A language model looks at the frames of a video that `choose` returns for the request's options and hears one
    channel, a pipeline changes all of them.
    """
    from omni_cli.requests.media.reading import load_audio, load_image, load_speech, load_video

    is_pipeline = config.stages[0].backend == "diffusers"
    transcribes = Capabilities.of(config).transcribes
    media = {name: spec.media.get(name, ()) for name in FILE_FIELDS}
    notes: list[str] = []
    note = notes.append
    load_sounds = load_speech if transcribes else functools.partial(load_audio, mono=not is_pipeline)
    request = replace(
        spec.request,
        media=Media(
            audio=tuple(load_sounds(path, note) for path in media["audio"]),
            images=tuple(load_image(path, note) for path in media["image"]),
            mask=next((load_image(path, note) for path in media["mask"]), None),
            control_images=tuple(load_image(path, note) for path in media["control_image"]),
            videos=tuple(load_video(path, note, choose and choose(spec.video_options)) for path in media["video"]),
            call_files={
                name: changed_items(files, functools.partial(_call_file, note, isinstance(files, Path)))
                for name, files in spec.call_files.items()
            },
        ),
        seed=spec.request.seed if spec.has_seed else config.seed,
        speech=replace(spec.request.speech, voices=_load_voices(spec, config, note)),
    )
    if spec.instructions:
        request = with_instructions(request, config, spec.instructions)
    return replace(request, notes=tuple(notes))


def _load_voices(spec: RequestSpec, config: EngineConfig, warn: Warn) -> tuple[ReferenceVoice, ...]:
    if "voice" not in spec.media:
        return ()
    from omni_cli.requests.media.audio import MAX_AUDIO_S
    from omni_cli.requests.media.reading import load_audio

    cloning = Capabilities.of(config).cloning
    max_s = MAX_AUDIO_S if cloning is None else cloning.max_s
    texts = spec.ref_texts or (None,) * len(spec.media["voice"])
    return tuple(
        ReferenceVoice(*load_audio(path, warn, max_s=max_s), text, f"audio file `{path}`")
        for path, text in zip(spec.media["voice"], texts, strict=True)
    )


def _call_file(warn: Warn, is_alone: bool, path: Path) -> CallFile:
    """Decode a file; a video that is a whole value is the list of its frames, in a list it is a clip with its sound."""
    from omni_cli.requests.media.reading import load_audio, load_image, load_sound, load_video

    match file_kind(path):
        case "tensor":
            return CallFile("tensor", load_tensor(path))
        case "audio":
            return CallFile("audio", *load_audio(path, warn, mono=False))
        case "video":
            video = load_video(path, warn if is_alone else lambda _: None)
            sound = None if is_alone else load_sound(path, warn)
            return CallFile("video", video.frames, video.fps, sound and CallFile("audio", *sound))
    return CallFile("image", load_image(path, warn))


@dataclass(frozen=True)
class BadRequest:
    """A request that failed before it became one; `place` is FILE:LINE."""

    request_id: str
    error: UsageError
    place: str | None = None
    writes_files: bool = False
