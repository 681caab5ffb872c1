"""Arguments and outputs of a pipeline class, read from the source of its `__call__`: importing diffusers is slow."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal, TypeGuard

from omni_cli.diffusers_integration.value_types import FileKind, file_kind

Medium = Literal["image", "mask", "control_image", "video", "audio"]
Kind = Literal["image", "audio", "video", "tensor"]

# The names that pipelines have for a request's media, the usual one first.
MEDIA_ARGUMENTS: Mapping[Medium, tuple[str, ...]] = {
    "image": ("image", "images", "input_images"),
    "mask": ("mask_image", "mask"),
    "control_image": ("control_image",),
    "video": ("video", "driving_video"),
    "audio": ("audio", "initial_audio_waveforms", "src_audio"),
}
# Arguments of pipelines with a network for a control image; where no other takes that, `image` does.
_OF_CONTROL = {"controlnet_conditioning_scale", "adapter_conditioning_scale"}
# The names that pipelines have for the length of the audio they make, in seconds.
DURATION_ARGUMENTS = ("audio_length_in_s", "audio_end_in_s", "audio_duration", "audio_duration_s", "duration")
# The names that pipelines have for the number of frames they make, and for frames per second.
NUM_FRAMES_ARGUMENTS = ("num_frames", "video_length", "frames")
FRAME_RATE_ARGUMENTS = ("frame_rate", "fps", "conditioning_frame_rate")
# Fields of a request that are arguments of the same name.
_NAMED = ("negative_prompt", "num_inference_steps", "guidance_scale", "strength", "height", "width")
# All fields of a request that a call can take, in the order of the command's options.
FIELDS = ("prompt", *MEDIA_ARGUMENTS, *_NAMED, "duration", "num_frames", "fps")
# Fields of a pipeline's output, by their kind; those of a video may have sound beside them.
IMAGE_FIELDS = ("images", "image", "prediction")
AUDIO_FIELDS = ("audios",)
VIDEO_FIELDS = ("frames", "video", "videos")
SOUND_FIELDS = ("audio", "sound")
TEXT_FIELDS = ("texts", "sequences")
# The call of diffusers' function that writes a file, in the example of a pipeline's documentation.
_EXAMPLE_FPS = re.compile(r"(?:export_to_video|encode_video)\((?:[^()]|\([^()]*\))*?fps=(\d+(?:\.\d+)?)")
# The rate of a model that knows only one.
_FIXED_FPS = re.compile(r"^[A-Z0-9_]*FPS = (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Argument:
    """One argument of a call: its annotation and its default as source text, None where it has none."""

    annotation: str | None
    default: str | None

    @property
    def is_required(self) -> bool:
        return self.default is None

    @functools.cached_property
    def type(self) -> str:
        """The annotation that its values must fit; without one, the type of its default."""
        annotation = self.annotation
        if annotation is None:
            default = None if self.default is None else ast.parse(self.default, mode="eval").body
            value = default.value if isinstance(default, ast.Constant) else None
            return "Any" if value is None else type(value).__name__
        return f"{annotation} | None" if self.default == "None" and "None" not in annotation else annotation

    @property
    def takes_frames(self) -> bool:
        """Tell whether its values can be lists of images, and not tensors only."""
        return self.annotation is None or any(word in self.annotation for word in ("Image", "ndarray"))

    @property
    def may_be_none(self) -> bool:
        return any(word in (self.annotation or "") for word in ("None", "Optional"))

    @property
    def file_kind(self) -> FileKind | None:
        """The kind of file that holds its values; None for plain ones."""
        return file_kind(self.type)


@dataclass(frozen=True)
class PipelineSignature:
    """`arguments` are in the order of the call; `output_fields` are what the returned object has, () if unknown.

    Of each group in `alternatives` the call needs one: its own checks raise if all are None. It assigns those in
    `replaced` where they are None. With `tensors_are_latents`, `output_type="pt"` returns what is not yet an image.
    With `needs_are_declared`, the call needs its required arguments alone.
    """

    name: str
    arguments: Mapping[str, Argument]
    output_fields: tuple[str, ...]
    alternatives: tuple[tuple[str, ...], ...] = ()
    replaced: frozenset[str] = frozenset()
    tensors_are_latents: bool = False
    needs_are_declared: bool = False

    @functools.cached_property
    def needed(self) -> tuple[tuple[str, ...], ...]:
        """Groups of arguments of which one each must be given, required arguments first."""
        required = [(name,) for name, argument in self.arguments.items() if argument.is_required]
        media = [(self.argument_for(medium) or "",) for medium in self.needed_media]
        covered = {name for (name,) in (*required, *media)}
        others = [group for group in self.alternatives if not covered & set(group)]
        return tuple(dict.fromkeys((*required, *media, *others)))

    def argument_for(self, medium: Medium) -> str | None:
        """Return the argument that takes this medium; None if there is none."""
        found = next((name for name in MEDIA_ARGUMENTS[medium] if name in self.arguments), None)
        if found is not None and medium == "video" and not self.arguments[found].takes_frames:
            return None
        if found is None and medium == "control_image" and _OF_CONTROL & self.arguments.keys():
            return self.argument_for("image")
        return found

    def medium_of(self, name: str) -> Medium | None:
        """Return the medium that an argument takes, preferring a needed one; None for other arguments."""
        media = (*self.needed_media, *MEDIA_ARGUMENTS)
        return next((medium for medium in media if self.argument_for(medium) == name), None)

    @property
    def makes(self) -> Kind | None:
        """The kind of its output; None for text, or where its source does not tell."""
        fields = set(self.output_fields)
        if fields & set(VIDEO_FIELDS):
            return "video"
        if fields & set(AUDIO_FIELDS):
            return "audio"
        if fields & set(IMAGE_FIELDS):
            return "image"
        return None if not fields or fields & set(TEXT_FIELDS) else "tensor"

    @property
    def duration_argument(self) -> str | None:
        """The argument that takes the length of the audio; None if there is none."""
        return self._first_of(DURATION_ARGUMENTS)

    @property
    def num_frames_argument(self) -> str | None:
        """The argument that takes the number of frames of a video; None if there is none."""
        return self._first_of(NUM_FRAMES_ARGUMENTS) if self.makes == "video" else None

    @property
    def frame_rate_argument(self) -> str | None:
        """The argument that takes the frames per second of a video; None if there is none."""
        return self._first_of(FRAME_RATE_ARGUMENTS) if self.makes == "video" else None

    def _first_of(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self.arguments), None)

    def argument_of(self, field: str) -> str | None:
        """The argument that takes a field of a request; None if there is none."""
        match field:
            case "duration":
                return self.duration_argument
            case "num_frames":
                return self.num_frames_argument
            case "fps":
                return self.frame_rate_argument
        medium = next((medium for medium in MEDIA_ARGUMENTS if medium == field), None)
        if medium is not None:
            return self.argument_for(medium)
        return field if field in self.arguments else None

    @property
    def needed_media(self) -> tuple[Medium, ...]:
        """Media without which a call fails: required ones, and those that have a default only to keep a place."""
        if self.needs_are_declared:
            media = {medium: self.argument_for(medium) for medium in MEDIA_ARGUMENTS}
            return tuple(medium for medium, name in media.items() if name and self.arguments[name].is_required)
        if self.makes == "video":
            return self._media_of_video
        needed: list[Medium] = []
        image, mask = self.argument_for("image"), self.argument_for("mask")
        changes_an_image = "strength" in self.arguments or mask == "mask_image"
        if image is not None and (self.arguments[image].is_required or changes_an_image):
            needed.append("image")
        if mask is not None and (self.arguments[mask].is_required or mask == "mask_image"):
            needed.append("mask")
        control = self.argument_for("control_image")
        if control is not None and (control != image or "image" not in needed):
            needed.append("control_image")
        return tuple(needed)

    @property
    def _media_of_video(self) -> tuple[Medium, ...]:
        """Image or video, unless the type allows none; of a pipeline that takes both, only the required ones."""
        media: tuple[Medium, ...] = ("image", "video")
        arguments = {medium: self.arguments[name] for medium in media if (name := self.argument_for(medium))}
        return tuple(
            medium
            for medium, argument in arguments.items()
            if argument.is_required or (len(arguments) == 1 and not argument.may_be_none)
        )


@functools.cache
def signature_of(class_name: str) -> PipelineSignature | None:
    """Return the signature of one of diffusers' pipeline classes; None if there is no such class."""
    found = class_of(class_name)
    if found is None:
        return None
    functions = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    if "__call__" in functions:
        return _signature(class_name, functions["__call__"], functions.get("check_inputs"))
    bases = (signature_of(base.id) for base in found.bases if isinstance(base, ast.Name))
    inherited = next(filter(None, bases), None)
    return None if inherited is None else replace(inherited, name=class_name)


def signature_of_pipeline(pipeline: object) -> PipelineSignature:
    """Return the signature of a loaded pipeline: its own, as a modular one has it, else that of its class."""
    own = getattr(pipeline, "signature", None)
    return own if isinstance(own, PipelineSignature) else signature_of_class(type(pipeline))


def signature_of_class(pipeline_class: type) -> PipelineSignature:
    """Return the signature of an imported class, which a checkpoint may have brought along."""
    check = getattr(pipeline_class, "check_inputs", None)
    functions = [None if function is None else _parsed(function) for function in (pipeline_class.__call__, check)]
    assert functions[0] is not None
    return _signature(pipeline_class.__name__, functions[0], functions[1])


def _parsed(function: object) -> ast.FunctionDef:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body  # type: ignore[arg-type]
    assert isinstance(parsed, ast.FunctionDef)
    return parsed


def _signature(name: str, call: ast.FunctionDef, check: ast.FunctionDef | None) -> PipelineSignature:
    arguments = dict(_arguments(call.args))
    groups = [group for function in (call, check) if function is not None for group in _alternatives(function)]
    replaced, output_type = _replaced(call), arguments.get("output_type")
    unset = {name for name, argument in arguments.items() if argument.default == "None" and name not in replaced}
    found = [group for group in dict.fromkeys(groups) if set(group) <= unset]
    sizes = ("len(prompt_embeds)", "prompt_embeds.shape[0]")
    if {"prompt", "prompt_embeds"} <= unset and not any("prompt" in group for group in groups):
        # Without a check, the call fails where it counts the prompts.
        found += [("prompt", "prompt_embeds")] if any(size in ast.unparse(call) for size in sizes) else []
    # A call that returns latents by default decodes and converts them in its own way.
    is_raw = _is_raw(call) or (output_type is not None and output_type.default == "'latent'")
    return PipelineSignature(
        name, arguments, _output_fields(call), tuple(found), frozenset(replaced & arguments.keys()), is_raw
    )


def _alternatives(function: ast.FunctionDef) -> Iterator[tuple[str, ...]]:
    """Yield the names for which the function begins with `if a is None and b is None: raise`; with `or`, one each."""
    for statement in function.body:
        branch: ast.stmt | None = statement
        while isinstance(branch, ast.If):
            terms = branch.test.values if isinstance(branch.test, ast.BoolOp) else [branch.test]
            names = [term.left.id for term in terms if _is_none(term) and isinstance(term.left, ast.Name)]
            if len(names) == len(terms) and isinstance(branch.body[0], ast.Raise):
                is_disjunction = isinstance(branch.test, ast.BoolOp) and isinstance(branch.test.op, ast.Or)
                yield from ((name,) for name in names) if is_disjunction else (tuple(names),)
            branch = branch.orelse[0] if len(branch.orelse) == 1 else None


def _is_none(node: ast.expr) -> TypeGuard[ast.Compare]:
    """Recognise `... is None`."""
    is_comparison = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Is)
    return is_comparison and ast.unparse(node.comparators[0]) == "None"  # type: ignore[attr-defined]


def _replaced(call: ast.FunctionDef) -> set[str]:
    """Return the names that the call assigns if they are None."""
    found = set()
    for node in ast.walk(call):
        if isinstance(node, ast.If):
            first = node.test.values[0] if isinstance(node.test, ast.BoolOp) else node.test
            if _is_none(first):
                lines = (line for line in node.body if isinstance(line, ast.Assign))
                found |= {ast.unparse(line.targets[0]) for line in lines} & {ast.unparse(first.left)}
    return found


def _is_raw(call: ast.FunctionDef) -> bool:
    """Tell whether the call returns tensors as it returns latents, without postprocessing."""
    comparisons = (ast.unparse(node) for node in ast.walk(call) if isinstance(node, ast.Compare))
    return any(text.startswith("output_type in ") and "'pt'" in text and "'latent'" in text for text in comparisons)


@functools.cache
def example_fps(class_name: str) -> Fraction | None:
    """Frames per second of the file that a class's example in diffusers' documentation writes; None if unknown.

    A modular pipeline has the rate that its file names, else that of the class of the same name that is not modular.
    """
    file = file_of_class(class_name, "modular_pipelines")
    found = None if file is None else _FIXED_FPS.search(file.read_text(encoding="utf-8"))
    found = found or _EXAMPLE_FPS.search(source_of_class(class_name.replace("Modular", "")) or "")
    return None if found is None else Fraction(found[1])


def class_of(name: str) -> ast.ClassDef | None:
    """The definition of one of diffusers' pipelines, outputs or models; None if there is no such class."""
    found = (node for node in module_of_class(name) if isinstance(node, ast.ClassDef) and node.name == name)
    return next(found, None)


@functools.cache
def module_of_class(name: str) -> tuple[ast.stmt, ...]:
    """The file that defines one of diffusers' pipelines, outputs or models; () if there is no such class."""
    source = source_of_class(name) or source_of_class(name, "models")
    return () if source is None else tuple(ast.parse(source).body)


@functools.cache
def source_of_class(name: str, folder: Literal["pipelines", "models"] = "pipelines") -> str | None:
    """The source of the file that defines one of diffusers' pipelines, their outputs, or models; None without one."""
    file = file_of_class(name, folder)
    return None if file is None else file.read_text(encoding="utf-8")


def file_of_class(name: str, folder: str) -> Path | None:
    """The file in one of diffusers' folders that defines a class; None if there is no such class."""
    spec = importlib.util.find_spec("diffusers")
    if spec is None or spec.origin is None or not name.isidentifier():
        return None
    # Searching bytes takes a quarter of the time of decoded text: every command with a diffusers profile comes here.
    opening = f"\nclass {name}(".encode()
    files = sorted((Path(spec.origin).parent / folder).rglob("*.py"))
    return next((file for file in files if opening in file.read_bytes()), None)


def _arguments(given: ast.arguments) -> Iterator[tuple[str, Argument]]:
    positional = given.posonlyargs + given.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = itertools.chain(
        zip(positional, defaults, strict=True), zip(given.kwonlyargs, given.kw_defaults, strict=True)
    )
    for argument, default in pairs:
        if argument.arg != "self":
            annotation = None if argument.annotation is None else ast.unparse(argument.annotation)
            yield argument.arg, Argument(annotation, None if default is None else ast.unparse(default))


def _output_fields(call: ast.FunctionDef) -> tuple[str, ...]:
    for node in ast.walk(call):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Output"):
            keywords = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
            return tuple(keywords or _fields_of(node.func.id))
    return ()


def _fields_of(output_class: str) -> Iterator[str]:
    """Yield the fields of an output class that a call fills by position."""
    found = class_of(output_class)
    for node in [] if found is None else found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
