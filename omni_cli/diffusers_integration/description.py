"""The call of a pipeline, from the signature of its class or the inputs of its blocks. Imports diffusers."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import PIL.Image
from diffusers.modular_pipelines import ModularPipeline
from diffusers.modular_pipelines.modular_pipeline_utils import INPUT_PARAM_TEMPLATES
from diffusers.utils import BaseOutput
from diffusers.utils.import_utils import BACKENDS_MAPPING

from omni_cli.checkpoints.files import MODULAR_INDEX, index_file, read_object
from omni_cli.errors import CheckpointError
from omni_cli.inputs.pipeline_call import Argument, PipelineCall
from omni_cli.inputs.value_types import ANY, Types, ValueType

# The call of diffusers' function that writes a file, in the example of a pipeline's documentation.
_EXAMPLE_FPS = re.compile(r"(?:export_to_video|encode_video)\((?:[^()]|\([^()]*\))*?fps=(\d+(?:\.\d+)?)")
# Names under which a package is installed, where they differ from diffusers' name for it.
_INSTALLED_AS = {"opencv": "opencv-python", "onnx": "onnxruntime"}
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)


def described_checkpoint(folder: Path) -> PipelineCall:
    """Describe the pipeline of a folder, without loading it. Raises `CheckpointError` for a class that is not there."""
    index = index_file(folder)
    assert index is not None
    if brings_code(folder):
        return PipelineCall(None)
    name = read_object(index).get("_class_name")
    if not isinstance(name, str):
        raise CheckpointError(f"{index} names no pipeline class (`_class_name`)")
    if index.name == MODULAR_INDEX and issubclass(class_named(name), ModularPipeline):
        return described_modular(ModularPipeline.from_pretrained(folder))
    return described_class(class_named(name))


def brings_code(folder: Path) -> bool:
    """Return True if a checkpoint has code for its pipeline or its blocks, which diffusers would run."""
    index, config = index_file(folder), folder / "modular_config.json"
    if index is not None and isinstance(read_object(index).get("_class_name"), list):
        return True
    return config.is_file() and "auto_map" in read_object(config)


def class_named(name: str) -> type[Any]:
    """Return one of diffusers' classes. Raises `CheckpointError` for one that it lacks, or that lacks a package."""
    found = getattr(diffusers, name, None)
    if not isinstance(found, type):
        near = difflib.get_close_matches(name, [each for each in dir(diffusers) if each.endswith("Pipeline")], n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"this is diffusers {diffusers.__version__}"
        raise CheckpointError(f"diffusers has no class `{name}`", hint=hint)
    for package in getattr(found, "_backends", ()):  # of a placeholder
        if not BACKENDS_MAPPING[package][0]():
            package = _INSTALLED_AS.get(package, package)
            raise CheckpointError(
                f"{name} needs the package `{package}`, which is not installed", hint=f"pip install {package}"
            )
    return found


def described_class(pipeline_class: type[Any]) -> PipelineCall:
    """Describe a pipeline's class, which a checkpoint may have brought along."""
    call = inspect.unwrap(pipeline_class.__call__)
    parameters = list(inspect.signature(call).parameters.values())[1:]
    arguments = {
        each.name: Argument(
            _types_of(each.annotation, call.__globals__), _plain(each.default), each.default is each.empty
        )
        for each in parameters
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    returns_latents = any(each.name == "output_type" and each.default == "latent" for each in parameters)
    return PipelineCall(
        pipeline_class.__name__,
        arguments,
        _outputs_of(call),
        _example_fps(pipeline_class),
        tensors_are_latents=returns_latents or _compares_with_latents(call),
    )


def described_modular(modular: ModularPipeline) -> PipelineCall:
    """Describe a modular pipeline by the inputs of its blocks, which do not say what each of their workflows needs."""
    blocks, pipeline_class = modular.blocks, type(modular)
    arguments = {
        each.name: Argument(
            _types_of(each.type_hint or INPUT_PARAM_TEMPLATES.get(each.name, {}).get("type_hint")), _plain(each.default)
        )
        for each in blocks.inputs
        if each.name is not None
    }
    if any("guider" in each.name for each in blocks.expected_components):
        # A component has it, which is not an input of the blocks.
        arguments.setdefault("guidance_scale", Argument((ValueType("float"), ValueType("None"))))
    module = sys.modules[pipeline_class.__module__]
    rates = [value for name, value in vars(module).items() if name.endswith("FPS") and isinstance(value, int)]
    other = getattr(diffusers, pipeline_class.__name__.replace("Modular", ""), None)
    fps = Fraction(rates[0]) if rates else None if other is None else _example_fps(other)
    return PipelineCall(pipeline_class.__name__, arguments, tuple(blocks.output_names), fps)


def described_pipeline(pipeline: object) -> PipelineCall:
    """Describe a loaded pipeline: by itself, as a modular one, else by its class."""
    own = getattr(pipeline, "described_call", None)
    return own if isinstance(own, PipelineCall) else described_class(type(pipeline))


def _outputs_of(call: Callable[..., Any]) -> tuple[str, ...]:
    """Return the fields of the output class that a call names."""
    code, names = call.__code__, call.__globals__
    for found in (names.get(name) for name in code.co_names):
        if isinstance(found, type) and issubclass(found, BaseOutput):
            return tuple(each.name for each in dataclasses.fields(found))
    return ()


def _compares_with_latents(call: Callable[..., Any]) -> bool:
    """Return True if a call returns tensors as it returns latents: it looks for the output type in a list of both."""
    lists = (set(value) for value in call.__code__.co_consts if isinstance(value, tuple | frozenset))
    return any({"pt", "latent"} <= values and "pil" not in values for values in lists)


def _example_fps(pipeline_class: type[Any]) -> Fraction | None:
    found = _EXAMPLE_FPS.search(pipeline_class.__call__.__doc__ or "")
    return None if found is None else Fraction(found[1])


def _plain(value: object) -> object:
    """Return a default as it is if JSON could hold it, else as text."""
    if value is inspect.Parameter.empty or value is None:
        return None
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value if isinstance(value, bool | int | float | str) else repr(value)


def _types_of(annotation: Any, names: Mapping[str, Any] = types.MappingProxyType({})) -> Types:
    """Return the types of an annotation; any where it cannot be evaluated with `names`."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, dict(names))
        except (NameError, TypeError, AttributeError, SyntaxError):
            return ANY
    if annotation in (inspect.Parameter.empty, Any, object, None):
        return ANY
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(dict.fromkeys(each for one in inner for each in _types_of(one, names)))
    return (_type_of(annotation, typing.get_origin(annotation) or annotation, inner, names),)


def _type_of(annotation: Any, made: Any, inner: tuple[Any, ...], names: Mapping[str, Any]) -> ValueType:
    if made is typing.Literal:
        return ValueType("Literal", choices=inner)
    if made in _MAPPINGS:
        keys, items = (_types_of(inner[0], names), _types_of(inner[1], names)) if len(inner) == 2 else (ANY, ANY)
        return ValueType("dict", items=(items,), keys=keys)
    if made in _LISTS or made is tuple:
        # `list[float, torch.Tensor]` means items of either type, and `tuple[int]` any number of them.
        is_fixed = made is tuple and len(inner) > 1 and inner[-1] is not ...
        item_types = tuple(_types_of(each, names) for each in inner if each is not ...)
        return ValueType("tuple" if made is tuple else "list", items=item_types, is_fixed=is_fixed)
    return _class_type(made) if isinstance(made, type) else ValueType(str(annotation))


def _class_type(made: type[Any]) -> ValueType:
    if made is type(None):
        return ValueType("None")
    if made in (bool, int, float, str):
        return ValueType(made.__name__)
    if made is PIL.Image.Image:
        return ValueType("image")
    if made is np.ndarray or made.__name__.endswith("Tensor"):
        return ValueType("tensor")
    if issubclass(made, str) and issubclass(made, enum.Enum):
        return ValueType("Literal", choices=tuple(each.value for each in made))
    if made.__name__.endswith("Reference"):
        return ValueType("media")
    if dataclasses.is_dataclass(made):
        names = vars(sys.modules[made.__module__])
        fields = {each.name: _types_of(each.type, names) for each in dataclasses.fields(made)}
        return ValueType(made.__name__, fields=fields, location=f"{made.__module__}:{made.__qualname__}")
    return ValueType(made.__name__)
