"""Arguments and outputs of a pipeline class, read from the source of its `__call__`: importing diffusers is slow."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Medium = Literal["image", "mask", "control_image"]

# The names that pipelines have for a request's media, the usual one first.
MEDIA_ARGUMENTS: Mapping[Medium, tuple[str, ...]] = {
    "image": ("image", "images"),
    "mask": ("mask_image", "mask"),
    "control_image": ("control_image",),
}
# Arguments of pipelines with a network for a control image; where no other takes that, `image` does.
_OF_CONTROL = {"controlnet_conditioning_scale", "adapter_conditioning_scale"}
# The names that pipelines have for the length of the audio they make, in seconds.
DURATION_ARGUMENTS = ("audio_length_in_s", "audio_end_in_s", "audio_duration", "audio_duration_s", "duration")
# Fields of a pipeline's output that hold images or audio.
IMAGE_FIELDS = ("images", "image")
AUDIO_FIELDS = ("audios",)


@dataclass(frozen=True)
class Argument:
    """One argument of a call: its annotation and its default as source text, None where it has none."""

    annotation: str | None
    default: str | None

    @property
    def is_required(self) -> bool:
        return self.default is None

    @property
    def takes_arrays(self) -> bool:
        """Tell whether its values are tensors or images."""
        return any(word in (self.annotation or "") for word in ("Tensor", "Image", "ndarray"))


@dataclass(frozen=True)
class PipelineSignature:
    """`arguments` are in the order of the call; `output_fields` are what the returned object has, () if unknown."""

    name: str
    arguments: Mapping[str, Argument]
    output_fields: tuple[str, ...]

    def argument_for(self, medium: Medium) -> str | None:
        """The argument that takes this medium; None if there is none."""
        found = next((name for name in MEDIA_ARGUMENTS[medium] if name in self.arguments), None)
        if found is None and medium == "control_image" and _OF_CONTROL & self.arguments.keys():
            return self.argument_for("image")
        return found

    @property
    def duration_argument(self) -> str | None:
        """The argument that takes the length of the audio; None if there is none."""
        return next((name for name in DURATION_ARGUMENTS if name in self.arguments), None)

    @property
    def needed_media(self) -> tuple[Medium, ...]:
        """Media without which a call fails: required ones, and those that have a default only to keep a place."""
        needed: list[Medium] = []
        image, mask = self.argument_for("image"), self.argument_for("mask")
        changes_an_image = "strength" in self.arguments or mask is not None
        if image is not None and (self.arguments[image].is_required or changes_an_image):
            needed.append("image")
        if mask is not None and (self.arguments[mask].is_required or mask == "mask_image"):
            needed.append("mask")
        control = self.argument_for("control_image")
        if control is not None and (control != image or "image" not in needed):
            needed.append("control_image")
        return tuple(needed)


@functools.cache
def signature_of(class_name: str) -> PipelineSignature | None:
    """The signature of one of diffusers' pipeline classes; None if there is no such class."""
    found = _class(class_name)
    if found is None:
        return None
    call = next((f for f in found.body if isinstance(f, ast.FunctionDef) and f.name == "__call__"), None)
    if call is not None:
        return _signature(class_name, call)
    bases = (signature_of(base.id) for base in found.bases if isinstance(base, ast.Name))
    inherited = next(filter(None, bases), None)
    return None if inherited is None else replace(inherited, name=class_name)


def signature_of_class(pipeline_class: type) -> PipelineSignature:
    """The signature of an imported class, which a checkpoint may have brought along."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(pipeline_class.__call__)))
    (call,) = ast.parse(source).body
    assert isinstance(call, ast.FunctionDef)
    return _signature(pipeline_class.__name__, call)


def _signature(name: str, call: ast.FunctionDef) -> PipelineSignature:
    return PipelineSignature(name, dict(_arguments(call.args)), _output_fields(call))


def _class(name: str) -> ast.ClassDef | None:
    folder = _pipelines_folder()
    if folder is None or not name.isidentifier():
        return None
    # Searching bytes takes a quarter of the time of decoded text: every command with a diffusers profile comes here.
    opening = f"\nclass {name}(".encode()
    for file in sorted(folder.rglob("*.py")):
        source = file.read_bytes()
        if opening in source:
            body = ast.parse(source).body
            return next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)
    return None


def _pipelines_folder() -> Path | None:
    spec = importlib.util.find_spec("diffusers")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "pipelines"


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
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            name = node.value.func.id
            if name.endswith("Output"):
                keywords = [keyword.arg for keyword in node.value.keywords if keyword.arg is not None]
                return tuple(keywords or _fields_of(name))
    return ()


def _fields_of(output_class: str) -> Iterator[str]:
    """The fields of an output class that a call fills by position."""
    found = _class(output_class)
    for node in [] if found is None else found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
