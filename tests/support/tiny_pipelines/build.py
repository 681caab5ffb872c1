"""A tiny checkpoint of any pipeline class: its parts by the types of its constructor, with a few sizes changed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from support.tiny_pipelines.language import MODELS, PROCESSORS, model
from support.tiny_pipelines.page import is_modular
from support.tiny_pipelines.sizes import SCHEDULERS, SIZES, SMALL
from support.tiny_pipelines.tokenizers import TOKENIZERS

_ZEROS_STD = 0.05


@dataclass(frozen=True)
class Part:
    """A component: its class, where the pipeline leaves a choice, and arguments of its constructor."""

    kind: str | None = None
    given: Mapping[str, object] = field(default_factory=dict)


def part(kind: Any = None, **given: Any) -> Part:
    return Part(kind, given)


@dataclass(frozen=True)
class TinyPipeline:
    """A pipeline class, the parts that differ from the usual ones, and the arguments of its call.

    `prepare` may change the built pipeline before it is saved; `write` replaces the building of parts. Both calls
    run in `dtype`, and decode in tiles if `is_tiled`.
    """

    name: str
    call: Mapping[str, object]
    parts: Mapping[str, object] = field(default_factory=dict)
    prepare: Callable[[Any], None] | None = None
    write: Callable[[Path], None] | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    is_tiled: bool = False


def build(declared: TinyPipeline, folder: Path) -> None:
    """Write the checkpoint to `folder`."""
    if declared.write is not None:
        declared.write(folder)
    else:
        pipeline = assemble(declared)
        options = {"overwrite_modular_index": True} if is_modular(declared.name) else {}
        pipeline.save_pretrained(str(folder), **options)


def assemble(declared: TinyPipeline) -> Any:
    """The pipeline with random weights."""
    import diffusers
    import torch

    pipeline_class = getattr(diffusers, declared.name)
    if is_modular(declared.name):
        return _assemble_modular(declared, pipeline_class())
    types = pipeline_class._get_signature_types()
    parameters = inspect.signature(pipeline_class.__init__).parameters
    arguments: dict[str, object] = {}
    for name, kinds in types.items():
        parameter = parameters[name]
        is_optional = parameter.default is not parameter.empty or name in pipeline_class._optional_components
        value = declared.parts.get(name, None if is_optional else Part())
        if name not in declared.parts and parameter.default is not parameter.empty:
            continue
        if isinstance(value, Part):
            torch.manual_seed(sum(name.encode()))
            value = make(value, kinds, sys.modules[pipeline_class.__module__])
        elif callable(value):
            torch.manual_seed(sum(name.encode()))
            value = _settled(value())
        arguments[name] = value
    unknown = declared.parts.keys() - types.keys()
    if unknown:
        raise ValueError(f"{declared.name} has no parts {sorted(unknown)}")
    pipeline = pipeline_class(**arguments)
    if declared.prepare is not None:
        declared.prepare(pipeline)
    return pipeline


def _assemble_modular(declared: TinyPipeline, pipeline: Any) -> Any:
    """The modular pipeline with every component that its blocks load; a part that is None is left out."""
    import torch

    built = {}
    for name in pipeline.pretrained_component_names:
        value = declared.parts.get(name, Part())
        if value is not None:
            torch.manual_seed(sum(name.encode()))
            kind = pipeline.get_component_spec(name).type_hint
            built[name] = make(value, (kind,), sys.modules[kind.__module__]) if isinstance(value, Part) else value
    pipeline.update_components(**built)
    if declared.prepare is not None:
        declared.prepare(pipeline)
    return pipeline


def make(part: Part, kinds: Sequence[type], module: object = None) -> Any:
    """The component, of the first class of `kinds` unless the part names another."""
    name = part.kind or next(kind.__name__ for kind in kinds if kind is not type(None))
    kind = next((kind for kind in kinds if getattr(kind, "__name__", None) == name), None)
    if name == "KarrasDiffusionSchedulers" or (kind is not None and inspect.isclass(kind) and issubclass(kind, Enum)):
        name, kind = "DDIMScheduler", None
    for makers in (TOKENIZERS, PROCESSORS, MODELS):
        if name in makers:
            return _settled(makers[name](**part.given))
    if kind is None or kind.__module__.startswith("diffusers.utils"):
        kind = _class(name, module)
    if kind is None or kind.__module__.startswith("transformers"):
        return _settled(model(name, **part.given))
    return _settled(kind(**{**_small(kind), **part.given}))


def _class(name: str, module: object) -> type | None:
    import diffusers

    found = getattr(module, name, None) or getattr(diffusers, name, None)
    return found if inspect.isclass(found) else None


def _small(kind: Any) -> dict[str, object]:
    """Constructor arguments of a class of diffusers: those of every class, and its own."""
    if hasattr(kind, "set_timesteps") or "scheduling" in kind.__module__:
        return dict(SCHEDULERS.get(kind.__name__, {}))
    usual = {name: SMALL[name] for name in inspect.signature(kind.__init__).parameters if name in SMALL}
    return {**usual, **SIZES.get(kind.__name__, {})}


def _settled(part: Any) -> Any:
    """A model in inference mode whose weights that begin as zeros have values: zeros would hide their inputs."""
    import torch

    if isinstance(part, torch.nn.Module):
        part.eval()
        for parameter in part.parameters():
            if parameter.numel() and not parameter.detach().any():
                torch.nn.init.normal_(parameter, std=_ZEROS_STD)
    return part
