"""Checks of a call's arguments that its signature alone decides, before anything is loaded."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sized
from pathlib import Path

from omni_cli.config.schema import PIPELINE_ARGUMENTS
from omni_cli.diffusers_integration.signature import MEDIA_ARGUMENTS, Argument, Medium, PipelineSignature
from omni_cli.diffusers_integration.value_types import FileKind, converted, is_plain, takes_list, takes_only_lists
from omni_cli.errors import InputError
from omni_cli.inputs.files import file_kind
from omni_cli.outputs import ArgumentText, Nested, items_of

# A request's media, as messages name them.
MEDIA: Mapping[Medium, str] = {
    "image": "an image",
    "mask": "a mask",
    "control_image": "a control image",
    "video": "a video",
    "audio": "an audio file",
}

# Arguments of a pipeline call that the executor sets itself, with the replacement.
OWNED_ARGUMENTS: Mapping[str, str] = {
    "prompt": "the prompt is the request's own",
    "seed": "the seed is the request's own: `--seed`",
    "generator": "use `--seed`",
    "latents": "the initial noise comes from the seed: use `--seed`",
    "output_type": "images are always uint8 RGB, audio is float32",
    "return_dict": "images are always uint8 RGB, audio is float32",
    "callback_on_step_end": "progress is reported by omni itself",
    "callback_on_step_end_tensor_inputs": "progress is reported by omni itself",
    "callback": "progress is reported by omni itself",
    "callback_steps": "progress is reported by omni itself",
}
# Pipelines whose `image` is rows of images, which no annotation tells.
_TAKE_ROWS = frozenset({"VisualClozePipeline", "VisualClozeGenerationPipeline"})
# The files of a value, for messages.
_FILES: Mapping[FileKind, str] = {
    "image": "an image file",
    "tensor": "a tensor: numbers, or a file",
    "media": "image, video or audio files",
}
# Longer values are cut in messages.
_SHOWN_CHARACTERS = 40


def option(medium: Medium) -> str:
    """Return the option of a command for a medium, for hints."""
    return f"`--{medium.replace('_', '-')} FILE`"


def is_owned(name: str, signature: PipelineSignature) -> bool:
    """Tell whether the executor sets an argument itself: also `latents`, unless a call needs them."""
    return name in OWNED_ARGUMENTS and (name != "latents" or (name,) not in signature.needed)


def check_media(fields: Mapping[str, object], signature: PipelineSignature) -> None:
    """Reject several files of a medium where the call takes one, and two media for one argument."""
    taken: dict[str, Medium] = {}
    for medium in MEDIA:
        files = fields.get(medium)
        name = signature.argument_for(medium)
        if not isinstance(files, Sized) or not files or name is None:
            continue
        _check_rows(name, files, signature)
        if name in taken:
            raise InputError(
                f"{signature.name} takes {MEDIA[taken[name]]} or {MEDIA[medium]}, not both",
                hint=f"remove {option(medium)}",
            )
        taken[name] = medium
        if len(files) > 1 and (medium == "video" or not takes_list(signature.arguments[name].type)):
            raise InputError(
                f"{signature.name} takes one {MEDIA[medium].partition(' ')[2]}, not {len(files)}",
                hint=f"give one {option(medium)}",
            )


def settable(signature: PipelineSignature) -> tuple[str, ...]:
    """Return the arguments that `--arg` sets, in the order of the call."""
    media = {signature.argument_for(medium) for medium in MEDIA_ARGUMENTS}
    own = {*PIPELINE_ARGUMENTS, *media}
    return tuple(
        name
        for name, argument in signature.arguments.items()
        if name not in own and not is_owned(name, signature) and _is_possible(argument)
    )


def check_name(name: str, signature: PipelineSignature) -> Argument:
    """Return the argument of that name; raises `InputError` for one that the call lacks or `--arg` may not set."""
    if name in signature.arguments and is_owned(name, signature):
        raise InputError(f"`{name}` cannot be set", hint=OWNED_ARGUMENTS[name])
    if name in PIPELINE_ARGUMENTS:
        raise InputError(f"`{name}` is set twice", hint=f"set `{name}` next to `call`, not in it")
    if name not in signature.arguments:
        names = settable(signature)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "it takes " + ", ".join(f"`{n}`" for n in sorted(names))
        raise InputError(f"the pipeline's call has no argument `{_cut(name)}`", hint=hint)
    argument = signature.arguments[name]
    if not _is_possible(argument):
        raise InputError(f"`{name}` takes {argument.type}, which no file and no setting can hold")
    return argument


def checked_value(name: str, value: object, signature: PipelineSignature) -> object:
    """Return a value for the call: files as paths, words of the command line by the argument's type.

    Raises `InputError` for a name or a value that the call does not take.
    """
    argument = check_name(name, signature)
    files = _files(value) if argument.file_kind is not None else None
    if files is not None:
        _check_rows(name, files, signature)
        _check_kinds(name, argument, files)
        if isinstance(files, Path):
            is_list = takes_only_lists(argument.type) and not (_takes_frames(argument) and file_kind(files) == "video")
            return (files,) if is_list else files
        if not takes_list(argument.type) and not any(isinstance(each, tuple) for each in files):
            raise InputError(f"`{name}` takes one file, not {len(files)}")
        return files
    candidates = readings(value)
    for candidate in candidates:
        try:
            return converted(argument.type, candidate)
        except ValueError:
            continue
    shown = _cut(value if isinstance(value, ArgumentText) else json.dumps(candidates[0], default=str))
    raise InputError(
        f"`{name}` must be {_described(argument)}, not {shown}", hint=_file_hint(name, argument, signature)
    )


def _check_kinds(name: str, argument: Argument, files: Nested[Path]) -> None:
    """Reject files of media that the argument does not take."""
    others = {"tensor"} if argument.file_kind == "media" else {"audio", "video"}
    is_clip = isinstance(files, Path) and _takes_frames(argument)
    for path in items_of(files):
        if file_kind(path) in others - ({"video"} if is_clip else set()):
            raise InputError(f"`{name}` must be {_described(argument)}, not `{path}`")


def _takes_frames(argument: Argument) -> bool:
    """Tell whether a video file can hold its value: a list of images, and nothing else."""
    return argument.file_kind == "image" and takes_only_lists(argument.type)


def _check_rows(name: str, files: object, signature: PipelineSignature) -> None:
    rows = files if isinstance(files, tuple) else ()
    is_rows = all(isinstance(row, tuple) for row in rows) and len({len(row) for row in rows}) == 1
    if signature.name in _TAKE_ROWS and name == "image" and not is_rows:
        raise InputError(
            f"{signature.name} takes equal rows of images: complete examples, then one with null for what it makes",
            hint="""`--arg 'image=[["@a.png", "@b.png"], ["@c.png", null]]'`""",
        )


def readings(value: object) -> list[object]:
    """Return the possible meanings of a word of the command line: JSON, else text; other values are unchanged."""
    if not isinstance(value, ArgumentText):
        return [value]
    try:
        return [json.loads(value), str(value)]
    except (ValueError, RecursionError):
        return [str(value)]


def _files(value: object, depth: int = 2) -> Nested[Path]:
    """Return the file of `@FILE`, a list of such, or rows of them with null for gaps; None for anything else."""
    if isinstance(value, ArgumentText) and value.startswith("["):
        (value, *_) = readings(value)
    if isinstance(value, str):
        return Path(value[1:]) if len(value) > 1 and value[0] == "@" else None
    if not isinstance(value, list) or not value or not depth:
        return None
    files = tuple(_files(each, depth - 1) for each in value)
    is_gap = [each is None and depth == 1 for each in value]
    is_whole = all(file is not None or gap for file, gap in zip(files, is_gap, strict=True))
    return files if is_whole and not all(is_gap) else None


def _is_possible(argument: Argument) -> bool:
    return argument.file_kind is not None or is_plain(argument.type)


def _described(argument: Argument) -> str:
    """Return an argument's type for a message, with common types in words."""
    plain = argument.type.removesuffix(" | None")
    words = {"bool": "true or false", "float": "a finite number", "int": "a whole number", "str": "text"}
    if plain not in words and argument.file_kind is not None:
        return "image files, or a video file" if _takes_frames(argument) else _FILES[argument.file_kind]
    return words.get(plain, f"`{plain}`")


def _file_hint(name: str, argument: Argument, signature: PipelineSignature) -> str | None:
    medium = signature.medium_of(name)
    if medium is not None:
        return f"use {option(medium)}"
    if argument.file_kind == "tensor":
        return f"name a NumPy file: `--arg {name}=@FILE.npy`"
    return None if argument.file_kind is None else f"name a file: `--arg {name}=@FILE`"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
