"""The call of a pipeline, from the signature of its class or the inputs of its blocks, which then act as any pipeline.

Imports diffusers.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import torch
from diffusers import DiffusionPipeline
from diffusers.modular_pipelines import ModularPipeline
from diffusers.modular_pipelines.modular_pipeline_utils import INPUT_PARAM_TEMPLATES
from diffusers.utils import BaseOutput
from diffusers.utils.import_utils import BACKENDS_MAPPING
from PIL import Image

from omni_cli.backends.diffusers.scheduler_steps import scheduler_steps
from omni_cli.checkpoints.files import MODULAR_INDEX, index_file, read_object
from omni_cli.core.errors import CheckpointError
from omni_cli.core.text import suggest
from omni_cli.requests.contents import CallFile
from omni_cli.requests.pipeline_call import Argument, PipelineCall
from omni_cli.requests.value_types import ANY, Types, ValueType

# The call of diffusers' function that writes a file, in the example of a pipeline's documentation.
_EXAMPLE_FPS = re.compile(r"(?:export_to_video|encode_video)\((?:[^()]|\([^()]*\))*?fps=(\d+(?:\.\d+)?)")
# Names under which a package is installed, where they differ from diffusers' name for it.
_INSTALLED_AS = {"opencv": "opencv-python", "onnx": "onnxruntime"}
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)
OnStepEnd = Callable[[object, int, object, dict[str, object]], object]
_CALLBACK = (ValueType("Callable"),)


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
    pipeline_class = getattr(diffusers, name, None)
    if not isinstance(pipeline_class, type):
        pipelines = [class_name for class_name in dir(diffusers) if class_name.endswith("Pipeline")]
        hint = suggest(name, pipelines) or f"this is diffusers {diffusers.__version__}"
        raise CheckpointError(f"diffusers has no class `{name}`", hint=hint)
    for package in getattr(pipeline_class, "_backends", ()):  # of a placeholder
        if not BACKENDS_MAPPING[package][0]():
            package = _INSTALLED_AS.get(package, package)
            raise CheckpointError(
                f"{name} needs the package `{package}`, which is not installed", hint=f"pip install {package}"
            )
    return pipeline_class


def described_class(pipeline_class: type[Any]) -> PipelineCall:
    """Describe a pipeline's class, which a checkpoint may have brought along."""
    call = inspect.unwrap(pipeline_class.__call__)
    parameters = list(inspect.signature(call).parameters.values())[1:]
    arguments = {
        parameter.name: Argument(
            _read_types(parameter.annotation, call.__globals__),
            _to_json_value(parameter.default),
            parameter.default is parameter.empty,
        )
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    returns_latents = any(parameter.name == "output_type" and parameter.default == "latent" for parameter in parameters)
    return PipelineCall(
        pipeline_class.__name__,
        arguments,
        _read_output_fields(call),
        _example_fps(pipeline_class),
        tensors_are_latents=returns_latents or _compares_with_latents(call),
    )


def described_modular(modular: ModularPipeline) -> PipelineCall:
    """Describe a modular pipeline by the inputs of its blocks, which do not say what each of their workflows needs."""
    blocks, pipeline_class = modular.blocks, type(modular)
    arguments = {
        block_input.name: Argument(
            _read_types(block_input.type_hint or INPUT_PARAM_TEMPLATES.get(block_input.name, {}).get("type_hint")),
            _to_json_value(block_input.default),
        )
        for block_input in blocks.inputs
        if block_input.name is not None
    }
    if any("guider" in component.name for component in blocks.expected_components):
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


def _read_output_fields(call: Callable[..., Any]) -> tuple[str, ...]:
    """Return the fields of the output class that a call names."""
    code, names = call.__code__, call.__globals__
    for output_class in (names.get(name) for name in code.co_names):
        if isinstance(output_class, type) and issubclass(output_class, BaseOutput):
            return tuple(field.name for field in dataclasses.fields(output_class))
    return ()


def _compares_with_latents(call: Callable[..., Any]) -> bool:
    """Return True if a call returns tensors as it returns latents: it looks for the output type in a list of both."""
    lists = (set(value) for value in call.__code__.co_consts if isinstance(value, tuple | frozenset))
    return any({"pt", "latent"} <= values and "pil" not in values for values in lists)


def _example_fps(pipeline_class: type[Any]) -> Fraction | None:
    match = _EXAMPLE_FPS.search(pipeline_class.__call__.__doc__ or "")
    return None if match is None else Fraction(match[1])


def _to_json_value(value: object) -> object:
    """Return a default as it is if JSON could hold it, else as text."""
    if value is inspect.Parameter.empty or value is None:
        return None
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return type(value)(map(_to_json_value, value))
    if isinstance(value, dict):
        return {key: _to_json_value(item) for key, item in value.items()}
    return value if isinstance(value, bool | int | float | str) else repr(value)


def _read_types(annotation: Any, names: Mapping[str, Any] = types.MappingProxyType({})) -> Types:
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
        return tuple(dict.fromkeys(value_type for one in inner for value_type in _read_types(one, names)))
    return (_read_type(annotation, typing.get_origin(annotation) or annotation, inner, names),)


def _read_type(annotation: Any, origin: Any, inner: tuple[Any, ...], names: Mapping[str, Any]) -> ValueType:
    if origin is typing.Literal:
        return ValueType("Literal", choices=inner)
    if origin in _MAPPINGS:
        keys, items = (_read_types(inner[0], names), _read_types(inner[1], names)) if len(inner) == 2 else (ANY, ANY)
        return ValueType("dict", items=(items,), keys=keys)
    if origin in _LISTS or origin is tuple:
        # `list[float, torch.Tensor]` means items of either type, and `tuple[int]` any number of them.
        is_fixed = origin is tuple and len(inner) > 1 and inner[-1] is not ...
        item_types = tuple(_read_types(item, names) for item in inner if item is not ...)
        return ValueType("tuple" if origin is tuple else "list", items=item_types, is_fixed=is_fixed)
    return _class_type(origin) if isinstance(origin, type) else ValueType(str(annotation))


def _class_type(python_type: type[Any]) -> ValueType:
    if python_type is type(None):
        return ValueType("None")
    if python_type in (bool, int, float, str):
        return ValueType(python_type.__name__)
    if python_type is Image.Image:
        return ValueType("image")
    if python_type is np.ndarray or python_type.__name__.endswith("Tensor"):
        return ValueType("tensor")
    if issubclass(python_type, str) and issubclass(python_type, enum.Enum):
        return ValueType("Literal", choices=tuple(member.value for member in python_type))
    if python_type.__name__.endswith("Reference"):
        return ValueType("media")
    if dataclasses.is_dataclass(python_type):
        names = vars(sys.modules[python_type.__module__])
        fields = {field.name: _read_types(field.type, names) for field in dataclasses.fields(python_type)}
        return ValueType(
            python_type.__name__, fields=fields, location=f"{python_type.__module__}:{python_type.__qualname__}"
        )
    return ValueType(python_type.__name__)


class ModularAdapter(DiffusionPipeline):
    """The pipeline's components, placed and offloaded as those of any pipeline, and its blocks as one call.

    The call takes the blocks' inputs, `guidance_scale` for their guiders and `callback_on_step_end`, and returns what
    the blocks make. `num_timesteps` is the number of steps of the running loop, None between calls and for loops
    without the blocks' own progress bar, whose steps are those of the scheduler.
    """

    def __init__(self, modular: ModularPipeline) -> None:
        self.modular = modular
        self.num_timesteps: int | None = None
        self._on_step: OnStepEnd | None = None
        # Pipelines of one class share some of their blocks.
        blocks = modular._blocks = modular.blocks
        self._defaults = {name: value for name, value in modular.default_call_parameters.items() if name is not None}
        self._guiders = [] if "guidance_scale" in self._defaults else _guiders(modular)
        if self._guiders:
            self._defaults["guidance_scale"] = self._guiders[0].guidance_scale
        call = described_modular(modular)
        taken = {name: argument for name, argument in call.arguments.items() if name in self._defaults}
        self.described_call = dataclasses.replace(
            call, arguments={**taken, "callback_on_step_end": Argument(_CALLBACK)}
        )
        for block in _blocks(blocks):
            if hasattr(block, "progress_bar"):
                # No bound method: a copy of the blocks would copy it with the weights.
                block.progress_bar = lambda total: self._progress_bar(total)

    def __getattr__(self, name: str) -> Any:
        if name == "modular":
            raise AttributeError(name)
        return getattr(self.modular, name)

    @staticmethod
    def _get_signature_keys(adapter: ModularAdapter) -> tuple[list[str], list[str]]:
        return list(adapter.components), []

    @property
    def components(self) -> dict[str, Any]:
        components: dict[str, Any] = self.modular.components
        return components

    @property
    def model_cpu_offload_seq(self) -> str:
        """Every model in the order in which the blocks name them, which is that of their use."""
        return "->".join(self.components)

    def __call__(self, callback_on_step_end: OnStepEnd | None = None, **inputs: Any) -> SimpleNamespace:
        self._on_step = callback_on_step_end
        own = [guider.guidance_scale for guider in self._guiders]
        if self._guiders:
            self._guide([inputs.pop("guidance_scale", None)] * len(own))
        try:
            with scheduler_steps(self.modular, self._note_scheduler):
                outputs = self.modular(**inputs, output=list(self.described_call.outputs))
        finally:
            self.num_timesteps = self._on_step = None
            self._guide(own)
        self.maybe_free_model_hooks()
        return SimpleNamespace(**outputs)

    def _guide(self, scales: list[float | None]) -> None:
        """Set the guidance of all guiders, as other pipelines do that have several; None leaves one as it is."""
        for guider, scale in zip(self._guiders, scales, strict=True):
            if scale is not None:
                guider.guidance_scale = scale

    def notes_on(self, arguments: Mapping[str, object]) -> list[str]:
        """Return a sentence for each input that the blocks which these inputs select ignore."""
        plain = (bool, int, float, str, list, tuple)
        is_default = {
            name: isinstance(value, plain) and value == self._defaults.get(name) for name, value in arguments.items()
        }
        chosen = {name: value for name, value in arguments.items() if value is not None and not is_default[name]}
        known = {entry.name for entry in self.modular._blocks.get_execution_blocks(**chosen).inputs}
        ignored = sorted(chosen.keys() - known - ({"guidance_scale"} if self._guiders else set()))
        others = {name: ", ".join(f"`{other}`" for other in chosen if other != name) for name in ignored}
        return [f"`{name}` has no effect beside {names or 'no other input'}" for name, names in others.items()]

    def reference(self, name: str, file: CallFile) -> object:
        """Return a file as the class that its kind has among the values of an input."""
        declared = next(entry.type_hint for entry in self.modular.blocks.inputs if entry.name == name)
        kinds = {kind_class.kind: kind_class for kind_class in typing.get_args(declared)[0].__subclasses__()}
        array, sound = file.array, file if file.kind == "audio" else file.sound
        if file.kind == "image":
            return kinds["image"](Image.fromarray(array))
        content: dict[str, object] = {} if file.kind == "audio" else {"frames": array, "fps": file.rate}
        if sound is not None:
            samples = np.atleast_2d(sound.array.T)
            content |= {"audio": torch.from_numpy(samples.copy()), "sample_rate": sound.rate}
        return kinds[file.kind](**content)

    def _note_scheduler(self) -> None:
        """Report a step of a loop without a progress bar."""
        if self.num_timesteps is None and self._on_step is not None:
            self._on_step(self, 0, None, {})

    @contextmanager
    def _progress_bar(self, total: int) -> Iterator[SimpleNamespace]:
        """Count the steps of a loop, in place of diffusers' progress bar."""
        self.num_timesteps, done = total, 0

        def update(steps: int = 1) -> None:
            nonlocal done
            for _ in range(int(steps)):
                done += 1
                if self._on_step is not None:
                    self._on_step(self, done - 1, None, {})

        yield SimpleNamespace(update=update)


def _blocks(block: Any) -> Iterator[Any]:
    yield block
    for inner in block.sub_blocks.values():
        yield from _blocks(inner)


def _guiders(modular: ModularPipeline) -> list[Any]:
    """Return the components that guide a step, which have the scale that is an argument of other pipelines.

    Some models are distilled, and theirs are off.
    """
    guiders = [part for name, part in modular.components.items() if "guider" in name]
    return [guider for guider in guiders if hasattr(guider, "guidance_scale") and getattr(guider, "_enabled", True)]
