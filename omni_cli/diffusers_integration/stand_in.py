"""Requests for a pipeline that is not loaded: what its source and its configuration files decide about them.

Importing diffusers takes seconds. A stand-in has the attributes that `__init__` derives from the configurations of the
pipeline's parts, and the pipeline's own `check_inputs`; whatever else the source uses is undetermined, and a check that
depends on it is left to the loaded pipeline.
"""

from __future__ import annotations

import ast
import builtins
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.files import read_object
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.arguments import (
    MAX_PIXELS,
    PipelineCall,
    check_stage,
    foreign_arguments,
    resolve_request,
    without_arguments,
)
from omni_cli.diffusers_integration.frame_rates import frame_rate, with_num_frames
from omni_cli.diffusers_integration.requests import DiffusionRequest
from omni_cli.diffusers_integration.signature import Medium, class_of, module_of_class, signature_of
from omni_cli.outputs import GenerateRequest

_CONFIG_FILES = ("config.json", "scheduler_config.json")
# What the source of a pipeline may use beside the standard library.
_LIGHT_PACKAGES = {"numpy", "PIL"}
_DECORATORS = ("staticmethod", "classmethod", "property")
# Raised by code that needs what is undetermined.
_UNDECIDED = (TypeError, AttributeError, LookupError, ValueError, RuntimeError, ArithmeticError, AssertionError)


def check_request(
    class_name: str, folder: Path | None, config: DiffusionStageConfig, request: GenerateRequest
) -> str | None:
    """Raise `InputError` for a request that the pipeline in a folder would reject, as far as can be told.

    Returns a warning for the user if there is one. Without a folder, only the source decides.
    """
    signature = signature_of(class_name)
    if signature is None:
        return None
    pipeline = None if folder is None else stand_in(class_name, folder)
    defaults = {name: _literal(argument.default) for name, argument in signature.arguments.items()}
    call = PipelineCall.of(pipeline, signature, defaults)
    config = without_arguments(config, foreign_arguments(config, call))
    check_stage(config, call)
    arguments = with_num_frames(request.diffusion, pipeline, signature, defaults, config)
    rate = ("initial_audio_sampling_rate",) if request.audio else ()
    files = {name: _UNDETERMINED for name in (*request.call_files, *rate) if name in defaults}
    conditions = {**call.media_arguments(_media(request)), **files}
    given = DiffusionRequest.from_arguments(
        request.request_id, request.prompt, request.seed, call.named(arguments), conditions
    )
    if pipeline is not None:
        resolve_request(given, config, pipeline, call, MAX_PIXELS)
    fps = frame_rate(signature, defaults, {**config.call, **given.call}, given.fps or config.fps)
    if fps is None or fps.is_known:
        return None
    return f"{class_name} does not say its frame rate: the video has {fps.rate} frames per second; `--fps` sets another"


def _media(request: GenerateRequest) -> dict[Medium, list[object]]:
    from PIL import Image

    given: dict[Medium, list[object]] = {
        "image": [Image.fromarray(image) for image in request.images],
        "control_image": [Image.fromarray(image) for image in request.control_images],
        "mask": [] if request.mask is None else [Image.fromarray(request.mask).convert("L")],
        "audio": [_UNDETERMINED for _ in request.audio],
        "video": [[Image.fromarray(frame) for frame in video.frames] for video in request.videos],
    }
    return {medium: files for medium, files in given.items() if files}


class _Undetermined:
    """A value of a loaded pipeline: it can be named and called, but whatever depends on it raises `TypeError`."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # isinstance() reads it.
        raise TypeError

    def __getattr__(self, name: str) -> _Undetermined:
        return _Undetermined(name)

    def __call__(self, *positional: object, **named: object) -> _Undetermined:
        return _UNDETERMINED

    def __instancecheck__(self, instance: object) -> bool:
        if type(instance) is _Undetermined or (isinstance(instance, _Part) and not instance.class_name):
            raise TypeError
        return isinstance(instance, _Part) and self._name in (instance.class_name, *_bases(instance.class_name))

    def __bool__(self) -> bool:
        raise TypeError

    def __eq__(self, other: object) -> bool:
        raise TypeError

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise TypeError


_UNDETERMINED = _Undetermined()


class _Config(dict[str, Any]):
    """A configuration whose keys are attributes, as in diffusers."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


class _Part:
    """A part of the pipeline: its configuration, and the attributes that its class derives from that."""

    def __init__(self, config: Mapping[str, Any], class_name: str = "") -> None:
        self.config = _Config(config)
        self.class_name = class_name
        self._is_derived = False

    def __getattr__(self, name: str) -> Any:
        # Null means that the part computes it.
        if name not in ("config", "class_name") and self.config.get(name) is not None:
            return self.config[name]
        init = None
        if not vars(self).get("_is_derived", True):
            self._is_derived = True
            init = dict(_functions(self.class_name)).get("__init__")
        if init is not None:
            _initialise(self, init, _namespace(self.class_name, [init]), self.config)
        if name in vars(self):
            return vars(self)[name]
        raise AttributeError(name)


@functools.cache
def stand_in(class_name: str, folder: Path) -> Any:
    """The stand-in of a pipeline of diffusers; None if the folder has no index."""
    functions, index = dict(_functions(class_name)), folder / "model_index.json"
    if not index.is_file():
        return None
    listed = read_object(index)
    values = {name: _part_or_value(folder, name, value) for name, value in listed.items() if name[0] != "_"}
    namespace = _namespace(class_name, functions.values())
    init = functions.pop("__init__", None)
    methods: dict[str, Any] = {}
    _run(list(functions.values()), namespace, methods)
    # No tokenizer counts a prompt's length.
    pipeline = type(class_name, (), {**methods, "components": {}})()
    vars(pipeline).update(values, config=_Config(listed))
    if init is not None:
        _initialise(pipeline, init, namespace, values)
    return pipeline


def _namespace(class_name: str, functions: Iterable[ast.FunctionDef]) -> dict[str, Any]:
    """Return the globals of a class's functions: light packages, and undetermined values for all other names."""
    names = {node.id for each in functions for node in ast.walk(each) if isinstance(node, ast.Name)}
    namespace: dict[str, Any] = {name: _Undetermined(name) for name in names if not hasattr(builtins, name)}
    namespace |= {name: _processor for name in names if name.endswith("Processor")}
    _run([node for node in module_of_class(class_name) if _is_light_import(node)], namespace)
    return namespace


def _initialise(target: Any, init: ast.FunctionDef, namespace: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Run a constructor with these values, so that `target` gets the attributes that they determine."""
    parameters = [*init.args.args, *init.args.kwonlyargs]
    defaults = [*init.args.defaults, *init.args.kw_defaults]
    given: dict[str, Any] = {each.arg: _UNDETERMINED for each in parameters}
    last = parameters[len(parameters) - len(defaults) :]
    given |= {each.arg: _literal(ast.unparse(value)) for each, value in zip(last, defaults, strict=True) if value}
    _run(init.body, {**namespace, **given, **values, "self": target})
    for name in [name for name, value in vars(target).items() if type(value) is _Undetermined]:
        delattr(target, name)


def _part_or_value(folder: Path, name: str, value: object) -> object:
    """Return a part of the pipeline's index, None for one that it lacks, or a plain setting."""
    match value:
        case [None, None]:
            return None
        case [str() as library, str() as class_name]:
            file = next((folder / name / each for each in _CONFIG_FILES if (folder / name / each).is_file()), None)
            config = {} if file is None else read_object(file)
            return _Part(config, class_name if library == "diffusers" else "")
    return value


def _functions(class_name: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the methods of a class, and inherited ones only where it lacks those that matter."""
    # Their own methods would need a loaded pipeline or model.
    found = None if class_name in ("DiffusionPipeline", "ModelMixin") else class_of(class_name)
    if found is None:
        return
    own = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    if not {"__init__", "check_inputs"} <= own.keys():
        for base in _bases(class_name):
            yield from _functions(base)
    for name, function in own.items():
        function.decorator_list = [each for each in function.decorator_list if ast.unparse(each) in _DECORATORS]
        if name == "__init__" or not name.startswith("__"):
            yield name, function


def _bases(class_name: str) -> tuple[str, ...]:
    found = class_of(class_name)
    return () if found is None else tuple(map(ast.unparse, found.bases))


def _is_light_import(node: ast.stmt) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
        names = [node.module]
    light = sys.stdlib_module_names | _LIGHT_PACKAGES
    return bool(names) and all(name.partition(".")[0] in light for name in names)


def _run(body: list[Any], namespace: dict[str, Any], results: dict[str, Any] | None = None) -> None:
    """Run statements one by one; what one that cannot be decided would have set stays unset."""
    for statement in body:
        # Annotations name what is undetermined, so they stay text.
        code = compile(ast.Module([statement], []), "<stand-in>", "exec", annotations.compiler_flag)
        try:
            exec(code, namespace, namespace if results is None else results)
        except _UNDECIDED:
            continue


def _processor(**settings: object) -> _Part:
    return _Part(settings)


def _literal(source: str | None) -> object:
    try:
        # Arithmetic, too, but no constant of the file.
        return None if source is None else eval(source, {"__builtins__": {}})
    except (NameError, AttributeError):
        return _UNDETERMINED
