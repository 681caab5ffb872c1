"""The inputs and outputs of a diffusers pipeline's call, and the checks of a request that they decide.

Names, types and files are checked; the meaning of values is left to the pipeline.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from omni_cli.core.errors import CheckpointError, InputError
from omni_cli.core.text import suggest
from omni_cli.requests.checks import ArgumentText
from omni_cli.requests.contents import get_items
from omni_cli.requests.fields import FIELDS
from omni_cli.requests.files import file_kind as kind_of_file
from omni_cli.requests.value_types import (
    ANY,
    FileKind,
    Types,
    class_of_fields,
    convert_value,
    describe_types,
    file_kind,
    is_plain,
    is_possible,
    takes_only_lists,
)

Medium = Literal["image", "mask", "control_image", "video", "audio"]
Kind = Literal["image", "audio", "video", "tensor"]

_ARGUMENTS = {name: row.arguments for name, row in FIELDS.items() if row.arguments}
MEDIA = tuple(name for name in _ARGUMENTS if FIELDS[name].part == "media")
# The stage itself sets the rate.
_FIELD_ARGUMENTS = tuple(
    name for name, names in _ARGUMENTS.items() if FIELDS[name].part == "diffusion" and names[1:] and name != "fps"
)
# Only pipelines with a network for a control image have these; without `control_image`, their `image` is that image.
_OF_CONTROL = {"controlnet_conditioning_scale", "adapter_conditioning_scale"}

# Fields of a pipeline's output, by their kind; those of a video may have sound beside them.
IMAGE_FIELDS = ("images", "image", "prediction")
AUDIO_FIELDS = ("audios",)
VIDEO_FIELDS = ("frames", "video", "videos")
SOUND_FIELDS = ("audio", "sound")
TEXT_FIELDS = ("texts", "sequences")

# Arguments that a stage sets itself, with the replacement.
OWNED_ARGUMENTS: Mapping[str, str] = {
    "seed": "the seed is the request's own: `--seed`",
    "generator": "use `--seed`",
    **dict.fromkeys(("output_type", "return_dict"), "images are always uint8 RGB, audio is float32"),
    **dict.fromkeys(
        ("callback_on_step_end", "callback_on_step_end_tensor_inputs", "callback", "callback_steps"),
        "progress is reported by omni itself",
    ),
}
_FILES: Mapping[FileKind, str] = {
    "image": "an image file",
    "tensor": "a tensor: numbers, or a file",
    "media": "image, video or audio files",
}
_WORDS = {"bool": "true or false", "float": "a finite number", "int": "a whole number", "str": "text"}
# Longer values are cut in messages.
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Argument:
    """One argument of a call; `default` is plain, or the text of a value that is not."""

    types: Types
    default: object = None
    is_required: bool = False

    @property
    def file_kind(self) -> FileKind | None:
        """The kind of file that holds its values; None for plain ones."""
        return file_kind(self.types)

    @property
    def needs_tensor(self) -> bool:
        """Return True if plain values must become tensors."""
        return self.file_kind == "tensor" and not is_plain(self.types)


@dataclass(frozen=True)
class PipelineCall:
    """The call of a pipeline's class, read from its signature without loading the pipeline.

    `pipeline` is None if the checkpoint brings the class along: then everything is accepted here, and checked by the
    stage. `arguments` are in the order of the call, and `outputs` the fields of what it returns, () if it does not say.
    `example_fps` is the rate of the file in its documentation. With `tensors_are_latents`, `output_type="pt"` returns
    what is not yet an image.
    """

    pipeline: str | None
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    example_fps: Fraction | None = None
    tensors_are_latents: bool = False

    @property
    def makes(self) -> Kind | None:
        """The kind of its output; None for text, or where it does not say."""
        outputs = set(self.outputs)
        if outputs & set(VIDEO_FIELDS):
            return "video"
        if outputs & set(AUDIO_FIELDS):
            return "audio"
        if outputs & set(IMAGE_FIELDS):
            return "image"
        return None if not outputs or outputs & set(TEXT_FIELDS) else "tensor"

    @property
    def fields(self) -> frozenset[str]:
        """The request fields that it takes; `fps` and `duration` of every video."""
        if self.pipeline is None:
            return frozenset({*_ARGUMENTS, "arg"})
        names = {name for name in _ARGUMENTS if self.argument_for(name) is not None}
        if self.makes == "video":
            names |= {"fps", *(["duration"] if "num_frames" in names else [])}
        return frozenset({*names, "arg"})

    def argument_for(self, name: str) -> str | None:
        """Return the argument that takes a field of a request; None if there is none."""
        if name in MEDIA:
            return self._argument_for_medium(name)
        if name in FIELDS and FIELDS[name].takers == ("video",) and self.makes != "video":
            return None
        return self._get_first(_ARGUMENTS.get(name, (name,)))

    def own_names(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's arguments by the call's names for them; raises `InputError` for fields that it lacks."""
        renamed = dict(arguments)
        for name in (name for name in _FIELD_ARGUMENTS if name in arguments and name not in self.arguments):
            own_name = self.argument_for(name)
            if own_name is None:
                raise InputError(f"{self.pipeline} takes no `{name}`", hint=f"remove `{name}`")
            renamed[own_name] = renamed.pop(name)
        return renamed

    def get_field(self, name: str) -> str:
        """Return the field of a request that sets an argument; "arg" for one without a field of its own."""
        # A control image goes to `image` where no other argument takes it.
        fields = ("control_image", *_ARGUMENTS)
        return next((field_name for field_name in fields if self.argument_for(field_name) == name), "arg")

    def is_listed(self, name: str) -> bool:
        """Return True if a user can set the argument."""
        if self.get_field(name) != "arg":
            return True
        return name not in OWNED_ARGUMENTS and is_possible(self.arguments[name].types)

    def list_missing(self, fields: Mapping[str, object]) -> Iterator[str]:
        """Yield the required arguments that fields of a request, their `arg` among them, do not set."""
        names = {self.argument_for(name) for name in fields} | set(_mapping(fields.get("arg")))
        yield from (name for name, argument in self.arguments.items() if argument.is_required and name not in names)

    def check_set_once(self, fields: Mapping[Any, object]) -> None:
        """Raise `InputError` for an argument that a request sets in two ways."""
        taken = dict.fromkeys(_mapping(fields.get("arg")), "arg")
        for name in (field_name for field_name in _ARGUMENTS if fields.get(field_name) not in (None, ())):
            argument = self.argument_for(name)
            if argument in taken and not (taken[argument] in MEDIA and self._collects(argument)):
                raise InputError(
                    f"`{name}` and `{taken[argument]}` both set the argument `{argument}` of {self.pipeline}",
                    hint=f"remove {_option(name)}" if taken[argument] != "arg" else f"remove `{argument}` from `arg`",
                )
            if argument is not None:
                taken[argument] = name

    def check_name(self, name: str) -> Argument:
        """Return the argument of that name; raises `InputError` for one that the call lacks or nobody may set."""
        if name in OWNED_ARGUMENTS and (name in self.arguments or self.pipeline is None):
            raise InputError(f"`{name}` cannot be set", hint=OWNED_ARGUMENTS[name])
        if self.pipeline is None:
            return Argument(ANY)
        if name not in self.arguments:
            names = sorted(
                known for known in self.arguments if self.get_field(known) == "arg" and self.is_listed(known)
            )
            hint = suggest(name, names) or "it takes " + ", ".join(f"`{n}`" for n in names)
            raise InputError(f"the pipeline's call has no argument `{_cut(name)}`", hint=hint)
        argument = self.arguments[name]
        if not is_possible(argument.types):
            raise InputError(f"`{name}` takes {describe_types(argument.types)}, which no file and no setting can hold")
        return argument

    def check_value(self, name: str, value: object) -> object:
        """Return a value for the call: files as paths, words of the command line by the argument's type.

        Raises `InputError` for a name or a value that the call does not take.
        """
        argument = self.check_name(name)
        candidates = readings(value)
        for is_strict in (True, False):
            for candidate in candidates:
                try:
                    checked = convert_value(argument.types, candidate, is_strict=is_strict)
                except ValueError:
                    continue
                _check_files(name, argument, checked)
                return [checked] if _is_item_alone(argument, checked) else checked
        shown = _cut(value if isinstance(value, ArgumentText) else json.dumps(candidates[0], default=str))
        raise InputError(
            f"`{name}` must be {_describe_type(argument)}, not {shown}", hint=self._file_hint(name, argument)
        )

    def media_arguments(self, media: Mapping[Medium, Sequence[Any]]) -> dict[str, object]:
        """Return the arguments for media; raises `InputError` for what the pipeline lacks, and for two media of one.

        A video is the list of its frames. Where an argument is a class with fields, such as LTX-2's conditions, each
        image or video is the field that takes it.
        """
        arguments: dict[str, Any] = {}
        self.check_set_once(media)
        for medium, files in media.items():
            name = self.argument_for(medium)
            if name is None:
                raise InputError(
                    f"{self.pipeline} takes no {medium.replace('_', ' ')}",
                    hint=f"remove {_option(medium)}, or use a checkpoint of another pipeline",
                )
            types = self.arguments[name].types
            if self._collects(name):
                key = _field_for(medium, types)
                arguments.setdefault(name, []).extend({key: file} for file in files)
            else:
                is_alone = len(files) == 1 and (medium == "video" or not takes_only_lists(types))
                arguments[name] = files[0] if is_alone else list(files)
        return arguments

    def check_runnable(self) -> None:
        """Raise `CheckpointError` unless files and settings can hold what the pipeline takes and makes."""
        why = None
        if self.outputs and self.makes is None:
            why = "it makes text; only images, audio, videos and tensors can be written"
        for name, argument in self.arguments.items():
            if argument.is_required and not self.is_listed(name):
                why = f"it needs `{name}`, {describe_types(argument.types)}, which no file and no setting can hold"
        if why is not None:
            raise CheckpointError(f"{self.pipeline} cannot run: {why}", hint="use a checkpoint of another pipeline")

    def _argument_for_medium(self, medium: str) -> str | None:
        argument = self._get_first(_ARGUMENTS[medium])
        if argument is not None and medium == "video" and not _takes_frames(self.arguments[argument]):
            return None
        if argument is None and medium == "control_image" and _OF_CONTROL & self.arguments.keys():
            return self._argument_for_medium("image")
        if argument is None and medium in ("image", "video"):
            return next((name for name in self.arguments if self._collects(name)), None)
        return argument

    def _get_first(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self.arguments), None)

    def _collects(self, name: str) -> bool:
        """Return True if an argument is a list of objects with images or videos among their fields."""
        class_type = class_of_fields(self.arguments[name].types)
        return class_type is not None and any(file_kind(types) == "image" for types in class_type.fields.values())

    def _file_hint(self, name: str, argument: Argument) -> str | None:
        medium = self.get_field(name)
        if medium in MEDIA:
            return f"use {_option(medium)}"
        if argument.file_kind == "tensor":
            return f"name a NumPy file: `--arg {name}=@FILE.npy`"
        return None if argument.file_kind is None else f"name a file: `--arg {name}=@FILE`"


def readings(value: object) -> list[object]:
    """Return the possible meanings of a word of the command line: JSON, a dictionary of Python, text; else the value.

    An object of JSON has no keys that are numbers.
    """
    if not isinstance(value, ArgumentText):
        return [value]
    with contextlib.suppress(ValueError, RecursionError):
        return [json.loads(value), str(value)]
    if value.startswith("{"):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return [ast.literal_eval(value), str(value)]
    return [str(value)]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _takes_frames(argument: Argument) -> bool:
    """Return True if its values can be lists of images, and not tensors only."""
    return file_kind(argument.types) == "image" or any(value_type.name == "Any" for value_type in argument.types)


def _field_for(medium: Medium, types: Types) -> str:
    """Return the field of a class that takes a medium: of its name, else the first that takes images."""
    class_type = class_of_fields(types)
    assert class_type is not None
    names = [name for name, inner in class_type.fields.items() if file_kind(inner) == "image"]
    return medium if medium in names else names[0]


def _is_item_alone(argument: Argument, value: object) -> bool:
    """Return True if it is one item of a list; a video is a whole list of frames."""
    if not takes_only_lists(argument.types) or isinstance(value, list | tuple) or value is None:
        return False
    return not (isinstance(value, Path) and argument.file_kind == "image" and kind_of_file(value) == "video")


def _check_files(name: str, argument: Argument, value: object) -> None:
    """Reject files of media that the argument does not take."""
    refused = {"image": ("audio",), "tensor": ("audio", "video"), "media": ("tensor",)}
    for path in get_items(value):
        if isinstance(path, Path) and kind_of_file(path) in refused.get(argument.file_kind or "", ()):
            raise InputError(f"`{name}` must be {_describe_type(argument)}, not `{path}`")


def _describe_type(argument: Argument) -> str:
    """Return an argument's type for a message, with common types in words."""
    if argument.file_kind is not None and not is_plain(argument.types):
        return _FILES[argument.file_kind]
    plain = describe_types(argument.types).removesuffix(" | None")
    return _WORDS.get(plain, f"`{plain}`")


def _option(name: str) -> str:
    """Return the option of a command for a field, for hints."""
    return f"`--{name.replace('_', '-')}{' FILE' if name in MEDIA else ''}`"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
